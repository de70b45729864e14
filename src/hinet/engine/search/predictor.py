"""Answers to rows, and the interface of a trained model of either engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.data import Traces
from hinet.parameters import one_of, real, whole

if TYPE_CHECKING:
    from hinet.engine.model.fused import Trust
    from hinet.engine.model.groups import Targets
    from hinet.engine.settings import EngineSettings
    from hinet.progress import EpochRecord, Progress
    from hinet.taxonomy import Layers

TYPICAL_F1 = 0.8  # hierarchical F1 that `expected_f1` assumes by default

Engine = Literal["fused", "torch"]

K = whole(1)  # number of answers per row
PROBABILITY = real(above=0, high=1)
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
        Number of output rows scored for each row.
    """

    traces: Traces
    log_p: NDArray[np.float64]
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.traces)


@dataclass(frozen=True)
class FoundNodes:
    """One node per row, its probability summed over its paths, and the number of output rows scored."""

    nodes: NDArray[np.int64]  # positions in the taxonomy
    probability: NDArray[np.float64]
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True)
class FoundLabels:
    """The most probable labels of rows, without repetition.

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


class GroupParts(Protocol):
    """Parts of the logits of a group by feature."""

    @property
    def logits(self) -> NDArray[np.float64]:
        """(options,) The logit of every option."""

    def of(self, option: int) -> tuple[NDArray[np.float64], float]:
        """Return what each feature adds to the logit of an option, and the rest; they sum to the logit."""


class RowParts(NamedTuple):
    """Parts of the logits of one row by group and feature."""

    of_group: Callable[[int], GroupParts]  # takes the neuron above the group
    features: NDArray[np.int64]  # the features of the parts


class Predictor(ABC):
    """Interface of a trained model of either engine.

    It answers with ``threads`` threads; ``model`` is the trained model of the engine.
    """

    engine: ClassVar[Engine]
    model: Any
    threads: int | None

    @property
    def can_remember(self) -> bool:
        """Whether the model compares texts with a memory, which can be extended."""
        return False

    def may_answer(self, node: int) -> bool:
        """Return whether a node may be the answer."""
        return True

    @property
    def layers(self) -> Layers:
        """The layers of the taxonomy."""
        layers: Layers = self.model.layers
        return layers

    @property
    def features(self) -> int | None:
        """Number of features of a row, if it is known."""
        return self.model.features  # type: ignore[no-any-return]

    @property
    def outputs(self) -> int:
        """Number of output rows."""
        return self.model.outputs  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Size of the weights in bytes."""
        return self.model.nbytes  # type: ignore[no-any-return]

    @property
    def history(self) -> tuple[EpochRecord, ...]:
        """Records of the epochs of training."""
        return self.model.history  # type: ignore[no-any-return]

    @property
    def odds_scale(self) -> float:
        """Factor of the log odds of best traces, see :mod:`hinet.engine.search.odds_scaling`; 1 by default."""
        return 1.0

    @property
    def odds_offset(self) -> float:
        """Number added to the log odds of all labels, with several labels per row."""
        return 0.0

    @property
    def can_scale_odds(self) -> bool:
        """Whether the log odds of best traces can be scaled."""
        return False

    @property
    def trust(self) -> Trust | None:
        """Parameters of the trust in rows with unknown n-grams; None trusts all rows equally."""
        return None

    def with_trust(self, trust: Trust | None) -> Self:
        """Return the same with other parameters of the trust in rows with unknown n-grams."""
        assert trust is None
        return self

    def trust_in(self, rows: Any) -> NDArray[np.float64]:
        """Return the trust in every row, (n,)."""
        return np.ones(rows.shape[0])

    @property
    def label_shares(self) -> NDArray[np.float64]:
        """Share of the labels at and below every node, then of one label, (nodes + 1,); zeros without trust."""
        return np.zeros(len(self.layers.taxonomy) + 1)

    def uncorrected(self) -> Self:
        """Return the same without scaled odds and trust."""
        return self.scaled(1.0, 1.0).with_trust(None)

    def with_threads(self, threads: int | None) -> Self:
        """Return the same with another number of threads."""
        changed: Self = replace(self, threads=threads)  # type: ignore[type-var]
        return changed

    @abstractmethod
    def traces(self, rows: Any, k: int = 1) -> Found:
        """Return the ``k`` best traces of every row."""

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
    def logits_along(self, rows: Any, targets: Targets) -> NDArray[np.float64]:
        """Return the logits of all options on the paths to targets, one target per row, in the order of steps.

        Logits of a group may differ from the model's by a constant.
        """

    @abstractmethod
    def deepest_confident(self, rows: Any, min_probability: float) -> FoundNodes:
        """Return the deepest node whose probability is at least ``min_probability``, or a top node if there is none."""

    @abstractmethod
    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``."""

    def decode(self, rows: Any, decoding: Decoding = "map") -> FoundNodes:
        """Return one node per row: the end of the best trace, the node with the best expected F1, or the best label."""
        if DECODING.validate("decoding", decoding) == "label":
            return self.labels(rows)
        if decoding == "expected_f1":
            return self.expected_f1(rows)
        best = self.traces(rows)
        assert best.traces.log_p is not None
        return FoundNodes(best.traces.end_nodes.astype(np.int64), np.exp(best.traces.log_p), best.touched)

    @abstractmethod
    def scaled(self, factor: float, odds_scale: float | None = None, odds_offset: float = 0.0) -> Self:
        """Return the same with all logits multiplied by ``factor``, and another odds scale and offset if given."""

    @abstractmethod
    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""

    @abstractmethod
    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return metadata and named arrays to save."""

    @classmethod  # noqa: B027 - optional
    def check_described(cls, metadata: Mapping[str, Any]) -> None:
        """Raise HiNetError unless metadata is valid."""

    @classmethod  # noqa: B027 - optional
    def require_network(cls, metadata: Mapping[str, Any], network: Any) -> None:
        """Raise HiNetError if a saved model needs the user's network and it is not given."""

    @classmethod
    @abstractmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the model of layers, saved metadata and arrays, or raise HiNetError."""

    @abstractmethod
    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the model over other layers; ``came_from`` has the old node of each new one, or -1."""

    @abstractmethod
    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a model whose output rows ``learns`` are fitted to targets of options on rows."""

    @abstractmethod
    def continued(
        self,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        *,
        sample_weight: NDArray[np.float64] | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return the model after training on more rows, over the same layers."""
