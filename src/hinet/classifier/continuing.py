"""A fitted classifier that goes on: over to a changed taxonomy, and on with more rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.fitting import Choices, Lesson, as_sparse, train_network
from hinet.classifier.labels import LabelForm
from hinet.engine import FusedModel, fit
from hinet.engine.carrying import UNLIKELY, Carried, carried
from hinet.errors import HiNetError
from hinet.taxonomy import Layers, Taxonomy

EPOCHS_OF_MORE_ROWS = 4  # enough to learn them, few enough to forget little


def moved_to(fitted: Fitted, form: LabelForm, renamed: Mapping[str, str] | None = None) -> Fitted:
    """Return the same knowledge over the layers of another form of labels."""
    came_from = _came_from(fitted.form.taxonomy, form.taxonomy, renamed or {})
    if isinstance(fitted.model, FusedModel):
        model: Any = carried(fitted.model, form.layers, came_from)
    else:
        model = _carried_network(fitted.model, form.layers, came_from)
    return replace(fitted, form=form, model=model)


def continued(fitted: Fitted, lesson: Lesson, choices: Choices, device: str | None) -> Fitted:
    """Return what is known after more rows."""
    choices = replace(choices, patience=None)  # there are no validation rows
    fingerprint = {**lesson.fingerprint(), "before": fitted.fingerprint}
    if isinstance(fitted.model, FusedModel):
        lesson = as_sparse(lesson)
        epochs = choices.epochs or EPOCHS_OF_MORE_ROWS
        settings = replace(choices.for_engine(), deep_epochs=epochs, wide_epochs=epochs)
        model = fit(lesson.rows, lesson.traces, settings, sample_weight=lesson.sample_weight, start=fitted.model)
        return replace(fitted, model=model, history=model.history, fingerprint=fingerprint)
    network = _carried_network(fitted.model, lesson.traces.layers, np.arange(len(fitted.form.taxonomy)))
    history = train_network(network, lesson, choices, device, None)
    return replace(fitted, model=network, history=tuple(history), fingerprint=fingerprint)


def _came_from(old: Taxonomy, new: Taxonomy, renamed: Mapping[str, str]) -> NDArray[np.int64]:
    """Return the old node of each new one, or -1; an element more, so that a virtual root has none."""
    for before, after in renamed.items():
        old.position(before)
        new.position(after)
        if after in old and after not in renamed:
            raise HiNetError(f"{before!r} is renamed to {after!r}, which was a node already; rename that one as well")
    place = {renamed.get(name, name): position for position, name in enumerate(old.ids)}
    return np.array([*(place.get(name, -1) for name in new.ids), -1], np.int64)


def _carried_network(network: Any, layers: Layers, came_from: NDArray[np.int64]) -> Any:
    """Return a network with the same features over other layers."""
    import copy

    import torch

    from hinet.network import HiNet

    rows = Carried.between(network.layers, layers, np.append(came_from, -1))
    moved = HiNet(copy.deepcopy(network.features), layers, network.head.width, network.head.settings)
    old = {name: tensor.cpu().numpy() for name, tensor in network.head.state_dict().items()}
    carried_over = {"weight": rows.carry(old["weight"]), "bias": rows.carry(old["bias"], UNLIKELY)}
    moved.head.load_state_dict({name: torch.from_numpy(array) for name, array in carried_over.items()})
    return moved.eval()
