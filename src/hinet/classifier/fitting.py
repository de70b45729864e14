"""Rows as an engine reads them, the choice of the engine and its settings, and the use of validation rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.calibration import HeldOut
from hinet.classifier.examples import Examples, bytes_to_keep
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import Features, FrameInput, TextInput
from hinet.classifier.labels import LabelCodec, Truth
from hinet.classifier.parameters import ENGINE_SETTINGS, seed_of
from hinet.data import Traces
from hinet.data.matrices import MixedRows, is_sparse
from hinet.data.text.text_input import as_arrow
from hinet.encoders.meaning import TunedInput, is_auto
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine import EngineSettings, ValidationRows
from hinet.engine.search.predictor import Engine
from hinet.engine.settings import VectorKind
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.metrics import hierarchical_f1, set_report
from hinet.progress import Progress


@dataclass(frozen=True)
class EncodedRows:
    """Rows as the engine reads them, with their labels and weights."""

    rows: Any
    traces: Traces
    sample_weight: NDArray[np.float64] | None = None
    texts: Sequence[str] | None = None  # texts of the rows, which the model may remember

    def fingerprint(self) -> dict[str, Any]:
        """Return a summary and a digest that identify the training data."""
        digest = hashlib.blake2b(digest_size=20)
        rows = self.rows
        parts = [rows.dense] if isinstance(rows, MixedRows) else [] if is_sparse(rows) else [rows]
        csr = rows.sparse if isinstance(rows, MixedRows) else rows
        parts += [csr.indptr, csr.indices, csr.data] if is_sparse(csr) else []
        for array in (*parts, self.traces.row_offsets, self.traces.offsets, self.traces.neurons):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        labels = len(np.unique(self.traces.end_nodes))
        return {"rows": len(self.traces), "labels": labels, "blake2b": digest.hexdigest()}


def validation_rows(codec: LabelCodec, held_out: HeldOut | None) -> ValidationRows | None:
    """Return the held-out rows whose labels can be predicted, if there are any; the others cannot compare experts."""
    if held_out is None:
        return None
    predictable = np.flatnonzero(codec.predictable(held_out.truth))
    if not len(predictable):
        return None
    return ValidationRows(held_out.rows[predictable], codec.traces_of(held_out.truth.take(predictable)))


def engine_for(parameters: Mapping[str, Any]) -> Engine:
    """Return which engine trains: the fused one, unless torch, a feature network or a GPU is given."""
    parameter = torch_parameter(parameters)
    if parameter is None:
        return "fused"
    if parameters["engine"] == "fused":
        raise HiNetError(f"the fused engine trains on a CPU and makes its own network; leave {parameter} out")
    require("torch", parameter)
    return "torch"


def torch_parameter(parameters: Mapping[str, Any]) -> str | None:
    """Return the parameter that requires torch, as messages name it, or None."""
    if parameters["network"] is not None:
        return "`network`"
    if parameters["device"] not in (None, "cpu"):
        return f"`device={parameters['device']!r}`"
    return "`engine='torch'`" if parameters["engine"] == "torch" else None


def engine_settings(parameters: Mapping[str, Any]) -> EngineSettings:
    """Return the engine settings that the parameters of a classifier give."""
    return EngineSettings(
        **{name: parameters[name] for name in ENGINE_SETTINGS},
        deep_epochs=parameters["epochs"],
        seed=seed_of(parameters["random_state"]),
        threads=parameters["n_jobs"],
    )


def is_dense(features: Features) -> bool:
    """Return whether all columns are numbers, and none is text."""
    return features.kind == "dense" or (isinstance(features, FrameInput) and features.text is None)


def vector_kind(features: Features) -> VectorKind | None:
    """Return the source of the vectors of texts, if there are any."""
    meaning = features.meaning if isinstance(features, TextInput) else None
    if meaning is None:
        return None
    return "static" if isinstance(meaning.source, TokenVectors) else "encoder"


def with_validation_rows(
    fitted: Fitted, held_out: HeldOut, parameters: Mapping[str, Any]
) -> tuple[Fitted, dict[str, float]]:
    """Return the classifier with some validation rows kept and the thresholds of sets learned, and its metrics."""
    if parameters["keep_examples"]:
        kept = Examples.of_truth(held_out.rows, held_out.truth)
        fitted = replace(fitted, held_out=None).holding(kept, seed_of(parameters["random_state"]))
    if fitted.codec.sets is not None:
        fitted = fitted.with_thresholds(held_out.rows, held_out.truth, parameters)
    return fitted, validation_metrics(fitted, held_out, parameters["decoding"])


def validation_metrics(fitted: Fitted, held_out: HeldOut, decoding: Decoding) -> dict[str, float]:
    """Return accuracy and hierarchical F1 on validation rows; for sets of labels, also the metrics of sets."""
    truth, true = held_out.truth, held_out.truth.whole_ids()
    taxonomy = fitted.codec.taxonomy_with(true)
    predicted = fitted.predictor.decode(held_out.rows, decoding).nodes
    pairs = [(ids, taxonomy.ids[node]) for ids, node in zip(true, predicted.tolist(), strict=True) if ids]
    f1 = hierarchical_f1(*map(list, zip(*pairs, strict=True)), taxonomy=taxonomy) if pairs else 0.0
    metrics = {"rows": len(truth), "accuracy": float(truth.are_right(predicted).mean()), "hierarchical_f1": f1}
    if fitted.codec.sets is not None:
        sets = fitted.label_sets(held_out.rows)
        names = [taxonomy.ids[node] for node in sets.nodes.tolist()]
        answers = [names[start:end] for start, end in pairwise(sets.offsets.tolist())]
        report = set_report(true, answers, taxonomy=taxonomy)
        metrics |= {
            "micro_f1": report.set_f1,
            "hierarchical_set_f1": report.hierarchical_set_f1,
            "exact_match": report.exact_match,
        }
    return metrics


def check_tunable(parameters: Mapping[str, Any], kind: str) -> None:
    """Raise HiNetError if an encoder cannot be fine-tuned with these parameters on such rows."""
    if kind != "text":
        raise HiNetError("`encoder` reads texts, and the rows are numbers; leave it out")
    for name in ("network", "vectors", "text"):
        if parameters[name] is not None and not is_auto(parameters[name]):
            raise HiNetError(f"`{name}` and a fine-tuned `encoder` cannot be combined; leave one of them out")


def fit_tuned(
    texts: Any,
    codec: LabelCodec,
    traces: Traces,
    weights: NDArray[np.float64] | None,
    valid: tuple[Any, Truth] | None,
    parameters: Mapping[str, Any],
    progress: Progress,
) -> Fitted:
    """Return a classifier whose encoder is fine-tuned on texts; ``valid`` has validation texts and their labels."""
    from hinet.networks.fine_tuning import TokenExamples, TuningSettings, fine_tune
    from hinet.networks.predictor import NetworkPredictor

    features = TunedInput.of(parameters["encoder"])
    settings, encoder = engine_settings(parameters), features.encoder
    if settings.dropout is not None:
        encoder.set_dropout(settings.dropout)
    tuning = TuningSettings(
        settings.deep_epochs or TuningSettings().epochs, patience=settings.patience, seed=settings.seed
    )
    rows = encoder.tokens(texts)
    held = validation_rows(codec, None if valid is None else HeldOut(encoder.tokens(valid[0]), valid[1]))
    network, history = fine_tune(
        encoder,
        TokenExamples(rows, traces, weights),
        tuning,
        prior_strength=settings.prior_strength,
        valid=None if held is None else TokenExamples(held.rows, held.traces),
        device=parameters["device"],
        threads=settings.threads,
        checkpoint=parameters["checkpoint"],
        checkpoint_every=parameters["checkpoint_every"],
        progress=progress,
    )
    predictor = NetworkPredictor(network.eval(), settings.threads, history)
    fitted = Fitted(features, codec, predictor, history, EncodedRows(rows.ids, traces).fingerprint())
    if not parameters["keep_examples"]:
        return fitted
    return _keeping(fitted, features.count, texts, traces, settings.seed)


def _keeping(fitted: Fitted, width: int, texts: Any, traces: Traces, seed: int) -> Fitted:
    """Return the classifier with some rows kept as examples; only these are embedded."""
    unread = Examples.of(np.broadcast_to(np.float32(0), (len(traces), width)), traces)
    chosen = unread.choice(bytes_to_keep(fitted.predictor.nbytes), seed)
    rows = fitted.rows(as_arrow(texts).take(pa.array(chosen)))
    return replace(fitted, examples=replace(unread.take(chosen), rows=rows).rounded())
