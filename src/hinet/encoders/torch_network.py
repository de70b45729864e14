"""The transformer of an encoder in torch, by sentence-transformers: any architecture, on any device."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hinet.encoders.sources import Precision, reason_of
from hinet.encoders.torch_runtime import default_device, device_name, torch_threads
from hinet.errors import FileError, HiNetError, quoted


class EncoderParts(NamedTuple):
    """Components of a sentence encoder."""

    transformer: Any
    pooling: str
    others: tuple[str, ...]  # further modules, other than the scaling to length 1


class TorchNetwork:
    """A model of sentence-transformers in single precision."""

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
        device = _device(device)
        try:
            with _quiet():
                from sentence_transformers import SentenceTransformer

                model = SentenceTransformer(str(folder), device=device, local_files_only=True).eval()
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


def _device(device: str | None) -> str:
    if device is None:
        return default_device()
    if device_name(device) is None:
        raise HiNetError(f"device: torch finds no {quoted(str(device))} here; use 'cpu'")
    return device


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
