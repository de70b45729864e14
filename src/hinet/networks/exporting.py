"""Networks as ONNX graphs: the sources of an export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data import Traces
from hinet.encoders.torch_runtime import torch_threads
from hinet.engine import DeepExpert, Groups
from hinet.engine.model.experts import Floats
from hinet.errors import HiNetError
from hinet.exporting import scoring
from hinet.exporting.export import Source, source_of
from hinet.exporting.scoring import GraphInMaking
from hinet.networks.heads import SiblingHead
from hinet.networks.models import DenseFeatures, FlattenNetwork, HiNet, SparseBag, predict_traces
from hinet.ragged import gather, offsets_of

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid"}
_WITHOUT_EFFECT = (nn.Dropout, nn.Identity)


class _NetworkSource(Source):
    """A network; the graph contains all of it."""

    def __init__(self, network: Any) -> None:
        self.network, self.layers = network, network.layers
        self.reads_sparse = isinstance(network.features, SparseBag)

    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows, twice."""
        with torch_threads(threads):
            traces = predict_traces(self.network, rows)
        return traces, traces

    def _hidden(self, graph: GraphInMaking) -> str:
        """Add the feature layer, (b, k)."""
        features = self.network.features
        if isinstance(features, SparseBag):
            return scoring.bag(graph, scoring.sparse_input(graph), _expert_of(features))
        return perceptron(graph, features)


class HiNetSource(_NetworkSource):
    """A network with a hierarchical head."""

    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every option, (b, options)."""
        hidden, head = self._hidden(graph), self.network.head
        if not isinstance(head, SiblingHead):
            raise HiNetError(
                "the export supports only heads with wiring 'skip' and normalisation 'parent', the default; "
                f"got {head.settings.wiring!r} and {head.settings.normalisation!r}"
            )
        logits = scoring.linear(graph, hidden, array_of(head.option_weight), array_of(head.bias))
        return scoring.transposed(graph, scoring.normalised(graph, Groups.of(self.layers), logits, hidden))


class FlatSource(_NetworkSource):
    """The flat baseline."""

    output = "label"

    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every label, (b, labels)."""
        weight, bias = array_of(self.network.weight), array_of(self.network.bias)
        scores = scoring.linear(graph, self._hidden(graph), weight, bias)
        return graph.add("LogSoftmax", scoring.transposed(graph, scores), axis=1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the first trace of each label."""
        traces = Traces.of_nodes(self.layers, self.network.label_nodes.cpu().numpy())
        neurons, lengths = gather(traces.neurons, traces.offsets, traces.row_offsets[:-1])
        return {"label_offsets": offsets_of(lengths), "label_neurons": neurons}


source_of.register(HiNet)(HiNetSource)
source_of.register(FlattenNetwork)(FlatSource)


def perceptron(graph: GraphInMaking, features: nn.Module) -> str:
    """Return the feature layer, (b, k), of dense rows, which are the input ``x``.

    Raises
    ------
    HiNetError
        If the network has unsupported modules.
    """
    steps = list(_steps(features))
    readers = [step for step in steps if isinstance(step, nn.Linear)]
    hidden = graph.input("x", "float32", ["rows", readers[0].in_features if readers else "features"])
    for step in steps:
        if isinstance(step, nn.Linear):
            hidden = graph.add("MatMul", hidden, graph.constant(array_of(step.weight).T))
            if step.bias is not None:
                hidden = graph.add("Add", hidden, graph.constant(array_of(step.bias)))
        elif type(step) in _ACTIVATIONS:
            hidden = graph.add(_ACTIVATIONS[type(step)], hidden)
    return hidden


def array_of(tensor: Tensor) -> Floats:
    """Return a tensor as an array of single precision."""
    return np.asarray(tensor.detach().cpu().numpy(), np.float32)


def _expert_of(features: SparseBag) -> DeepExpert:
    """Return a sparse bag as the inputs of a deep expert without outputs."""
    outputs = np.zeros((0, features.width), np.float32)
    slope = (np.arange(features.width) < features.linear_units).astype(np.float32)
    return DeepExpert.of(array_of(features.weight), array_of(features.bias), outputs, np.zeros(0, np.float32), slope)


def _steps(features: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a feature network in the order in which they are applied."""
    if isinstance(features, DenseFeatures):
        features = features.layers
    if type(features) is nn.Sequential:
        for part in features:
            yield from _steps(part)
    elif type(features) in (nn.Linear, *_ACTIVATIONS, *_WITHOUT_EFFECT):
        yield features
    else:
        raise HiNetError(
            "the export supports SparseBag, DenseFeatures and nn.Sequential of nn.Linear and activations; "
            f"the feature network has {type(features).__name__}; export that with torch.onnx, and here the same "
            "network with nn.Identity() as its features"
        )
