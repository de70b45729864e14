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
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hinet.errors import HiNetError
from hinet.networks.graph import NeuronGraph, TargetBatch, Targets
from hinet.parameters import FLAG, INVALID, NONE, Rule, Rules, one_of, real, validate_fields
from hinet.taxonomy import Layers

WEIGHT_STD = 0.05
PRIOR_STRENGTH = 0.6
SMOOTHING = 0.5  # rows added to every option before shares are computed
MAX_DENSE_CELLS = 50_000_000  # weights between two layers: 200 MB, and four times that with gradient and optimiser


def _read_level_weights(value: Any) -> Any:
    fits = isinstance(value, tuple | list) and all(real(0).read(weight) is not INVALID for weight in value)
    return tuple(map(float, value)) if fits else INVALID


_RULES: Rules = {
    "wiring": one_of("chain", "skip"),
    "normalisation": one_of("level", "parent"),
    "cost": one_of("squared", "cross_entropy"),
    "mask": one_of("dense", "masked"),
    "level_weights": Rule("a sequence of numbers of at least 0", _read_level_weights) | NONE,
    "prior_strength": real(),
    "tied": FLAG,
}


@dataclass(frozen=True)
class HeadSettings:
    """The choices of a head; ``level_weights`` are the weights of the levels in the cost, by default all 1."""

    wiring: Literal["chain", "skip"] = "skip"
    normalisation: Literal["level", "parent"] = "parent"
    cost: Literal["squared", "cross_entropy"] = "cross_entropy"
    mask: Literal["dense", "masked"] = "masked"
    level_weights: tuple[float, ...] | None = None
    prior_strength: float = 0.0  # factor of the log share of an option in its group, added to its training logit
    tied: bool = False  # whether the edges into a node of a DAG share their weights, but not their biases

    def __post_init__(self) -> None:
        validate_fields(self, _RULES)
        if (self.tied or self.prior_strength) and (self.wiring, self.normalisation) != ("skip", "parent"):
            raise HiNetError("`tied` and `prior_strength` need wiring 'skip' and normalisation 'parent'")


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
    if settings.wiring == "skip" and settings.normalisation == "parent":
        return SiblingHead(layers, width, settings)
    return LayerwiseHead(layers, width, settings)


