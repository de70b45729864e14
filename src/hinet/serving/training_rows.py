"""Feedback as rows to train on, in the columns that the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hinet.classifier.loaded import LoadedModel
from hinet.classifier.prediction_table import label_text
from hinet.errors import HiNetError


def training_row(model: LoadedModel, given: str | dict[str, Any], nodes: Sequence[int]) -> dict[str, Any]:
    """Return a text or row with its right labels as a row of the training table; raise HiNetError if it has no room."""
    columns, codec = model.columns, model.fitted.codec
    if isinstance(given, str):
        cells: dict[str, Any] = {**dict.fromkeys(columns.inputs, ""), columns.text[0]: given}
    else:
        cells = {name: given.get(name) for name in columns.inputs}
    paths = [codec.path_to(node) for node in nodes]
    if len(columns.label) == 1:
        labels = [label_text(codec.label_of(path), model.style) for path in paths]
        several = labels if columns.label_sep is None else columns.label_sep.join(labels)
        return cells | {columns.label[0]: labels[0] if len(labels) == 1 else several}
    if len(paths) > 1:
        raise HiNetError("the model was trained on one label a row, a column for each level; give one node")
    steps = [str(step) for step in codec.steps(paths[0])]
    if len(steps) > len(columns.label):
        raise HiNetError(
            f"the node is {len(steps)} levels deep, and training rows have {len(columns.label)} columns of labels"
        )
    return cells | dict(zip(columns.label, [*steps, *[""] * (len(columns.label) - len(steps))], strict=True))
