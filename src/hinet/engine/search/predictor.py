"""Answers to rows, the interface of a trained model of either engine, and the fused model as such a predictor.

The answers of a fused model are exact, found without scoring the whole taxonomy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, is_for_kernels
from hinet.engine.model.experts import NEIGHBOURS, Memory
from hinet.engine.model.experts.neighbours import CORRECTION_BOOST, vectors_of
from hinet.engine.model.fused import FusedModel, Trust
from hinet.engine.search.best_first import BLOCKS, BlockSizes, TraceSearch, in_blocks, joined, split
from hinet.engine.search.corrections import (
    map_log_odds,
    odds_shift,
    scaled_labels,
    scaled_traces,
    trusted_traces,
    unmap_log_odds,
)
from hinet.engine.search.marginal_kernels import Correction, all_nodes, best_nodes, likely_labels
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.settings import TWO_LAYER_RATE
from hinet.errors import HiNetError
from hinet.parameters import one_of, real, whole
from hinet.ragged import offsets_of

if TYPE_CHECKING:  # a model answers without the code that trains one
    from hinet.engine.model.groups import Targets
    from hinet.engine.settings import EngineSettings
    from hinet.progress import EpochRecord, Progress
    from hinet.taxonomy import Layers

TYPICAL_F1 = 0.8  # hierarchical F1 that `expected_f1` assumes by default
FLOOR = 1e-4  # neurons with a lower probability are skipped at first
UPDATE_EPOCHS = 4  # enough to learn more rows, few enough to forget little
MIN_MEMORY_WEIGHT = 0.1  # weight of neighbours in the mix that lets corrections count
ROUNDING = 1e-6  # relative error of probabilities in single precision

Part = TypeVar("Part")
Floats = NDArray[np.float64]
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
    log_p: Floats
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.traces)

    @classmethod
    def joined(cls, parts: Sequence[Found]) -> Found:
        """Return the answers to several blocks of rows as one."""
        traces = Traces.joined(parts[0].traces.layers, [part.traces for part in parts])
        log_p, touched = (np.concatenate([getattr(part, name) for part in parts]) for name in ("log_p", "touched"))
        return cls(traces, log_p, touched)


@dataclass(frozen=True)
class FoundNodes:
    """One node per row, and its probability summed over its paths."""

    nodes: NDArray[np.int64]  # positions in the taxonomy
    probability: Floats

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
    probability: Floats

    def __len__(self) -> int:
        return len(self.found)


class GroupParts(Protocol):
    """Parts of the logits of a group by feature."""

    @property
    def logits(self) -> Floats:
        """(options,) The logit of every option."""

    def of(self, option: int) -> tuple[Floats, float]:
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
        """Factor of the log odds of best traces, see :mod:`hinet.engine.search.corrections`; 1 by default."""
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

    def trust_in(self, rows: Any) -> Floats:
        """Return the trust in every row, (n,)."""
        return np.ones(rows.shape[0])

    @property
    def label_shares(self) -> Floats:
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
    def logits_along(self, rows: Any, targets: Targets) -> Floats:
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
        return FoundNodes(best.traces.end_nodes.astype(np.int64), np.exp(best.traces.log_p))

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
        sample_weight: Floats | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return the model after training on more rows, over the same layers."""


class Labels(NamedTuple):
    """Labels of rows, as the kernel returns them."""

    counts: NDArray[np.int64]  # (n,) labels of each row
    node: NDArray[np.int64]  # (labels,)
    probability: Floats  # (labels,) summed over all traces
    trace: Floats  # (labels,) probability of the best trace
    length: NDArray[np.int64]  # (labels,) length of the best trace
    neuron: NDArray[np.int32]  # (labels, height) neurons of the best trace
    along: Floats  # (labels, height) probability of the path down to each neuron
    touched: NDArray[np.int64]  # (n,)

    def traces(self, layers: Layers) -> tuple[Traces, Floats]:
        """Return the best trace of each label, and the log probability of the path down to each neuron."""
        known = np.arange(self.neuron.shape[1]) < self.length[:, None]
        with np.errstate(divide="ignore"):
            along, log_p = np.log(self.along[known]), np.log(self.trace)
        return Traces(layers, offsets_of(self.counts), offsets_of(self.length), self.neuron[known], log_p), along


