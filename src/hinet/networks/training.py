"""Training of networks: shuffled mini-batches, two optimisers, a decaying learning rate, early stopping, processes.

In several processes that torch has connected, each has its share of every batch. Dense gradients are averaged by
DistributedDataParallel. It would make those of sparse bags dense, so the processes exchange the gradients of the rows
that they used instead. A step equals that of one process on the whole batch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hinet.data import Traces
from hinet.data.matrices import check_rows, is_sparse, validate_weights
from hinet.encoders.torch_runtime import default_device, torch_threads
from hinet.engine import EngineSettings, ValidationRows
from hinet.engine.settings import plan_memory
from hinet.engine.training.checkpoints import Best, Done
from hinet.errors import HiNetError
from hinet.metrics import accuracy
from hinet.networks.graph import Targets
from hinet.networks.heads import HeadSettings, default
from hinet.networks.models import (
    DROPOUT,
    WIDTH,
    DenseFeatures,
    FlattenNetwork,
    HiNet,
    SparseBag,
    check_width,
    predict_traces,
    row_batch,
)
from hinet.parameters import NONE, SEED, real, rules_of, validate_fields, whole
from hinet.progress import EpochRecord, Progress, SilentProgress

INITIAL_ACCUMULATOR = 1e-2  # initial sum of row-wise Adagrad; much smaller values make the first steps huge
MIN_STEPS = 400  # training steps on few rows
MAX_EPOCHS = 200
DENSE_DROPOUT = 0.1
DENSE_RATE = 3e-3
NOTHING_DONE = Done()
FEW_PRODUCTS = 50_000_000  # multiplications per batch below which one thread is faster than several


class Processes:
    """The processes that train a network together: one, unless a process group was initialised."""

    def __init__(self) -> None:
        is_one_of_many = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if is_one_of_many else 0
        self.count = distributed.get_world_size() if is_one_of_many else 1

    def joined(self, network: nn.Module, device: str) -> nn.Module:
        """Return a module that computes the cost of rows and averages dense gradients over all processes.

        All processes start from the weights of the first.
        """
        if self.count == 1:
            return network
        sparse = sparse_weights(network)
        for parameter in sparse:
            distributed.broadcast(parameter.data, 0)
        named, sparse_ids = dict(network.named_parameters()), {id(parameter) for parameter in sparse}
        unused = [name for name, each in named.items() if id(each) in sparse_ids or not each.numel()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(network, unused)  # type: ignore[no-untyped-call]
        if all(name in unused or not each.requires_grad for name, each in named.items()):
            return network
        devices = [device] if device.startswith("cuda") else None
        return DistributedDataParallel(network, devices, broadcast_buffers=False, find_unused_parameters=True)

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
            own: tuple[Tensor, Tensor] | None = None
            if parameter.grad is not None:
                gradient = parameter.grad.coalesce().cpu()
                own = gradient.indices(), gradient.values()
            parts = [part for part in self._gather(own) if part is not None]
            if parts:
                rows, values = torch.cat([row for row, _ in parts], 1), torch.cat([value for _, value in parts])
                mean = torch.sparse_coo_tensor(rows, values / self.count, parameter.shape, device=parameter.device)
                parameter.grad = mean.coalesce()

    def mean(self, total: float) -> float:
        """Return the mean of a number over all processes."""
        return total if self.count == 1 else float(sum(self._gather(total))) / self.count

    def _gather(self, value: Any) -> list[Any]:
        """Return the values of all processes."""
        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values


def sparse_weights(network: nn.Module) -> list[Tensor]:
    """Return the weights of a network whose gradients are sparse."""
    return [
        module.weight
        for module in network.modules()
        if isinstance(module, SparseBag) or (isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse)
    ]


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; the learning rates rise during a short warm-up, then decay linearly to zero."""

    epochs: Annotated[int, whole(1)] = 20
    batch: Annotated[int, whole(1)] = 64
    dense_rate: Annotated[float, real(above=0)] = 1e-3  # AdamW, for everything but the sparse bag
    sparse_rate: Annotated[float, real(above=0)] = 8.0  # row-wise Adagrad, for the sparse bag
    weight_decay: Annotated[float, real(0)] = 0.0
    warm_up: Annotated[float, real(0, 1)] = 0.05  # share of the steps during which the rates rise
    # Epochs without a better validation score after which to stop.
    patience: Annotated[int | None, whole(1) | NONE] = None
    seed: Annotated[int, SEED] = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        validate_fields(self, rules_of(TrainingSettings))


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

    ``sample_weight`` weights the cost of each row. ``validate`` returns a score, the larger the better; the weights of
    the epoch with the best score are kept.
    The same seed and number of threads give the same network on a CPU. If torch has connected several processes, as
    ``torchrun`` does, all of them call this with the same rows, and each trains on its share of every batch.

    Raises
    ------
    HiNetError
        If rows and targets do not fit, a row has no label, or a value is not finite; names the row.
    """
    settings, progress = settings or TrainingSettings(), progress or SilentProgress()
    _check(network, rows, targets)
    job = _NetworkJob(network, rows, targets, settings, sample_weight)
    progress.started(settings.epochs, len(targets))
    try:
        return list(train_epochs(job, settings.patience, validate, progress, progress.advanced).records)
    finally:
        network.eval()


class EpochJob(Protocol):
    """Training that :func:`train_epochs` runs."""

    name: str
    epochs: int

    @property
    def rate_share(self) -> float:
        """Learning rate after an epoch, as a share of the full rate."""

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train for one epoch and return the mean cost; ``advance`` takes numbers of finished rows and may raise."""

    def best_state(self) -> Any:
        """Return what :meth:`restore` needs to return to the current epoch."""

    def restore(self, state: Any) -> None:
        """Return to the weights of another epoch."""


