"""What each feature of a row adds to the logits of a torch network, by gradient times input."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hinet.networks.batches import row_batch
from hinet.networks.features import SparseRows
from hinet.networks.heads import SiblingHead
from hinet.networks.models import HiNet


class NetworkContributions:
    """The parts of the logits of any sibling group, for one row.

    A network of rectified units is linear near a row, so that gradient times input is what a feature adds; what is left
    over, which is of the biases, goes to the rest. For other networks it is the linear part, and the rest is larger.
    """

    def __init__(self, network: HiNet, row: Any) -> None:
        network.eval()
        head = network.head
        assert isinstance(head, SiblingHead)
        batch = row_batch(row, 0, 1, str(next(network.parameters()).device))
        if isinstance(batch, SparseRows):
            self._values = batch.values.clone().requires_grad_()
            batch = SparseRows(batch.indices, batch.offsets, self._values)
        else:
            batch = self._values = batch.clone().requires_grad_()
        self._logits = head.logits(network.features(batch))[:, 0]  # (rows of weights,)
        self._first, self._size = head.group_row, head.group_size

    def __call__(self, neuron: int) -> _NetworkParts:
        """Return the parts of the logits of the group below ``neuron``."""
        first, size = int(self._first[neuron]), int(self._size[neuron])
        return _NetworkParts(self._logits[first : first + size], self._values)


class _NetworkParts:
    """The logits of a group; gradients are computed for single options."""

    def __init__(self, logits: Tensor, values: Tensor) -> None:
        self._logits, self._values = logits, values

    @property
    def logits(self) -> NDArray[np.float64]:
        """(options,) The logit of every option."""
        return self._logits.detach().double().cpu().numpy()

    def of(self, option: int) -> tuple[NDArray[np.float64], float]:
        """Return what each feature adds, and the rest."""
        (slope,) = torch.autograd.grad(self._logits[option], self._values, retain_graph=True)
        parts = (slope * self._values).detach().double().cpu().numpy().ravel()
        return parts, float(self._logits[option].detach()) - float(parts.sum())
