"""A sentence encoder as a torch module: token ids to pooled embeddings, built from plain values and arrays alone.

Only encoders of well-known families are built, by the code of transformers, from the numbers and strings of their
configuration. Nothing in a saved file names code or is looked up on a hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, NotRequired, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data.matrices import unit_rows
from hinet.encoders.encoder import WINDOW, Encoder, batches_by_length, distinct_texts, pad_tokens
from hinet.encoders.onnx_network import OnnxNetwork
from hinet.encoders.sources import Precision, reason_of
from hinet.encoders.torch_runtime import TorchNetwork, torch_threads
from hinet.errors import HiNetError, quoted
from hinet.extras import require
from hinet.files import check_plain
from hinet.files.schema import FINITE, check_arrays, floats
from hinet.ragged import gather, offsets_of

FAMILIES = ("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
MAX_LAYERS = 200  # layers of a saved encoder; more would take long to build
MAX_TOKENS = 512  # tokens per text if the encoder has no limit
YIELDED_TEXTS = 4_096  # texts whose vectors `batches` yields at a time
TOKENIZER = "tokenizer"  # name of the array with the bytes of tokenizer.json
WEIGHTS = "encoder."  # prefix of the names of weights
TOLERANCE = 1e-3  # maximum difference between the vectors of a copy and those of the original
COMPARED_TEXTS = ("", "rye bread", "word " * 1_000)
_DROPPED_SETTINGS = (
    "auto_map", "quantization_config", "dtype", "torch_dtype", "transformers_version", "model_type",
)  # fmt: skip

Floats = NDArray[np.float32]


class EncoderShape(TypedDict):
    """Plain values that an encoder is built from, in addition to its weights and tokenizer."""

    family: str
    config: dict[str, str | int | float | bool | None]
    pooling: Literal["mean", "cls"]
    prompt: str  # before each text
    longest: int  # maximum number of tokens per text
    precision: NotRequired[Precision]  # single precision if left out


@dataclass(frozen=True)
class TokenBatch:
    """Padded token ids of some texts, and 1 where they are not padding; both (b, tokens)."""

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
        """(n,) Number of tokens of each text."""
        return np.diff(self.offsets)

    def __getitem__(self, rows: NDArray[np.int64]) -> TokenRows:
        ids, lengths = gather(self.ids, self.offsets, rows)
        return TokenRows(ids.astype(np.int32), offsets_of(lengths))


class TextEncoder(nn.Module):
    """A transformer whose token vectors are pooled to one vector per text, (b, k)."""

    def __init__(self, transformer: nn.Module, tokenizer: Any, shape: EncoderShape) -> None:
        super().__init__()
        self.transformer = transformer
        self.tokenizer, self.shape = tokenizer, shape
        tokenizer.no_padding()
        tokenizer.enable_truncation(shape["longest"])
        config: Any = transformer.config
        self.width, self._vocabulary = int(config.hidden_size), int(config.vocab_size)
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
            If its transformer or pooling is not supported; names the purpose of the copy and the remedy.
        """
        parts = TorchNetwork.load(encoder.name, encoder.folder, "cpu").parts
        family = str(parts.transformer.config.model_type)
        if family not in FAMILIES:
            raise HiNetError(
                f"the encoder {quoted(encoder.name)} is of the family {quoted(family)}, and {purpose} supports "
                f"{', '.join(FAMILIES)}; {remedy}"
            )
        if parts.pooling not in ("mean", "cls") or parts.others:
            actual = ", ".join([f"pooling by {parts.pooling}", *parts.others])
            raise HiNetError(
                f"the encoder {quoted(encoder.name)} has {actual}, and {purpose} supports only pooling by mean or cls; "
                f"{remedy}"
            )
        shape: EncoderShape = {
            "family": family,
            "config": _plain_config(family, parts.transformer.config.to_dict()),
            "pooling": "mean" if parts.pooling == "mean" else "cls",
            "prompt": encoder.prompt,
            "longest": min(encoder.max_tokens or MAX_TOKENS, MAX_TOKENS),
        }
        copied = cls(_without_pooler(parts.transformer.float()), encoder.network.tokenizer, shape)
        copied.check()
        return copied

    @classmethod
    def bundled(cls, encoder: Encoder) -> Self:
        """Return a copy of an encoder to save in a model; raise HiNetError if its vectors would differ."""
        remedy = "leave `bundle_encoder` out, and keep the encoder with the model"
        copied = cls.of(encoder, "`bundle_encoder`", remedy)
        if encoder.precision != "float32":
            copied.shape["precision"] = encoder.precision
        if np.abs(unit_rows(copied.embed(COMPARED_TEXTS)) - encoder.encode(COMPARED_TEXTS)).max() > TOLERANCE:
            raise HiNetError(f"a copy of the encoder {quoted(encoder.name)} gives other vectors; {remedy}")
        return copied

    @classmethod
    def restored(cls, shape: EncoderShape, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the encoder of this shape and these arrays.

        Raises
        ------
        HiNetError
            If they do not fit together. Nothing large is built before the shapes agree.
        """
        check_plain(shape, EncoderShape, "encoder")
        family, longest = shape["family"], shape["longest"]
        if family not in FAMILIES or not 0 < longest <= MAX_TOKENS:
            raise HiNetError(f"unknown encoder: family {quoted(family)} with {longest:,} tokens")
        weights = {name.removeprefix(WEIGHTS): array for name, array in arrays.items() if name.startswith(WEIGHTS)}
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str(arrays[TOKENIZER].tobytes().decode())
            with torch.device("meta"):
                expected = _build(family, shape["config"]).state_dict()
            schema = {name: floats(*tensor.shape, low=-FINITE, high=FINITE) for name, tensor in expected.items()}
            check_arrays(weights, schema, {})
            with torch.random.fork_rng(devices=[]):
                transformer = _build(family, shape["config"])
            transformer.load_state_dict({name: torch.from_numpy(np.array(weights[name])) for name in expected})
            encoder = cls(transformer.eval(), tokenizer, shape)
            encoder.check()
        except HiNetError:
            raise
        except Exception as error:  # anything that the libraries raise for values that no encoder has
            raise HiNetError(f"no encoder can be built from it ({reason_of(error)})") from None
        return encoder

    def check(self) -> None:
        """Raise HiNetError unless the tokenizer fits the transformer and the longest texts can be encoded."""
        last = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if last >= self._vocabulary:
            raise HiNetError(f"the tokenizer has the token {last:,}, and the encoder {self._vocabulary:,} tokens")
        longest = np.full(self.shape["longest"], (self._pad + 1) % self._vocabulary, np.int32)
        vectors = [self.embed([""]), self.embed_tokens(TokenRows(longest, offsets_of(np.array([len(longest)]))))]
        if not np.isfinite(vectors).all():
            raise HiNetError("the encoder gives numbers that are not finite")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the weights and the tokenizer."""
        state = self.transformer.state_dict()
        weights = {WEIGHTS + name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
        return {TOKENIZER: np.frombuffer(self.tokenizer.to_str().encode(), np.uint8), **weights}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the shape and the arrays of an encoder that is not trained further.

        It differs from the fingerprint of the original, which is a digest of files.
        """
        digest = blake2b(repr(sorted(self.shape.items())).encode(), digest_size=16)
        for name, array in sorted(self.to_arrays().items()):
            digest.update(f"{name}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    @cached_property
    def _int8(self) -> OnnxNetwork:
        """The network with 8 bits of an encoder that is not trained further."""
        require("onnxruntime", "an encoder with 8 bits")
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in self.transformer.state_dict().items()}
        config = {**self.shape["config"], "model_type": self.shape["family"]}
        return OnnxNetwork(weights, config, self.shape["pooling"], "int8")

    def set_dropout(self, share: float) -> None:
        """Use this dropout rate in training instead of the encoder's own."""
        for module in self.transformer.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.transformer.parameters()).device

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the pooled token vectors, (b, k)."""
        tokens: Tensor = self.transformer(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state  # (b, t, k)
        if self.shape["pooling"] == "cls":
            return tokens[:, 0]
        mask = batch.mask[:, :, None].to(tokens.dtype)
        return (tokens * mask).sum(1) / mask.sum(1).clamp(min=1)

    def tokens(self, texts: Any) -> TokenRows:
        """Return the token ids of texts, truncated, with special tokens."""
        distinct, rows = distinct_texts(texts)
        return self._tokenise(distinct)[rows]

    def _tokenise(self, texts: list[str]) -> TokenRows:
        prompt = self.shape["prompt"]
        encoded = [each.ids for each in self.tokenizer.encode_batch([prompt + text for text in texts])]
        offsets = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        ids = np.fromiter((number for each in encoded for number in each), np.int32, int(offsets[-1]))
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocabulary:
            raise HiNetError(f"the tokenizer gives the token {ids.max():,}, and the encoder has {self._vocabulary:,}")
        return TokenRows(ids, offsets)

    def batches(
        self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Yield the positions of some texts and their vectors of length 1, until all texts are encoded."""
        for start in range(0, len(texts), YIELDED_TEXTS):
            part = list(texts[start : start + YIELDED_TEXTS])
            yield np.arange(start, start + len(part)), unit_rows(self.embed(part, threads))

    def embed(self, texts: Any, threads: int | None = None) -> Floats:
        """Return the vector of each text, (n, k), without dropout."""
        distinct, rows = distinct_texts(texts)
        vectors = np.empty((len(distinct), self.width), np.float32)
        for start in range(0, len(distinct), WINDOW):
            part = self._tokenise(distinct[start : start + WINDOW])
            vectors[start : start + WINDOW] = self.embed_tokens(part, threads)
        return vectors[rows]

    def embed_tokens(self, rows: TokenRows, threads: int | None = None) -> Floats:
        """Return the vector of each row, (n, k), without dropout.

        Rows of a batch have the same length, so that other rows do not change a vector.
        """
        vectors = np.empty((len(rows), self.width), np.float32)
        batches = list(batches_by_length(rows.lengths))
        if self.shape.get("precision") == "int8":
            padded = (pad_tokens(*gather(rows.ids, rows.offsets, chosen)) for chosen in batches)
            for chosen, pooled in zip(batches, self._int8.pooled(padded, threads), strict=True):
                vectors[chosen] = pooled
            return vectors
        was_training = self.training
        self.eval()
        try:
            with torch_threads(threads), torch.inference_mode():
                for chosen in batches:
                    vectors[chosen] = self(self.batch(rows, chosen)).float().cpu().numpy()
        finally:
            self.train(was_training)
        return vectors

    def batch(self, rows: TokenRows, chosen: NDArray[np.int64]) -> TokenBatch:
        """Return the chosen rows, padded to the longest of them, on the device of the encoder."""
        ids, lengths = gather(rows.ids, rows.offsets, chosen)
        padded, mask = pad_tokens(ids, lengths)
        return TokenBatch(torch.from_numpy(padded).to(self.device), torch.from_numpy(mask).to(self.device))


def _plain_config(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and strings of a configuration that the family of the encoder knows."""
    from transformers import CONFIG_MAPPING

    known = CONFIG_MAPPING[family]().to_dict()
    return {
        name: value
        for name, value in config.items()
        if name in known
        and name not in _DROPPED_SETTINGS
        and not name.startswith("_")
        and "implementation" not in name
        and isinstance(value, str | int | float | bool | None)
    }


def _build(family: str, config: Mapping[str, Any]) -> Any:
    """Return a transformer with random weights."""
    from transformers import CONFIG_MAPPING, AutoModel

    settings = CONFIG_MAPPING[family](**_plain_config(family, config))
    if not 0 < settings.num_hidden_layers <= MAX_LAYERS:
        raise HiNetError(f"the encoder has {settings.num_hidden_layers:,} layers, expected 1 to {MAX_LAYERS}")
    model: Any = AutoModel
    return _without_pooler(model.from_config(settings, trust_remote_code=False).float())


def _without_pooler(transformer: Any) -> Any:
    """Return a transformer without the unused layer above its first token."""
    if getattr(transformer, "pooler", None) is not None:
        transformer.pooler = None
    return transformer
