"""Threads and devices of torch, and the transformer of an encoder in torch, by sentence-transformers.

A forked process has a copy of the OpenMP pool without its threads, so the first operation that uses the pool would wait
forever. With one thread no operation uses it; the workers of torch's own data loader do the same.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hinet.encoders.sources import Precision, reason_of
from hinet.errors import FileError, HiNetError, quoted
from hinet.parameters import resolve_threads

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set the number of torch threads within a block; None leaves it unchanged. A forked process always has one."""
    if threads is None or _forked:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(min(resolve_threads(threads), os.cpu_count() or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_network(value: Any) -> bool:
    """Return whether a value is a torch module."""
    return isinstance(value, nn.Module)


def device_name(value: Any) -> str | None:
    """Return the name of a device that torch can compute on here, or None."""
    try:
        return None if torch.empty(0, device=value).is_meta else str(torch.device(value))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        return None


def default_device() -> str:
    """Return the GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class EncoderParts(NamedTuple):
    """Components of a sentence encoder."""

    transformer: Any
    pooling: str
    others: tuple[str, ...]  # further modules, other than the scaling to length 1


class TorchNetwork:
    """A model of sentence-transformers in single precision: any architecture, on any device."""

    precision: Precision = "float32"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = str(model.device)

    @classmethod
    def load(cls, source: str | Path, folder: Path, device: str | None) -> TorchNetwork:
        """Return the network of an encoder's folder.

        Raises
        ------
        FileError
            If the folder cannot be loaded; names the source.
        """
        if device is not None and device_name(device) is None:
            raise HiNetError(f"device: torch finds no {quoted(str(device))} here; use 'cpu'")
        try:
            with _quiet():
                from sentence_transformers import SentenceTransformer

                model = SentenceTransformer(
                    str(folder), device=device or default_device(), local_files_only=True
                ).eval()
        except ImportError as error:
            raise HiNetError(f"an encoder needs another package: {error}") from None
        except Exception as error:  # anything that the libraries raise for a damaged folder
            raise FileError(source, f"cannot be loaded as an encoder ({reason_of(error)})") from None
        if not getattr(getattr(model, "tokenizer", None), "is_fast", False):
            raise FileError(source, "has no fast tokenizer (tokenizer.json); choose another encoder")
        return cls(model)

    @property
    def tokenizer(self) -> Any:
        """A new tokenizer of the package tokenizers."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.model.tokenizer.backend_tokenizer.to_str())

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of a text."""
        limit: int | None = self.model.max_seq_length
        return limit

    @property
    def parts(self) -> EncoderParts:
        """The components of the encoder."""
        transformer, *others = self.model
        pooling = next((part for part in others if type(part).__name__ == "Pooling"), None)
        mode = getattr(pooling, "pooling_mode", None) or (pooling and pooling.get_pooling_mode_str()) or "nothing"
        names = (type(part).__name__ for part in others if part is not pooling)
        inner = getattr(transformer, "auto_model", None) or getattr(transformer, "model", None)
        if inner is None:
            raise HiNetError("the encoder has no transformer; choose another one")
        return EncoderParts(inner, str(mode), tuple(name for name in names if name != "Normalize"))

    def pooled(
        self, batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], threads: int | None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of each batch of padded token ids and their mask, (b, width)."""
        for ids, mask in batches:
            with torch_threads(threads), torch.inference_mode(), _quiet():
                features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
                moved = {name: tensor.to(self.model.device) for name, tensor in features.items()}
                vectors = self.model(moved)["sentence_embedding"].float().cpu().numpy()
            yield vectors


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
