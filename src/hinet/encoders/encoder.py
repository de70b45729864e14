"""A sentence encoder: texts to vectors of length 1.

On a CPU, encoders of the BERT family run in onnxruntime with 8 bits, and others in torch in single precision. There,
only texts with equally many tokens share a batch, so that nothing is padded and the vector of a text does not depend on
other texts. On other devices, batches are padded, which changes a vector by less than 1e-4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.data.matrices import unit_rows
from hinet.data.text.text_input import as_arrow
from hinet.encoders.sources import Precision, encoder_folder, fingerprint_of
from hinet.errors import FileError, HiNetError
from hinet.extras import is_installed, require
from hinet.parameters import NONE, THREADS, one_of, whole
from hinet.progress import Progress, SilentProgress

Ints: TypeAlias = NDArray[np.int64]
Vectors: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = Sequence[Sequence[int]]

BATCH_TOKENS = 512  # tokens per batch on a CPU; larger batches do not fit its cache
DEVICE_BATCH = 256  # rows per batch on other devices
WINDOW = 16_384  # texts tokenised and sorted by length at a time
PRECISION = one_of(*get_args(Precision)) | NONE


class Network(Protocol):
    """The transformer of an encoder."""

    device: str
    precision: Precision

    @property
    def tokenizer(self) -> Any:
        """A new tokenizer of the package tokenizers."""

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of a text."""

    def pooled(self, batches: Iterable[tuple[Ints, Ints]], threads: int | None) -> Iterator[Vectors]:
        """Yield the vectors of each batch of token ids and their mask, both (b, tokens); only a GPU gets padding."""


