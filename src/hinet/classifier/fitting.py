"""The training set, the engine with its settings, and the metrics of validation rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.fitted import Fitted
from hinet.classifier.held_out import HeldOut
from hinet.classifier.inputs import Features, FrameInput, TextInput
from hinet.classifier.labels import LabelCodec
from hinet.classifier.parameters import ENGINE_SETTINGS, seed_of
from hinet.classifier.predicted_sets import SetRule
from hinet.data import Traces
from hinet.data.matrices import MixedRows, is_sparse
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine import EngineSettings, Search, ValidationRows, fit
from hinet.engine.search.predictor import Engine, Predictor
from hinet.engine.settings import RowShape, VectorKind, settings_for
from hinet.engine.training.title_units import TitleColumns
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.metrics import hierarchical_f1, set_report
from hinet.progress import Progress

if TYPE_CHECKING:
    from hinet.engine.training.fit import Runner


@dataclass(frozen=True)
class EncodedRows:
    """Rows as the engine reads them, with their labels."""

    rows: Any
    traces: Traces
    sample_weight: NDArray[np.float64] | None = None
    valid: ValidationRows | None = None
    titles: TitleColumns | None = None

    def as_csr(self) -> EncodedRows:
        """Return the same rows with dense columns as CSR, which models read alike: all columns have dropout then."""
        valid = self.valid
        if valid is not None and isinstance(valid.rows, MixedRows):
            valid = replace(valid, rows=valid.rows.tocsr())
        return replace(self, rows=self.rows.tocsr(), valid=valid) if isinstance(self.rows, MixedRows) else self

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


def validation_rows(codec: LabelCodec, held_out: HeldOut) -> ValidationRows | None:
    """Return the validation rows whose labels can be predicted: the others cannot tell experts apart."""
    predictable = np.flatnonzero(codec.predictable(held_out.truth))
    if not len(predictable):
        return None
    return ValidationRows(held_out.rows[predictable], codec.traces_of(held_out.truth.take(predictable)))


def engine_for(engine: str, network: Any, device: str | None) -> Engine:
    """Return which engine trains: the fused one, unless torch, a feature network or a GPU is given."""
    parameter = torch_parameter(engine, network, device)
    if parameter is None:
        return "fused"
    if engine == "fused":
        raise HiNetError(f"the fused engine trains on a CPU and makes its own network; leave {parameter} out")
    require("torch", parameter)
    return "torch"


def torch_parameter(engine: str, network: Any, device: str | None) -> str | None:
    """Return the parameter that asks for the engine of torch, as messages name it, or None."""
    if network is not None:
        return "`network`"
    if device not in (None, "cpu"):
        return f"`device={device!r}`"
    return "`engine='torch'`" if engine == "torch" else None


def engine_settings(parameters: Mapping[str, Any]) -> EngineSettings:
    """Return the parameters of a classifier that are settings of an engine; the others are the engine's own."""
    return EngineSettings(
        **{name: parameters[name] for name in ENGINE_SETTINGS},
        deep_epochs=parameters["epochs"],
        seed=seed_of(parameters["random_state"]),
        threads=parameters["n_jobs"],
    )


def is_dense(features: Features) -> bool:
    """Return whether rows have numbers in every column, and no text."""
    return features.kind == "dense" or (isinstance(features, FrameInput) and features.text is None)


def vector_kind(features: Features) -> VectorKind | None:
    """Return the source of the vectors of texts, if there are any."""
    meaning = features.meaning if isinstance(features, TextInput) else None
    if meaning is None:
        return None
    return "static" if isinstance(meaning.source, TokenVectors) else "encoder"


def fit_model(
    training: EncodedRows,
    features: Features,
    codec: LabelCodec,
    engine: Engine,
    parameters: Mapping[str, Any],
    progress: Progress,
    runner: Runner | None = None,
) -> Fitted:
    """Return the state of a classifier that was trained by an engine."""
    settings = engine_settings(parameters)
    options: dict[str, Any] = {"valid": training.valid, "sample_weight": training.sample_weight, "progress": progress}
    if engine == "torch":
        from hinet.networks.predictor import NetworkPredictor

        options |= {"network": parameters["network"], "device": parameters["device"]}
        predictor: Predictor = NetworkPredictor.trained(training.rows, training.traces, settings, **options)
    else:
        dense, several = is_dense(features), codec.sets is not None
        if several and dense:
            training = training.as_csr()
        shape = RowShape.of(training.rows)
        settings = settings_for(settings, shape, dense=dense, several=several, vectors=vector_kind(features))
        options |= {name: parameters[name] for name in ("checkpoint", "checkpoint_every")}
        options["titles"] = training.titles
        model = fit(training.rows, training.traces, settings, watch=parameters["verbose"], runner=runner, **options)
        predictor = Search(model, settings.threads)
    fitted = Fitted(features, codec, predictor, predictor.history, training.fingerprint())
    if codec.sets is not None:
        fitted = replace(fitted, set_rule=SetRule())
    return fitted.keeping(training.rows, training.traces, settings.seed) if parameters["keep_examples"] else fitted


def validation_metrics(fitted: Fitted, held_out: HeldOut, decoding: Decoding) -> dict[str, float]:
    """Return accuracy and hierarchical F1 of the best label of validation rows; of sets, figures of theirs too."""
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
