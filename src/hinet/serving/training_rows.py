"""Feedback as rows to train on, in the columns that the model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hinet.classifier.loaded import LoadedModel
from hinet.classifier.prediction_table import label_text
from hinet.errors import HiNetError, quoted


def training_row(model: LoadedModel, given: str | dict[str, Any], nodes: Sequence[int]) -> dict[str, Any]:
    """Return a text or row with its right labels as a row of the training table.

    Raises
    ------
    HiNetError
        If the table cannot hold these labels.
    """
    columns, codec = model.columns, model.fitted.codec
    if len(nodes) > 1 and (codec.sets is None or len(columns.label) > 1):
        names = ", ".join(quoted(codec.taxonomy.ids[node]) for node in nodes)
        raise HiNetError(f"the model gives one label per text; got {names}; send one node")
    if isinstance(given, str):
        cells: dict[str, Any] = {**dict.fromkeys(columns.inputs, ""), columns.text[0]: given}
    else:
        cells = {name: given.get(name) for name in columns.inputs}
    paths = [codec.path_to(node) for node in nodes]
    if len(columns.label) == 1:
        labels = [label_text(codec.label_of(path), model.style) for path in paths]
        return cells | {columns.label[0]: _label_cell(labels, columns.label_sep)}
    steps = [str(step) for step in codec.steps(paths[0])]
    if len(steps) > len(columns.label):
        raise HiNetError(
            f"the node is {len(steps)} levels deep, and training rows have {len(columns.label)} columns of labels; "
            "send a node above it"
        )
    return cells | dict(zip(columns.label, [*steps, *[""] * (len(columns.label) - len(steps))], strict=True))


def _label_cell(labels: list[str], separator: str | None) -> str | list[str]:
    """Return the cell of one or several labels: joined by the separator of training, or without one as a list."""
    if separator is None:
        return labels[0] if len(labels) == 1 else labels
    for label in labels:
        if separator in label:
            raise HiNetError(
                f"the label {quoted(label)} has the separator {quoted(separator)} of the training rows; send another "
                "node, or train with another separator"
            )
    return separator.join(labels)
