from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hinet.networks import HierarchicalHead, backward, best_labels, forward, labels_above, marginals
from tests.networks.strategies import PARENT, enumerated, heads, hidden_rows


@given(heads(PARENT))
def test_every_marginal_is_the_sum_over_its_traces(head: HierarchicalHead) -> None:
    layers = head.graph.layers
    scores = head.option_scores(hidden_rows()).detach()
    found = marginals(head.graph, scores)
    for row in range(3):
        neuron, node, label = np.zeros(len(layers.node)), np.zeros(len(layers.taxonomy)), np.zeros(len(layers.taxonomy))
        for path, score in enumerated(layers, scores, row).items():
            full = (0, *path)
            neuron[list(full)] += np.exp(score)
            named = {int(layers.node[n]) for n in full} - {-1}
            node[list(named)] += np.exp(score)
            if layers.node[full[-1]] >= 0:
                label[layers.node[full[-1]]] += np.exp(score)
        assert found.neuron[:, row].tolist() == pytest.approx(neuron.tolist())
        assert found.node[:, row].tolist() == pytest.approx(node.tolist())
        assert found.label[:, row].tolist() == pytest.approx(label.tolist())
    assert (found.node <= 1 + 1e-9).all()


@given(heads(PARENT), st.data())
def test_forward_times_backward_is_the_mass_that_ends_in_chosen_labels(
    head: HierarchicalHead, data: st.DataObject
) -> None:
    layers = head.graph.layers
    scores = head.option_scores(hidden_rows()).detach()
    chosen = data.draw(st.lists(st.booleans(), min_size=len(layers.taxonomy), max_size=len(layers.taxonomy)))
    through = forward(head.graph, scores) * backward(head.graph, scores, torch.tensor(chosen))
    for row in range(3):
        mass = np.zeros(len(layers.node))
        for path, score in enumerated(layers, scores, row).items():
            end = int(layers.node[path[-1] if path else 0])
            if end >= 0 and chosen[end]:
                mass[[0, *path]] += np.exp(score)
        assert through[:, row].tolist() == pytest.approx(mass.tolist())


@given(heads(PARENT), st.floats(0.05, 0.9))
def test_best_labels_and_labels_above_a_threshold(head: HierarchicalHead, threshold: float) -> None:
    found = marginals(head.graph, head.option_scores(hidden_rows()).detach())
    node, probability = best_labels(found, 2)
    above = labels_above(found, threshold)
    for row in range(3):
        by_hand = sorted(found.label[:, row].tolist(), reverse=True)
        assert probability[:, row].tolist() == by_hand[:2]
        assert found.label[node[0, row], row] == by_hand[0]
        assert found.label[above[row], row].tolist() == [p for p in by_hand if p >= threshold]
