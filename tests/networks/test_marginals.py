from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from hinet.networks import HierarchicalHead, marginals
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
