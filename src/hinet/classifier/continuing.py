"""A fitted classifier that goes on: over to a changed taxonomy, and on with more rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.examples import Examples
from hinet.classifier.fitted import Fitted
from hinet.classifier.fitting import Choices, Lesson, as_sparse, train_network
from hinet.classifier.labels import LabelForm
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine import FusedModel, fit
from hinet.engine.carrying import UNLIKELY, Carried, carried
from hinet.engine.transfer import (
    TRACES_OF_A_ROW,
    OutputRows,
    ScoredRows,
    learning_rows,
    option_targets,
    relearned,
    taught,
    traceable,
)
from hinet.progress import Progress
from hinet.taxonomy import Layers, TaxonomyChange

EPOCHS_OF_MORE_ROWS = 4  # enough to learn them, few enough to forget little


def moved_to(fitted: Fitted, form: LabelForm, renamed: Mapping[str, str] | None = None, rows: Any = None) -> Fitted:
    """Return the same knowledge over the layers of another form of labels.

    Where nodes moved, those above them learn from the examples that the model keeps, and from further ``rows``.
    """
    fitted.check_file()
    change = TaxonomyChange.between(fitted.form.taxonomy, form.taxonomy, renamed)
    came_from = np.append(change.old_position, -1)  # of a virtual root
    carry = carried if isinstance(fitted.model, FusedModel) else _carried_network
    moved = replace(fitted, form=form, model=carry(fitted.model, form.layers, came_from))  # type: ignore[arg-type]
    examples = fitted.examples
    if examples is not None:
        moved = replace(moved, examples=examples.moved(change.new_position))
        rows = (
            examples.rows if rows is None else examples.joined(Examples(rows, np.zeros(rows.shape[0], np.int64))).rows
        )
    if rows is None or not rows.shape[0] or not change.has_moved.any():
        return moved
    return replace(moved, model=_taught(fitted, moved, change, rows))


def continued(
    fitted: Fitted,
    news: Lesson,
    choices: Choices,
    device: str | None,
    progress: Progress | None = None,
    *,
    beside_examples: bool = False,
) -> Fitted:
    """Return what is known after more rows, which are learned ``beside_examples`` if these are not to be forgotten."""
    choices = replace(choices, patience=None)  # there are no validation rows
    fingerprint = {**news.fingerprint(), "before": fitted.fingerprint}
    news = as_sparse(news) if isinstance(fitted.model, FusedModel) else news
    lesson = _beside_examples(news, fitted) if beside_examples else news
    if isinstance(fitted.model, FusedModel):
        epochs = choices.epochs or EPOCHS_OF_MORE_ROWS
        settings = replace(choices.for_engine(), deep_epochs=epochs, wide_epochs=epochs)
        weights = lesson.sample_weight
        model: Any = fit(
            lesson.rows, lesson.traces, settings, sample_weight=weights, start=fitted.model, progress=progress
        )
        history = model.history
    else:
        model = _carried_network(
            fitted.model, lesson.traces.layers, np.append(np.arange(len(fitted.form.taxonomy)), -1)
        )
        history = tuple(train_network(model, lesson, choices, device, progress))
    after = replace(fitted, model=model, history=history, fingerprint=fingerprint)
    return after if fitted.examples is None else after.keeping(news.rows, news.traces, choices.seed)


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


def _taught(before: Fitted, moved: Fitted, change: TaxonomyChange, rows: Any) -> Any:
    """Return the model of ``moved`` with the options above moved nodes taught by what was answered before."""
    layers = moved.form.layers
    if isinstance(before.model, FusedModel):
        before = replace(before, model=replace(before.model, slope=1.0))
    targets = option_targets(before.search.traces(rows, TRACES_OF_A_ROW).traces, layers, change.new_position)
    sources = Carried.between(before.form.layers, layers, np.append(change.old_position, -1))
    learns = learning_rows(sources, layers, change.nodes_with_other_labels())
    if isinstance(moved.model, FusedModel):
        return taught(moved.model, learns, targets, SparseMatrix.of(rows))
    return _taught_network(moved.model, learns, targets, rows)


def _carried_network(network: Any, layers: Layers, came_from: NDArray[np.int64]) -> Any:
    """Return a network with the same features over other layers."""
    import copy

    from hinet.network import HiNet

    rows = Carried.between(network.layers, layers, came_from)
    moved = HiNet(copy.deepcopy(network.features), layers, network.head.width, network.head.settings)
    outputs = _outputs(network)
    _set_outputs(moved, OutputRows(rows.carry(outputs.weight), rows.carry(outputs.bias, UNLIKELY)))
    return moved.eval()


def _taught_network(network: Any, learns: NDArray[np.bool_], targets: Any, rows: Any) -> Any:
    from hinet.engine.groups import Groups
    from hinet.training.predict import feature_layer

    outputs, hidden = _outputs(network), feature_layer(network, rows)
    first = Groups.of(network.layers).first_row

    def score(group: int, chosen: NDArray[np.int64]) -> ScoredRows:
        part = slice(first[group], first[group + 1])
        return ScoredRows(hidden[chosen] @ outputs.weight[part].T + outputs.bias[part], hidden[chosen])

    _set_outputs(network, relearned(outputs, learns, targets, network.layers, score, 1.0))
    return network


def _outputs(network: Any) -> OutputRows:
    state = network.head.state_dict()
    return OutputRows(*(state[name].cpu().numpy() for name in OutputRows._fields))


def _set_outputs(network: Any, outputs: OutputRows) -> None:
    import torch

    network.head.load_state_dict({name: torch.from_numpy(array) for name, array in outputs._asdict().items()})
