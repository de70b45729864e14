"""What each feature of a row adds to the logits of a torch network, by gradient times input."""

from __future__ import annotations

from typing import Any

import torch

from hinet.engine.contributions import Contributions
from hinet.network import HiNet, SparseRows
from hinet.network.heads import SiblingHead
from hinet.training.batches import row_batch


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

    def __call__(self, neuron: int) -> Contributions:
        """Return the parts of the logits of the group below ``neuron``."""
        first, size = int(self._first[neuron]), int(self._size[neuron])
        logits = self._logits[first : first + size]
        parts = [torch.autograd.grad(logit, self._values, retain_graph=True)[0] * self._values for logit in logits]
        by_feature = torch.stack(parts).reshape(size, -1).detach().double().cpu().numpy()
        return Contributions(by_feature, logits.detach().double().cpu().numpy() - by_feature.sum(1))
