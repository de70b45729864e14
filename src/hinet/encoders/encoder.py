"""A sentence encoder: texts to vectors of length 1, by a transformer in single precision.

On a CPU only texts of equal length in tokens share a batch, so that nothing is padded. The vector of a text is then the
same in any batch but for the rounding of sums, below 1e-5; on other devices, where batches are padded, below 1e-4.
"""

from __future__ import annotations

import os
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
from hinet.encoders.sources import encoder_folder, fingerprint_of
from hinet.errors import FileError, HiNetError, quoted
from hinet.extras import require
from hinet.parameters import THREADS, resolve_threads, whole
from hinet.progress import Progress, SilentProgress

Vectors: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = Sequence[Sequence[int]]

BATCH = 64  # rows of a batch on a CPU: larger ones leave its cache
DEVICE_BATCH = 256  # on other devices
WINDOW = 16_384  # texts sorted by length at a time


class EncoderParts(NamedTuple):
    """What a sentence encoder consists of."""

    transformer: Any
    tokenizer: str  # as tokenizer.json has it
    pooling: str
    others: tuple[str, ...]  # modules that are neither of these and not the scaling to length 1
    prompt: str
    longest: int | None  # tokens of a text


class Encoder:
    """A sentence-transformers or Hugging Face model that turns texts into vectors; see :meth:`load`."""

    def __init__(self, model: Any, folder: Path, name: str, threads: int | None = None) -> None:
        self._model, self._threads, self._process = model, threads, os.getpid()
        self.folder = folder  # that has its files
        self.name = name  # of the folder, of the package, or on the hub
        self.device = str(model.device)

    @classmethod
    def load(
        cls, source: str | Path, *, device: str | None = None, threads: int | None = None, local: bool = False
    ) -> Encoder:
        """Load an encoder from a folder, an installed package that carries one, or the Hugging Face hub.

        Folders, packages, and models that were fetched before need no network. With ``local`` nothing is fetched.
        ``device`` is by default a GPU if torch finds one; ``threads`` are those of torch on a CPU, by default as torch
        is set.

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
        """The number of columns of a vector."""
        return int(self.encode_ids([[*self.frame[0], *self.frame[1]]]).shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the content of the files that decide the vectors: weights, configuration and tokenizer."""
        return fingerprint_of(self.folder)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers."""
        return self._model.tokenizer

    def parts(self) -> EncoderParts:
        """Return what the encoder consists of."""
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
        """The ids of the special tokens before and after the tokens of a text."""
        found = self.tokenizer("a", return_special_tokens_mask=True)
        ids, special = list(found["input_ids"]), list(found["special_tokens_mask"])
        first = special.index(0) if 0 in special else len(ids)
        last = len(ids) - special[::-1].index(0) if 0 in special else len(ids)
        return ids[:first], ids[last:]

    def encode(
        self, texts: Any, *, progress: Progress | None = None, batch: int | None = None, threads: int | None = None
    ) -> Vectors:
        """Return a vector of length 1 for each text, in the order of the texts, as (n, width).

        Texts are a list, an Arrow array, or a column of pandas or polars. None and null are the empty text, whose
        vector is what the encoder gives for its special tokens alone. Long texts are cut as the encoder cuts them.
        ``threads`` are those of torch on a CPU, by default those the encoder was loaded with.
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
    ) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Yield the numbers of some texts and their vectors, until all are encoded."""
        size = self._batch_size(batch)
        for start in range(0, len(texts), WINDOW):
            ids = self._tokenise(texts[start : start + WINDOW])
            for numbers, encoded in self._encode_batches(ids, size, threads):
                yield numbers + start, encoded

    def encode_ids(self, ids: Ids, *, progress: Progress | None = None, batch: int | None = None) -> Vectors:
        """Return a vector of length 1 for each sequence of token ids, special tokens included."""
        found = list(self._encode_batches(ids, self._batch_size(batch), progress=progress))
        vectors = np.empty((len(ids), found[0][1].shape[1] if found else self.width), np.float32)
        for numbers, encoded in found:
            vectors[numbers] = encoded
        return vectors

    def _batch_size(self, batch: int | None) -> int:
        if batch is not None:
            return int(whole(1).validate("batch", batch))
        return BATCH if self.device == "cpu" else DEVICE_BATCH

    def _tokenise(self, texts: Sequence[str]) -> Ids:
        prompt = self._prompt
        longest = self._model.max_seq_length
        with _quiet():
            ids: Ids = self.tokenizer(
                [prompt + text for text in texts],
                truncation=longest is not None,
                max_length=longest,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=False,
            )["input_ids"]
        return ids

    def _encode_batches(
        self, ids: Ids, batch: int, threads: int | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        import torch

        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        order = np.argsort(lengths, kind="stable")
        start = 0
        while start < len(order):
            stop = min(start + batch, len(order))
            if self.device == "cpu":  # a batch of equal lengths
                stop = start + int(np.searchsorted(lengths[order[start:stop]], lengths[order[start]], side="right"))
            numbers = order[start:stop]
            with self._torch_threads(threads), torch.inference_mode(), _quiet():
                encoded = self._forward(ids, numbers, lengths[numbers])
            yield numbers, unit_rows(encoded)
            if progress is not None:
                progress.advanced(len(numbers))
            start = stop

    def _forward(self, ids: Ids, numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> Vectors:
        import torch

        pad = self.tokenizer.pad_token_id
        padded = np.full((len(numbers), max(int(lengths.max()), 1)), 0 if pad is None else pad, np.int64)  # (b, tokens)
        mask = (np.arange(padded.shape[1]) < lengths[:, None]).astype(np.int64)
        for row, number in enumerate(numbers.tolist()):
            padded[row, : lengths[row]] = ids[number]
        features = {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)}
        features = {name: tensor.to(self._model.device) for name, tensor in features.items()}
        encoded: Vectors = self._model(features)["sentence_embedding"].float().cpu().numpy()
        return encoded

    @contextmanager
    def _torch_threads(self, threads: int | None) -> Iterator[None]:
        """Set the threads of torch for a while; a forked process has one, as its copy of the pool has no threads."""
        import torch

        before = torch.get_num_threads()
        forked = os.getpid() != self._process
        asked = self._threads if threads is None else threads
        wanted = 1 if forked else before if asked is None else resolve_threads(asked)
        if wanted != before:
            torch.set_num_threads(wanted)
        try:
            yield
        finally:
            if wanted != before and not forked:
                torch.set_num_threads(before)


def distinct_texts(texts: Any) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct texts of any container in the order they first appear, and the number of each row's text.

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
    found: dict[str, int] = {}
    values = as_arrow(texts).to_pylist()
    rows = np.fromiter((found.setdefault(text, len(found)) for text in values), np.int64, len(values))
    return list(found), rows


def _device(device: str | None) -> str:
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError):
        raise HiNetError(f"device: torch finds no {quoted(str(device))} here; use 'cpu'") from None
    return device


def _load_model(source: str | Path, folder: Path, device: str) -> Any:
    try:
        with _quiet():
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(str(folder), device=device, local_files_only=True)
        return model.eval()
    except ImportError as error:
        raise HiNetError(f"an encoder needs another package: {error}") from None
    except Exception as error:  # whatever the libraries below raise for a damaged folder
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(source, f"cannot be loaded as an encoder ({reason})") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of the libraries below."""
    from transformers import utils

    bars: Any = utils.logging
    shown = bars.is_progress_bar_enabled()
    if shown:
        bars.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if shown:
            bars.enable_progress_bar()
