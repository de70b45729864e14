"""Hierarchical output layers: the network of the paper, and its improvements.

A head is a combination of these choices:

- wiring: ``chain``, each layer reads the layer above it (the paper), or ``skip``, every layer reads the feature layer;
- normalisation: ``level``, a softmax over each layer (the paper), or ``parent``, a softmax over each sibling group;
- cost: ``squared`` (the paper) or ``cross_entropy``, summed over the levels of the true trace down to its stop;
- mask, if a layer reads the one above it: ``dense`` weights, or ``masked``, one weight for each allowed edge.

With ``skip`` a layer reads the feature layer in addition to the layer above. With ``parent`` the layer above already
enters by the product ``p(b | a) p(a)``, so the logits read only the feature layer.

Scores are laid out as (options, b), one row per edge, so that groups and layers are runs of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hinet.errors import HiNetError
from hinet.networks.graph import NeuronGraph, TargetBatch, Targets
from hinet.parameters import FLAG, INVALID, NONE, Rule, one_of, real, rules_of, validate_fields
from hinet.taxonomy import Layers

WEIGHT_STD = 0.05
PRIOR_STRENGTH = 0.6
SMOOTHING = 0.5  # rows added to every option before shares are computed
MAX_DENSE_CELLS = 50_000_000  # weights between two layers: 200 MB, and four times that with gradient and optimiser


def _read_level_weights(value: Any) -> Any:
    fits = isinstance(value, tuple | list) and all(real(0).read(weight) is not INVALID for weight in value)
    return tuple(map(float, value)) if fits else INVALID


WEIGHTS = Rule("a sequence of numbers of at least 0", _read_level_weights)


@dataclass(frozen=True)
class HeadSettings:
    """The choices of a head; ``level_weights`` are the weights of the levels in the cost, by default all 1."""

    wiring: Annotated[Literal["chain", "skip"], one_of("chain", "skip")] = "skip"
    normalisation: Annotated[Literal["level", "parent"], one_of("level", "parent")] = "parent"
    cost: Annotated[Literal["squared", "cross_entropy"], one_of("squared", "cross_entropy")] = "cross_entropy"
    mask: Annotated[Literal["dense", "masked"], one_of("dense", "masked")] = "masked"
    level_weights: Annotated[tuple[float, ...] | None, WEIGHTS | NONE] = None
    # Factor of the log share of an option in its group, added to its training logit.
    prior_strength: Annotated[float, real()] = 0.0
    tied: Annotated[bool, FLAG] = False  # whether the edges into a node of a DAG share their weights, not their biases

    def __post_init__(self) -> None:
        validate_fields(self, rules_of(HeadSettings))
        if (self.tied or self.prior_strength) and not self.by_sibling_group:
            raise HiNetError("`tied` and `prior_strength` need wiring 'skip' and normalisation 'parent'")

    @property
    def by_sibling_group(self) -> bool:
        """Whether the logits read the feature layer alone, so that only the sibling groups on a trace matter."""
        return (self.wiring, self.normalisation) == ("skip", "parent")


def paper(mask: Literal["dense", "masked"] = "dense") -> HeadSettings:
    """Return the head of the paper: a chain of softmaxes over layers, trained with squared error."""
    return HeadSettings("chain", "level", "squared", mask)


def default() -> HeadSettings:
    """Return the default head: sibling softmaxes over the feature layer, cross entropy, adjusted logits."""
    return HeadSettings(prior_strength=PRIOR_STRENGTH)


class HierarchicalHead(nn.Module):
    """Output layers over a taxonomy: scores for every option, and the cost of true traces."""

    level_weights: Tensor

    def __init__(self, layers: Layers, width: int, settings: HeadSettings) -> None:
        super().__init__()
        self.settings = settings
        self.width = width
        self.graph = NeuronGraph(layers)
        weights = settings.level_weights or (1.0,) * (layers.height + 1)
        if len(weights) != layers.height + 1:
            raise HiNetError(f"`level_weights` needs {layers.height + 1} numbers, one per level; got {len(weights)}")
        self.register_buffer("level_weights", torch.tensor([0.0, *weights]), persistent=False)

    def learn_prior(self, targets: Targets) -> None:
        """Count before training how often each option occurs, if the head adjusts its logits."""

    def option_scores(self, hidden: Tensor) -> Tensor:
        """Return the log factor of every option, (options, b), which downpour adds up along a trace."""
        raise NotImplementedError

    def cost(self, hidden: Tensor, targets: TargetBatch) -> Tensor:
        """Return the cost of every row, (b,): the sum over levels, marginal over a label's traces, mean over labels."""
        raise NotImplementedError

    def _combined(self, log_p: Tensor, squares: Tensor | None, targets: TargetBatch) -> Tensor:
        """Return row costs from the log factor of each step and, for squared error, the sum of squares of its group."""
        level = self.graph.option_layer[targets.step_option]
        weight = self.level_weights[level].to(log_p.dtype)
        if squares is None:
            total = _sum_by(weight * log_p, targets.step_trace, len(targets.trace_row))  # (traces,)
            label_cost = -segment_logsumexp(total, targets.trace_counts)
        else:
            error = weight * (squares - 2 * log_p.exp() + 1)  # |one-hot - p|^2 over the group of the step
            total = _sum_by(error, targets.step_trace, len(targets.trace_row))
            label_cost = _sum_by(total, torch.repeat_interleave(targets.trace_counts), len(targets.trace_counts))
            label_cost = label_cost / targets.trace_counts
        labels = torch.bincount(targets.label_row, minlength=targets.rows).clamp(min=1)
        return _sum_by(label_cost, targets.label_row, targets.rows) / labels


