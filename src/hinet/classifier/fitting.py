"""From checked rows and labels to a fitted model, by either engine."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.fitted import Engine, Fitted
from hinet.classifier.labels import LabelForm
from hinet.classifier.truth import Truth
from hinet.data import Traces
from hinet.data.matrices import is_sparse
from hinet.engine import Decoding, EngineSettings, FusedModel, ValidationRows, fit
from hinet.engine.memory import plan_memory
from hinet.errors import HiNetError
from hinet.metrics import accuracy, hierarchical_f1
from hinet.progress import EpochRecord, Progress

LEAST_STEPS = 400  # of the torch loop on few rows
MOST_EPOCHS = 200
DENSE_DROPOUT = 0.1
DENSE_RATE = 3e-3
FEW_PRODUCTS = 50_000_000  # multiplications a batch: fewer are slower on several threads than on one


@dataclass(frozen=True)
class Lesson:
    """Rows as the engine reads them, with their labels."""

    rows: Any
    traces: Traces
    sample_weight: NDArray[np.float64] | None = None
    valid: ValidationRows | None = None

    def fingerprint(self) -> dict[str, Any]:
        """Return what the training data can be recognised by."""
        digest = hashlib.blake2b(digest_size=20)
        parts = [self.rows.indptr, self.rows.indices, self.rows.data] if is_sparse(self.rows) else [self.rows]
        for array in (*parts, self.traces.row_offsets, self.traces.offsets, self.traces.neurons):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        labels = len(np.unique(self.traces.end_nodes))
        return {"rows": len(self.traces), "labels": labels, "blake2b": digest.hexdigest()}


@dataclass(frozen=True)
class Choices:
    """What a user chose of the settings of either engine; None leaves the engine's own default."""

    width: int | None = None
    members: int | None = None
    epochs: int | None = None
    dropout: float | None = None
    wide: bool = True
    flat: bool | None = None
    prior_strength: float | None = None
    patience: int | None = None
    seed: int = 0
    threads: int | None = None
    memory_limit: float | None = None

    def for_engine(self) -> EngineSettings:
        """Return the settings of the fused engine."""
        same = ("width", "members", "wide", "flat", "patience", "seed", "threads", "memory_limit")
        chosen = {name: getattr(self, name) for name in (*same, "dropout", "prior_strength")}
        chosen["deep_epochs"] = self.epochs
        return EngineSettings(**{name: value for name, value in chosen.items() if value is not None})


@dataclass(frozen=True)
class HeldOut:
    """Validation rows as the model reads them, with all their labels, whether it can predict them or not."""

    rows: Any
    truth: Truth


def validation_rows(form: LabelForm, held: HeldOut) -> ValidationRows | None:
    """Return the validation rows whose labels can be predicted: the others cannot tell experts apart."""
    able = np.flatnonzero(form.predictable(held.truth))
    return ValidationRows(held.rows[able], form.traces_of(held.truth.take(able))) if len(able) else None


def as_sparse(lesson: Lesson) -> Lesson:
    """Return training rows as CSR, which the fused engine reads."""
    return lesson if is_sparse(lesson.rows) else replace(lesson, rows=sp.csr_array(lesson.rows))


def engine_for(kind: str, engine: str, network: Any, device: str | None) -> Engine:
    """Return which engine trains on rows of a kind: the fused one for texts and CSR on a CPU, torch for the rest."""
    wants_torch = network is not None or (device is not None and device != "cpu")
    if engine == "fused" and wants_torch:
        raise HiNetError("the fused engine trains on a CPU and makes its own network; leave network and device out")
    if engine == "auto":
        return "torch" if wants_torch or kind == "dense" else "fused"
    return "fused" if engine == "fused" else "torch"


def fit_fused(
    lesson: Lesson,
    choices: Choices,
    progress: Progress | None,
    checkpoint: str | Path | None,
    checkpoint_every: float,
    *,
    watch: bool,
) -> FusedModel:
    """Train by the fused engine."""
    return fit(
        lesson.rows,
        lesson.traces,
        choices.for_engine(),
        valid=lesson.valid,
        sample_weight=lesson.sample_weight,
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        watch=watch,
    )


