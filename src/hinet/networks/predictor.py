"""A torch network as a predictor: answers by full passes, explanations, saving, further training.

The fused search does not replace these passes. Its kernels are compiled for weights in 8 bits, in a DAG it leaves out
probabilities that cannot change an answer, and it cannot run the user's own networks or dense perceptrons.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, NotRequired, Self, TypedDict

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data import Traces
from hinet.encoders.torch_runtime import torch_threads
from hinet.engine import EngineSettings, Found, FoundLabels, FoundNodes, Groups, Targets
from hinet.engine.model.transfer import NEW_OPTION_BIAS, OutputTransfer
from hinet.engine.search.predictor import PROBABILITY, TYPICAL_F1, K, Predictor, RowParts
from hinet.engine.training.relearning import OutputRows, relearned
from hinet.errors import HiNetError
from hinet.files import check_plain
from hinet.files.schema import FINITE, LARGEST, check_arrays, floats
from hinet.networks.graph import Marginals, best_traces_to, downpour, marginals
from hinet.networks.heads import HeadSettings, SiblingHead
from hinet.networks.models import DenseFeatures, HiNet, SparseBag, SparseRows, batches, feature_layer, row_batch
from hinet.networks.training import network_for, train_network
from hinet.progress import EpochRecord, Progress
from hinet.ragged import positions
from hinet.taxonomy import Layers

_FEATURES: dict[str, Any] = {"sparse": SparseBag, "dense": DenseFeatures}


class FeatureShape(TypedDict):
    """Arguments of a sparse bag or of the perceptron for dense rows; the user's own module must be given again."""

    kind: Literal["sparse", "dense", "own"]
    features: NotRequired[int]
    width: NotRequired[int]
    widths: NotRequired[list[int]]
    dropout: NotRequired[float]
    linear_share: NotRequired[float]


class NetworkShape(TypedDict):
    """Description of a network; ``head`` has the fields of ``HeadSettings``."""

    features: FeatureShape
    width: int
    head: dict[str, Any]


