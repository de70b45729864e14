"""Texts as dense columns of a model: static token vectors, a frozen encoder, or an encoder fine-tuned with the head."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

import hinet.encoders as encoders
from hinet.data.matrices import unit_rows
from hinet.encoders.token_vectors import FINGERPRINT, MAX_WIDTH, TokenVectors, referenced_vectors
from hinet.encoders.vector_files import read_vectors
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.files.schema import check_arrays, floats
from hinet.progress import Progress

if TYPE_CHECKING:
    from hinet.encoders.cache import CachedEncoder, VectorSource
    from hinet.encoders.encoder import Encoder
    from hinet.encoders.text_encoder import TextEncoder

EncoderPlace: TypeAlias = Union[str, Path, "Encoder", tuple[str | Path, ...]]

AUTO, NONE = "auto", "none"  # installed static vectors if they help, and no vectors
LENGTH = 2.7  # typical length of a row of vectors, where a row of words has length 1; chosen on NAICS held-out rows
MIN_LENGTH = 1e-6
TOKENS_PREFIX = "vectors."  # prefix of the arrays of static vectors
BUNDLED_PREFIX = "bundled."  # prefix of the arrays of an encoder in the model's own files
_SCALING = {
    "meaning.mean": floats("width", low=-1, high=1),
    "meaning.scale": floats(1, low=0, high=LENGTH / MIN_LENGTH),
}

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float32]


@dataclass(eq=False)
class EncoderVectors:
    """Embeddings of a frozen encoder, which is loaded when the first texts arrive."""

    source: str  # folder of the encoder, name of its package, or name on the hub
    fingerprint: str
    width: int
    bundled: TextEncoder | None = field(default=None, repr=False)  # a copy in the files of the model
    loaded: CachedEncoder[VectorSource] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, encoder: str | Path | Encoder) -> EncoderVectors:
        """Return the embeddings of an encoder, given itself, its folder or its name."""
        loaded, source = _load(encoder)
        return cls(source, loaded.fingerprint, loaded.width, loaded=encoders.CachedEncoder(loaded))

    def use(self, encoder: EncoderPlace) -> None:
        """Use the encoder at another place; raise HiNetError unless it is the encoder of training.

        The place is an encoder, its folder, package or name, a folder of several encoders, or a tuple of these.
        """
        if isinstance(encoder, encoders.Encoder) and encoder.fingerprint == self.fingerprint:
            self.source, self.loaded = encoder.name, encoders.CachedEncoder(encoder)
            return
        given = encoder if isinstance(encoder, tuple) else (encoder,)
        self.source = str(self._find([each.folder if isinstance(each, encoders.Encoder) else each for each in given]))

    def _find(self, places: Sequence[str | Path]) -> Path:
        """Load the encoder of training from one of some places, and return its folder."""
        from hinet.encoders.sources import find_encoder, precision_of

        folder = find_encoder(self.source, self.fingerprint, places)
        loaded = encoders.Encoder.load(folder, precision=precision_of(self.fingerprint))
        self.loaded = encoders.CachedEncoder(loaded)
        return folder

    def bundle(self) -> EncoderVectors:
        """Return the same with a copy of the encoder to save in the model."""
        if self.bundled is not None:
            return self
        from hinet.encoders.text_encoder import TextEncoder

        encoder = self._cached().encoder
        assert isinstance(encoder, encoders.Encoder)
        return replace(self, bundled=TextEncoder.bundled(encoder))

    def vectors(self, texts: Any, threads: int | None, progress: Progress | None = None) -> Floats:
        """Return the embedding of each text, (n, width)."""
        return self._cached().encode(texts, progress=progress, threads=threads)

    def _cached(self) -> CachedEncoder[VectorSource]:
        if self.loaded is None and self.bundled is not None:
            self.loaded = encoders.CachedEncoder(self.bundled)
        elif self.loaded is None:
            listed = os.environ.get("HINET_ENCODERS", "").split(os.pathsep)
            self._find([self.source, *filter(None, listed)])
        assert self.loaded is not None
        return self.loaded

    def describe(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        bundled = {} if self.bundled is None else {"bundled": dict(self.bundled.shape)}
        return {"source": self.source, "fingerprint": self.fingerprint, "width": self.width, **bundled}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save: none unless the encoder is bundled."""
        arrays = {} if self.bundled is None else self.bundled.to_arrays()
        return {BUNDLED_PREFIX + name: array for name, array in arrays.items()}

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Arrays) -> EncoderVectors:
        """Return the embeddings of a manifest entry and saved arrays, or raise HiNetError."""
        width, shape = described["width"], described.get("bundled")
        if not 0 < width <= MAX_WIDTH:
            raise HiNetError(f"the encoder has {width:,} columns, expected 1 to {MAX_WIDTH:,}")
        bundled = None
        if shape is not None:
            bundled = _restore_encoder(shape, _without_prefix(arrays, BUNDLED_PREFIX), "a model with its own encoder")
            if bundled.width != width:
                raise HiNetError(f"the encoder gives {bundled.width:,} columns, expected {width:,}")
        return cls(described["source"], described["fingerprint"], width, bundled)


