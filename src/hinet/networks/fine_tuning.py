"""Fine-tuning: training an encoder together with the hierarchical head above it, with checkpoints.

Randomness in a step depends only on the seed and the number of the step, and the order of rows in an epoch on the seed
and the number of the epoch. So the weights, the moments of the optimiser and the number of steps are the whole state of
a run, and a resumed run ends with the same network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hinet.data import Traces
from hinet.encoders.text_encoder import TextEncoder, TokenRows
from hinet.encoders.torch_runtime import default_device, torch_threads
from hinet.engine.training.checkpoints import Checkpoints, Done, fingerprint_of
from hinet.engine.training.rows import Arrays, Job, check_finite
from hinet.errors import FileError, HiNetError
from hinet.metrics import accuracy
from hinet.networks.graph import Targets
from hinet.networks.models import DenseFeatures, HiNet, predict_traces
from hinet.networks.training import head_settings, train_epochs
from hinet.parameters import GB, require_memory
from hinet.progress import EpochRecord, Progress, SilentProgress

BUCKET = 50  # batches whose rows are sorted by length


@dataclass(frozen=True)
class TuningSettings:
    """How to fine-tune; the learning rates rise during a short warm-up, then decay linearly to zero."""

    epochs: int = 3
    batch: int = 32
    encoder_rate: float = 5e-5
    head_rate: float = 1e-2
    weight_decay: float = 0.01  # applies to the matrices of the encoder
    warm_up: float = 0.1  # share of the steps during which the rates rise
    largest_gradient: float = 1.0  # maximum norm of the gradients of a step
    patience: int | None = None  # epochs without a better validation score after which to stop
    seed: int = 0


@dataclass(frozen=True)
class TokenExamples:
    """Tokenised texts with their labels."""

    rows: TokenRows
    traces: Traces
    sample_weight: NDArray[np.float64] | None = None


class TuningJob(Job):
    """The steps of a run, and its state between steps."""

    name = "encoder"

    def __init__(self, network: HiNet, examples: TokenExamples, settings: TuningSettings) -> None:
        assert isinstance(network.features, TextEncoder)
        self.network, self.encoder, self.settings = network, network.features, settings
        self.rows, self.targets, self.epochs = examples.rows, Targets(examples.traces), settings.epochs
        weights = examples.sample_weight
        self._weights = np.ones(len(self.rows)) if weights is None else weights
        self.batches = -(-len(self.rows) // settings.batch)
        self.total = self.batches * settings.epochs
        self.steps, self._cost = 0, 0.0  # steps done in all epochs; summed cost of the rows of this epoch
        self._parameters = {name: each for name, each in network.named_parameters() if each.numel()}
        self._optimiser = self._new_optimiser()

    def work(self) -> float:
        """Return the number of tokens to process."""
        return float(len(self.rows.ids) * self.epochs)

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train on the remaining rows of an epoch, and return the mean cost of all its rows."""
        order = self._order(epoch)
        self.network.train()
        for chosen in order[self.steps - epoch * self.batches :]:
            self._cost += self._step(chosen) * len(chosen)
            self.steps += 1
            advance(len(chosen))
        cost, self._cost = self._cost / len(self.rows), 0.0
        return cost

    @property
    def rate_share(self) -> float:
        """Share of the steps that are left, which is the share of the full rate after the warm-up."""
        return 1 - self.steps / self.total

    def _next_rate_share(self) -> float:
        """Return the learning rate of the next step, as a share of the full rate."""
        warm_up = max(1.0, self.settings.warm_up * self.total)
        return min((self.steps + 1) / warm_up, (self.total - self.steps) / max(1.0, self.total - warm_up), 1.0)

    def _order(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch in random order, each with rows of similar length."""
        random = np.random.default_rng([self.settings.seed, epoch])
        order, lengths = random.permutation(len(self.rows)), self.rows.lengths
        size, batch = self.settings.batch * BUCKET, self.settings.batch
        buckets = [order[start : start + size] for start in range(0, len(order), size)]
        buckets = [bucket[np.argsort(lengths[bucket], kind="stable")] for bucket in buckets]
        batches = [bucket[start : start + batch] for bucket in buckets for start in range(0, len(bucket), batch)]
        return [batches[number] for number in random.permutation(len(batches))]

    def _step(self, chosen: NDArray[np.int64]) -> float:
        """Take a step down the gradient of the cost of some rows, and return their mean cost."""
        settings, device = self.settings, self.encoder.device
        torch.manual_seed(int(np.random.default_rng([settings.seed, self.steps, 1]).integers(2**62)))  # seeds dropout
        batch = self.encoder.batch(self.rows, chosen)
        weights = torch.from_numpy(self._weights[chosen]).float().to(device)
        cost = (self.network.cost(batch, self.targets.batch(chosen).to(device)) * weights).mean()
        if not cost.isfinite():
            raise HiNetError("the cost is no longer finite; lower the sample weights or choose another encoder")
        if cost.requires_grad:  # not in a taxonomy without a choice
            self._optimiser.zero_grad()
            cost.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self._parameters.values(), settings.largest_gradient)
            for group in self._optimiser.param_groups:
                group["lr"] = group["full_rate"] * self._next_rate_share()
            self._optimiser.step()
        return float(cost.detach())

    def _new_optimiser(self) -> torch.optim.AdamW:
        settings, named = self.settings, self._parameters.items()
        encoder = [each for name, each in named if name.startswith("features.")]
        head = [each for name, each in named if not name.startswith("features.")]
        matrices, others = [each for each in encoder if each.ndim > 1], [each for each in encoder if each.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "full_rate": settings.encoder_rate, "weight_decay": settings.weight_decay},
            {"params": others, "full_rate": settings.encoder_rate, "weight_decay": 0.0},
            {"params": head, "full_rate": settings.head_rate, "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.encoder_rate)
        for parameter in self._parameters.values():
            optimiser.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return optimiser

    def state(self) -> Arrays:
        """Return the weights, the moments of the optimiser, and the progress of the run."""
        state = self.best_state()
        for name, parameter in self._parameters.items():
            moments = self._optimiser.state[parameter]
            state[f"average.{name}"] = moments["exp_avg"].cpu().numpy()
            state[f"square.{name}"] = moments["exp_avg_sq"].cpu().numpy()
        return state | {"steps": np.array([self.steps]), "cost": np.array([self._cost])}

    def best_state(self) -> Arrays:
        """Return the weights."""
        return {f"weight.{name}": each.detach().cpu().numpy() for name, each in self._parameters.items()}

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Return a description of an invalid number of steps, or None."""
        steps = int(state["steps"][0]) if "steps" in state else 0
        return None if 0 <= steps <= self.total else f"it has {steps:,} of {self.total:,} steps"

    @torch.no_grad()
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state, or only its weights."""
        for name, parameter in self._parameters.items():
            parameter.copy_(torch.from_numpy(np.array(state[f"weight.{name}"])))
            if "steps" in state:
                moments = self._optimiser.state[parameter]
                moments["exp_avg"].copy_(torch.from_numpy(np.array(state[f"average.{name}"])))
                moments["exp_avg_sq"].copy_(torch.from_numpy(np.array(state[f"square.{name}"])))
                moments["step"].fill_(float(state["steps"][0]))
        if "steps" in state:
            self.steps, self._cost = int(state["steps"][0]), float(state["cost"][0])

    def fingerprint(self, valid: TokenExamples | None) -> str:
        """Return a text that changes with the rows, the settings and the weights at the start."""
        parts: list[Any] = [self.settings, self.network.head.settings, self._weights]
        for examples in (TokenExamples(self.rows, self.targets.traces), valid):
            if examples is not None:
                traces = examples.traces
                parts += [examples.rows.ids, examples.rows.offsets, *traces.options(), traces.row_offsets]
        return fingerprint_of([*parts, *self.best_state().values()])


def fine_tune(
    encoder: TextEncoder,
    examples: TokenExamples,
    settings: TuningSettings,
    *,
    prior_strength: float | None = None,
    valid: TokenExamples | None = None,
    device: str | None = None,
    threads: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 0.0,
    progress: Progress | None = None,
) -> tuple[HiNet, tuple[EpochRecord, ...]]:
    """Train an encoder in place with a new head; return a network that reads embeddings, and the history.

    With validation rows, the weights of the epoch with the best score are kept. The same seed and number of threads
    give the same network on a CPU, even if the run was interrupted.

    Raises
    ------
    HiNetError
        If there are no rows, a row has no label, memory is insufficient, or the cost is no longer finite.
    """
    progress, layers = progress or SilentProgress(), examples.traces.layers
    if not len(examples.rows) or (np.diff(examples.traces.row_offsets) == 0).any():
        raise HiNetError("there are no rows to train on, or a row has no label; leave such rows out")
    torch.manual_seed(settings.seed)
    network = HiNet(encoder, layers, encoder.width, head_settings(prior_strength))
    needed = 16 * sum(parameter.numel() for parameter in network.parameters())
    require_memory(needed, f"fine-tuning takes {needed / GB:.2f} GB for weights alone", "choose a smaller encoder")
    network.to(device or default_device())
    job = TuningJob(network, examples, settings)
    network.learn_prior(job.targets)
    checkpoints = None
    if checkpoint is not None:
        checkpoints = Checkpoints(Path(checkpoint), job.fingerprint(valid), checkpoint_every)
    readout = head_of(network)

    def validate() -> float | None:
        check_finite(job.name, job.best_state())
        if valid is None:
            return None
        return accuracy(valid.traces, predict_traces(readout, encoder.embed_tokens(valid.rows)))

    with torch_threads(threads):
        history = _run(job, settings.patience, validate, checkpoints, progress)
    network.eval()
    return readout, history


def head_of(network: HiNet) -> HiNet:
    """Return a network that reads embeddings and shares the head of ``network``."""
    alone = HiNet(DenseFeatures(network.head.width, ()), network.layers, network.head.width, network.head.settings)
    alone.head = network.head
    return alone


def _run(
    job: TuningJob,
    patience: int | None,
    validate: Callable[[], float | None],
    checkpoints: Checkpoints | None,
    progress: Progress,
) -> tuple[EpochRecord, ...]:
    """Train the remaining epochs with checkpoints, then restore the weights of the best one."""
    done = Done()
    if checkpoints is not None:
        done = checkpoints.resume(job)
        if job.steps // job.batches != len(done.records):
            raise FileError(checkpoints.folder, "the checkpoint contradicts itself; remove the folder to start again")
    progress.started(job.epochs, len(job.rows))
    if job.steps:
        progress.message(f"resuming fine-tuning after {job.steps:,} of {job.total:,} batches")
        progress.advanced(min(job.steps * job.settings.batch, job.epochs * len(job.rows)))
    if checkpoints is None:
        return train_epochs(job, patience, validate, progress, progress.advanced).records
    checkpoints.started(job)

    def save(finished: Done) -> None:
        nonlocal done
        done = finished
        if checkpoints.is_due(job):
            checkpoints.write(job, done)

    def advance(rows: int) -> None:
        progress.advanced(rows)
        inside = job.steps % job.batches != 0  # the end of an epoch is saved with its record
        if checkpoints.every and inside:
            save(done)

    return train_epochs(job, patience, validate, progress, advance, done, save).records