def build_head(layers: Layers, width: int, settings: HeadSettings | None = None) -> HierarchicalHead:
    """Return the head with these settings, by default :func:`default`."""
    settings = settings or default()
    return (SiblingHead if settings.by_sibling_group else LayerwiseHead)(layers, width, settings)


class SiblingHead(HierarchicalHead):
    """A softmax over each sibling group, read from the feature layer: ``p(b | a) = softmax(W h + c)``.

    Groups of one option are certain and have no weights. The cost computes only the groups on the true traces.

    Each option has a row of weights, so that a child with two parents has two; ``tied`` heads have one for each neuron
    (and one for each stop), which in a dense hierarchy is ``h k n + h n^2`` parameters instead of ``h k n^2``.
    """

    max_gathered_cells = 8_000_000  # weights gathered for the groups of a batch: 32 MB

    group_row: Tensor  # (neurons,) first row of a group
    group_size: Tensor
    group_start: Tensor
    free_options: Tensor  # (rows,) options with siblings
    free_sizes: Tensor
    adjustment: Tensor
    unit: Tensor  # (rows,) row of the weights of each option

    def __init__(self, layers: Layers, width: int, settings: HeadSettings) -> None:
        super().__init__(layers, width, settings)
        sizes = torch.from_numpy(np.diff(layers.option_offsets))  # (neurons,)
        free = torch.from_numpy(layers.has_choice.copy())
        rows = torch.where(free, sizes, 0)
        free_options = torch.nonzero(free[self.graph.option_parent])[:, 0]
        units = unit = torch.arange(len(free_options))
        if settings.tied:
            target = self.graph.option_neuron[free_options]
            stops = -1 - units  # each stop is a unit of its own
            units, unit = torch.unique(torch.where(target < 0, stops, target), return_inverse=True)
        self.weight = nn.Parameter(torch.randn(len(units), width) * WEIGHT_STD)  # (units, k)
        self.bias = nn.Parameter(torch.zeros(len(free_options)))
        for name, values in (
            ("group_row", rows.cumsum(0) - rows),
            ("group_size", sizes),
            ("group_start", torch.from_numpy(layers.option_offsets[:-1].copy())),
            ("free_options", free_options),
            ("free_sizes", sizes[free]),
            ("unit", unit),
            ("adjustment", torch.zeros(len(free_options))),
        ):
            self.register_buffer(name, values, persistent=False)

    def learn_prior(self, targets: Targets) -> None:
        """Shift the training logits by the log share of each option in its group, in favour of rare options."""
        if not self.settings.prior_strength:
            return
        seen, parent = targets.option_counts(), self.graph.option_parent.cpu()
        counts = seen + SMOOTHING  # (options,)
        share = (counts / _sum_by(counts, parent, self.graph.neurons)[parent]).log()
        # An option without rows is not favoured: training must lower its logit like that of any wrong answer.
        shift = torch.where(seen > 0, self.settings.prior_strength * share, 0.0)
        self.adjustment.copy_(shift[self.free_options.cpu()])

    @property
    def option_weight(self) -> Tensor:
        """(rows, k) The weights of every option with siblings; those of tied options are repeated."""
        return self.weight[self.unit]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of every option with siblings, (rows, b)."""
        if self.settings.tied:
            return (self.weight @ hidden.T)[self.unit] + self.bias[:, None]
        return torch.addmm(self.bias[:, None], self.weight, hidden.T)

    def normalised(self, logits: Tensor) -> Tensor:
        """Turn the logits of options with siblings, (rows, b), into ``log p`` of every option, (options, b)."""
        scores = logits.new_zeros(self.graph.options, logits.shape[1])
        if len(self.free_options) == 0:
            return scores
        return scores.index_copy(0, self.free_options, segment_log_softmax(logits, self.free_sizes))

    def option_scores(self, hidden: Tensor) -> Tensor:
        """Return ``log p(option | parent)`` of every option, (options, b)."""
        return self.normalised(self.logits(hidden))

    def cost(self, hidden: Tensor, targets: TargetBatch) -> Tensor:
        """Return the cost of every row, from only the sibling groups on its traces."""
        parent = self.graph.option_parent[targets.step_option]  # (steps,)
        free = self.group_size[parent] > 1
        log_p = hidden.new_zeros(len(parent))
        squares = hidden.new_ones(len(parent))  # a certain option costs 1 - 2 + 1 = 0
        if free.any():
            step_group = parent[free]
            key = targets.step_row[free] * self.graph.neurons + step_group
            pairs, pair_of_step = torch.unique(key, return_inverse=True)  # each (row, group) once
            row, group = pairs // self.graph.neurons, pairs % self.graph.neurons
            sizes = self.group_size[group]
            starts = sizes.cumsum(0) - sizes
            pair = torch.repeat_interleave(sizes)  # (m,) over the options of all pairs
            weight_row = self.group_row[group][pair] + torch.arange(len(pair), device=pair.device) - starts[pair]
            unit = self.unit[weight_row]
            if self.settings.tied or len(pair) * self.width > self.max_gathered_cells:  # score every unit once
                index = unit * len(hidden) + row[pair]
                logits = (self.weight @ hidden.T).flatten().index_select(0, index)  # (m,)
            else:
                logits = (self.weight[unit] * hidden[row[pair]]).sum(1)
            logits = logits + self.bias[weight_row]
            if self.training:
                logits = logits + self.adjustment[weight_row]
            log_softmax = segment_log_softmax(logits, sizes)
            chosen = starts[pair_of_step] + targets.step_option[free] - self.group_start[step_group]
            log_p = log_p.index_put((free.nonzero()[:, 0],), log_softmax[chosen])
            if self.settings.cost == "squared":
                sums = torch.segment_reduce(log_softmax.exp().square(), "sum", lengths=sizes, axis=0)
                squares = squares.index_put((free.nonzero()[:, 0],), sums[pair_of_step])
        return self._combined(log_p, squares if self.settings.cost == "squared" else None, targets)


def refuse_dense_weights(layers: Layers, settings: HeadSettings) -> None:
    """Raise HiNetError if dense weights between layers would not fit into memory."""
    if settings.mask != "dense" or settings.by_sibling_group:
        return
    above = 1
    for number, layer in enumerate(layers, start=1):
        if number > 1 and layer.width * above > MAX_DENSE_CELLS:
            raise HiNetError(
                f"dense weights from layer {number - 1} to layer {number} are {layer.width:,} x {above:,} = "
                f"{layer.width * above * 4 / 1e9:.1f} GB, and four times that in training; mask them instead: "
                "mask='masked', or the model paper-masked"
            )
        above = len(layer.nodes)


class LayerwiseHead(HierarchicalHead):
    """Layers computed one after the other, each from the posteriors above and, with ``skip``, from the features."""

    def __init__(self, layers: Layers, width: int, settings: HeadSettings) -> None:
        refuse_dense_weights(layers, settings)
        super().__init__(layers, width, settings)
        self.from_features = nn.ParameterList()
        self.from_above = nn.ParameterList()
        self.biases = nn.ParameterList()
        self._layers = list(layers)
        self._by_level = settings.normalisation == "level"
        above = 1
        for number, layer in enumerate(layers, start=1):
            edges = len(layer.edge_child)
            rows = layer.width if self._by_level else edges
            if number > 1 and settings.wiring == "chain":  # only the first layer reads the features
                rows = 0
            self.from_features.append(nn.Parameter(torch.randn(rows, width) * WEIGHT_STD))
            self.biases.append(nn.Parameter(torch.zeros(rows if settings.wiring == "skip" else 0)))
            if number == 1:
                weights = torch.zeros(0)
            elif settings.mask == "masked":
                weights = torch.randn(edges)
            else:
                weights = torch.randn(layer.width, above) / above**0.5
            self.from_above.append(nn.Parameter(weights))
            for name, array in (("parent", layer.edge_parent), ("unit", layer.edge_child)):
                self.register_buffer(f"{name}_{number}", torch.from_numpy(array.astype(np.int64)), persistent=False)
            above = len(layer.nodes)

    def option_scores(self, hidden: Tensor) -> Tensor:
        """Return the log factor of every option, (options, b): ``log y`` of its neuron, or ``log p(b | a)``."""
        return self._pass(hidden)[0]

    def cost(self, hidden: Tensor, targets: TargetBatch) -> Tensor:
        """Return the cost of every row, by a pass over all layers."""
        scores, squares = self._pass(hidden)
        row, option = targets.step_row, targets.step_option
        log_p = scores[option, row]
        if self.settings.cost == "cross_entropy":
            return self._combined(log_p, None, targets)
        group = self.graph.option_layer[option] - 1 if self._by_level else self.graph.option_parent[option]
        return self._combined(log_p, squares[group, row], targets)

    def _pass(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return option scores, (options, b), and the sum of squares of each softmax, (layers or groups, b)."""
        scores, squares = [], []
        above = hidden.new_ones(1, len(hidden))  # (w, b) posteriors of the layer above
        for number, layer in enumerate(self._layers, start=1):
            parent, unit = getattr(self, f"parent_{number}"), getattr(self, f"unit_{number}")
            logits = self._logits(number, hidden, above, parent, unit)
            if self._by_level:
                log_y = logits.log_softmax(0)  # (w, b) the stop neuron last
                scores.append(log_y[unit])
                squares.append(log_y.exp().square().sum(0, keepdim=True))
                passed = log_y.exp()
            else:
                sizes = torch.bincount(parent, minlength=len(above))
                log_p = segment_log_softmax(logits, sizes)  # (e, b)
                scores.append(log_p)
                squares.append(torch.segment_reduce(log_p.exp().square(), "sum", lengths=sizes, axis=0))
                passed = _sum_by(above[parent] * log_p.exp(), unit, layer.width)
            above = passed[: len(layer.nodes)]
        return torch.cat(scores), torch.cat(squares)

    def _logits(self, number: int, hidden: Tensor, above: Tensor, parent: Tensor, unit: Tensor) -> Tensor:
        """Return the logits of a layer: for neurons, (w, b), with ``level``, for edges, (e, b), with ``parent``."""
        weight, read = self.from_features[number - 1], self.from_above[number - 1]
        logits: Tensor = weight @ hidden.T if len(weight) else hidden.new_zeros(())
        if self.settings.wiring == "skip":
            logits = logits + self.biases[number - 1][:, None]
        if number == 1:
            return logits
        from_parents: Tensor
        if self.settings.mask == "dense":
            from_parents = read @ above if self._by_level else (read @ above)[unit]
        else:
            from_parents = read[:, None] * above[parent]
            if self._by_level:
                from_parents = _sum_by(from_parents, unit, self._layers[number - 1].width)
        return logits + from_parents