@dataclass(frozen=True, eq=False)
class Meaning:
    """Vectors of texts, scaled to length 1, centred, and scaled again to the range that the model expects."""

    source: TokenVectors | EncoderVectors
    mean: Floats  # (width,)
    scale: float
    private: bool = False  # whether they are only compared with those of known texts

    @classmethod
    def fit(
        cls,
        source: TokenVectors | EncoderVectors,
        texts: Any,
        threads: int | None,
        progress: Progress | None = None,
        *,
        private: bool = False,
    ) -> tuple[Meaning, Floats]:
        """Fit mean and scale to texts; return them with the columns of the texts."""
        unit = unit_rows(_vectors(source, texts, threads, progress))
        mean = unit.mean(0)
        typical = float(np.sqrt(np.square(unit - mean).sum(1).mean())) if len(unit) else 1.0
        meaning = cls(source, mean, LENGTH / max(typical, MIN_LENGTH), private)
        return meaning, meaning._scaled(unit)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.source.width

    @property
    def parameter(self) -> dict[str, Any]:
        """The classifier parameter that selects these vectors."""
        if isinstance(self.source, TokenVectors):
            return {"vectors": AUTO if self.private else self.source.package or self.source}
        return {"encoder": self.source.source if self.source.bundled is None else self.source}

    def columns(self, texts: Any, threads: int | None) -> Floats:
        """Return the columns of texts, (n, width); zeros for texts without a known token."""
        return self._scaled(unit_rows(_vectors(self.source, texts, threads)))

    def _scaled(self, unit: Floats) -> Floats:
        scaled = (unit - self.mean) * np.float32(self.scale)
        scaled[~unit.any(1)] = 0
        return scaled

    def by_word(self, text: str, slopes: NDArray[np.float64]) -> tuple[list[tuple[str, float]], float] | None:
        """Return the contribution of each word of a text to the product of its columns and ``slopes``, and the rest.

        None for an encoder, which reads a text as a whole.
        """
        if not isinstance(self.source, TokenVectors):
            return None
        words, parts = self.source.by_token(text)
        length = float(np.linalg.norm(parts.sum(0))) if len(parts) else 0.0
        if not length:
            return [], 0.0
        contributions = self.scale / length * (parts.astype(np.float64) @ slopes)
        return list(zip(words, contributions.tolist(), strict=True)), -self.scale * float(self.mean @ slopes)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save; those of an encoder only if it is bundled, and none of a package's vectors."""
        arrays = {"meaning.mean": self.mean, "meaning.scale": np.array([self.scale], np.float32)}
        if isinstance(self.source, EncoderVectors):
            return arrays | self.source.to_arrays()
        if self.source.package is not None:
            return arrays
        return arrays | {TOKENS_PREFIX + name: array for name, array in self.source.to_arrays().items()}

    def describe(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        if isinstance(self.source, EncoderVectors):
            return {"encoder": self.source.describe()}
        private = {"private": True} if self.private else {}
        if self.source.package is None:
            return {"encoder": None, **private}
        packaged = {"package": self.source.package, "fingerprint": FINGERPRINT, "width": self.source.width}
        return {"encoder": None, "vectors": packaged, **private}

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Arrays) -> Meaning:
        """Return the vectors of a manifest entry and saved arrays, or raise HiNetError."""
        encoder, packaged = described["encoder"], described.get("vectors")
        source: TokenVectors | EncoderVectors
        if packaged is not None and encoder is not None:
            raise HiNetError("has both an encoder and static vectors")
        if packaged is not None:
            source = referenced_vectors(packaged["package"], packaged["fingerprint"], packaged.get("width"))
        elif encoder is None:
            source = TokenVectors.from_arrays(_without_prefix(arrays, TOKENS_PREFIX))
        else:
            source = EncoderVectors.restored(encoder, arrays)
        check_arrays(arrays, _SCALING, {"width": source.width})
        mean, scale = np.array(arrays["meaning.mean"], np.float32), float(arrays["meaning.scale"][0])
        return cls(source, mean, scale, described.get("private", False))


