"""Models that can be exported: their interface, and the fused model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.engine import DeepExpert, FusedModel, Search
from hinet.engine.model.experts import EXPERTS, Floats
from hinet.errors import HiNetError
from hinet.exporting import scoring
from hinet.exporting.graph import GraphInMaking
from hinet.taxonomy import Layers


class Source(ABC):
    """A model of layers that can be exported."""

    layers: Layers
    output = "option among its siblings"  # meaning of a column of the output
    reads_sparse = True
    experts: tuple[str, ...] = ()  # experts in the graph
    left_out: tuple[str, ...] = ()
    in_bits = False  # whether embeddings are quantised

    @abstractmethod
    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every output, (b, outputs)."""

    @abstractmethod
    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows by the exported part and by the whole model."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that decoding needs."""
        layers = self.layers
        return {
            "tree": np.array(layers.is_tree),
            "layer_offsets": layers.layer_offsets,
            "option_offsets": layers.option_offsets,
            "option_neuron": layers.option_neuron,
            "option_parent": layers.option_parent,
            "slope": np.array(1.0),
        }


@singledispatch
def source_of(model: Any) -> Source:
    """Return the source of a model, or raise HiNetError; ``hinet.networks`` registers networks."""
    raise HiNetError(
        f"expected a FusedModel, a HiNet or a FlattenNetwork, got {type(model).__name__}; "
        "export the FusedModel itself, or the network"
    )


class FusedSource(Source):
    """A fused model, of which some experts can be exported."""

    def __init__(self, model: FusedModel) -> None:
        self.model, self.layers, self.part = model, model.layers, exported_part(model)
        self.experts = _active_experts(self.part)
        self.left_out = tuple(name for name in _active_experts(model) if name not in self.experts)
        self.in_bits = any(getattr(self.part.experts, name).is_quantised for name in self.experts)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that decoding needs."""
        arrays = super().arrays() | {"slope": np.array(self.model.odds_scale)}
        if self.model.trust is not None:  # rate, power and number of labels
            arrays["trust"] = np.array([*self.model.trust, self.layers.ends.sum()], np.float64)
        return arrays

    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every option, (b, options)."""
        model, operations = self.part, _Operations(graph, self.part)
        logits = ""
        for record, weight in zip(EXPERTS, model.mix, strict=True):
            if weight:
                own = record.export(getattr(model.experts, record.name), weight, operations)
                logits = graph.add("Add", logits, own) if logits else own
        return scoring.transposed(graph, scoring.normalised(graph, model.groups, logits, operations.rows.feature))

    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows by the exported part and by the whole model."""
        return Search(self.part, threads).traces(rows).traces, Search(self.model, threads).traces(rows).traces


source_of.register(FusedModel)(FusedSource)


class _Operations:
    """ONNX operations on the rows of a fused model, see :class:`hinet.engine.model.experts.record.Operations`."""

    def __init__(self, graph: GraphInMaking, model: FusedModel) -> None:
        self.graph, self.model, self.rows = graph, model, scoring.sparse_input(graph)
        if model.merged is not None:
            self.rows = scoring.merged(graph, self.rows, model.merged)

    def hidden(self, expert: DeepExpert) -> str:
        """Add the hidden units of a deep expert, (b, k)."""
        return scoring.bag(self.graph, self.rows, expert)

    def linear(self, hidden: str, weight: Floats, bias: Floats) -> str:
        """Add outputs that read hidden units."""
        return scoring.linear(self.graph, hidden, weight, bias)

    def pool_labels(self, scores: str, weight: float) -> str:
        """Pool the scores of labels into those of output rows, multiplied by ``weight``."""
        options = scoring.pooled(self.graph, self.model.layers, self.model.experts.spans, scores)
        rows = self.graph.add("Gather", options, self.graph.constant(self.model.groups.row_options()))
        return self.graph.add("Mul", rows, self.graph.constant(np.float32(weight)))


def exported_part(model: FusedModel) -> FusedModel:
    """Return a fused model with only the experts that can be exported, which get the weights of the others.

    Raises
    ------
    HiNetError
        If no expert can be exported.
    """
    exportable = np.array([record.can_export for record in EXPERTS])
    mix = np.where(exportable, model.experts.mix, 0)
    if not mix.any():
        raise HiNetError(
            "the model has neither a deep nor a flat expert, and others cannot be exported; train a deep one"
        )
    shared = (mix * (model.experts.mix.sum() / mix.sum())).astype(np.float32)
    return replace(model, experts=model.experts._replace(mix=shared))


def _active_experts(model: FusedModel) -> tuple[str, ...]:
    """Return the experts with a weight in the mix."""
    return tuple(name for name, weight in model.mix._asdict().items() if weight)
