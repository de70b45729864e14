"""Sources of an export: their interface, and models of the fused engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.engine import FusedModel, Mix, Search
from hinet.errors import HiNetError
from hinet.exporting import scoring
from hinet.exporting.graph import GraphInMaking
from hinet.taxonomy import Layers

EXPORTED = ("deep", "flat")  # the experts that a graph can hold


class Source(ABC):
    """A model of some layers, as an export sees it."""

    layers: Layers
    output = "option among its siblings"  # what the graph has a column for
    reads_sparse = True
    experts: tuple[str, ...] = ()  # that the graph holds, of a model of several
    left_out: tuple[str, ...] = ()
    in_bits = False  # whether the graph holds embeddings in 8 bits

    @abstractmethod
    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every output, (b, outputs)."""

    @abstractmethod
    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows by what the graph holds, and by the whole model."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what decoding needs to know of the outputs, as named arrays."""
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
    """Return a model as an export sees it, or raise HiNetError; networks join when ``hinet.networks`` is imported."""
    raise HiNetError(
        f"a FusedModel, a HiNet or a FlattenNetwork can be exported, got {type(model).__name__}; "
        "export the FusedModel itself, or the network"
    )


class FusedSource(Source):
    """A fused model, of which the graph holds some experts."""

    def __init__(self, model: FusedModel) -> None:
        self.model, self.layers, self.part = model, model.layers, exported_part(model)
        self.experts = _active_experts(self.part)
        self.left_out = tuple(name for name in _active_experts(model) if name not in self.experts)
        self.in_bits = any(getattr(self.part.experts, name).is_quantised for name in self.experts)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what decoding needs to know of the options, as named arrays."""
        arrays = super().arrays() | {"slope": np.array(self.model.odds_scale)}
        if self.model.trust is not None:  # with the number of labels
            arrays["trust"] = np.array([*self.model.trust, self.layers.ends.sum()], np.float64)
        return arrays

    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every option, (b, options)."""
        rows, model = scoring.sparse_input(graph), self.part
        experts, mix = model.experts, model.mix
        if model.merged is not None:
            rows = scoring.merged(graph, rows, model.merged)
        logits, hidden = [], ""
        if mix.flat:
            hidden = scoring.bag(graph, rows, experts.flat)
            labels = scoring.linear(graph, hidden, experts.flat.output_weights(), experts.flat.bias)
            options = scoring.pooled(graph, model.layers, experts.spans, labels)
            flat_logits = graph.add("Gather", options, graph.constant(model.groups.row_options()))
            logits.append(graph.add("Mul", flat_logits, graph.constant(np.float32(mix.flat))))
        if mix.deep:
            hidden = scoring.bag(graph, rows, experts.deep)
            weight, bias = (np.float32(mix.deep) * part for part in (experts.deep.output_weights(), experts.deep.bias))
            logits.append(scoring.linear(graph, hidden, weight, bias))
        both = logits[0] if len(logits) == 1 else graph.add("Add", *logits)
        return scoring.transposed(graph, scoring.normalised(graph, model.groups, both, hidden))

    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows by what the graph holds, and by the whole model."""
        return Search(self.part, threads).traces(rows).traces, Search(self.model, threads).traces(rows).traces


source_of.register(FusedModel)(FusedSource)


def exported_part(model: FusedModel) -> FusedModel:
    """Return a fused model of those experts that a graph can hold; the weights of the others in the mix go to them.

    Raises
    ------
    HiNetError
        If none of them is used.
    """
    exportable = np.array([name in EXPORTED for name in Mix._fields])
    mix = np.where(exportable, model.experts.mix, 0)
    if not mix.any():
        raise HiNetError(
            "the model has neither a deep nor a flat expert, and no other can be exported; train a deep one"
        )
    shared = (mix * (model.experts.mix.sum() / mix.sum())).astype(np.float32)
    return replace(model, experts=model.experts._replace(mix=shared))


def _active_experts(model: FusedModel) -> tuple[str, ...]:
    """Return the experts with a weight in the mix."""
    return tuple(name for name, weight in model.mix._asdict().items() if weight)
