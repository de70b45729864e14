"""A fitted classifier that goes on: over to a changed taxonomy, and on with more rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hinet.classifier.examples import Examples
from hinet.classifier.fitted import Fitted
from hinet.classifier.fitting import Lesson
from hinet.classifier.labels import LabelForm
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


def moved_to(fitted: Fitted, form: LabelForm, renamed: Mapping[str, str] | None = None, rows: Any = None) -> Fitted:
    """Return the same knowledge over the layers of another form of labels.

    Where nodes moved, those above them learn from the examples that the model keeps, and from further ``rows``.
    """
    fitted.check_file()
    change = TaxonomyChange.between(fitted.form.taxonomy, form.taxonomy, renamed)
    came_from = np.append(change.old_position, -1)  # of a virtual root
    moved = replace(fitted, form=form, predictor=fitted.predictor.moved_to(form.layers, came_from))
    examples = fitted.examples
    if examples is not None:
        moved = replace(moved, examples=examples.moved(change.new_position))
        rows = (
            examples.rows if rows is None else examples.joined(Examples(rows, np.zeros(rows.shape[0], np.int64))).rows
        )
    if rows is None or not rows.shape[0] or not change.has_moved.any():
        return moved
    return replace(moved, predictor=_taught(fitted.predictor, moved.predictor, change, rows))


def continued(
    fitted: Fitted,
    news: Lesson,
    settings: EngineSettings,
    device: str | None,
    progress: Progress | None = None,
    *,
    beside_examples: bool = False,
) -> Fitted:
    """Return what is known after more rows, which are learned ``beside_examples`` if these are not to be forgotten."""
    settings = replace(settings, patience=None)  # there are no validation rows
    fingerprint = {**news.fingerprint(), "before": fitted.fingerprint}
    lesson = _beside_examples(news, fitted) if beside_examples else news
    predictor = fitted.predictor.continued(
        lesson.rows, lesson.traces, settings,
        sample_weight=lesson.sample_weight, device=device, progress=progress,
    )  # fmt: skip
    after = replace(fitted, predictor=predictor, history=predictor.history, fingerprint=fingerprint)
    return after if fitted.examples is None else after.keeping(news.rows, news.traces, settings.seed)


def _beside_examples(news: Lesson, fitted: Fitted) -> Lesson:
    """Return rows with the examples that the model keeps after them."""
    examples, layers = fitted.examples, news.traces.layers
    if examples is None:
        return news
    known = examples.take(np.flatnonzero(traceable(layers)[examples.nodes]))
    traces = Traces.joined(layers, [news.traces, Traces.of_nodes(layers, known.nodes)])
    rows = Examples(news.rows, np.zeros(len(news.traces), np.int64)).joined(known).rows
    weights = news.sample_weight
    return Lesson(rows, traces, None if weights is None else np.concatenate([weights, np.ones(len(known))]))


def _taught(before: Predictor, moved: Predictor, change: TaxonomyChange, rows: Any) -> Predictor:
    """Return ``moved`` with the options above moved nodes taught by what was answered before."""
    found = before.scaled(1.0, 1.0).traces(rows, TRACES_OF_A_ROW).traces
    targets = option_targets(found, moved.layers, change.new_position)
    sources = OutputTransfer.between(before.layers, moved.layers, np.append(change.old_position, -1))
    return moved.taught(learning_rows(sources, moved.layers, change.nodes_with_other_labels()), targets, rows)
