"""A network carried over to other layers, and what its output rows learn there."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hinet.engine import Groups
from hinet.engine.training.taxonomy_transfer import (
    NEW_OPTION_BIAS,
    OutputRows,
    OutputTransfer,
    ScoredRows,
    relearned,
)
from hinet.networks.models import HiNet
from hinet.networks.predict import feature_layer
from hinet.taxonomy import Layers


def carried_network(network: HiNet, layers: Layers, came_from: NDArray[np.int64]) -> HiNet:
    """Return a network with a copy of the features over other layers."""
    rows = OutputTransfer.between(network.layers, layers, came_from)
    moved = HiNet(copy.deepcopy(network.features), layers, network.head.width, network.head.settings)
    outputs = _outputs(network)
    _set_outputs(moved, OutputRows(rows.transfer(outputs.weight), rows.transfer(outputs.bias, NEW_OPTION_BIAS)))
    return moved.eval()


def teach_network(network: HiNet, learns: NDArray[np.bool_], targets: Any, rows: Any) -> None:
    """Fit the output rows that learn to targets on rows, in place."""
    outputs, hidden = _outputs(network), feature_layer(network, rows)
    first = Groups.of(network.layers).first_row

    def score(group: int, chosen: NDArray[np.int64]) -> ScoredRows:
        part = slice(first[group], first[group + 1])
        return ScoredRows(hidden[chosen] @ outputs.weight[part].T + outputs.bias[part], hidden[chosen])

    _set_outputs(network, relearned(outputs, learns, targets, network.layers, score, 1.0))


def _outputs(network: HiNet) -> OutputRows:
    state = network.head.state_dict()
    return OutputRows(*(state[name].cpu().numpy() for name in OutputRows._fields))


def _set_outputs(network: HiNet, outputs: OutputRows) -> None:
    network.head.load_state_dict({name: torch.from_numpy(array) for name, array in outputs._asdict().items()})