def train_epochs(
    job: EpochJob,
    patience: int | None,
    validate: Callable[[], float | None] | None,
    progress: Progress,
    advance: Callable[[int], None],
    done: Done = NOTHING_DONE,
    save: Callable[[Done], None] | None = None,
) -> Done:
    """Train the remaining epochs of a job and restore the weights of the best one, even if training is interrupted.

    ``advance`` is called with numbers of finished rows, and ``save`` with all finished epochs after each of them.
    """
    try:
        for epoch in range(len(done.records), job.epochs):
            best = done.best
            if best is not None and patience is not None and epoch - best.epoch > patience:
                break
            start = time.perf_counter()
            cost = job.run_epoch(epoch, advance)
            score = validate() if validate is not None else None
            seconds = time.perf_counter() - start
            record = EpochRecord(epoch + 1, job.epochs, cost, score, seconds, job.rate_share, job.name)
            if score is not None and score == score and (best is None or score > best.score):
                best = Best(score, epoch, copy.deepcopy(job.best_state()))
            done = Done((*done.records, record), best)
            if save is not None:
                save(done)
            progress.epoch_done(record)
    finally:
        progress.finished()
        if done.best is not None:
            job.restore(done.best.state)
    return done


def _check(network: HiNet | FlattenNetwork, rows: Any, targets: Targets) -> None:
    check_rows(rows, len(targets))
    check_width(network, rows)
    if not len(targets):
        raise HiNetError("there are no rows to train on")
    empty = np.flatnonzero(np.diff(targets.traces.row_offsets) == 0)
    if len(empty):
        raise HiNetError(f"row {int(empty[0])}: no label to train on ({len(empty):,} such rows); leave these rows out")
    if not network.layers.same_as(targets.traces.layers):
        raise HiNetError("the network and the targets have different layers; build both from the same Layers")