def _check_weights(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> None:
    """Raise HiNetError unless all weights are finite and those of the features have the described shapes."""
    shape, width = dict(metadata["features"]), metadata["width"]
    kind = shape.pop("kind")
    largest = FINITE if kind == "own" else LARGEST
    check_arrays(
        arrays,
        {n: floats(*a.shape, low=-largest, high=largest) for n, a in arrays.items() if a.dtype.kind == "f"},
        {},
    )
    if kind != "own":
        if len(shape.get("widths", ())) > len(arrays):
            raise HiNetError(f"{len(shape['widths']):,} feature layers need more than {len(arrays):,} arrays")
        with torch.device("meta"):  # nothing is allocated before the shapes agree
            features = _FEATURES[kind](**shape)
        expected = {f"features.{name}": floats(*tensor.shape) for name, tensor in features.state_dict().items()}
        check_arrays(arrays, expected, {})
        width = features.width
    read = arrays.get("head.weight", np.zeros(0))
    if read.ndim != 2 or not metadata["width"] == width == read.shape[1] > 0:
        raise HiNetError(f"the weights do not fit the network: the head does not read {metadata['width']:,} units")


@dataclass(frozen=True)
class NetworkPredictor(Predictor):
    """Answers of a network whose head gives probabilities within sibling groups, batch by batch.

    ``threads`` is the number of torch threads; by default it is left unchanged.
    """

    engine = "torch"
    model: HiNet
    threads: int | None = None
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)

    @classmethod
    def trained(
        cls, rows: Any, traces: Traces, settings: EngineSettings, network: nn.Module | None, **how: Any
    ) -> Self:
        """Train a network on rows, above the user's own feature ``network`` if given.

        ``how`` are keyword arguments of :func:`train_network`.
        """
        model = network_for(rows, traces, settings, network)
        return cls(model, settings.threads, train_network(model, rows, traces, settings, **how))

    @property
    def features(self) -> int | None:
        """Number of features of a row; None for the user's own feature network."""
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
        """Return the same with all logits multiplied by ``factor``; both share the feature network."""
        assert (odds_scale or 1.0, odds_offset) == (1.0, 0.0)
        scaled = copy.copy(self.model)
        scaled._modules = {**self.model._modules, "head": copy.deepcopy(self.model.head)}
        with torch.no_grad():
            for parameter in scaled.head.parameters():
                parameter.mul_(factor)
        return replace(self, model=scaled)

    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""
        network = self.model.eval()
        head = network.head
        assert isinstance(head, SiblingHead)
        batch = row_batch(row, 0, 1, str(next(network.parameters()).device))
        if isinstance(batch, SparseRows):
            values = batch.values.clone().requires_grad_()
            batch, features = SparseRows(batch.indices, batch.offsets, values), row.indices.astype(np.int64)
        else:
            batch = values = batch.clone().requires_grad_()
            features = np.arange(row.shape[1])
        logits = head.logits(network.features(batch))[:, 0]  # (rows of weights,)

        def of_group(neuron: int) -> _NetworkParts:
            first, size = int(head.group_row[neuron]), int(head.group_size[neuron])
            return _NetworkParts(logits[first : first + size], values)

        return RowParts(of_group, features)

    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what is saved: plain values that describe the network, and its weights."""
        if half:
            raise HiNetError("half precision is for models of the fused engine; save this one in full precision")
        network = self.model
        features: dict[str, Any] = {"kind": "own"}
        for kind, described in _FEATURES.items():
            if isinstance(network.features, described):
                features = {"kind": kind, **network.features.shape()}
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
        return {"features": features, "width": network.head.width, "head": asdict(network.head.settings)}, arrays

    @classmethod
    def check_described(cls, metadata: Mapping[str, Any]) -> None:
        """Raise HiNetError unless plain values describe a network."""
        check_plain(metadata, NetworkShape, "model")
        check_plain(metadata["head"], HeadSettings, "model.head")
        for name in ("dropout", "linear_share"):
            if not 0 <= metadata["features"].get(name, 0) <= 1:
                raise HiNetError(f"model.features.{name} is {metadata['features'][name]}, expected a share from 0 to 1")

    @classmethod
    def require_network(cls, metadata: Mapping[str, Any], network: Any) -> None:
        """Raise HiNetError if the features are the user's own network and it is not given."""
        if metadata["features"]["kind"] == "own" and network is None:
            raise HiNetError("the model was trained with your own network; pass it again, as load(path, network=...)")

    @classmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the network of these layers, values and weights; ``network`` is the user's own module, if any.

        Raises
        ------
        HiNetError
            If description, weights and taxonomy do not fit together. Nothing is built before the shapes agree.
        """
        try:
            _check_weights(arrays, metadata)
            shape = dict(metadata["features"])
            kind = shape.pop("kind")
            features = network if kind == "own" else _FEATURES[kind](**shape)
            model = HiNet(features, layers, metadata["width"], HeadSettings(**metadata["head"]))
            for name, tensor in model.state_dict().items():
                if name in arrays and f"torch.{arrays[name].dtype}" != str(tensor.dtype):
                    raise HiNetError(
                        f"the array {name!r} has type {arrays[name].dtype}, the network expects {tensor.dtype}"
                    )
            model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
        except (RuntimeError, TypeError) as error:
            raise HiNetError(f"the saved weights do not fit the network: {error}") from None
        return cls(model.eval())

    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the same knowledge over other layers; ``came_from`` gives the old node of each new one, or -1."""
        rows = OutputTransfer.between(self.layers, layers, came_from)
        head = self.model.head
        moved = HiNet(copy.deepcopy(self.model.features), layers, head.width, head.settings)
        outputs = _outputs(self.model)
        _set_outputs(moved, OutputRows(rows.transfer(outputs.weight), rows.transfer(outputs.bias, NEW_OPTION_BIAS)))
        return replace(self, model=moved.eval())

    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a network whose output rows in ``learns`` were fitted to targets of options on rows."""
        network = copy.deepcopy(self.model)
        outputs, hidden = _outputs(network), feature_layer(network, rows)
        first = Groups.of(self.layers).first_row

        def score(group: int, chosen: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            part = slice(first[group], first[group + 1])
            return hidden[chosen] @ outputs.weight[part].T + outputs.bias[part], hidden[chosen]

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
        """Return the network after training on more rows, over the same layers."""
        unmoved = np.append(np.arange(len(self.layers.taxonomy)), -1)
        network = self.moved_to(traces.layers, unmoved).model
        history = train_network(
            network, rows, traces, settings, sample_weight=sample_weight, device=device, progress=progress
        )
        return replace(self, model=network, history=history)

    def traces(self, rows: Any, k: int = 1) -> Found:
        """Return the ``k`` best traces of every row."""
        layers, graph = self.model.layers, self.model.graph
        k = min(K.validate("k", k), layers.count_traces())
        return self._found(rows, lambda scores: downpour(graph, scores, k), ways=1 if layers.is_tree else k)

    def logits_along(self, rows: Any, targets: Targets) -> NDArray[np.float64]:
        """Return the log probabilities of all options of every choice on the way to targets, one per row."""
        layers = self.model.layers
        row, step = targets.arrays.entry_steps()
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

    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node to be the label, (n, nodes), if it is at least ``least``."""
        labels = (batch.label.T.cpu().numpy() for batch in self._marginals(rows))
        blocks = [sp.csr_array(np.where(label >= least, label, 0)) for label in labels]
        empty = sp.csr_array((0, len(self.model.layers.taxonomy)))
        return sp.csr_array(sp.vstack([empty, *blocks], format="csr"))

    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces."""
        return self._nodes(rows, lambda batch: batch.label)

    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable labels of every row, each summed over all its traces."""
        k = K.validate("k", k)
        layers, graph = self.model.layers, self.model.graph
        ends = torch.from_numpy(np.unique(layers.node[layers.ends]).astype(np.int64))
        probability = [np.zeros(0)]

        def best_labels(scores: Tensor) -> Traces:
            probabilities, best = marginals(graph, scores).label[ends].sort(dim=0, descending=True, stable=True)
            probability.append(probabilities[:k].T.reshape(-1).double().numpy())
            return best_traces_to(graph, scores, ends[best[:k]])

        found = self._found(rows, best_labels)
        return FoundLabels(found, np.concatenate(probability))

    def _found(self, rows: Any, answer: Callable[[Tensor], Traces], ways: int = 1) -> Found:
        """Return the traces that ``answer`` gives for the scores of each batch; every option was scored."""
        parts, log_p = [], [np.zeros(0)]
        for scores in self._scores(rows, ways):
            parts.append(answer(scores))
            log_p.append(_log_p_along(parts[-1], scores))
        traces = Traces.joined(self.model.layers, parts)
        touched = np.full(len(traces), len(self.model.layers.option_neuron), np.int64)
        return Found(traces, np.concatenate(log_p), touched)

    def deepest_confident(self, rows: Any, min_probability: float) -> FoundNodes:
        """Return the deepest node whose probability is at least ``min_probability``, or a top node if there is none."""
        least = PROBABILITY.validate("min_probability", min_probability)
        depth = torch.from_numpy(self.model.layers.taxonomy.depth.copy())[:, None]

        def deepest(batch: Marginals) -> Tensor:
            sure = (batch.node >= least) & (depth > 0)
            return torch.where(sure, depth + 1.0, 0.0) + torch.where(depth > 0, batch.node, 0.0) / 2

        return self._nodes(rows, deepest)

    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``."""
        f1 = PROBABILITY.validate("f1", f1)

        def gain(batch: Marginals) -> Tensor:
            gains = batch.node - f1 / 2
            below = torch.from_numpy(self.model.layers.taxonomy.depth.copy())[:, None] > 0
            return torch.where(below, torch.sparse.mm(self._ancestors, gains), -torch.inf)

        return self._nodes(rows, gain)

    def _nodes(self, rows: Any, score: Any) -> FoundNodes:
        """Return the node with the largest score for every row, and its probability."""
        nodes, probability = [], []
        for batch in self._marginals(rows):
            scores = score(batch)
            best = scores.argmax(0)
            probabilities = batch.label if scores is batch.label else batch.node
            nodes.append(best.cpu().numpy())
            probability.append(probabilities.gather(0, best[None])[0].cpu().numpy().astype(np.float64))
        found = np.concatenate([np.zeros(0, np.int64), *nodes])
        return FoundNodes(found, np.concatenate([np.zeros(0), *probability]))

    @cached_property
    def _ancestors(self) -> Tensor:
        """A sparse matrix that sums over a node and its ancestors without the root."""
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
        """Yield the log probability of every option in its group, (options, b), for batches of rows.

        Until the last batch, torch has the number of threads of the predictor, also for the caller's computations.
        """
        with torch_threads(self.threads):
            for batch in batches(self.model, rows, len(self.model.layers.option_neuron) * ways):
                yield self.model.option_scores(batch).cpu()


class _NetworkParts(NamedTuple):
    """The logits of a group, and the contribution of each feature as gradient times input.

    A network of rectified units is linear near a row, so that gradient times input is exactly what a feature adds; the
    rest comes from the biases. For other networks it is the linear part, and the rest is larger.
    """

    group_logits: Tensor  # (options,)
    values: Tensor  # values of the features of the row

    @property
    def logits(self) -> NDArray[np.float64]:
        """(options,) The logit of every option."""
        return self.group_logits.detach().double().cpu().numpy()

    def of(self, option: int) -> tuple[NDArray[np.float64], float]:
        """Return what each feature adds, and the rest."""
        (grad,) = torch.autograd.grad(self.group_logits[option], self.values, retain_graph=True)
        parts = (grad * self.values).detach().double().cpu().numpy().ravel()
        return parts, float(self.group_logits[option].detach()) - float(parts.sum())


def _log_p_along(traces: Traces, scores: Tensor) -> NDArray[np.float64]:
    """Return the log probability of the path down to each neuron of the traces of a batch."""
    options, offsets = traces.options()
    rows = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
    lengths = np.diff(offsets)
    steps = scores.numpy()[options, np.repeat(rows, lengths)].astype(np.float64)
    running = np.cumsum(steps)
    before = np.concatenate([[0.0], running])[offsets[:-1]]
    log_p = running - np.repeat(before, lengths)
    without_stops: NDArray[np.float64] = np.delete(log_p, offsets[1:] - 1)
    return without_stops


def _outputs(network: HiNet) -> OutputRows:
    state = network.head.state_dict()
    return OutputRows(*(state[name].cpu().numpy() for name in OutputRows._fields))


def _set_outputs(network: HiNet, outputs: OutputRows) -> None:
    network.head.load_state_dict({name: torch.from_numpy(array) for name, array in outputs._asdict().items()})