@dataclass(frozen=True)
class Search(Predictor):
    """Predicts with a fused model; it has no state, so that any number of threads may use it at once.

    Many rows are split into blocks for ``threads`` threads, by default one per core. Few rows are answered in the
    calling thread.
    """

    engine = "fused"
    model: FusedModel
    threads: int | None = None
    blocks: BlockSizes = BLOCKS

    def traces(self, rows: Any, k: int = 1, *, least: float = 0.0) -> Found:
        """Return the ``k`` best traces of every row, exactly, without those less probable than ``least``.

        ``least`` applies before probabilities are corrected, but with several labels per row after that.
        """
        layers = self.layers
        k = min(K.validate("k", k), layers.count_traces())
        least = self._raw(least)
        lowest = np.log(least) if least > 0 else -np.inf
        best = TraceSearch(self.model, k, lowest, self.blocks).find(self._checked(rows), self.threads)
        traces, log_p = best.traces(layers, self._mapped(best.log_p)), self._mapped(best.neuron_log_p)
        if self.model.odds_scale != 1 and not layers.multilabel:
            traces, log_p = scaled_traces(traces, log_p, self.model.odds_scale)
        if self._uses_trust(rows):
            traces, log_p = trusted_traces(traces, log_p, self.trust_in(rows), self.label_shares)
        return Found(traces, log_p, best.touched)

    @property
    def _is_mapped(self) -> bool:
        """Whether the log odds of nodes and labels are mapped, as with several labels per row."""
        return self.layers.multilabel and (self.model.odds_scale, self.model.odds_offset) != (1.0, 0.0)

    def _mapped(self, log_p: Floats) -> Floats:
        """Return calibrated log probabilities of rows with several labels; others are unchanged."""
        return map_log_odds(log_p, self.model.odds_scale, self.model.odds_offset) if self._is_mapped else log_p

    def _raw(self, probability: float) -> float:
        """Return the probability before it was mapped, slightly lowered so that rounding drops nothing."""
        if not self._is_mapped:
            return probability
        return (1 - ROUNDING) * unmap_log_odds(probability, self.model.odds_scale, self.model.odds_offset)

    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces; exact in trees and DAGs.

        Its probability leaves out mass that cannot change the answer, so it may be slightly too low.
        """
        # a label of a tree has one trace
        if self.model.odds_scale != 1 or self._uses_trust(rows) or self.layers.multilabel:
            return self.decode(rows)
        likely = self._likely_labels(rows, 1, FLOOR)
        return FoundNodes(likely.node, likely.probability)

    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable labels of every row, each summed over all its traces, exactly.

        In a DAG the probability of a label leaves out mass that cannot change the answer, as in :meth:`labels`.
        """
        layers = self.layers
        if self._has_one_trace_per_label:
            best = self.traces(rows, k)
            assert best.traces.log_p is not None
            return FoundLabels(best, np.exp(best.traces.log_p))
        k = K.validate("k", k)
        likely = self._likely_labels(rows, min(k, self._label_count), FLOOR, layers.height)
        return FoundLabels(Found(*likely.traces(layers), likely.touched), likely.probability)

    @property
    def _has_one_trace_per_label(self) -> bool:
        return self.layers.taxonomy.is_tree or self.layers.multilabel

    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node to be the label, (n, nodes), summed over all its traces.

        With ``least``, only probabilities of at least that, before they are corrected; in a DAG the sums then leave
        out paths through neurons that are less probable.
        """
        if self.layers.multilabel:
            return self._all_nodes(rows, least, 1)
        likely = self._likely_labels(rows, 0, least)
        row_offsets = offsets_of(likely.counts)
        probability = likely.probability
        if self.model.odds_scale != 1:
            probability = scaled_labels(probability, row_offsets, self.model.odds_scale)
        if self._uses_trust(rows):
            trust = np.repeat(self.trust_in(rows), likely.counts)
            probability = trust * probability + (1 - trust) * self.label_shares[-1]
        shape = (len(likely.counts), len(self.layers.taxonomy))
        matrix = sp.csr_array((probability, likely.node, row_offsets), shape=shape)
        matrix.sort_indices()
        return matrix

    def node_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probabilities of nodes of at least ``least``, (n, nodes), with several labels per row.

        No node is more probable than one of its parents.
        """
        self._check_multilabel(True, "node_probabilities")
        return self._all_nodes(rows, least, 0)

    def _all_nodes(self, rows: Any, least: float, which: int) -> sp.csr_array:
        """Return the probabilities of nodes, or of the labels that end there, of at least ``least``."""
        layers, experts, groups = self.layers, self.model.experts, self.model.groups
        named = np.flatnonzero(layers.node >= 0)
        nodes, least = len(layers.taxonomy), self._raw(least)

        def answer(block: SparseMatrix) -> sp.csr_array:
            parts = []
            for part in split(block, max(1, self.blocks.cells // len(layers.node))):
                probability = all_nodes(part, groups, experts, layers.other_parents, self._order, least)[which]
                row, neuron = np.nonzero((probability >= max(least, np.finfo(np.float32).tiny))[:, named])
                values = np.exp(self._mapped(np.log(probability[row, named[neuron]].astype(np.float64))))
                index = row, layers.node[named[neuron]]
                parts.append(sp.csr_array((values, index), shape=(len(probability), nodes)))
            return sp.vstack(parts, format="csr")

        return sp.csr_array(sp.vstack(self._in_blocks(rows, answer), format="csr"))

    def _check_multilabel(self, wanted: bool, method: str) -> None:
        if self.layers.multilabel != wanted:
            kind = "several labels" if wanted else "one label"
            raise HiNetError(f"{method} is for models of rows with {kind}")

    def _likely_labels(self, rows: Any, k: int, floor: float, height: int = 0) -> Labels:
        """Return the ``k`` best labels of rows, or all of at least ``floor``; with the layers' height, traces too."""
        max_labels = k or (min(self._label_count, int(2 / floor) + 1) if floor else self._label_count)
        size = max(1, self.blocks.cells // (max(max_labels, 1) * (height + 1)))
        experts, groups, node_of = self.model.experts, self.model.groups, self._node_of

        def answer(block: SparseMatrix) -> Labels:
            found = []
            for part in split(block, size):
                counts, lists, touched = likely_labels(part, groups, experts, node_of, k, floor, max_labels, height)
                used = int(counts.sum())
                found.append(Labels._make([counts, *(values[:used].copy() for values in lists), touched]))
            return joined(found)

        return joined(self._in_blocks(rows, answer))

    def logits_along(self, rows: Any, targets: Targets) -> Floats:
        """Return the logits of all options on the paths to targets, one target per row, in the order of steps."""
        experts, chosen = self.model.experts, np.arange(len(targets))
        by_expert = expert_logits(self._checked(rows), chosen, targets.arrays, self.model.groups, experts)
        mixed: Floats = by_expert.astype(np.float64) @ experts.mix.astype(np.float64)
        return mixed

    def deepest_confident(self, rows: Any, min_probability: float) -> FoundNodes:
        """Return the deepest node whose probability is at least ``min_probability``, or a top node if there is none."""
        return self._by_nodes(rows, PROBABILITY.validate("min_probability", min_probability), True)

    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``.

        That node has the largest sum over itself and its ancestors of ``P(ancestor) - f1 / 2``.
        """
        return self._by_nodes(rows, PROBABILITY.validate("f1", f1) / 2, False)

    def _by_nodes(self, rows: Any, cut: float, surest: bool) -> FoundNodes:
        self._check_multilabel(False, "deepest_confident" if surest else "expected_f1")
        experts, groups, node_of = self.model.experts, self.model.groups, self._node_of
        flat, offsets = self._ancestors
        taxonomy = self.layers.taxonomy
        depth, is_tree = taxonomy.depth.astype(np.int64), taxonomy.is_tree

        def answer(block: SparseMatrix, trust: Floats) -> Any:
            corrected = self._correction(block, trust, cut)
            return best_nodes(block, groups, experts, node_of, flat, offsets, depth, corrected, cut, surest, is_tree)

        parts = self._in_blocks(rows, answer, self.trust_in(rows))
        return FoundNodes(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _correction(self, block: SparseMatrix, trust: Floats, cut: float) -> Correction:
        """Return the corrections of probabilities, and the probability below which neurons are skipped.

        Nothing is skipped if a node's share of the labels alone might reach ``cut``.
        """
        count = block.row_count
        floor, shares = np.full(count, cut / 64), np.zeros(len(self.layers.taxonomy) + 1)
        if (trust < 1).any():
            shares = self.label_shares
            floor[(1 - trust) * self._largest_inner_share + floor >= cut] = 0.0
        if self.model.odds_scale == 1:
            return Correction(np.full(count, -1), np.zeros(count), floor, trust, shares)
        traces = TraceSearch(self.model, sizes=self.blocks).find_in_block(block)
        best = np.exp(traces.log_p)
        last = np.append(traces.neurons, 0)[np.cumsum(traces.lengths) - 1]  # ignored for empty traces
        node = np.where(traces.lengths > 0, self._node_of[last], -1)
        shift = odds_shift(best, self.model.odds_scale)
        return Correction(node, shift, np.minimum(floor, best / 2), trust, shares)

    @property
    def odds_scale(self) -> float:
        """Factor of the log odds of best traces, or with several labels per row of all labels."""
        return self.model.odds_scale

    @property
    def odds_offset(self) -> float:
        """Number added to the log odds of all labels, with several labels per row."""
        return self.model.odds_offset

    @property
    def can_scale_odds(self) -> bool:
        """Whether the log odds of best traces can be scaled, as in a tree."""
        return self.layers.taxonomy.is_tree and not self.layers.multilabel

    @property
    def trust(self) -> Trust | None:
        """Parameters of the trust in rows with unknown n-grams."""
        return self.model.trust

    def with_trust(self, trust: Trust | None) -> Self:
        """Return the same with other parameters of the trust in rows with unknown n-grams."""
        return replace(self, model=replace(self.model, trust=trust))

    def _uses_trust(self, rows: Any) -> bool:
        """Return whether unknown n-grams change the probabilities of rows."""
        return self.model.trust is not None and getattr(rows, "unknown", None) is not None

    def trust_in(self, rows: Any) -> Floats:
        """Return the trust in every row, (n,)."""
        if self.model.trust is None or not self._uses_trust(rows):
            return np.ones(rows.shape[0])
        return self.model.trust.of(rows.unknown)

    @cached_property
    def label_shares(self) -> Floats:
        """Share of the labels at and below every node, then the share of one label, (nodes + 1,)."""
        above = self.layers.taxonomy.ancestor_lists(self._label_nodes())[0]
        counts = np.bincount(above, minlength=len(self.layers.taxonomy))
        return np.append(counts, 1) / np.count_nonzero(self.layers.ends)

    def _label_nodes(self) -> NDArray[np.int64]:
        """Return the node of each neuron below the root that ends a trace."""
        nodes = self._node_of[self.layers.ends]
        return nodes[nodes >= 0]

    @cached_property
    def _largest_inner_share(self) -> float:
        """Largest share of the labels of a node below the top level."""
        return float(self.label_shares[:-1][self.layers.taxonomy.depth > 1].max(initial=0.0))

    def scaled(self, factor: float, odds_scale: float | None = None, odds_offset: float = 0.0) -> Self:
        """Return the same with all logits multiplied by ``factor``, and another odds scale and offset if given."""
        experts = self.model.experts
        mix = (experts.mix * factor).astype(np.float32)
        model = replace(self.model, experts=experts._replace(mix=mix))
        if odds_scale is not None:
            model = replace(model, odds_scale=odds_scale, odds_offset=odds_offset)
        return replace(self, model=model)

    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""
        matrix = SparseMatrix.of(row)
        read = self.model.read(matrix, getattr(row, "unknown", None))
        features = matrix.entries(self.model.features)[0]
        return RowParts(lambda group: self.model.contributions(matrix, group, read), features)

    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return metadata and named arrays to save."""
        return {"half": half}, self.model.to_arrays(half=half)

    @classmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the model of layers and saved arrays, or raise HiNetError."""
        return cls(FusedModel.from_arrays(layers, arrays))

    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the model over other layers; ``came_from`` has the old node of each new one, or -1."""
        return replace(self, model=self.model.transferred(layers, came_from))

    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a model whose output rows ``learns`` are fitted to targets of options on rows."""
        from hinet.engine.training.relearning import taught

        return replace(self, model=taught(self.model, learns, targets, SparseMatrix.of(rows)))

    @property
    def can_remember(self) -> bool:
        """Whether the model compares texts with a memory, which can be extended."""
        return len(self.model.experts.neighbours.label) > 0

    def text_vectors(self, rows: Any) -> NDArray[np.float32]:
        """Return the vectors that rows are compared by; the model must have a memory."""
        width = self.model.experts.neighbours.vector.shape[1]
        return vectors_of(SparseMatrix.of(rows), self.model.features, width)

    def remembering(self, rows: Any, traces: Traces, first: int, limit: int | None = None) -> Self:
        """Return the model with rows added to its memory, numbered from ``first``; it must have one already.

        Nothing is trained. The rows are corrections, which count more than training rows. With ``limit``, they count
        like training rows, and at most that many of each label are added.
        """
        experts = self.model.experts
        memory, columns = experts.neighbours, self.text_vectors(rows)
        row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        owner, node = np.unique(np.stack([row, traces.end_nodes]), axis=1)  # a label may have several traces
        single = np.flatnonzero(np.bincount(owner, minlength=len(traces))[owner] == 1)  # the same rule as in training
        owner, label = owner[single], experts.spans.paths.labels_of(node[single])
        mix = experts.mix.copy()
        if limit is None:
            mix[NEIGHBOURS] = max(mix[NEIGHBOURS], MIN_MEMORY_WEIGHT)
            added = memory.with_corrections(Memory.of(columns[owner], label, first + owner, CORRECTION_BOOST))
        else:
            from hinet.engine.training.neighbours import medoids

            kept = medoids(columns, owner, label, limit)
            added = memory.joined(Memory.of(columns[owner[kept]], label[kept], first + owner[kept]))
        experts = experts._replace(neighbours=added, mix=mix)
        return replace(self, model=replace(self.model, experts=experts))

    def continued(
        self,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        *,
        sample_weight: Floats | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return the model after training on more rows, over the same layers."""
        from hinet.engine.training.fit import fit

        epochs = settings.deep_epochs or UPDATE_EPOCHS
        settings = replace(settings, deep_epochs=epochs, wide_epochs=epochs)
        if self.model.experts.deep.has_two_layers:
            settings = replace(settings, deep_rate=TWO_LAYER_RATE)
        model = fit(rows, traces, settings, sample_weight=sample_weight, start=self.model, progress=progress)
        return replace(self, model=replace(model, trust=self.model.trust))

    @cached_property
    def _node_of(self) -> NDArray[np.int64]:
        return self.layers.node.astype(np.int64)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Neurons in an order with parents first, with several labels per row."""
        depth = np.append(0, self.layers.taxonomy.depth[self.layers.node[1:]])
        return np.argsort(depth, kind="stable")

    @cached_property
    def _label_count(self) -> int:
        return len(np.unique(self._node_of[self.layers.ends]))

    @cached_property
    def _ancestors(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every node with its ancestors below the root, as a ragged array."""
        taxonomy = self.layers.taxonomy
        flat, offsets = taxonomy.ancestor_lists(np.arange(len(taxonomy)))
        return np.asarray(flat, np.int64), np.asarray(offsets, np.int64)

    def _checked(self, rows: Any) -> SparseMatrix:
        if not is_for_kernels(rows):
            raise HiNetError(f"the model reads rows of a CSR matrix, got {type(rows).__name__}")
        matrix = SparseMatrix.of(rows)
        if rows.shape[1] != self.model.features:
            raise HiNetError(f"the model was trained on {self.model.features:,} features, got {rows.shape[1]:,}")
        return self.model.read(matrix, getattr(rows, "unknown", None))

    def _in_blocks(self, rows: Any, answer: Callable[..., Part], *per_row: NDArray[Any]) -> list[Part]:
        return in_blocks(self._checked(rows), answer, self.threads, self.blocks, *per_row)
