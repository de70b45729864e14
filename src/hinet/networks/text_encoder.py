"""A sentence encoder as a feature network: token ids to pooled embeddings, built from plain values and arrays alone.

Only encoders of well-known families are built, by the code of transformers, from numbers and names of their
configuration. Nothing of a saved file names code, or is asked of a hub.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.encoders.encoder import Encoder, distinct_texts
from hinet.errors import HiNetError, quoted
from hinet.extras import require
from hinet.files import check_plain
from hinet.files.schema import FINITE, check_arrays, floats
from hinet.networks.threads import torch_threads
from hinet.ragged import gather, offsets_of

FAMILIES = ("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
MAX_LAYERS = 200  # of a saved encoder; more would take long to build
MAX_TOKENS = 512  # of a text, where the encoder names no limit
BATCH = 64
WINDOW = 16_384  # texts that are tokenised and sorted by length at a time
TOKENIZER = "tokenizer"  # the array of the bytes of tokenizer.json
WEIGHTS = "encoder."  # the prefix of arrays of weights
_NOT_KEPT = ("auto_map", "quantization_config", "dtype", "torch_dtype", "transformers_version", "model_type")

Floats = NDArray[np.float32]


class EncoderShape(TypedDict):
    """What an encoder is built from, beside its weights and its tokenizer."""

    family: str
    config: dict[str, str | int | float | bool | None]
    pooling: Literal["mean", "cls"]
    prompt: str  # before each text
    longest: int  # tokens of a text


@dataclass(frozen=True)
class TokenBatch:
    """The token ids of some texts, padded, and which of them are not padding; both (b, tokens)."""

    ids: Tensor
    mask: Tensor


@dataclass(frozen=True)
class TokenRows:
    """The token ids of texts as a ragged array."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]  # (n + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) Tokens of each text."""
        return np.diff(self.offsets)

    def __getitem__(self, rows: NDArray[np.int64]) -> TokenRows:
        ids, lengths = gather(self.ids, self.offsets, rows)
        return TokenRows(ids.astype(np.int32), offsets_of(lengths))

    def batch(self, rows: NDArray[np.int64], pad: int, device: torch.device) -> TokenBatch:
        """Return the chosen rows, padded to the longest of them."""
        ids, lengths = gather(self.ids, self.offsets, rows)
        mask = np.arange(max(int(lengths.max(initial=1)), 1)) < lengths[:, None]
        padded = np.full(mask.shape, pad, np.int64)
        padded[mask] = ids
        return TokenBatch(torch.from_numpy(padded).to(device), torch.from_numpy(mask.astype(np.int64)).to(device))


