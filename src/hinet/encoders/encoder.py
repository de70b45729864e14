"""A sentence encoder: texts to vectors of length 1, by a transformer in single precision.

On a CPU only texts with equally many tokens share a batch, so that nothing is padded. The vector of a text is then the
same in any batch up to rounding, below 1e-5; on other devices, where batches are padded, below 1e-4.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.data.matrices import unit_rows
from hinet.data.text.text_input import as_arrow
from hinet.encoders.sources import encoder_folder, fingerprint_of, reason_of
from hinet.errors import FileError, HiNetError, quoted
from hinet.extras import require
from hinet.parameters import THREADS, whole
from hinet.progress import Progress, SilentProgress

Ints: TypeAlias = NDArray[np.int64]
Vectors: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = Sequence[Sequence[int]]

BATCH = 64  # rows per batch on a CPU; larger batches do not fit its cache
DEVICE_BATCH = 256  # rows per batch on other devices
WINDOW = 16_384  # texts tokenised and sorted by length at a time


class EncoderParts(NamedTuple):
    """Components of a sentence encoder."""

    transformer: Any
    tokenizer: str  # content of tokenizer.json
    pooling: str
    others: tuple[str, ...]  # further modules, other than the scaling to length 1
    prompt: str
    max_tokens: int | None  # per text


class Encoder:
    """A sentence-transformers or Hugging Face model that turns texts into vectors; see :meth:`load`."""

    def __init__(self, model: Any, folder: Path, name: str, threads: int | None = None) -> None:
        self._model, self._threads = model, threads
        self.folder = folder
        self.name = name  # name of the folder or package, or on the hub
        self.device = str(model.device)

    @classmethod
    def load(
        cls, source: str | Path, *, device: str | None = None, threads: int | None = None, local: bool = False
    ) -> Encoder:
        """Load an encoder from a folder, an installed package or the Hugging Face hub.

        Folders, packages and models that were downloaded before need no network. With ``local``, nothing is downloaded.
        ``device`` defaults to a GPU if torch finds one. ``threads`` is the number of torch threads on a CPU; by default
        it is left unchanged.

        Raises
        ------
        HiNetError
            If the extra ``encoder`` is missing, or if nothing can be loaded from the source.
        """
        require("sentence_transformers", "an encoder")
        count = THREADS.validate("threads", threads)
        folder = encoder_folder(source, local=local)
        model = _load_model(source, folder, _device(device))
        tokenizer = getattr(model, "tokenizer", None)
        if not getattr(tokenizer, "is_fast", False):
            raise FileError(source, "has no fast tokenizer (tokenizer.json); choose another encoder")
        is_folder = Path(source).expanduser().is_dir()
        return cls(model, folder, folder.resolve().name if is_folder else str(source), count)

    @cached_property
    def width(self) -> int:
        """Number of columns of a vector."""
        before, after = self.frame
        ((_, vectors),) = self._encode_batches([[*before, *after]], None)
        return int(vectors.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the files that determine the vectors: weights, configuration and tokenizer."""
        return fingerprint_of(self.folder)

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._model.tokenizer

    def parts(self) -> EncoderParts:
        """Return the components of the encoder."""
        transformer, *others = self._model
        pooling = next((part for part in others if type(part).__name__ == "Pooling"), None)
        mode = getattr(pooling, "pooling_mode", None) or (pooling and pooling.get_pooling_mode_str()) or "nothing"
        names = (type(part).__name__ for part in others if part is not pooling)
        inner = getattr(transformer, "auto_model", None) or getattr(transformer, "model", None)
        if inner is None:
            raise HiNetError(f"the encoder {quoted(self.name)} has no transformer; choose another one")
        return EncoderParts(
            inner,
            self.tokenizer.backend_tokenizer.to_str(),
            str(mode),
            tuple(name for name in names if name != "Normalize"),
            self._prompt,
            self._model.max_seq_length,
        )

    @property
    def _prompt(self) -> str:
        return (self._model.prompts or {}).get(self._model.default_prompt_name or "", None) or ""

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens before and after the tokens of a text."""
        encoded = self.tokenizer("a", return_special_tokens_mask=True)
        ids, special = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
        first = special.index(0) if 0 in special else len(ids)
        last = len(ids) - special[::-1].index(0) if 0 in special else len(ids)
        return ids[:first], ids[last:]

    def encode(
        self, texts: Any, *, progress: Progress | None = None, batch: int | None = None, threads: int | None = None
    ) -> Vectors:
        """Return a vector of length 1 for each text, (n, width).

        Texts are a list, an Arrow array, or a pandas or polars column. None and null count as the empty text, whose
        vector is that of the special tokens alone. Long texts are truncated to the maximum length of the encoder.
        ``threads`` is the number of torch threads on a CPU and defaults to that of :meth:`load`.
        """
        distinct, rows = distinct_texts(texts)
        progress = progress or SilentProgress()
        vectors = np.empty((len(distinct), self.width), np.float32)
        progress.started(1, len(distinct))
        try:
            for numbers, encoded in self.batches(distinct, batch=batch, threads=threads):
                vectors[numbers] = encoded
                progress.advanced(len(numbers))
        finally:
            progress.finished()
        return vectors[rows]

    def batches(
        self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None
    ) -> Iterator[tuple[Ints, Vectors]]:
        """Yield the positions of some texts and their vectors, until all texts are encoded."""
        for start in range(0, len(texts), WINDOW):
            ids = self._tokenise(texts[start : start + WINDOW])
            for numbers, encoded in self._encode_batches(ids, batch, threads):
                yield numbers + start, encoded

    def encode_ids(self, ids: Ids, *, progress: Progress | None = None, batch: int | None = None) -> Vectors:
        """Return a vector of length 1 for each sequence of token ids, which include the special tokens."""
        vectors = np.empty((len(ids), self.width), np.float32)
        for numbers, encoded in self._encode_batches(ids, batch):
            vectors[numbers] = encoded
            if progress is not None:
                progress.advanced(len(numbers))
        return vectors

    def _tokenise(self, texts: Sequence[str]) -> Ids:
        max_tokens = self._model.max_seq_length
        with _quiet():
            ids: Ids = self.tokenizer(
                [self._prompt + text for text in texts],
                truncation=max_tokens is not None,
                max_length=max_tokens,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=False,
            )["input_ids"]
        return ids

    def _encode_batches(
        self, ids: Ids, batch: int | None, threads: int | None = None
    ) -> Iterator[tuple[Ints, Vectors]]:
        import torch

        from hinet.encoders.torch_runtime import torch_threads

        on_cpu = self.device == "cpu"
        size = (BATCH if on_cpu else DEVICE_BATCH) if batch is None else whole(1).validate("batch", batch)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        for numbers in batches_by_length(lengths, size, equal=on_cpu):
            with torch_threads(self._threads if threads is None else threads), torch.inference_mode(), _quiet():
                encoded = self._forward([ids[number] for number in numbers.tolist()], lengths[numbers])
            yield numbers, unit_rows(encoded)

    def _forward(self, ids: Ids, lengths: Ints) -> Vectors:
        import torch

        padded, mask = pad_tokens(np.array([number for row in ids for number in row], np.int64), lengths, self._pad)
        features = {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}
        features = {name: tensor.to(self._model.device) for name, tensor in features.items()}
        encoded: Vectors = self._model(features)["sentence_embedding"].float().cpu().numpy()
        return encoded

    @property
    def _pad(self) -> int:
        return self.tokenizer.pad_token_id or 0


def batches_by_length(lengths: Ints, size: int, *, equal: bool = True) -> Iterator[Ints]:
    """Yield batches of at most ``size`` rows, shortest first, and with ``equal`` only rows of the same length in each.

    >>> [rows.tolist() for rows in batches_by_length(np.array([2, 1, 2, 2]), 2)]
    [[1], [0, 2], [3]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = min(start + size, len(order))
        if equal:
            stop = start + int(np.searchsorted(lengths[order[start:stop]], lengths[order[start]], side="right"))
        yield order[start:stop]
        start = stop


def pad_tokens(ids: NDArray[np.integer[Any]], lengths: Ints, pad: int) -> tuple[Ints, Ints]:
    """Return the concatenated token ids of rows as a matrix, and 1 where it holds a token; both (b, tokens)."""
    mask = np.arange(max(int(lengths.max(initial=1)), 1)) < lengths[:, None]
    padded = np.full(mask.shape, pad, np.int64)
    padded[mask] = ids
    return padded, mask.astype(np.int64)


def distinct_texts(texts: Any) -> tuple[list[str], Ints]:
    """Return the distinct texts of any container in order of first appearance, and the position of each row's text.

    >>> distinct_texts(["rye", None, "rye"])
    (['rye', ''], array([0, 1, 0]))
    """
    if isinstance(texts, list | tuple):
        texts = ["" if text is None else text for text in texts]
    elif isinstance(texts, pa.Array | pa.ChunkedArray) or hasattr(texts, "__arrow_c_stream__"):
        array = pa.chunked_array([texts]) if isinstance(texts, pa.Array) else pa.chunked_array(texts)
        if array.null_count and not pa.types.is_dictionary(array.type):
            import pyarrow.compute as pc  # slow to import

            array = pc.fill_null(array.cast(pa.large_string()), "")
        texts = array
    positions: dict[str, int] = {}
    values = as_arrow(texts).to_pylist()
    rows = np.fromiter((positions.setdefault(text, len(positions)) for text in values), np.int64, len(values))
    return list(positions), rows


def _device(device: str | None) -> str:
    from hinet.encoders.torch_runtime import default_device, device_name

    if device is None:
        return default_device()
    if device_name(device) is None:
        raise HiNetError(f"device: torch finds no {quoted(str(device))} here; use 'cpu'")
    return device


def _load_model(source: str | Path, folder: Path, device: str) -> Any:
    try:
        with _quiet():
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(str(folder), device=device, local_files_only=True)
        return model.eval()
    except ImportError as error:
        raise HiNetError(f"an encoder needs another package: {error}") from None
    except Exception as error:  # anything that the libraries raise for a damaged folder
        raise FileError(source, f"cannot be loaded as an encoder ({reason_of(error)})") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of the libraries."""
    from transformers import utils

    bars: Any = utils.logging
    enabled = bars.is_progress_bar_enabled()
    if enabled:
        bars.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if enabled:
            bars.enable_progress_bar()
