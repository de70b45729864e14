"""The interface of an expert: all code outside the kernels iterates over records of this kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.transfer import Transfer
from hinet.files.schema import Schema

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]


class RowFeatures(NamedTuple):
    """The features of one row."""

    feature: Ints  # (m,)
    value: Numbers  # (m,)
    length: float  # Euclidean length of the sparse part
    matrix: SparseMatrix  # the row as kernels read it


class Parts(NamedTuple):
    """Parts of the logits of a group: ``by_feature.sum(1) + rest`` is the logit of each option."""

    by_feature: Numbers  # (options, m)
    rest: Numbers  # (options,) biases, and how evenly the labels below an option share its probability

    @property
    def logits(self) -> Numbers:
        """(options,) The logit of every option."""
        return np.asarray(self.by_feature.sum(1) + self.rest)

    def of(self, option: int) -> tuple[Numbers, float]:
        """Return what each feature adds to the logit of an option, and the rest."""
        return self.by_feature[option], float(self.rest[option])


@dataclass(frozen=True)
class ExpertRecord(ABC):
    """One expert: its files, explanations, transfer to a changed taxonomy, and training.

    The arrays of an expert are a NamedTuple, a field of ``Experts`` with the record's name. Its scoring functions are
    called by :mod:`hinet.engine.search.scoring_kernels`.
    """

    name: str  # field of Experts and Mix, and the first word of the names of its jobs
    outputs: Literal["rows", "labels"]  # scores options with siblings, or labels
    key: str  # name of an array that every file with this expert has
    training: str  # "module:class" of its ExpertTraining, imported only to train
    half: tuple[str, ...] = ()  # names of arrays that may be saved in half precision
    required: bool = False  # whether every file has it

    @abstractmethod
    def empty(self, sizes: Mapping[str, int]) -> Any:
        """Return an expert whose logits are zero, given numbers of features, neurons, rows and labels."""

    def is_empty(self, expert: Any) -> bool:
        """Return whether an expert has nothing to score with."""
        return False

    @abstractmethod
    def schema(self, arrays: Arrays) -> Schema:
        """Return the schema of its arrays in a file."""

    @abstractmethod
    def write(self, expert: Any) -> dict[str, NDArray[Any]]:
        """Return an expert as named arrays."""

    @abstractmethod
    def read(self, arrays: Arrays) -> Any:
        """Return the expert of named arrays that fit the schema."""

    def check(self, expert: Any, groups: Groups) -> None:  # noqa: B027 - the schema may suffice
        """Raise HiNetError if a loaded expert would make kernels read outside its arrays."""

    @abstractmethod
    def transfer(self, expert: Any, transfer: Transfer) -> Any:
        """Return the expert for a changed taxonomy."""

    @abstractmethod
    def contributions(self, expert: Any, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans) -> Parts:
        """Return what each feature of a row adds to the logits of the group below ``neuron``."""
