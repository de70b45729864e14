"""A torch head for rows with several labels: the full-pass reference of the fused engine's experts.

Every option of a sibling group is a binary decision, read from the features.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, softplus

from hinet.engine.model.groups import Targets
from hinet.networks.graph import TargetBatch
from hinet.networks.heads import HeadSettings, SiblingHead
from hinet.ragged import offsets_of, positions
from hinet.taxonomy import Layers


class SetHead(SiblingHead):
    """``sigmoid(W h + c)`` for each option of a sibling group, given at least one if they are exhaustive.

    The cost of a row is the binary cross-entropy of all options below its nodes and below the root, given the same.
    """

    def __init__(self, layers: Layers, width: int, settings: HeadSettings | None = None) -> None:
        super().__init__(layers, width, settings or HeadSettings())
        self.layers = layers

    def normalised(self, logits: Tensor) -> Tensor:
        """Turn the logits of options with siblings, (rows, b), into ``log p`` of every option, (options, b)."""
        scores = logits.new_zeros(self.graph.options, logits.shape[1])
        group = self.graph.option_parent[self.free_options]
        total = logits.new_zeros(self.graph.neurons, logits.shape[1]).index_add(0, group, softplus(logits))
        exhaustive = torch.from_numpy(self.layers.exhaustive[group.cpu().numpy()]).to(logits.device)
        shift = torch.where(exhaustive[:, None], self._log_some(total[group]), logits.new_zeros(()))
        return scores.index_copy(0, self.free_options, logsigmoid(logits) - shift)

    @staticmethod
    def _log_some(total: Tensor) -> Tensor:
        """Return the log probability that any option is chosen, from minus the log probability that none is."""
        return (-torch.expm1(-total)).log()

    def cost(self, hidden: Tensor, targets: TargetBatch) -> Tensor:
        """Return the cost of every row."""
        return self.cost_of(self.logits(hidden), targets)

    def cost_of(self, logits: Tensor, targets: TargetBatch) -> Tensor:
        """Return the cost of every row from the logits of options with siblings, (rows, b)."""
        labels = np.bincount(targets.label_row.cpu().numpy(), minlength=targets.rows)
        order = torch.argsort(targets.label_row, stable=True)
        nodes = targets.label_node[order].cpu().numpy()
        row, option, wanted = visited_options(Targets.of_sets(self.layers, nodes, offsets_of(labels)))
        weight_row = torch.zeros(self.graph.options, dtype=torch.int64)
        weight_row[self.free_options.cpu()] = torch.arange(len(self.free_options))
        rows, truth = torch.from_numpy(row).to(logits.device), torch.from_numpy(wanted).to(logits)
        visited = logits[weight_row[torch.from_numpy(option)].to(logits.device), rows]
        entropy = binary_cross_entropy_with_logits(visited, truth, reduction="none")
        group = self.layers.option_parent[option].astype(np.int64)
        visits, visit = np.unique(row * self.graph.neurons + group, return_inverse=True)
        total = logits.new_zeros(len(visits)).index_add(0, torch.from_numpy(visit).to(logits.device), softplus(visited))
        exhaustive = np.flatnonzero(self.layers.exhaustive[visits % self.graph.neurons])
        given = torch.from_numpy(visits[exhaustive] // self.graph.neurons).to(logits.device)
        costs = logits.new_zeros(targets.rows).index_add(0, rows, entropy)
        return costs.index_add(0, given, self._log_some(total[torch.from_numpy(exhaustive).to(logits.device)]))

    def node_probabilities(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of every neuron, and of the labels that end there, (neurons, b) each.

        ``scores`` are :meth:`option_scores`. No neuron is more probable than a parent of its node.
        """
        layers, p = self.layers, scores.exp()
        parents, others = np.append(0, layers.parent_lists[0]), layers.other_parents
        depth = np.append(0, layers.taxonomy.depth[layers.node[1:]])
        option_to = {int(neuron): option for option, neuron in enumerate(layers.option_neuron) if neuron >= 0}
        reached = [torch.ones_like(p[0])] * self.graph.neurons
        for neuron in np.argsort(depth, kind="stable")[1:].tolist():
            bounds = [reached[other] for other in others[0][others[1][neuron] : others[1][neuron + 1]].tolist()]
            own = reached[int(parents[neuron])] * p[option_to[neuron]]
            reached[neuron] = torch.stack([own, *bounds]).amin(0)
        nodes = torch.stack(reached)
        ends = torch.zeros_like(nodes)
        ends[self.graph.stop_neurons] = nodes[self.graph.stop_neurons] * p[self.graph.stop_options]
        return nodes, ends


def visited_options(targets: Targets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row and number of all options in the groups of sets of labels, and which of them apply."""
    layers, arrays = targets.layers, targets.arrays
    sizes = np.where(layers.has_choice, np.diff(layers.option_offsets), 0)
    row, step = targets.arrays.entry_steps()
    group = arrays.step_group[step]
    starts = offsets_of(sizes[group])
    choices = np.diff(arrays.choice_offsets)[step]
    choice = positions(arrays.choice_offsets[step], choices)
    free = np.repeat(sizes[group] > 0, choices)
    wanted = np.zeros(starts[-1], bool)
    wanted[(np.repeat(starts[:-1], choices) + arrays.choice_option[choice])[free]] = True
    return np.repeat(row, sizes[group]), positions(layers.option_offsets[group], sizes[group]), wanted
