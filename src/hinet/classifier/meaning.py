"""What texts mean, as dense columns beside their words: static vectors of tokens, or the embeddings of an encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.bundled_encoder import BundledEncoder
from hinet.data.matrices import unit_rows
from hinet.data.vectors import TokenVectors, read_vectors
from hinet.data.vectors.token_vectors import MAX_WIDTH
from hinet.errors import HiNetError
from hinet.files.schema import check_arrays, floats

if TYPE_CHECKING:
    from hinet.encoders import CachedEncoder, Encoder
    from hinet.encoders.cache import TextVectors
    from hinet.progress import Progress

EncoderPlace: TypeAlias = Union[str, Path, "Encoder", tuple[str | Path, ...]]

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
    """The embeddings of a frozen encoder, the one of training, which is loaded when texts come."""

    source: str  # folder of the encoder, name of its package, or name on the hub
    fingerprint: str
    width: int
    bundled: BundledEncoder | None = field(default=None, repr=False)  # a copy in the files of the model
    loaded: CachedEncoder[TextVectors] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, encoder: str | Path | Encoder) -> EncoderVectors:
        """Return the embeddings of an encoder, or of the one at a folder or name."""
        from hinet.encoders import CachedEncoder, Encoder

        found = encoder if isinstance(encoder, Encoder) else Encoder.load(encoder)
        source = found.name if isinstance(encoder, Encoder) else str(encoder)
        return cls(source, found.fingerprint, found.width, loaded=CachedEncoder(found))

    def use(self, encoder: EncoderPlace) -> None:
        """Read texts with the encoder at another place; raise HiNetError if it is not the one of training.

        The place is an encoder, its folder, package or name, or a folder that holds several; or a tuple of these.
        """
        from hinet.encoders import CachedEncoder, Encoder
        from hinet.encoders.sources import find_encoder

        if isinstance(encoder, Encoder) and encoder.fingerprint == self.fingerprint:
            self.source, self.loaded = encoder.name, CachedEncoder(encoder)
            return
        given = encoder if isinstance(encoder, tuple) else (encoder,)
        places = [each.folder if isinstance(each, Encoder) else each for each in given]
        self.source = str(find_encoder(self.source, self.fingerprint, places))
        self.loaded = CachedEncoder(Encoder.load(self.source))

    def bundle(self) -> EncoderVectors:
        """Return the same with a copy of the encoder to be saved in the model."""
        from hinet.encoders import Encoder

        if self.bundled is not None:
            return self
        encoder = self._cached().encoder
        assert isinstance(encoder, Encoder)
        return replace(self, bundled=BundledEncoder.of(encoder))

    def vectors(self, texts: Any, threads: int | None, progress: Progress | None = None) -> Floats:
        """Return the embedding of each text, (n, width)."""
        return self._cached().encode(texts, progress=progress, threads=threads)

    def _cached(self) -> CachedEncoder[TextVectors]:
        if self.loaded is None:
            self.loaded = self._load()
        return self.loaded

    def _load(self) -> CachedEncoder[TextVectors]:
        from hinet.encoders import CachedEncoder, Encoder
        from hinet.encoders.sources import environment_places, find_encoder

        if self.bundled is not None:
            return CachedEncoder(self.bundled)
        folder = find_encoder(self.source, self.fingerprint, [self.source, *environment_places()])
        return CachedEncoder(Encoder.load(folder))

    def describe(self) -> dict[str, Any]:
        """Return what is kept of it in a manifest."""
        bundled = {} if self.bundled is None else {"bundled": self.bundled.describe()}
        return {"source": self.source, "fingerprint": self.fingerprint, "width": self.width, **bundled}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk: those of an encoder that the model carries."""
        return {} if self.bundled is None else self.bundled.to_arrays()

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> EncoderVectors:
        """Return what gave this description and these arrays, or raise HiNetError."""
        width, shape = described["width"], described.get("bundled")
        if not 0 < width <= MAX_WIDTH:
            raise HiNetError(f"an encoder of {width:,} columns, expected 1 to {MAX_WIDTH:,}")
        bundled = None if shape is None else BundledEncoder.restored(shape, arrays)
        if bundled is not None and bundled.width != width:
            raise HiNetError(f"the encoder gives {bundled.width:,} columns, expected {width:,}")
        return cls(described["source"], described["fingerprint"], width, bundled)


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
        return {"encoder": self.source.source if self.source.bundled is None else self.source}

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
        """Return the arrays that are kept on disk; an encoder stays where it is, unless the model carries it."""
        own = {"meaning.mean": self.mean, "meaning.scale": np.array([self.scale], np.float32)}
        if isinstance(self.source, EncoderVectors):
            return own | self.source.to_arrays()
        return own | {f"{PREFIX}{name}": array for name, array in self.source.to_arrays().items()}

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
            source = EncoderVectors.restored(encoder, arrays)
        check_arrays(arrays, _SCALING, {"width": source.width})
        return cls(source, np.array(arrays["meaning.mean"], np.float32), float(arrays["meaning.scale"][0]))


def vector_source(
    vectors: str | Path | TokenVectors | None, encoder: str | Path | Encoder | EncoderVectors | None
) -> TokenVectors | EncoderVectors | None:
    """Return where the vectors of texts come from, if anywhere."""
    if vectors is not None and encoder is not None:
        raise HiNetError("`vectors` and `encoder` both give vectors of texts; leave one of them out")
    if vectors is not None:
        return read_vectors(os.fsdecode(vectors) if isinstance(vectors, bytes) else vectors)
    if encoder is None or isinstance(encoder, EncoderVectors):
        return encoder
    return EncoderVectors.of(os.fsdecode(encoder) if isinstance(encoder, bytes) else encoder)


def _raw(source: TokenVectors | EncoderVectors, texts: Any, threads: int | None, progress: Progress | None) -> Floats:
    if isinstance(source, TokenVectors):
        return source.sums(texts, threads)
    return source.vectors(texts, threads, progress)
