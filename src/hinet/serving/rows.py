"""Rows of requests: as inputs of a model, and with their correct labels as training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hinet.classifier.inputs import FrameInput
from hinet.classifier.loaded import LoadedModel
from hinet.classifier.prediction_table import label_text
from hinet.data.tables import RowBlock
from hinet.data.tables.labelled_tables import input_table
from hinet.errors import HiNetError, quoted
from hinet.files.delimited import missing_column_message

Json = dict[str, Any]


class RowError(HiNetError):
    """A row cannot be read."""

    def __init__(self, row: int, message: str) -> None:
        self.row = row
        super().__init__(message)


def reads_rows(model: LoadedModel) -> bool:
    """Return whether a model needs more columns than a text."""
    return isinstance(model.fitted.features, FrameInput)


def read_rows(model: LoadedModel, rows: Sequence[Json]) -> Any:
    """Return rows as inputs of a model, texts or a table; raise RowError for a row that cannot be read."""
    columns = model.columns
    names = columns.inputs if reads_rows(model) else columns.text
    for number, row in enumerate(rows):
        for name in names:
            if name not in row:
                raise RowError(number, missing_column_message(name, list(row)) + "; null stands for a missing value")
    if reads_rows(model):
        return _read_table(model, rows)
    texts = []
    for number, row in enumerate(rows):
        cells = [row[name] for name in names]
        if not all(cell is None or isinstance(cell, str) for cell in cells):
            raise RowError(number, f"expected text in {', '.join(names)}")
        texts.append(" ".join(cell for cell in cells if cell))
    return texts


def _read_table(model: LoadedModel, rows: Sequence[Json]) -> Any:
    columns, widths = model.columns, model.widths(model.columns)

    def table(some: Sequence[Json]) -> Any:
        cells = {name: [row[name] for row in some] for name in columns.inputs}
        block = RowBlock("rows", "jsonl", list(range(1, len(some) + 1)), cells, positions=list(range(len(some))))
        return input_table(block, columns, widths)

    try:
        return model.named_as_trained(table(rows))
    except HiNetError as error:
        for number, row in enumerate(rows):
            try:
                table([row])
            except HiNetError as reason:
                raise RowError(number, str(reason)) from None
        raise error from None


def training_row(model: LoadedModel, given: str | Json, nodes: Sequence[int]) -> Json:
    """Return a text or row with its correct labels as a row of the training table.

    Raises
    ------
    HiNetError
        If the table cannot hold these labels.
    """
    columns, codec = model.columns, model.fitted.codec
    if len(nodes) > 1 and (codec.sets is None or len(columns.label) > 1):
        names = ", ".join(quoted(codec.taxonomy.ids[node]) for node in nodes)
        raise HiNetError(f"the model predicts one label per text; got {names}; send one node")
    if isinstance(given, str):
        cells: Json = {**dict.fromkeys(columns.inputs, ""), columns.text[0]: given}
    else:
        cells = {name: given.get(name) for name in columns.inputs}
    paths = [codec.path_to(node) for node in nodes]
    if len(columns.label) == 1:
        labels = [label_text(codec.label_of(path), model.style) for path in paths]
        return cells | {columns.label[0]: _label_cell(labels, columns.label_sep)}
    steps = [str(step) for step in codec.steps(paths[0])]
    if len(steps) > len(columns.label):
        raise HiNetError(
            f"the node is {len(steps)} levels deep, but training rows have {len(columns.label)} label columns; send a "
            "node above it"
        )
    return cells | dict(zip(columns.label, [*steps, *[""] * (len(columns.label) - len(steps))], strict=True))


def _label_cell(labels: list[str], separator: str | None) -> str | list[str]:
    """Return one or several labels as a cell: joined by the separator of training, or without one as a list."""
    if separator is None:
        return labels[0] if len(labels) == 1 else labels
    for label in labels:
        if separator in label:
            raise HiNetError(
                f"the label {quoted(label)} has the separator {quoted(separator)} of the training rows; send another "
                "node, or train with another separator"
            )
    return separator.join(labels)
