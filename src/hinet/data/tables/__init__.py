"""Rows from and to files: CSV, TSV, JSON lines, Parquet and plain lines, streamed in blocks."""

from hinet.data.tables.blocks import RowBlock, Wanted
from hinet.data.tables.columns import Columns, Conditions, LabelledBlock, RowQuery, checked_against, labelled_blocks
from hinet.data.tables.faults import Faults, Unforgiving, setting_aside
from hinet.data.tables.formats import FORMATS, TableFormat, TableOptions
from hinet.data.tables.reading import read_blocks
from hinet.data.tables.writing import TableWriter, format_for_output, new_table

__all__ = [
    "FORMATS",
    "Columns",
    "Conditions",
    "Faults",
    "LabelledBlock",
    "RowBlock",
    "RowQuery",
    "TableFormat",
    "TableOptions",
    "TableWriter",
    "Unforgiving",
    "Wanted",
    "checked_against",
    "format_for_output",
    "labelled_blocks",
    "new_table",
    "read_blocks",
    "setting_aside",
]
