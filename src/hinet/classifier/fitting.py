"""The training set, the engine with its settings, and the metrics of validation rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.labels import LabelCodec
from hinet.classifier.parameters import ENGINE_SETTINGS, seed_of
from hinet.classifier.truth import Truth
from hinet.data import Traces
from hinet.data.matrices import is_sparse
from hinet.engine import Decoding, EngineSettings, ValidationRows
from hinet.engine.search.predictor import Engine
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.metrics import hierarchical_f1

DENSE_RATE = 0.3  # of the deep expert: a dense row has few features, each of which tells little
DENSE_ROWS = 60_000  # that the deep expert sees at least, over all epochs
MAX_DENSE_EPOCHS = 100


@dataclass(frozen=True)
class TrainingSet:
    """Rows as the engine reads them, with their labels."""

    rows: Any
    traces: Traces
    sample_weight: NDArray[np.float64] | None = None
    valid: ValidationRows | None = None

    def fingerprint(self) -> dict[str, Any]:
        """Return a summary and a digest that identify the training data."""
        digest = hashlib.blake2b(digest_size=20)
        parts = [self.rows.indptr, self.rows.indices, self.rows.data] if is_sparse(self.rows) else [self.rows]
        for array in (*parts, self.traces.row_offsets, self.traces.offsets, self.traces.neurons):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        labels = len(np.unique(self.traces.end_nodes))
        return {"rows": len(self.traces), "labels": labels, "blake2b": digest.hexdigest()}


@dataclass(frozen=True)
class HeldOut:
    """Validation rows as the model reads them, with all their labels, whether it can predict them or not."""

    rows: Any
    truth: Truth


def validation_rows(codec: LabelCodec, held_out: HeldOut) -> ValidationRows | None:
    """Return the validation rows whose labels can be predicted: the others cannot tell experts apart."""
    predictable = np.flatnonzero(codec.predictable(held_out.truth))
    if not len(predictable):
        return None
    return ValidationRows(held_out.rows[predictable], codec.traces_of(held_out.truth.take(predictable)))


def engine_for(engine: str, network: Any, device: str | None) -> Engine:
    """Return which engine trains: the fused one, unless torch, a feature network or a GPU is given."""
    reasons = {"network=": network is not None, f"the device {device!r}": device not in (None, "cpu")}
    reasons[f"engine={engine!r}"] = engine == "torch"
    torch_reasons = [reason for reason, applies in reasons.items() if applies]
    if not torch_reasons:
        return "fused"
    if engine == "fused":
        raise HiNetError("the fused engine trains on a CPU and makes its own network; leave network and device out")
    require("torch", torch_reasons[0])
    return "torch"


def engine_settings(parameters: Mapping[str, Any]) -> EngineSettings:
    """Return the parameters of a classifier that are settings of an engine; the others are the engine's own."""
    return EngineSettings(
        **{name: parameters[name] for name in ENGINE_SETTINGS},
        deep_epochs=parameters["epochs"],
        seed=seed_of(parameters["random_state"]),
        threads=parameters["n_jobs"],
    )


def for_dense_rows(settings: EngineSettings, rows: int) -> EngineSettings:
    """Return settings of the fused engine for so many dense rows, few of which need many epochs."""
    usual = settings.epochs_of_deep(rows)
    epochs = settings.deep_epochs or max(usual, min(MAX_DENSE_EPOCHS, round(DENSE_ROWS / rows)))
    return replace(settings, deep_rate=DENSE_RATE, deep_epochs=epochs)


def validation_metrics(fitted: Fitted, held_out: HeldOut, decoding: Decoding) -> dict[str, float]:
    """Return accuracy and hierarchical F1 of validation rows."""
    taxonomy, truth = fitted.codec.taxonomy, held_out.truth
    predicted = fitted.predictor.decode(held_out.rows, decoding).nodes
    labels = [taxonomy.ids[node] for node in predicted.tolist()]
    pairs = [pair for pair in zip(truth.ids(), labels, strict=True) if pair[0]]
    f1 = hierarchical_f1(*map(list, zip(*pairs, strict=True)), taxonomy=taxonomy) if pairs else 0.0
    return {"rows": len(truth), "accuracy": float(truth.are_right(predicted).mean()), "hierarchical_f1": f1}
