"""Training in several processes that torch has connected, each with its share of every batch.

Dense gradients are averaged by DistributedDataParallel. It would make those of sparse bags dense, so the processes
exchange the gradients of the rows that they used instead. A step equals that of one process on the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hinet.networks.features import SparseBag
from hinet.networks.targets import TargetBatch


class _Cost(nn.Module):
    """The cost of rows as the output of a module, as DistributedDataParallel needs it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Any, targets: TargetBatch) -> Tensor:
        costs: Tensor = self.network.cost(rows, targets)
        return costs


class Processes:
    """The processes that train a network together: one, unless a process group was initialised."""

    def __init__(self) -> None:
        is_one_of_many = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if is_one_of_many else 0
        self.count = distributed.get_world_size() if is_one_of_many else 1

    def joined(self, network: Any, device: str) -> nn.Module:
        """Return a module that computes the cost of rows and averages dense gradients over all processes.

        All processes start from the weights of the first.
        """
        cost = _Cost(network)
        if self.count == 1:
            return cost
        sparse = {id(parameter) for parameter in sparse_weights(network)}
        unused = [name for name, each in cost.named_parameters() if id(each) in sparse or not each.numel()]
        for name, parameter in cost.named_parameters():
            if name in unused and parameter.numel():
                distributed.broadcast(parameter.data, 0)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(cost, unused)  # type: ignore[no-untyped-call]
        if all(name in unused or not each.requires_grad for name, each in cost.named_parameters()):
            return cost
        devices = [device] if device.startswith("cuda") else None
        return DistributedDataParallel(cost, devices, broadcast_buffers=False, find_unused_parameters=True)

    def share(self, chosen: NDArray[np.int64]) -> tuple[slice, float]:
        """Return the rows of a batch that belong to this process, and the weight of their mean cost.

        The mean over processes is then the mean over rows. A process without rows gets one row with weight 0.
        """
        bounds = np.linspace(0, len(chosen), self.count + 1).astype(np.int64)
        start, end = int(bounds[self.rank]), int(bounds[self.rank + 1])
        if start == end:
            return slice(0, 1), 0.0
        return slice(start, end), self.count * (end - start) / len(chosen)

    def exchange_sparse(self, parameters: Iterable[Tensor]) -> None:
        """Replace sparse gradients by their mean over all processes, only for rows that have a gradient."""
        if self.count == 1:
            return
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or not gradient.is_sparse:
                gradient = torch.sparse_coo_tensor(
                    torch.zeros(1, 0, dtype=torch.int64, device=parameter.device),
                    parameter.new_zeros(0, *parameter.shape[1:]),
                    parameter.shape,
                )
            gradient = gradient.coalesce()
            rows, values = _gather(gradient.indices()[0]), _gather(gradient.values())
            mean = torch.sparse_coo_tensor(torch.cat(rows)[None], torch.cat(values) / self.count, parameter.shape)
            parameter.grad = mean.coalesce()

    def mean(self, total: float) -> float:
        """Return the mean of a number over all processes."""
        if self.count == 1:
            return total
        numbers: list[Any] = [None] * self.count
        distributed.all_gather_object(numbers, total)
        return float(sum(numbers)) / self.count


def sparse_weights(network: nn.Module) -> list[Tensor]:
    """Return the weights of a network whose gradients are sparse."""
    return [
        module.weight
        for module in network.modules()
        if isinstance(module, SparseBag) or (isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse)
    ]


def _gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, which may differ in length."""
    counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, torch.tensor([len(tensor)], device=tensor.device))
    padded = tensor.new_zeros(max(int(count) for count in counts), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded)
    return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]