class SiblingHead(HierarchicalHead):
    """A softmax over each sibling group, read from the feature layer: ``p(b | a) = softmax(W h + c)``.

    Groups of one option are certain and have no weights. The cost computes only the groups on the true traces.

    Each option has a row of weights, so that a child with two parents has two; ``tied`` heads have one for each neuron
    (and one for each stop), which in a dense hierarchy is ``h k n + h n^2`` parameters instead of ``h k n^2``.
    """

    max_gathered_cells = 8_000_000  # weights gathered for the groups of a batch: 32 MB

    group_row: Tensor
    group_size: Tensor
    group_start: Tensor
    free_options: Tensor
    free_sizes: Tensor
    adjustment: Tensor
    unit: Tensor  # (rows,) row of the weights of each option, if they are tied

    def __init__(self, layers: Layers, width: int, settings: HeadSettings) -> None:
        super().__init__(layers, width, settings)
        sizes = torch.from_numpy(layers.option_offsets.copy()).diff()  # (neurons,)
        free = torch.from_numpy(layers.has_choice.copy())
        rows = torch.where(free, sizes, 0)
        self.register_buffer("group_row", rows.cumsum(0) - rows, persistent=False)  # first row of a group
        self.register_buffer("group_size", sizes, persistent=False)
        self.register_buffer("group_start", torch.from_numpy(layers.option_offsets[:-1].copy()), persistent=False)
        self.register_buffer("free_options", torch.nonzero(free[self.graph.option_parent])[:, 0], persistent=False)
        self.register_buffer("free_sizes", sizes[free], persistent=False)
        units = len(self.free_options)
        if settings.tied:
            target = self.graph.option_neuron[self.free_options]
            stops = -1 - torch.arange(units)  # each stop is a unit of its own
            distinct, unit = torch.unique(torch.where(target < 0, stops, target), return_inverse=True)
            units = len(distinct)
            self.register_buffer("unit", unit, persistent=False)
        self.weight = nn.Parameter(torch.randn(units, width) * WEIGHT_STD)  # (units, k)
        self.bias = nn.Parameter(torch.zeros(len(self.free_options)))
        self.register_buffer("adjustment", torch.zeros(len(self.free_options)), persistent=False)

    def learn_prior(self, targets: Targets) -> None:
        """Shift the training logits by the log share of each option in its group, in favour of rare options."""
        if not self.settings.prior_strength:
            return
        seen = targets.option_counts()
        counts = seen + SMOOTHING  # (options,)
        totals = torch.zeros(self.graph.neurons).index_add(0, self.graph.option_parent.cpu(), counts)
        share = (counts / totals[self.graph.option_parent.cpu()]).log()
        # An option without rows is not favoured: training must lower its logit like that of any wrong answer.
        shift = torch.where(seen > 0, self.settings.prior_strength * share, torch.zeros_like(share))
        self.adjustment.copy_(shift[self.free_options.cpu()])

    @property
    def option_weight(self) -> Tensor:
        """(rows, k) The weights of every option with siblings; those of tied options are repeated."""
        return self.weight[self.unit] if self.settings.tied else self.weight

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
            unit = self.unit[weight_row] if self.settings.tied else weight_row
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
    if settings.mask != "dense" or (settings.wiring, settings.normalisation) == ("skip", "parent"):
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
        self._units = [layer.width for layer in layers]
        self._real = [len(layer.nodes) for layer in layers]  # neurons without the stop
        above = 1
        for number, layer in enumerate(layers, start=1):
            reads_features = number == 1 or settings.wiring == "skip"
            outputs = layer.width if settings.normalisation == "level" else len(layer.edge_child)
            rows = outputs if reads_features else 0
            self.from_features.append(nn.Parameter(torch.randn(rows, width) * WEIGHT_STD))
            self.biases.append(nn.Parameter(torch.zeros(rows if settings.wiring == "skip" else 0)))
            self.from_above.append(self._weights_above(number, layer.width, above, len(layer.edge_child)))
            sizes, parent, unit = np.diff(layer.group_offsets), layer.edge_parent, layer.edge_child
            for name, array in (("sizes", sizes), ("parent", parent), ("unit", unit)):
                self.register_buffer(f"{name}_{number}", torch.from_numpy(array.astype(np.int64)), persistent=False)
            above = len(layer.nodes)

    def _weights_above(self, number: int, width: int, above: int, edges: int) -> nn.Parameter:
        if number == 1:
            return nn.Parameter(torch.zeros(0))
        if self.settings.mask == "masked":
            return nn.Parameter(torch.randn(edges))
        return nn.Parameter(torch.randn(width, above) / above**0.5)

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
        by_level = self.settings.normalisation == "level"
        group = self.graph.option_layer[option] - 1 if by_level else self.graph.option_parent[option]
        return self._combined(log_p, squares[group, row], targets)

    def _pass(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return option scores, (options, b), and the sum of squares of each softmax, (layers or groups, b)."""
        scores, squares = [], []
        above = hidden.new_ones(1, len(hidden))  # (w, b) posteriors of the layer above
        for number in range(1, self.graph.height + 2):
            logits = self._logits(number, hidden, above)
            unit = getattr(self, f"unit_{number}")
            if self.settings.normalisation == "level":
                log_y = logits.log_softmax(0)  # (w, b) the stop neuron last
                scores.append(log_y[unit])
                squares.append(log_y.exp().square().sum(0, keepdim=True))
                above = log_y.exp()[: self._real[number - 1]]
            else:
                sizes, parent = getattr(self, f"sizes_{number}"), getattr(self, f"parent_{number}")
                log_p = segment_log_softmax(logits, sizes)  # (e, b)
                scores.append(log_p)
                squares.append(torch.segment_reduce(log_p.exp().square(), "sum", lengths=sizes, axis=0))
                joint = above[parent] * log_p.exp()
                above = _sum_by(joint, unit, self._units[number - 1])[: self._real[number - 1]]
        return torch.cat(scores), torch.cat(squares)

    def _logits(self, number: int, hidden: Tensor, above: Tensor) -> Tensor:
        """Return the logits of a layer: for neurons, (w, b), with ``level``, for edges, (e, b), with ``parent``."""
        weight = self.from_features[number - 1]
        unit, parent = getattr(self, f"unit_{number}"), getattr(self, f"parent_{number}")
        by_level = self.settings.normalisation == "level"
        logits: Tensor | None = weight @ hidden.T if len(weight) else None
        if logits is not None and self.settings.wiring == "skip":
            logits = logits + self.biases[number - 1][:, None]
        if number > 1 and (by_level or self.settings.wiring == "chain"):
            read = self.from_above[number - 1]
            if self.settings.mask == "dense":
                from_parents = read @ above if by_level else (read @ above)[unit]
            else:
                from_parents = read[:, None] * above[parent]
                from_parents = _sum_by(from_parents, unit, self._units[number - 1]) if by_level else from_parents
            logits = from_parents if logits is None else logits + from_parents
        assert logits is not None
        return logits


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