@dataclass(frozen=True, eq=False)
class TunedInput:
    """Input of a classifier whose encoder was fine-tuned with the head and is part of the model."""

    encoder: TextEncoder
    source: str  # folder or name of the encoder before training
    kind: Literal["text"] = "text"

    @classmethod
    def of(cls, encoder: str | Path | Encoder) -> TunedInput:
        """Return a copy of an encoder, to be trained."""
        require("sentence_transformers", "a fine-tuned encoder")
        from hinet.encoders.text_encoder import TextEncoder

        if not isinstance(encoder, str | Path | encoders.Encoder):
            raise HiNetError("the encoder of a saved model cannot be fine-tuned; set `encoder` to its folder")
        loaded, source = _load(encoder, device="cpu")
        return cls(TextEncoder.of(loaded), source)

    @property
    def count(self) -> int:
        """Number of features."""
        return self.encoder.width

    @property
    def parameter(self) -> dict[str, Any]:
        """The classifier parameter that selects this encoder."""
        return {"encoder": self.source}

    def rows(self, texts: Any, threads: int | None, *, sparse: bool = False) -> Floats:
        """Return the embeddings of texts, (n, count)."""
        return self.encoder.embed(texts, threads)

    def names(self, features: NDArray[np.int64]) -> list[str]:
        """Return the names of features: their numbers."""
        return [f"feature {number}" for number in features.tolist()]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return self.encoder.to_arrays()

    def describe(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        return {"tuned": {"source": self.source, **self.encoder.shape}}

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Arrays) -> TunedInput:
        """Return the input of a manifest entry and saved arrays, or raise HiNetError."""
        if not described["source"]:
            raise HiNetError("features.tuned.source is empty")
        shape = {name: value for name, value in described.items() if name != "source"}
        return cls(_restore_encoder(shape, arrays, "a fine-tuned encoder"), described["source"])


def vector_source(
    vectors: str | Path | TokenVectors | None,
    encoder: str | Path | Encoder | EncoderVectors | None,
) -> TokenVectors | EncoderVectors | None:
    """Return the source of text vectors that the parameters of a classifier name, if any; "auto" names none."""
    vectors = None if isinstance(vectors, str) and vectors in (AUTO, NONE) else vectors
    if vectors is not None and encoder is not None:
        raise HiNetError("`vectors` and `encoder` both give vectors of texts; leave one of them out")
    if vectors is not None:
        return read_vectors(os.fsdecode(vectors) if isinstance(vectors, bytes) else vectors)
    if encoder is None or isinstance(encoder, EncoderVectors):
        return encoder
    return EncoderVectors.of(os.fsdecode(encoder) if isinstance(encoder, bytes) else encoder)


def is_auto(vectors: Any) -> bool:
    """Return whether texts are compared by static vectors if these are installed and of use."""
    return isinstance(vectors, str) and vectors == AUTO


def _load(encoder: str | Path | Encoder, device: str | None = None) -> tuple[Encoder, str]:
    """Return an encoder, and the folder or name that it was given by."""
    if isinstance(encoder, encoders.Encoder):
        return encoder, encoder.name
    return encoders.Encoder.load(encoder, device=device), str(encoder)


def _restore_encoder(shape: Mapping[str, Any], arrays: Arrays, purpose: str) -> TextEncoder:
    require("sentence_transformers", purpose)
    from hinet.encoders.text_encoder import TextEncoder

    return TextEncoder.restored(dict(shape), arrays)  # type: ignore[arg-type]


def _without_prefix(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _vectors(
    source: TokenVectors | EncoderVectors, texts: Any, threads: int | None, progress: Progress | None = None
) -> Floats:
    if isinstance(source, TokenVectors):
        return source.sums(texts, threads)
    return source.vectors(texts, threads, progress)
