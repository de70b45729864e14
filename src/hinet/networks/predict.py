"""Predictions of a whole set of rows, batch by batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.engine.search.predictor import K
from hinet.networks.batches import batches
from hinet.networks.downpour import downpour
from hinet.networks.models import FlattenNetwork, HiNet
from hinet.parameters import whole


@torch.no_grad()
def feature_layer(network: HiNet, rows: Any) -> NDArray[np.float32]:
    """Return the feature layer of every row, (n, k)."""
    parts = [network.features(batch).cpu().numpy() for batch in batches(network, rows, network.head.width)]
    return np.concatenate(parts) if parts else np.zeros((0, network.head.width), np.float32)


@torch.no_grad()
def predict_traces(network: HiNet | FlattenNetwork, rows: Any, *, k: int = 1) -> Traces:
    """Return the ``k`` best traces of every row, by downpour; of the flat network, the traces of its best label.

    In a DAG the best trace need not end at the most probable label, whose probability is a sum over its traces: for
    that see :class:`hinet.networks.predictor.NetworkPredictor`.
    """
    k = (whole(1, 1) if isinstance(network, FlattenNetwork) else K).validate("k", k)
    layers = network.layers
    parts = []
    for batch in batches(network, rows, len(layers.option_neuron) * (1 if layers.is_tree else k)):
        if isinstance(network, FlattenNetwork):
            best = network.label_nodes[network.label_scores(batch).argmax(1)].cpu().numpy()
            parts.append(Traces.of_nodes(layers, best))
        else:
            parts.append(downpour(network.graph, network.option_scores(batch), k))
    return Traces.joined(layers, parts)
