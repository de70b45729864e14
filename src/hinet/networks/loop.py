"""The torch training loop: shuffled mini-batches, two optimisers, a falling learning rate, early stopping."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data.matrices import check_rows, validate_weights
from hinet.errors import HiNetError
from hinet.networks.batches import check_width, row_batch
from hinet.networks.distributed import Processes, sparse_weights
from hinet.networks.models import FlattenNetwork, HiNet
from hinet.networks.targets import Targets
from hinet.parameters import NONE, SEED, Rules, real, validate_fields, whole
from hinet.progress import EpochRecord, Progress, SilentProgress

INITIAL_ACCUMULATOR = 1e-2  # of row-wise Adagrad; much smaller ones make the first steps huge
_RULES: Rules = {
    "epochs": whole(1),
    "batch": whole(1),
    "dense_rate": real(above=0),
    "sparse_rate": real(above=0),
    "weight_decay": real(0),
    "warm_up": real(0, 1),
    "patience": whole(1) | NONE,
    "seed": SEED,
}


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; the learning rates rise over a short warm-up, then fall linearly to zero."""

    epochs: int = 20
    batch: int = 64
    dense_rate: float = 1e-3  # AdamW, for everything but the sparse bag
    sparse_rate: float = 8.0  # row-wise Adagrad, for the sparse bag
    weight_decay: float = 0.0
    warm_up: float = 0.05  # share of the steps over which the rates rise
    patience: int | None = None  # epochs without a better validation score after which to stop
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        validate_fields(self, _RULES)


def train(
    network: HiNet | FlattenNetwork,
    rows: Any,
    targets: Targets,
    settings: TrainingSettings | None = None,
    *,
    sample_weight: NDArray[np.floating[Any]] | None = None,
    validate: Callable[[], float] | None = None,
    progress: Progress | None = None,
) -> list[EpochRecord]:
    """Train ``network`` in place on CSR or dense ``rows`` and return the history.

    The cost of a row counts by its ``sample_weight``. With ``validate``, which returns a score that is better the
    larger, the weights of the best epoch are kept.
    The same seed and number of threads give the same network on a CPU. Where torch has connected several processes, as
    ``torchrun`` does, all of them call this with the same rows, and each trains on its share of every batch.

    Raises
    ------
    HiNetError
        If rows and targets do not fit, a row has no label, or a value is not finite; names the row.
    """
    settings, progress = settings or TrainingSettings(), progress or SilentProgress()
    check_rows(rows, len(targets))
    check_width(network, rows)
    _check_labelled(targets)
    if not network.layers.same_as(targets.traces.layers):
        raise HiNetError("the network and the targets have different layers; build both from the same Layers")
    processes = Processes()
    torch.manual_seed(settings.seed + processes.rank)  # of dropout
    random = np.random.default_rng(settings.seed)
    network.to(settings.device)
    network.learn_prior(targets)
    costs_of = processes.joined(network, settings.device)
    steps = _Steps(network, settings, processes, batches=-(-len(targets) // settings.batch))
    weights = torch.ones(len(targets))
    if sample_weight is not None:
        weights = torch.from_numpy(validate_weights(sample_weight, len(targets))).float()

    def train_epoch() -> float:
        """Train on all rows once, in another order, and return their mean cost."""
        network.train()
        order = random.permutation(len(targets))
        shuffled = rows[order]  # so that every batch is a slice
        total = 0.0
        for low in range(0, len(order), settings.batch):
            whole = order[low : low + settings.batch]
            own, share = processes.share(whole)
            chosen = whole[own]
            batch = row_batch(shuffled, low + own.start, low + own.start + len(chosen), settings.device)
            costs = costs_of(batch, targets.batch(chosen).to(torch.device(settings.device)))
            cost = (costs * weights[chosen].to(settings.device)).mean() * share
            if not cost.isfinite():
                raise HiNetError("the cost is no longer finite; lower the learning rates or scale the features")
            steps.descend(cost)
            total += float(cost.detach()) * len(whole)
            progress.advanced(len(whole))
        return processes.mean(total) / len(order)

    history: list[EpochRecord] = []
    best: tuple[float, int, dict[str, Tensor]] | None = None
    progress.started(settings.epochs, len(targets))
    try:
        for epoch in range(1, settings.epochs + 1):
            start = time.perf_counter()
            cost = train_epoch()
            network.eval()
            score = validate() if validate is not None else None
            history.append(EpochRecord(epoch, settings.epochs, cost, score, time.perf_counter() - start, steps.rate))
            progress.epoch_done(history[-1])
            if score is not None and score == score and (best is None or score > best[0]):
                best = score, epoch, copy.deepcopy(network.state_dict())
            if best is not None and settings.patience is not None and epoch - best[1] >= settings.patience:
                break
    finally:
        network.eval()
        progress.finished()
        if best is not None:  # also when the run is broken off
            network.load_state_dict(best[2])
    return history


class _Steps:
    """The optimisers and the rate they go at: a short rise over the warm-up, then a fall to zero."""

    def __init__(self, network: nn.Module, settings: TrainingSettings, processes: Processes, batches: int) -> None:
        sparse = sparse_weights(network)
        self._processes, self._sparse = processes, sparse
        held = {id(parameter) for parameter in sparse}
        dense = [p for p in network.parameters() if id(p) not in held and p.requires_grad and p.numel()]
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = []
        if dense:
            adam = torch.optim.AdamW(dense, lr=settings.dense_rate, weight_decay=settings.weight_decay)
            self._optimisers.append((adam, settings.dense_rate))
        if sparse:
            self._optimisers.append((RowAdagrad(sparse, lr=settings.sparse_rate), settings.sparse_rate))
        self._taken, self._total, self._warm_up = 0, settings.epochs * batches, settings.warm_up
        self.rate = 0.0  # share of the full rates, of the last step

    def descend(self, cost: Tensor) -> None:
        """Take a step down the gradient of ``cost``."""
        share = self._taken / self._total
        self.rate = min(1.0, (share + 1e-3) / (self._warm_up + 1e-3)) * (1.0 - share)
        self._taken += 1
        if not cost.requires_grad:  # a taxonomy without a choice
            return
        for optimiser, _ in self._optimisers:
            optimiser.zero_grad()
        cost.backward()  # type: ignore[no-untyped-call]
        self._processes.exchange_sparse(self._sparse)
        for optimiser, full in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = full * self.rate
            optimiser.step()


def _check_labelled(targets: Targets) -> None:
    if not len(targets):
        raise HiNetError("there are no rows to train on")
    empty = np.flatnonzero(np.diff(targets.traces.row_offsets) == 0)
    if len(empty):
        raise HiNetError(f"row {int(empty[0])}: no label to train on ({len(empty):,} such rows); leave these rows out")


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