class _NetworkJob:
    """Passes over the training rows, each in another order, with two optimisers and a decaying learning rate."""

    name = ""

    def __init__(
        self, network: HiNet | FlattenNetwork, rows: Any, targets: Targets, settings: TrainingSettings,
        sample_weight: NDArray[np.floating[Any]] | None,
    ) -> None:  # fmt: skip
        self._processes = Processes()
        torch.manual_seed(settings.seed + self._processes.rank)  # seeds dropout
        self._random = np.random.default_rng(settings.seed)
        self._network, self._rows, self._targets = network, rows, targets
        self._settings, self.epochs = settings, settings.epochs
        network.to(settings.device)
        network.learn_prior(targets)
        self._cost = self._processes.joined(network, settings.device)
        self._weights = torch.ones(len(targets))
        if sample_weight is not None:
            self._weights = torch.from_numpy(validate_weights(sample_weight, len(targets))).float()
        self._sparse = sparse_weights(network)
        sparse_ids = {id(parameter) for parameter in self._sparse}
        dense = [p for p in network.parameters() if id(p) not in sparse_ids and p.requires_grad and p.numel()]
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = []
        if dense:
            adam = torch.optim.AdamW(dense, lr=settings.dense_rate, weight_decay=settings.weight_decay)
            self._optimisers.append((adam, settings.dense_rate))
        if self._sparse:
            self._optimisers.append((RowAdagrad(self._sparse, lr=settings.sparse_rate), settings.sparse_rate))
        self._done, self._total = 0, settings.epochs * -(-len(targets) // settings.batch)  # steps
        self.rate_share = 0.0  # of the last step

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train on all rows once and return their mean cost."""
        size, device = self._settings.batch, self._settings.device
        self._network.train()
        order = self._random.permutation(len(self._targets))
        shuffled = self._rows[order]  # so that every batch is a slice
        total = 0.0
        for start in range(0, len(order), size):
            joint = order[start : start + size]  # the batch of all processes
            own, share = self._processes.share(joint)
            chosen = joint[own]
            batch = row_batch(shuffled, start + own.start, start + own.start + len(chosen), device)
            costs = self._cost(batch, self._targets.batch(chosen).to(torch.device(device)))
            cost = (costs * self._weights[chosen].to(device)).mean() * share
            if not cost.isfinite():
                raise HiNetError("the cost is no longer finite; lower the learning rates or scale the features")
            self._descend(cost)
            total += float(cost.detach()) * len(joint)
            advance(len(joint))
        self._network.eval()
        return self._processes.mean(total) / len(order)

    def _descend(self, cost: Tensor) -> None:
        """Take a step down the gradient of ``cost``; the rate has a short warm-up, then decays to zero."""
        share, warm_up = self._done / self._total, self._settings.warm_up
        self.rate_share = min(1.0, (share + 1e-3) / (warm_up + 1e-3)) * (1.0 - share)
        self._done += 1
        if not cost.requires_grad:  # a taxonomy without a choice
            return
        for optimiser, _ in self._optimisers:
            optimiser.zero_grad()
        cost.backward()  # type: ignore[no-untyped-call]
        self._processes.exchange_sparse(self._sparse)
        for optimiser, full in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = full * self.rate_share
            optimiser.step()

    def best_state(self) -> Mapping[str, Tensor]:
        """Return the weights."""
        return self._network.state_dict()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Set the weights."""
        self._network.load_state_dict(state)


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per row: the sum of the mean squared gradients of the row.

    Rows without a gradient take neither time nor a step.
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


def network_for(rows: Any, traces: Traces, settings: EngineSettings, network: nn.Module | None) -> HiNet:
    """Return an untrained network for such rows, with a copy of the user's feature ``network`` if there is one."""
    torch.manual_seed(settings.seed)
    features, width = _feature_network(rows, len(traces.layers.option_neuron), settings, network)
    return HiNet(features, traces.layers, width, head_settings(settings.prior_strength))


def head_settings(prior_strength: float | None) -> HeadSettings:
    """Return the settings of a classifier's head."""
    return default() if prior_strength is None else HeadSettings(prior_strength=prior_strength)


def train_network(
    network: HiNet,
    rows: Any,
    traces: Traces,
    settings: EngineSettings,
    *,
    sample_weight: NDArray[np.float64] | None,
    valid: ValidationRows | None = None,
    device: str | None,
    progress: Progress | None,
) -> tuple[EpochRecord, ...]:
    """Train a network in place with the settings of the fused engine that apply to networks; return the history.

    ``device`` defaults to a GPU if there is one.
    """
    defaults = TrainingSettings()
    training = TrainingSettings(
        epochs=settings.deep_epochs or _epochs_for(len(traces), defaults.batch, defaults.epochs),
        dense_rate=defaults.dense_rate if is_sparse(rows) else DENSE_RATE,
        patience=settings.patience,
        seed=settings.seed,
        device=device or default_device(),
    )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    with torch_threads(settings.threads or (1 if parameters * training.batch < FEW_PRODUCTS else None)):
        history = train(
            network,
            rows,
            Targets(traces),
            training,
            sample_weight=sample_weight,
            validate=None if valid is None else lambda: accuracy(valid.traces, predict_traces(network, valid.rows)),
            progress=progress,
        )
    return tuple(history)


def _feature_network(
    rows: Any, outputs: int, settings: EngineSettings, network: nn.Module | None
) -> tuple[nn.Module, int]:
    """Return the feature network and the width of its layer."""
    if network is not None:
        features = copy.deepcopy(network).eval()
        return features, _units(features, rows)
    width = settings.width or WIDTH
    plan_memory(features=rows.shape[1], outputs=outputs, width=width).check(settings.memory_limit)
    if is_sparse(rows):
        dropout = DROPOUT if settings.dropout is None else settings.dropout
        return SparseBag(rows.shape[1], width, dropout=dropout), width
    dropout = DENSE_DROPOUT if settings.dropout is None else settings.dropout
    return DenseFeatures(rows.shape[1], (width,), dropout=dropout), width


def _units(features: nn.Module, rows: Any) -> int:
    """Return the number of units that a feature network gives for rows; raise HiNetError if it cannot read them."""
    try:
        with torch.no_grad():
            layer = features(row_batch(rows, 0, 1, "cpu"))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise HiNetError(f"network: it cannot read a batch of rows of {rows.shape[1]:,} features: {error}") from error
    if not isinstance(layer, torch.Tensor):
        raise HiNetError(f"network: expected a tensor (rows, units) for a batch of rows, got {type(layer).__name__}")
    if layer.ndim != 2:
        raise HiNetError(f"the network gives {layer.ndim} axes for a batch of rows; expected (rows, units)")
    return int(layer.shape[1])


def _epochs_for(rows: int, batch: int, epochs: int) -> int:
    """Return ``epochs``, or more if there are few rows."""
    batches = -(-rows // batch)
    return min(MAX_EPOCHS, max(epochs, -(-MIN_STEPS // batches)))
