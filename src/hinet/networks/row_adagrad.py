"""Adagrad with one accumulator a row, for embeddings of which a batch touches few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

INITIAL_ACCUMULATOR = 1e-2  # much smaller ones make the first steps huge


class RowAdagrad(torch.optim.Optimizer):
    """Divide the step of each row by the root of the sum of its mean squared gradients.

    Rows without a gradient cost nothing: neither time nor a step.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, initial_accumulator: float = INITIAL_ACCUMULATOR
    ) -> None:
        super().__init__(parameters, {"lr": lr, "initial_accumulator": initial_accumulator})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along sparse or dense gradients of matrices."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_rows(parameter, group)

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["sum"] = parameter.new_full((len(parameter),), group["initial_accumulator"])
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
        else:
            rows, values = torch.arange(len(gradient), device=gradient.device), gradient
        accumulated = state["sum"][rows] + values.square().mean(1)
        state["sum"][rows] = accumulated
        root = accumulated.sqrt().clamp(min=torch.finfo(values.dtype).tiny)  # a row that never had a gradient stays
        parameter.index_add_(0, rows, (values / root[:, None]).to(parameter.dtype), alpha=-group["lr"])
