"""Interface of a peer: fit texts, predict texts, save and load."""

from __future__ import annotations

import importlib
import importlib.metadata
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from peers.data import PeerData

PICKLE = "peer.pickle"


class Answers(NamedTuple):
    """One label per text, and its probability if the peer has one."""

    labels: list[str]
    probability: NDArray[np.float64] | None = None


class Peer(ABC):
    """A system that goes from raw texts to labels, with given settings."""

    packages: ClassVar[tuple[str, ...]] = ("scikit-learn",)  # packages whose versions are recorded
    modules: ClassVar[tuple[str, ...]] = ()  # imported outside of all timers

    def __init__(self, threads: int = 1, **settings: Any) -> None:
        self.threads, self.settings = threads, settings

    def prepare(self, data: PeerData) -> None:
        """Import, compile or load everything that should not be timed."""
        for name in self.modules:
            importlib.import_module(name)

    @abstractmethod
    def fit(self, texts: Sequence[str], labels: Sequence[str], data: PeerData) -> None:
        """Train on texts with one label each; ``data`` has the taxonomy."""

    @abstractmethod
    def answer(self, texts: Sequence[str]) -> Answers:
        """Return one label per text."""

    def save(self, folder: Path) -> None:
        """Write everything that prediction needs."""
        with (folder / PICKLE).open("wb") as stream:
            pickle.dump(self, stream, protocol=pickle.HIGHEST_PROTOCOL)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load what ``save`` wrote; only for files of this benchmark."""
        with (folder / PICKLE).open("rb") as stream:
            peer: Self = pickle.load(stream)
        return peer

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Return the versions of its packages."""
        return {name: importlib.metadata.version(name) for name in cls.packages}
