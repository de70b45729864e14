"""A frozen encoder that a model carries in its own files, so that it needs no other folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import unit_rows
from hinet.errors import HiNetError, quoted

if TYPE_CHECKING:
    from hinet.encoders import Encoder
    from hinet.networks.text_encoder import TextEncoder

PREFIX = "bundled."  # of its arrays among those of the features
WINDOW = 4_096  # texts sorted by length at a time
TOLERANCE = 1e-3  # largest difference between its vectors and those of the original
SAMPLE = ("", "rye bread", "word " * 1_000)  # texts that are compared

Batches = Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]


@dataclass(frozen=True, eq=False)
class BundledEncoder:
    """An encoder built from plain values and arrays alone: nothing in them names code or a path."""

    network: TextEncoder

    @classmethod
    def of(cls, encoder: Encoder) -> BundledEncoder:
        """Return a copy of an encoder, or raise HiNetError if a copy would give other vectors."""
        from hinet.networks.text_encoder import TextEncoder

        remedy = "leave `bundle_encoder` out, and keep the encoder with the model"
        bundled = cls(TextEncoder.of(encoder, "`bundle_encoder`", remedy))
        vectors = np.concatenate([encoded for _, encoded in bundled.batches(SAMPLE)])
        if np.abs(vectors - encoder.encode(SAMPLE)).max() > TOLERANCE:
            raise HiNetError(f"a copy of the encoder {quoted(encoder.name)} gives other vectors; {remedy}")
        return bundled

    @property
    def width(self) -> int:
        """The number of columns of a vector."""
        return self.network.width

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all that decides the vectors; it is not that of the original, whose files it does not have."""
        digest = blake2b(repr(sorted(self.describe().items())).encode(), digest_size=16)
        for name, array in sorted(self.to_arrays().items()):
            digest.update(f"{name}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    def batches(self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None) -> Batches:
        """Yield the numbers of some texts and their vectors of length 1, until all are encoded."""
        for start in range(0, len(texts), WINDOW):
            part = list(texts[start : start + WINDOW])
            yield np.arange(start, start + len(part)), unit_rows(self.network.embed(part, threads))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk."""
        return {PREFIX + name: array for name, array in self.network.to_arrays().items()}

    def describe(self) -> dict[str, Any]:
        """Return what else is kept, as plain values for JSON."""
        return dict(self.network.shape)

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> BundledEncoder:
        """Return what gave this description and these arrays, or raise HiNetError."""
        from hinet.extras import require

        require("sentence_transformers", "a model with its own encoder")
        from hinet.networks.text_encoder import TextEncoder

        own = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        return cls(TextEncoder.restored(dict(described), own))  # type: ignore[arg-type]
