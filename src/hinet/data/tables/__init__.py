"""Tables read and written in blocks: CSV, TSV, JSON lines, Parquet, ARFF, Excel and plain lines."""

from hinet.data.tables.blocks import ColumnSelection, FailFast, RowBlock, RowErrors, TableOptions, collect_rejects
from hinet.data.tables.labelled_tables import (
    Columns,
    Conditions,
    LabelledBlock,
    LabelledTables,
    RowQuery,
    declared_columns,
    labelled_blocks,
    taxonomy_check,
)
from hinet.data.tables.reading import read_blocks
from hinet.data.tables.writing import new_table, output_format

__all__ = [
    "ColumnSelection",
    "Columns",
    "Conditions",
    "FailFast",
    "LabelledBlock",
    "LabelledTables",
    "RowBlock",
    "RowErrors",
    "RowQuery",
    "TableOptions",
    "collect_rejects",
    "declared_columns",
    "labelled_blocks",
    "new_table",
    "output_format",
    "read_blocks",
    "taxonomy_check",
]
