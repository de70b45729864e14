"""Incremental learning: a fitted classifier transferred to a changed taxonomy, or trained on more rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hinet.classifier.examples import Examples
from hinet.classifier.fitted import Fitted
from hinet.classifier.fitting import EncodedRows
from hinet.classifier.labels import LabelCodec
from hinet.data import Traces
from hinet.engine import EngineSettings
from hinet.engine.search.predictor import Predictor
from hinet.engine.training.taxonomy_transfer import (
    TRACES_OF_A_ROW,
    OutputTransfer,
    learning_rows,
    option_targets,
    traceable,
)
from hinet.progress import Progress
from hinet.taxonomy import TaxonomyChange


def transfer_fitted(
    fitted: Fitted, codec: LabelCodec, renamed: Mapping[str, str] | None = None, rows: Any = None
) -> Fitted:
    """Return the classifier transferred to the layers of another label codec.

    Where nodes moved, those above them learn from the examples that the model keeps, and from further ``rows``.
    """
    fitted.check_file()
    change = TaxonomyChange.between(fitted.codec.taxonomy, codec.taxonomy, renamed)
    came_from = np.append(change.old_position, -1)  # of a virtual root
    moved = replace(fitted, codec=codec, predictor=fitted.predictor.moved_to(codec.layers, came_from))
    examples = fitted.examples
    if examples is not None:
        moved = replace(moved, examples=examples.moved(change.new_position))
        rows = examples.rows if rows is None else examples.joined(_unlabelled(rows)).rows
    if rows is None or not rows.shape[0] or not change.has_moved.any():
        return moved
    return replace(moved, predictor=_taught(fitted.predictor, moved.predictor, change, rows))


def continue_training(
    fitted: Fitted,
    new_rows: EncodedRows,
    settings: EngineSettings,
    device: str | None,
    progress: Progress | None = None,
    *,
    beside_examples: bool = False,
) -> Fitted:
    """Return the classifier trained on more rows, ``beside_examples`` together with those it keeps."""
    settings = replace(settings, patience=None)  # there are no validation rows
    last = {name: value for name, value in fitted.fingerprint.items() if name != "before"}
    fingerprint = {**new_rows.fingerprint(), "before": [*fitted.fingerprint.get("before", ()), last]}
    training = _beside_examples(new_rows, fitted) if beside_examples else new_rows
    predictor = fitted.predictor.continued(
        training.rows, training.traces, settings,
        sample_weight=training.sample_weight, device=device, progress=progress,
    )  # fmt: skip
    after = replace(fitted, predictor=predictor, history=predictor.history, fingerprint=fingerprint)
    return after if fitted.examples is None else after.keeping(new_rows.rows, new_rows.traces, settings.seed)


def _beside_examples(new_rows: EncodedRows, fitted: Fitted) -> EncodedRows:
    """Return rows with the examples that the model keeps after them."""
    examples, layers = fitted.examples, new_rows.traces.layers
    if examples is None:
        return new_rows
    known = examples.take(np.flatnonzero(traceable(layers)[examples.nodes]))
    traces = Traces.joined(layers, [new_rows.traces, Traces.of_nodes(layers, known.nodes)])
    rows = _unlabelled(new_rows.rows).joined(known).rows
    weights = new_rows.sample_weight
    return EncodedRows(rows, traces, None if weights is None else np.concatenate([weights, np.ones(len(known))]))


def _unlabelled(rows: Any) -> Examples:
    return Examples(rows, np.zeros(rows.shape[0], np.int64))


def _taught(before: Predictor, moved: Predictor, change: TaxonomyChange, rows: Any) -> Predictor:
    """Return ``moved`` with the options above moved nodes taught by what was answered before."""
    old_traces = before.uncorrected().traces(rows, TRACES_OF_A_ROW).traces
    targets = option_targets(old_traces, moved.layers, change.new_position)
    sources = OutputTransfer.between(before.layers, moved.layers, np.append(change.old_position, -1))
    return moved.taught(learning_rows(sources, moved.layers, change.nodes_with_other_labels()), targets, rows)