class Encoder:
    """A sentence-transformers or Hugging Face model that turns texts into vectors; see :meth:`load`."""

    def __init__(self, network: Network, folder: Path, name: str, threads: int | None = None) -> None:
        self.network, self._threads = network, threads
        self.folder = folder
        self.name = name  # name of the folder or package, or on the hub
        self.device = network.device
        self.precision = network.precision
        self.prompt = _prompt(folder)
        self.tokenizer = network.tokenizer
        self.tokenizer.no_padding()
        self.max_tokens = network.max_tokens
        if self.max_tokens is not None:
            self.tokenizer.enable_truncation(self.max_tokens)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: str | None = None,
        precision: Precision | None = None,
        threads: int | None = None,
        local: bool = False,
    ) -> Encoder:
        """Load an encoder from a folder, an installed package or the Hugging Face hub.

        Folders, packages and models that were downloaded before need no network. With ``local``, nothing is downloaded.
        ``device`` defaults to a GPU if torch finds one. ``precision`` is ``"int8"`` or ``"float32"``, by default 8 bits
        where onnxruntime supports the encoder. ``threads`` is the number of threads on a CPU, by default one per core.

        Raises
        ------
        HiNetError
            If a package is missing, or if nothing can be loaded from the source.
        """
        if not is_installed("sentence_transformers"):
            require("onnxruntime", "an encoder")
        count = THREADS.validate("threads", threads)
        precision = PRECISION.validate("precision", precision)
        folder = encoder_folder(source, local=local)
        is_folder = Path(source).expanduser().is_dir()
        name = folder.resolve().name if is_folder else str(source)
        return cls(_load_network(source, folder, device, precision), folder, name, count)

    @cached_property
    def width(self) -> int:
        """Number of columns of a vector."""
        before, after = self.frame
        ((_, vectors),) = self._encode_batches([[*before, *after]], None)
        return int(vectors.shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the files that determine the vectors, and the precision if it is not single precision."""
        return fingerprint_of(self.folder, self.precision)

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens before and after the tokens of a text."""
        encoded = self.tokenizer.encode("a")
        ids, special = list(encoded.ids), list(encoded.special_tokens_mask)
        first = special.index(0) if 0 in special else len(ids)
        last = len(ids) - special[::-1].index(0) if 0 in special else len(ids)
        return ids[:first], ids[last:]

    def encode(
        self, texts: Any, *, progress: Progress | None = None, batch: int | None = None, threads: int | None = None
    ) -> Vectors:
        """Return a vector of length 1 for each text, (n, width).

        Texts are a list, an Arrow array, or a pandas or polars column. None and null count as the empty text, whose
        vector is that of the special tokens alone. Long texts are truncated to the maximum length of the encoder.
        ``threads`` is the number of threads on a CPU and defaults to that of :meth:`load`.
        """
        distinct, rows = distinct_texts(texts)
        return self._vectors(self.batches(distinct, batch=batch, threads=threads), len(distinct), progress)[rows]

    def batches(
        self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None
    ) -> Iterator[tuple[Ints, Vectors]]:
        """Yield the positions of some texts and their vectors, until all texts are encoded."""
        for start in range(0, len(texts), WINDOW):
            ids = self._tokenise(texts[start : start + WINDOW])
            for numbers, encoded in self._encode_batches(ids, batch, threads):
                yield numbers + start, encoded

    def encode_ids(self, ids: Ids, *, progress: Progress | None = None) -> Vectors:
        """Return a vector of length 1 for each sequence of token ids, which include the special tokens."""
        return self._vectors(self._encode_batches(ids, None), len(ids), progress)

    def _vectors(self, batches: Iterator[tuple[Ints, Vectors]], count: int, progress: Progress | None) -> Vectors:
        """Return the vectors of all batches in the order of their numbers."""
        progress = progress or SilentProgress()
        vectors = np.empty((count, self.width), np.float32)
        progress.started(1, count)
        try:
            for numbers, encoded in batches:
                vectors[numbers] = encoded
                progress.advanced(len(numbers))
        finally:
            progress.finished()
        return vectors

    def _tokenise(self, texts: Sequence[str]) -> Ids:
        return [encoded.ids for encoded in self.tokenizer.encode_batch_fast([self.prompt + text for text in texts])]

    def _encode_batches(
        self, ids: Ids, batch: int | None, threads: int | None = None
    ) -> Iterator[tuple[Ints, Vectors]]:
        size = None if batch is None else whole(1).validate("batch", batch)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        if self.device == "cpu":
            batches = list(batches_by_length(lengths, size))
        else:
            order, size = np.argsort(lengths, kind="stable"), size or DEVICE_BATCH
            batches = [order[start : start + size] for start in range(0, len(order), size)]
        padded = (
            pad_tokens(np.array([token for row in rows.tolist() for token in ids[row]], np.int64), lengths[rows])
            for rows in batches
        )
        pooled = self.network.pooled(padded, self._threads if threads is None else threads)
        for numbers, vectors in zip(batches, pooled, strict=True):
            yield numbers, unit_rows(vectors)


def batches_by_length(lengths: Ints, size: int | None = None) -> Iterator[Ints]:
    """Yield batches of rows of the same length, shortest first, of at most ``size`` rows and ``BATCH_TOKENS`` tokens.

    >>> [rows.tolist() for rows in batches_by_length(np.array([2, 1, 2, 2]), 2)]
    [[1], [0, 2], [3]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        length = int(lengths[order[start]])
        rows = max(1, BATCH_TOKENS // max(length, 1))
        last = order[start : start + (rows if size is None else min(rows, size))]
        stop = start + int(np.searchsorted(lengths[last], length, side="right"))
        yield order[start:stop]
        start = stop


def pad_tokens(ids: NDArray[np.integer[Any]], lengths: Ints) -> tuple[Ints, Ints]:
    """Return the concatenated token ids of rows as a matrix, and 1 where it holds a token; both (b, tokens)."""
    mask = np.arange(max(int(lengths.max(initial=1)), 1)) < lengths[:, None]
    padded = np.zeros(mask.shape, np.int64)
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


def _load_network(source: str | Path, folder: Path, device: str | None, precision: Precision | None) -> Network:
    """Return the network in onnxruntime if it supports the encoder on this device, else in torch."""
    reason = "onnxruntime runs on a CPU" if not _uses_cpu(device) else "onnxruntime or onnx is not installed"
    if _uses_cpu(device) and is_installed("onnxruntime") and is_installed("onnx"):
        from hinet.encoders.onnx_network import OnnxNetwork

        try:
            return OnnxNetwork.load(folder, precision or "int8")
        except HiNetError as error:
            reason = str(error)
    if precision == "int8":
        raise FileError(source, f"cannot run with 8 bits: {reason}")
    require("sentence_transformers", f"the encoder {source} ({reason})")
    from hinet.encoders.torch_runtime import TorchNetwork

    return TorchNetwork.load(source, folder, device)


def _uses_cpu(device: str | None) -> bool:
    if device is not None:
        return device == "cpu"
    if not is_installed("torch") or "+cpu" in version("torch"):  # no need to import torch
        return True
    from hinet.encoders.torch_runtime import default_device

    return default_device() == "cpu"


def _prompt(folder: Path) -> str:
    """Return the text before each text."""
    path = folder / "config_sentence_transformers.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return (config.get("prompts") or {}).get(config.get("default_prompt_name") or "") or ""