def _sum_by(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum rows of ``values`` that share an ``index``; (m, ...) to (size, ...)."""
    return values.new_zeros(size, *values.shape[1:]).index_add(0, index, values)


def segment_log_softmax(values: Tensor, lengths: Tensor) -> Tensor:
    """Log-softmax along dim 0 within runs of ``lengths`` rows; (m, ...) stays (m, ...).

    >>> shares = segment_log_softmax(torch.zeros(5, 1), torch.tensor([2, 3])).exp()
    >>> [round(share, 3) for share in shares[:, 0].tolist()]
    [0.5, 0.5, 0.333, 0.333, 0.333]
    """
    count = len(values)
    top = torch.segment_reduce(values.detach(), "max", lengths=lengths, axis=0)  # (segments, ...)
    shifted = values - top.repeat_interleave(lengths, 0, output_size=count)
    total = torch.segment_reduce(shifted.exp(), "sum", lengths=lengths, axis=0)
    return shifted - total.log().repeat_interleave(lengths, 0, output_size=count)


def segment_logsumexp(values: Tensor, lengths: Tensor) -> Tensor:
    """Log of the sum of exponentials along dim 0 within runs of ``lengths`` rows; (m, ...) to (segments, ...)."""
    if len(lengths) == 0:
        return values[:0]
    top = torch.segment_reduce(values.detach(), "max", lengths=lengths, axis=0)
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    shifted = values - top.repeat_interleave(lengths, 0, output_size=len(values))
    return torch.segment_reduce(shifted.exp(), "sum", lengths=lengths, axis=0).log() + top
