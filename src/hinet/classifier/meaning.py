"""What texts mean, as dense columns beside their words: static vectors of tokens, or the embeddings of an encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import unit_rows
from hinet.data.vectors import TokenVectors, read_vectors
from hinet.data.vectors.token_vectors import MAX_WIDTH
from hinet.errors import HiNetError
from hinet.files.schema import check_arrays, floats

if TYPE_CHECKING:
    from hinet.encoders import CachedEncoder, Encoder
    from hinet.progress import Progress

LENGTH = 2.7  # of a usual row of vectors, where a row of words has length 1; chosen on held-out rows of NAICS
LEAST_LENGTH = 1e-6
PREFIX = "vectors."  # of the arrays of static vectors
_SCALING = {
    "meaning.mean": floats("width", low=-1, high=1),
    "meaning.scale": floats(1, low=0, high=LENGTH / LEAST_LENGTH),
}

Floats = NDArray[np.float32]


@dataclass(eq=False)
class EncoderVectors:
    """The embeddings of a frozen encoder, which is loaded when texts come and must be the one of training."""

    source: str  # its folder, or its name on the hub
    fingerprint: str
    width: int
    loaded: CachedEncoder | None = field(default=None, repr=False)

    @classmethod
    def of(cls, encoder: str | Path | Encoder) -> EncoderVectors:
        """Return the embeddings of an encoder, or of the one at a folder or name."""
        from hinet.encoders import CachedEncoder, Encoder

        found = encoder if isinstance(encoder, Encoder) else Encoder.load(encoder)
        source = found.name if isinstance(encoder, Encoder) else str(encoder)
        return cls(source, found.fingerprint, found.width, CachedEncoder(found))

    def vectors(self, texts: Any, threads: int | None, progress: Progress | None = None) -> Floats:
        """Return the embedding of each text, (n, width)."""
        if self.loaded is None:
            self.loaded = self._load()
        return self.loaded.encode(texts, progress=progress, threads=threads)

    def _load(self) -> CachedEncoder:
        from hinet.encoders import CachedEncoder, Encoder

        found = Encoder.load(self.source, local=True)  # a saved model fetches nothing
        if found.fingerprint != self.fingerprint:
            raise HiNetError(f"{self.source!r} is another encoder than the one of training; put that one there")
        return CachedEncoder(found)

    def describe(self) -> dict[str, Any]:
        """Return what is kept of it in a manifest."""
        return {"source": self.source, "fingerprint": self.fingerprint, "width": self.width}


@dataclass(frozen=True, eq=False)
class Meaning:
    """Vectors of texts, brought to length 1, their mean taken away, and scaled as the model reads them."""

    source: TokenVectors | EncoderVectors
    mean: Floats  # (width,)
    scale: float

    @classmethod
    def fit(
        cls, source: TokenVectors | EncoderVectors, texts: Any, threads: int | None, progress: Progress | None = None
    ) -> tuple[Meaning, Floats]:
        """Return how the vectors of texts such as these are read, and their columns."""
        unit = unit_rows(_raw(source, texts, threads, progress))
        mean = unit.mean(0)
        usual = float(np.sqrt(np.square(unit - mean).sum(1).mean())) if len(unit) else 1.0
        meaning = cls(source, mean, LENGTH / max(usual, LEAST_LENGTH))
        return meaning, meaning._scaled(unit)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.source.width

    @property
    def parameter(self) -> dict[str, Any]:
        """The parameter of a classifier that asks for it."""
        if isinstance(self.source, TokenVectors):
            return {"vectors": self.source}
        return {"encoder": self.source.source}

    def columns(self, texts: Any, threads: int | None) -> Floats:
        """Return the columns of texts, (n, width); zeros where no token has a vector."""
        return self._scaled(unit_rows(_raw(self.source, texts, threads, None)))

    def _scaled(self, unit: Floats) -> Floats:
        scaled = (unit - self.mean) * np.float32(self.scale)
        scaled[~unit.any(1)] = 0
        return scaled

    def by_word(self, text: str, slopes: NDArray[np.float64]) -> tuple[list[tuple[str, float]], float] | None:
        """Return what each word of a text adds to a sum of its columns times ``slopes``, and the rest.

        None for an encoder, which reads a text as a whole.
        """
        if not isinstance(self.source, TokenVectors):
            return None
        words, parts = self.source.by_token(text)
        length = float(np.linalg.norm(parts.sum(0))) if len(parts) else 0.0
        if not length:
            return [], 0.0
        pushes = self.scale / length * (parts.astype(np.float64) @ slopes)
        return list(zip(words, pushes.tolist(), strict=True)), -self.scale * float(self.mean @ slopes)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk; an encoder stays where it is."""
        own = {"meaning.mean": self.mean, "meaning.scale": np.array([self.scale], np.float32)}
        if isinstance(self.source, TokenVectors):
            own |= {f"{PREFIX}{name}": array for name, array in self.source.to_arrays().items()}
        return own

    def describe(self) -> dict[str, Any]:
        """Return what else is kept, as plain values for JSON."""
        return {"encoder": self.source.describe() if isinstance(self.source, EncoderVectors) else None}

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Meaning:
        """Return what gave this description and these arrays, or raise HiNetError."""
        encoder = described["encoder"]
        if encoder is None:
            own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
            source: TokenVectors | EncoderVectors = TokenVectors.from_arrays(own)
        else:
            if not 0 < encoder["width"] <= MAX_WIDTH:
                raise HiNetError(f"an encoder of {encoder['width']:,} columns, expected 1 to {MAX_WIDTH:,}")
            source = EncoderVectors(**encoder)
        check_arrays(arrays, _SCALING, {"width": source.width})
        return cls(source, np.array(arrays["meaning.mean"], np.float32), float(arrays["meaning.scale"][0]))


def vector_source(
    vectors: str | Path | TokenVectors | None, encoder: str | Path | Encoder | None
) -> TokenVectors | EncoderVectors | None:
    """Return where the vectors of texts come from, if anywhere."""
    if vectors is not None and encoder is not None:
        raise HiNetError("`vectors` and `encoder` both give vectors of texts; leave one of them out")
    if vectors is not None:
        return read_vectors(os.fsdecode(vectors) if isinstance(vectors, bytes) else vectors)
    if encoder is None:
        return None
    return EncoderVectors.of(os.fsdecode(encoder) if isinstance(encoder, bytes) else encoder)


def _raw(source: TokenVectors | EncoderVectors, texts: Any, threads: int | None, progress: Progress | None) -> Floats:
    if isinstance(source, TokenVectors):
        return source.sums(texts, threads)
    return source.vectors(texts, threads, progress)
