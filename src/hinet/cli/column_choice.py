"""Columns to suggest where the user names none: those whose values look like text."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from hinet.classifier.recognition import recognise
from hinet.data.tables import Columns, ColumnSelection, TableOptions, read_blocks
from hinet.data.tables.blocks import RowBlock
from hinet.data.tables.labelled_tables import Skipped
from hinet.errors import FileError, HiNetError, quoted
from hinet.files.delimited import missing_column_message
from hinet.files.streams import STANDARD


def check_text_column(path: str, options: TableOptions, leave_out: Collection[str]) -> None:
    """Raise FileError with the columns that look like text if no column has the default name of texts.

    Columns to ``leave_out``, such as of labels, are not suggested. They are never chosen without being asked for: a
    column that repeats the label looks like text too.
    """
    (default,) = Columns().text
    if path == STANDARD or not Path(path).is_file():
        return
    selection = ColumnSelection((), read_all=True, explicit=False)
    block = next(read_blocks([path], selection, options, Skipped()), None)
    if block is None or default in block.names:
        return
    if names := _text_columns(block, leave_out):
        message = missing_column_message(default, block.names)
        verb = "looks" if len(names) == 1 else "look"
        raise FileError(path, f"{message}; set `text`: {' and '.join(map(quoted, names))} {verb} like text")


def _text_columns(block: RowBlock, leave_out: Collection[str]) -> tuple[str, ...]:
    columns = {name: block.values(name) for name in block.names if name not in leave_out}
    texts = {
        name: pa.array(values, pa.large_string())
        for name, values in columns.items()
        if all(value is None or isinstance(value, str) for value in values) and not all(map(_is_number, values))
    }
    with suppress(HiNetError):  # all are ids
        return recognise(pa.table(texts)).kinds.text if texts else ()
    return ()


def _is_number(value: str | None) -> bool:
    try:
        float(value or "0")
    except ValueError:
        return False
    return True
