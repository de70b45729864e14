"""A torch network as a predictor: its answers, by full passes over all options, saving, and further training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Self, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data import Traces
from hinet.data.matrices import is_sparse
from hinet.encoders.torch_runtime import torch_threads
from hinet.engine import EngineSettings, Found, FoundLabels, FoundNodes, Groups, Targets
from hinet.engine.search.predictor import PROBABILITY, TYPICAL_F1, K, Predictor, RowParts
from hinet.engine.training.taxonomy_transfer import (
    NEW_OPTION_BIAS,
    OutputRows,
    OutputTransfer,
    ScoredRows,
    relearned,
)
from hinet.errors import HiNetError
from hinet.networks.batches import batches
from hinet.networks.contributions import NetworkContributions
from hinet.networks.downpour import best_traces_to, downpour
from hinet.networks.features import DenseFeatures, SparseBag
from hinet.networks.fitting import network_for, train_network
from hinet.networks.marginals import Marginals, marginals
from hinet.networks.models import HiNet
from hinet.networks.predict import feature_layer
from hinet.networks.saving import check_network, described_network, restored_network
from hinet.progress import EpochRecord, Progress
from hinet.ragged import positions
from hinet.taxonomy import Layers

Answer = TypeVar("Answer")


def _in_threads(answer: Callable[..., Answer]) -> Callable[..., Answer]:
    """Let a method compute with as many threads as its predictor has."""

    @wraps(answer)
    def with_threads(self: NetworkPredictor, *args: Any, **named: Any) -> Answer:
        with torch_threads(self.threads):
            return answer(self, *args, **named)

    return with_threads


@dataclass(frozen=True)
class NetworkPredictor(Predictor):
    """Answers of a network whose head gives probabilities within sibling groups, batch by batch.

    Torch computes with ``threads`` threads, by default with as many as it is set to.
    """

    engine = "torch"
    model: HiNet
    threads: int | None = None
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)

    @classmethod
    def trained(
        cls, rows: Any, traces: Traces, settings: EngineSettings, network: nn.Module | None, **how: Any
    ) -> Self:
        """Train a network on rows; the feature ``network`` may be the user's own. ``how`` goes to `train_network`."""
        whole = network_for(rows, traces, settings, network)
        return cls(whole, settings.threads, train_network(whole, rows, traces, settings, **how))

    @property
    def features(self) -> int | None:
        """Number of features of a row; None for a feature network of the user's own."""
        features = self.model.features
        return int(features.shape()["features"]) if isinstance(features, (DenseFeatures, SparseBag)) else None

    @property
    def outputs(self) -> int:
        """Number of options, all of which are scored."""
        return len(self.layers.option_neuron)

    @property
    def nbytes(self) -> int:
        """Bytes that the weights take."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())

    def scaled(self, factor: float, odds_scale: float | None = None, odds_offset: float = 0.0) -> Self:
        """Return the same with all logits multiplied by ``factor``; its feature network is shared."""
        assert (odds_scale or 1.0, odds_offset) == (1.0, 0.0)
        scaled = copy.copy(self.model)
        scaled._modules = {**self.model._modules, "head": copy.deepcopy(self.model.head)}
        with torch.no_grad():
            for parameter in scaled.head.parameters():
                parameter.mul_(factor)
        return replace(self, model=scaled)

    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""
        features = row.indices.astype(np.int64) if is_sparse(row) else np.arange(row.shape[1])
        return RowParts(NetworkContributions(self.model, row), features)

    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what is kept on disk: plain values that describe the network, and its weights."""
        if half:
            raise HiNetError("half precision is for models of the fused engine; save this one in full")
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self.model.state_dict().items()}
        return described_network(self.model), arrays

    @classmethod
    def check_described(cls, metadata: Mapping[str, Any]) -> None:
        """Raise HiNetError unless plain values are those that a network is built from."""
        check_network(metadata)

    @classmethod
    def require_network(cls, metadata: Mapping[str, Any], network: Any) -> None:
        """Raise HiNetError if the features are a network of the user's own, which is not given."""
        if metadata["features"]["kind"] == "own" and network is None:
            raise HiNetError(
                "the model was trained with a network of your own; pass it again, as load(path, network=...)"
            )

    @classmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the network of some layers that was kept as these values and weights, or raise HiNetError."""
        return cls(restored_network(layers, metadata, arrays, network))

    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the same knowledge over other layers; ``came_from`` gives the old node of each new one, or -1."""
        rows = OutputTransfer.between(self.layers, layers, came_from)
        head = self.model.head
        moved = HiNet(copy.deepcopy(self.model.features), layers, head.width, head.settings)
        outputs = _outputs(self.model)
        _set_outputs(moved, OutputRows(rows.transfer(outputs.weight), rows.transfer(outputs.bias, NEW_OPTION_BIAS)))
        return replace(self, model=moved.eval())

    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a network whose output rows that learn were fitted to targets of options on rows."""
        network = copy.deepcopy(self.model)
        outputs, hidden = _outputs(network), feature_layer(network, rows)
        first = Groups.of(self.layers).first_row

        def score(group: int, chosen: NDArray[np.int64]) -> ScoredRows:
            part = slice(first[group], first[group + 1])
            return ScoredRows(hidden[chosen] @ outputs.weight[part].T + outputs.bias[part], hidden[chosen])

        _set_outputs(network, relearned(outputs, learns, targets, self.layers, score, 1.0))
        return replace(self, model=network)

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
        """Return a network that has learned from more rows, over the same layers."""
        unmoved = np.append(np.arange(len(self.layers.taxonomy)), -1)
        network = self.moved_to(traces.layers, unmoved).model
        history = train_network(
            network, rows, traces, settings, sample_weight=sample_weight, device=device, progress=progress
        )
        return replace(self, model=network, history=history)

    @_in_threads
    def traces(self, rows: Any, k: int = 1) -> Found:
        """Return the ``k`` best traces of every row."""
        layers = self.model.layers
        k = min(K.validate("k", k), layers.count_traces())
        parts, log_p_parts = [], []
        for scores in self._scores(rows, ways=1 if layers.is_tree else k):
            traces = downpour(self.model.graph, scores, k)
            parts.append(traces)
            log_p_parts.append(_log_p_along(traces, scores))
        return self._found(parts, log_p_parts)

    @_in_threads
    def logits_along(self, rows: Any, targets: Targets) -> NDArray[np.float64]:
        """Return the log probabilities of all options of every choice on the way to targets, one a row."""
        layers = self.model.layers
        row, step = targets.row_steps()
        group = targets.arrays.step_group[step]
        sizes = np.where(layers.has_choice, np.diff(layers.option_offsets), 0)[group]
        option, owner = positions(layers.option_offsets[group], sizes), np.repeat(row, sizes)
        logits = np.empty(len(option))
        start = 0
        for scores in self._scores(rows):
            part = slice(*np.searchsorted(owner, [start, start + scores.shape[1]]))
            logits[part] = scores.numpy()[option[part], owner[part] - start]
            start += scores.shape[1]
        return logits

    @_in_threads
    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node to be the label, (n, nodes), where it is at least ``least``."""
        blocks = []
        for batch in self._marginals(rows):
            label = batch.label.T.cpu().numpy()
            blocks.append(sp.csr_array(np.where(label >= least, label, 0)))
        empty = sp.csr_array((0, len(self.model.layers.taxonomy)))
        return sp.csr_array(sp.vstack([empty, *blocks], format="csr"))

    @_in_threads
    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces."""
        return self._nodes(rows, lambda batch: batch.label)

    @_in_threads
    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable labels of every row, each summed over all its traces."""
        k = K.validate("k", k)
        layers, graph = self.model.layers, self.model.graph
        ends = torch.from_numpy(np.unique(layers.node[layers.ends]).astype(np.int64))
        parts, log_p_parts, probability = [], [], [np.zeros(0)]
        for scores in self._scores(rows):
            probabilities, best = marginals(graph, scores).label[ends].sort(dim=0, descending=True, stable=True)
            traces = best_traces_to(graph, scores, ends[best[:k]])
            parts.append(traces)
            log_p_parts.append(_log_p_along(traces, scores))
            probability.append(probabilities[:k].T.reshape(-1).double().numpy())
        return FoundLabels(self._found(parts, log_p_parts), np.concatenate(probability))

    def _found(self, parts: list[Traces], log_p: list[NDArray[np.float64]]) -> Found:
        """Return the traces of all batches; every option was scored."""
        traces = Traces.joined(self.model.layers, parts)
        touched = np.full(len(traces), len(self.model.layers.option_neuron), np.int64)
        return Found(traces, np.concatenate([np.zeros(0), *log_p]), touched)

    @_in_threads
    def deepest_confident(self, rows: Any, min_probability: float) -> FoundNodes:
        """Return the deepest node whose probability is at least ``min_probability``, or a top node if there is none."""
        least = PROBABILITY.validate("min_probability", min_probability)
        depth = torch.from_numpy(self.model.layers.taxonomy.depth.copy())[:, None]

        def deepest(batch: Marginals) -> Tensor:
            sure = (batch.node >= least) & (depth > 0)
            return torch.where(sure, depth + 1.0, 0.0) + torch.where(depth > 0, batch.node, 0.0) / 2

        return self._nodes(rows, deepest)

    @_in_threads
    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``."""
        f1 = PROBABILITY.validate("f1", f1)

        def gain(batch: Marginals) -> Tensor:
            gains = batch.node - f1 / 2
            below = torch.from_numpy(self.model.layers.taxonomy.depth.copy())[:, None] > 0
            return torch.where(below, torch.sparse.mm(self._ancestors, gains), -torch.inf)

        return self._nodes(rows, gain)

    def _nodes(self, rows: Any, score: Any) -> FoundNodes:
        """Return the node with the largest score of every row, with its own probability."""
        nodes, probability = [], []
        for batch in self._marginals(rows):
            scores = score(batch)
            best = scores.argmax(0)
            probabilities = batch.label if scores is batch.label else batch.node
            nodes.append(best.cpu().numpy())
            probability.append(probabilities.gather(0, best[None])[0].cpu().numpy().astype(np.float64))
        touched = np.full(rows.shape[0], len(self.model.layers.option_neuron), np.int64)
        empty = np.zeros(0)
        return FoundNodes(
            np.concatenate([empty.astype(np.int64), *nodes]), np.concatenate([empty, *probability]), touched
        )

    @cached_property
    def _ancestors(self) -> Tensor:
        """A sparse matrix that sums over a node and its ancestors, the root left out."""
        taxonomy = self.model.layers.taxonomy
        flat, offsets = taxonomy.ancestor_lists(np.arange(len(taxonomy)))
        owner = np.repeat(np.arange(len(taxonomy)), np.diff(offsets))
        indices = torch.from_numpy(np.stack([owner, np.asarray(flat, np.int64)]))
        shape = (len(taxonomy), len(taxonomy))
        return torch.sparse_coo_tensor(indices, torch.ones(indices.shape[1]), shape).coalesce()

    def _marginals(self, rows: Any) -> Iterator[Marginals]:
        for scores in self._scores(rows):
            yield marginals(self.model.graph, scores)

    @torch.no_grad()
    def _scores(self, rows: Any, ways: int = 1) -> Iterator[Tensor]:
        """Yield the log probability of every option in its group, (options, b), for batches of rows."""
        for batch in batches(self.model, rows, len(self.model.layers.option_neuron) * ways):
            yield self.model.option_scores(batch).cpu()


def _log_p_along(traces: Traces, scores: Tensor) -> NDArray[np.float64]:
    """Return the log probability of the path down to each neuron of the traces of a batch."""
    options, offsets = traces.options()
    rows = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
    lengths = np.diff(offsets)
    steps = scores.numpy()[options, np.repeat(rows, lengths)].astype(np.float64)
    running = np.cumsum(steps)
    before = np.concatenate([[0.0], running])[offsets[:-1]]
    log_p = running - np.repeat(before, lengths)
    is_stop = np.zeros(len(options), bool)
    is_stop[offsets[1:] - 1] = True
    above: NDArray[np.float64] = log_p[~is_stop]
    return above


def _outputs(network: HiNet) -> OutputRows:
    state = network.head.state_dict()
    return OutputRows(*(state[name].cpu().numpy() for name in OutputRows._fields))


def _set_outputs(network: HiNet, outputs: OutputRows) -> None:
    network.head.load_state_dict({name: torch.from_numpy(array) for name, array in outputs._asdict().items()})