class TextEncoder(nn.Module):
    """A transformer whose token vectors are pooled to one vector a text, (b, k)."""

    def __init__(self, transformer: nn.Module, tokenizer: Any, shape: EncoderShape) -> None:
        super().__init__()
        self.transformer = transformer
        self.tokenizer, self.shape = tokenizer, shape
        tokenizer.no_padding()
        tokenizer.enable_truncation(shape["longest"])
        config: Any = transformer.config
        self.width, self._tokens = int(config.hidden_size), int(config.vocab_size)
        self._pad = int(config.pad_token_id or 0)

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        purpose: str = "fine-tuning",
        remedy: str = "leave the engine to 'auto' to use it as it is",
    ) -> Self:
        """Return a copy of an encoder, to be trained or saved.

        Raises
        ------
        HiNetError
            If its transformer or its pooling is not known here; names the purpose of the copy and the remedy.
        """
        from tokenizers import Tokenizer

        parts = encoder.parts()
        family = str(parts.transformer.config.model_type)
        if family not in FAMILIES:
            raise HiNetError(
                f"the encoder {quoted(encoder.name)} is of the family {quoted(family)}, and {purpose} knows "
                f"{', '.join(FAMILIES)}; {remedy}"
            )
        if parts.pooling not in ("mean", "cls") or parts.others:
            found = ", ".join([f"pooling by {parts.pooling}", *parts.others])
            raise HiNetError(
                f"the encoder {quoted(encoder.name)} has {found}, and {purpose} knows pooling by mean or cls alone; "
                f"{remedy}"
            )
        shape: EncoderShape = {
            "family": family,
            "config": _plain_config(family, parts.transformer.config.to_dict()),
            "pooling": "mean" if parts.pooling == "mean" else "cls",
            "prompt": parts.prompt,
            "longest": min(parts.longest or MAX_TOKENS, MAX_TOKENS),
        }
        transformer = _without_pooler(copy.deepcopy(parts.transformer).float().cpu())
        copied = cls(transformer, Tokenizer.from_str(parts.tokenizer), shape)
        copied.check()
        return copied

    @classmethod
    def restored(cls, shape: EncoderShape, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the encoder of this description and these arrays.

        Raises
        ------
        HiNetError
            If they do not fit together. Nothing large is built before the shapes agree.
        """
        require("sentence_transformers", "a model with its own encoder")
        check_plain(shape, EncoderShape, "encoder")
        family, longest = shape["family"], shape["longest"]
        if family not in FAMILIES or not 0 < longest <= MAX_TOKENS:
            raise HiNetError(f"an encoder of the family {quoted(family)} and {longest:,} tokens, which is not known")
        weights = {name.removeprefix(WEIGHTS): array for name, array in arrays.items() if name.startswith(WEIGHTS)}
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str(arrays[TOKENIZER].tobytes().decode())
            with torch.device("meta"):
                expected = _built(family, shape["config"]).state_dict()
            schema = {name: floats(*tensor.shape, low=-FINITE, high=FINITE) for name, tensor in expected.items()}
            check_arrays(weights, schema, {})
            with torch.random.fork_rng(devices=[]):
                transformer = _built(family, shape["config"])
            transformer.load_state_dict({name: torch.from_numpy(np.array(weights[name])) for name in expected})
            encoder = cls(transformer.eval(), tokenizer, shape)
            encoder.check()
        except HiNetError:
            raise
        except Exception as error:  # whatever the libraries below raise for values that no encoder has
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise HiNetError(f"no encoder can be built from it ({reason})") from None
        return encoder

    def check(self) -> None:
        """Raise HiNetError unless the tokens are those of the encoder, and the longest texts can be read."""
        most = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if most >= self._tokens:
            raise HiNetError(f"the tokenizer has the token {most:,}, and the encoder {self._tokens:,} tokens")
        longest = np.full(self.shape["longest"], (self._pad + 1) % self._tokens, np.int32)
        vectors = [self.embed([""]), self.embed_tokens(TokenRows(longest, offsets_of(np.array([len(longest)]))))]
        if not np.isfinite(vectors).all():
            raise HiNetError("the encoder gives numbers that are not finite")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the weights and the tokenizer."""
        state = self.transformer.state_dict()
        weights = {WEIGHTS + name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
        return {TOKENIZER: np.frombuffer(self.tokenizer.to_str().encode(), np.uint8), **weights}

    def set_dropout(self, share: float) -> None:
        """Drop this share of units in training, instead of what the encoder was made with."""
        for module in self.transformer.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.transformer.parameters()).device

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the pooled vectors of token vectors, (b, k)."""
        tokens: Tensor = self.transformer(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state  # (b, t, k)
        if self.shape["pooling"] == "cls":
            return tokens[:, 0]
        mask = batch.mask[:, :, None].to(tokens.dtype)
        return (tokens * mask).sum(1) / mask.sum(1).clamp(min=1)

    def tokens(self, texts: Any) -> TokenRows:
        """Return the token ids of texts, special ones included, cut as the encoder cuts them."""
        distinct, rows = distinct_texts(texts)
        return self._tokenised(distinct)[rows]

    def _tokenised(self, texts: list[str]) -> TokenRows:
        prompt = self.shape["prompt"]
        found = [each.ids for each in self.tokenizer.encode_batch([prompt + text for text in texts])]
        offsets = offsets_of(np.fromiter(map(len, found), np.int64, len(found)))
        ids = np.fromiter((number for each in found for number in each), np.int32, int(offsets[-1]))
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._tokens:
            raise HiNetError(f"the tokenizer gives the token {ids.max():,}, and the encoder has {self._tokens:,}")
        return TokenRows(ids, offsets)

    def embed(self, texts: Any, threads: int | None = None) -> Floats:
        """Return the vector of each text, (n, k), without dropout."""
        distinct, rows = distinct_texts(texts)
        vectors = np.empty((len(distinct), self.width), np.float32)
        for start in range(0, len(distinct), WINDOW):
            part = self._tokenised(distinct[start : start + WINDOW])
            vectors[start : start + WINDOW] = self.embed_tokens(part, threads)
        return vectors[rows]

    def embed_tokens(self, rows: TokenRows, threads: int | None = None) -> Floats:
        """Return the vector of each row, (n, k), without dropout."""
        vectors = np.empty((len(rows), self.width), np.float32)
        was_training = self.training
        self.eval()
        try:
            with torch_threads(threads), torch.inference_mode():
                for chosen in self._equal_lengths(rows.lengths):
                    vectors[chosen] = self(rows.batch(chosen, self._pad, self.device)).float().cpu().numpy()
        finally:
            self.train(was_training)
        return vectors

    def _equal_lengths(self, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield batches of rows of equal length, so that nothing is padded and a batch does not change an answer."""
        order = np.argsort(lengths, kind="stable")
        start = 0
        while start < len(order):
            same = np.searchsorted(lengths[order], lengths[order[start]], side="right")
            stop = min(start + BATCH, int(same))
            yield order[start:stop]
            start = stop

    def training_batch(self, rows: TokenRows, chosen: NDArray[np.int64]) -> TokenBatch:
        """Return the chosen rows as the encoder reads them, where it computes."""
        return rows.batch(chosen, self._pad, self.device)


def _plain_config(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and names of a configuration that encoders of a family have."""
    from transformers import CONFIG_MAPPING

    known = CONFIG_MAPPING[family]().to_dict()
    return {
        name: value
        for name, value in config.items()
        if name in known
        and name not in _NOT_KEPT
        and not name.startswith("_")
        and "implementation" not in name
        and isinstance(value, str | int | float | bool | None)
    }


def _built(family: str, config: Mapping[str, Any]) -> Any:
    """Return a transformer with random weights."""
    from transformers import CONFIG_MAPPING, AutoModel

    settings = CONFIG_MAPPING[family](**_plain_config(family, config))
    if not 0 < settings.num_hidden_layers <= MAX_LAYERS:
        raise HiNetError(f"an encoder of {settings.num_hidden_layers:,} layers, expected 1 to {MAX_LAYERS}")
    model: Any = AutoModel
    return _without_pooler(model.from_config(settings, trust_remote_code=False).float())


def _without_pooler(transformer: Any) -> Any:
    """Return a transformer without the layer above its first token, which is not used."""
    if getattr(transformer, "pooler", None) is not None:
        transformer.pooler = None
    return transformer
