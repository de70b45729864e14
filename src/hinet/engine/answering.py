"""What answers to rows look like, and what any model must be able to answer, whichever engine it belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.parameters import one_of, real, whole

if TYPE_CHECKING:
    from hinet.engine.goals import Goals

TYPICAL_F1 = 0.8  # the hierarchical F1 that `expected_f1` reckons with, unless told

Decoding = Literal["map", "expected_f1", "label"]

K = whole(1)  # answers to a row
PROBABILITY = real(above=0, most=1)
DECODING = one_of(*get_args(Decoding))


@dataclass(frozen=True)
class Found:
    """Answers to rows.

    Attributes
    ----------
    traces : Traces
        The traces of every row, the best first.
    log_p : float array, as long as ``traces.neurons``
        Log probability of the path down to each neuron; in a tree, of the node itself.
    touched : int array of shape (n,)
        How many rows of output weights were looked at for each row.
    """

    traces: Traces
    log_p: NDArray[np.float64]
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.traces)


@dataclass(frozen=True)
class FoundNodes:
    """A node for every row, its probability summed over its paths, and the output rows looked at."""

    nodes: NDArray[np.int64]  # positions in the taxonomy
    probability: NDArray[np.float64]
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True)
class FoundLabels:
    """The most probable labels of rows, all of a row different.

    Attributes
    ----------
    found : Found
        The most probable trace of each label, the best label first: the labels are the end nodes of these traces.
    probability : float array of shape (labels of all rows,)
        Probability of each label, summed over all its traces.
    """

    found: Found
    probability: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.found)


class Answering(ABC):
    """What gives every row a node, whichever engine the model belongs to."""

    @abstractmethod
    def traces(self, rows: Any, k: int = 1, *, least: float = 0.0) -> Found:
        """Return the ``k`` best traces of every row; those less probable than ``least`` are left out."""

    @abstractmethod
    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces."""

    @abstractmethod
    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable labels of every row, each summed over all its traces."""

    @abstractmethod
    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node to be the label, (n, nodes), where it is at least ``least``."""

    @abstractmethod
    def logits_along(self, rows: Any, goals: Goals) -> NDArray[np.float64]:
        """Return the logits of all options of every choice on the way to goals, one a row, in the order of steps.

        They may lack a number that is the same for all options of a choice.
        """

    @abstractmethod
    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``."""

    def decode(self, rows: Any, decoding: Decoding = "map") -> FoundNodes:
        """Return a node for every row: of the best trace, of the best expected F1, or the best label."""
        if DECODING.validate("decoding", decoding) == "label":
            return self.labels(rows)
        if decoding == "expected_f1":
            return self.expected_f1(rows)
        found = self.traces(rows)
        assert found.traces.log_p is not None
        return FoundNodes(found.traces.end_nodes.astype(np.int64), np.exp(found.traces.log_p), found.touched)
