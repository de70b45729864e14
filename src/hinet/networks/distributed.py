"""Training in several processes at once, each with its share of every batch, as torch's own launchers start them.

Dense gradients are averaged by DistributedDataParallel. Those of sparse bags it would make dense, so each process gets
the touched rows of all the others and their gradients instead. A step is that of one process on the whole batch.
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
    """The cost of rows as what a module returns, which is what DistributedDataParallel watches."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Any, targets: TargetBatch) -> Tensor:
        costs: Tensor = self.network.cost(rows, targets)
        return costs


class Processes:
    """The processes that train a network together; a single one, unless a process group was set up."""

    def __init__(self) -> None:
        is_one_of_many = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if is_one_of_many else 0
        self.count = distributed.get_world_size() if is_one_of_many else 1

    def joined(self, network: Any, device: str) -> nn.Module:
        """Return a module that gives the cost of rows, and whose dense gradients are averaged over all processes.

        All of them start from the weights of the first.
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
        """Return which rows of a batch are this process's, and what their mean cost counts.

        The mean over processes is then the mean over rows. A process without rows takes one, which counts nothing.
        """
        bounds = np.linspace(0, len(chosen), self.count + 1).astype(np.int64)
        start, end = int(bounds[self.rank]), int(bounds[self.rank + 1])
        if start == end:
            return slice(0, 1), 0.0
        return slice(start, end), self.count * (end - start) / len(chosen)

    def exchange_sparse(self, parameters: Iterable[Tensor]) -> None:
        """Replace sparse gradients by their mean over all processes, touched rows alone."""
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
            rows = _gathered(gradient.indices()[0])
            values = _gathered(gradient.values())
            parameter.grad = torch.sparse_coo_tensor(
                torch.cat(rows)[None], torch.cat(values) / self.count, parameter.shape
            ).coalesce()

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


def _gathered(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, whose first axes differ."""
    counts = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, torch.tensor([len(tensor)], device=tensor.device))
    most = max(int(count) for count in counts)
    padded = tensor.new_zeros(most, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded)
    return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]