def fit_torch(
    lesson: Lesson, choices: Choices, network: Any, device: str | None, progress: Progress | None
) -> tuple[Any, list[EpochRecord]]:
    """Train a network by the torch loop; return it and its history."""
    import torch

    from hinet.networks import HeadSettings, HiNet, default

    torch.manual_seed(choices.seed)
    features, width = _feature_network(lesson.rows, len(lesson.traces.layers.option_neuron), choices, network)
    head = default() if choices.prior_strength is None else HeadSettings(prior_strength=choices.prior_strength)
    whole = HiNet(features, lesson.traces.layers, width, head)
    return whole, train_network(whole, lesson, choices, device, progress)


def train_network(
    network: Any, lesson: Lesson, choices: Choices, device: str | None, progress: Progress | None
) -> list[EpochRecord]:
    """Train a network in place by the torch loop and return its history."""
    import torch

    from hinet.networks import Targets, TrainingSettings, predict_traces, torch_threads, train

    usual = TrainingSettings()
    epochs = choices.epochs or _epochs_for(len(lesson.traces), usual.batch, usual.epochs)
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    rate = usual.dense_rate if is_sparse(lesson.rows) else DENSE_RATE
    settings = TrainingSettings(
        epochs=epochs, dense_rate=rate, patience=choices.patience, seed=choices.seed, device=chosen
    )
    valid = lesson.valid
    parameters = sum(parameter.numel() for parameter in network.parameters())
    with torch_threads(choices.threads or (1 if parameters * settings.batch < FEW_PRODUCTS else None)):
        return train(
            network,
            lesson.rows,
            Targets(lesson.traces),
            settings,
            sample_weight=lesson.sample_weight,
            validate=None if valid is None else lambda: accuracy(valid.traces, predict_traces(network, valid.rows)),
            progress=progress,
        )


def judged(fitted: Fitted, held: HeldOut, decoding: Decoding) -> dict[str, float]:
    """Return how good the answers to validation rows are."""
    taxonomy, truth = fitted.form.taxonomy, held.truth
    predicted = fitted.search.decode(held.rows, decoding).nodes
    labels = [taxonomy.ids[node] for node in predicted.tolist()]
    pairs = [pair for pair in zip(truth.ids(), labels, strict=True) if pair[0]]
    f1 = hierarchical_f1(*map(list, zip(*pairs, strict=True)), taxonomy=taxonomy) if pairs else 0.0
    return {"rows": len(truth), "accuracy": float(truth.are_right(predicted).mean()), "hierarchical_f1": f1}


def _feature_network(rows: Any, outputs: int, choices: Choices, network: Any) -> tuple[Any, int]:
    """Return the feature network and how many units its layer has."""
    import torch

    from hinet.networks import DenseFeatures, SparseBag
    from hinet.networks.batches import row_batch
    from hinet.networks.features import DROPOUT, WIDTH

    width = choices.width or WIDTH
    if network is None:
        plan_memory(features=rows.shape[1], outputs=outputs, width=width).check(choices.memory_limit)
    if network is None and is_sparse(rows):
        dropout = DROPOUT if choices.dropout is None else choices.dropout
        return SparseBag(rows.shape[1], width, dropout=dropout), width
    if network is None:
        dropout = DENSE_DROPOUT if choices.dropout is None else choices.dropout
        return DenseFeatures(rows.shape[1], (width,), dropout=dropout), width
    mine = copy.deepcopy(network).eval()
    try:
        with torch.no_grad():
            layer = mine(row_batch(rows, 0, 1, "cpu"))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise HiNetError(f"network: it cannot read a batch of rows of {rows.shape[1]:,} features: {error}") from error
    if not isinstance(layer, torch.Tensor):
        raise HiNetError(f"network: expected a tensor (rows, units) for a batch of rows, got {type(layer).__name__}")
    if layer.ndim != 2:
        raise HiNetError(f"the network gives {layer.ndim} axes for a batch of rows; expected (rows, units)")
    return mine, int(layer.shape[1])


def _epochs_for(rows: int, batch: int, usual: int) -> int:
    """Return enough epochs for a network to learn from few rows."""
    batches = -(-rows // batch)
    return min(MOST_EPOCHS, max(usual, -(-LEAST_STEPS // batches)))
