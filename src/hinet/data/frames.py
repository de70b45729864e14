"""pandas and polars DataFrames and Arrow tables, all as one Arrow table; types of Arrow columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from hinet.errors import HiNetError, format_value, quoted
from hinet.files.delimited import first_repeated

_NUMBERS = "biufc"  # values of ``dtype.kind``


def is_frame(rows: Any) -> bool:
    """Return whether rows are a pandas or polars DataFrame or an Arrow table."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return True
    return hasattr(rows, "columns") and (hasattr(rows, "iloc") or hasattr(rows, "to_arrow"))


def is_mixed(rows: Any) -> bool:
    """Return whether a DataFrame has columns of text, categories or lists."""
    if hasattr(rows, "iloc") and all(getattr(dtype, "kind", "O") in _NUMBERS for dtype in rows.dtypes):
        return False
    try:
        table = as_table(rows)
    except HiNetError:
        return True  # the error is raised again when columns are read
    return any(is_text(kind) or pa.types.is_dictionary(kind) or is_list(kind) for kind in table.schema.types)


def as_table(rows: Any) -> pa.Table:
    """Return a DataFrame as an Arrow table.

    Raises
    ------
    HiNetError
        If two columns have one name, or a column holds values of several types; names the column.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    names = [str(name) for name in (rows.column_names if isinstance(rows, pa.Table) else rows.columns)]
    if (repeated := first_repeated(names)) is not None:
        raise HiNetError(f"two columns have the name {quoted(repeated)}; rename one of them")
    if isinstance(rows, pa.Table):
        return rows
    if hasattr(rows, "to_arrow"):  # polars
        return rows.to_arrow()
    return pa.table([_from_pandas(column, name) for name, (_, column) in zip(names, rows.items(), strict=True)], names)


def _from_pandas(column: Any, name: str) -> pa.Array:
    if (array := _array(column)) is not None:
        return array
    values = column.tolist()
    first = next((value for value in values if value is not None and value == value), None)
    row = next((row for row, value in enumerate(values) if _array([first, value]) is None), 0)
    raise HiNetError(
        f"row {row}: column {quoted(name)} has {format_value(values[row])} and other rows {format_value(first)}; "
        "give a column values of one type"
    )


def _array(values: Any) -> pa.Array | None:
    """Return values as an Arrow array, or None if they do not have one type that Arrow knows."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def one_row_table(row: Mapping[str, Any]) -> pa.Table:
    """Return a mapping of columns to values as a table of one row."""
    arrays = {str(name): _array([value]) for name, value in row.items()}
    for (name, array), value in zip(arrays.items(), row.values(), strict=True):
        if array is None:
            raise HiNetError(
                f"row 0: column {quoted(name)} has {format_value(value)}; give text, a number or a list of numbers"
            )
    return pa.table(arrays)


def column_of(table: pa.Table, name: str, known: Sequence[str]) -> pa.ChunkedArray:
    """Return a column that the model was trained on, or raise HiNetError if the rows do not have it."""
    index = table.schema.get_field_index(name)  # constant time, however many columns there are
    if index >= 0:
        return table.column(index)
    given = ", ".join(map(quoted, table.column_names[:10])) or "none"
    raise HiNetError(
        f"the rows have no column {quoted(name)}, they have {given}; give them the columns {', '.join(known[:10])}, "
        "with empty cells where a value is unknown"
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds lists."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_categories(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds dictionary-encoded text."""
    return bool(pa.types.is_dictionary(kind) and is_text(kind.value_type))


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with its dictionary decoded, if it has one."""
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    chunks = []
    for chunk in column.chunks:
        values = chunk.dictionary.cast(pa.large_string()) if pa.types.is_string_view(kind) else chunk.dictionary
        chunks.append(values.take(chunk.indices))
    return pa.chunked_array(chunks, pa.large_string() if pa.types.is_string_view(kind) else kind)
