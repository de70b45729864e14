"""Columns and hierarchies that a file declares itself: the header of an ARFF file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hinet.data.arff import LABEL_SEP, input_columns
from hinet.data.tables.columns import Columns
from hinet.data.tables.formats import TableOptions, format_of
from hinet.files.arff import parse_header
from hinet.files.streams import STANDARD, open_bytes, peek_stream
from hinet.files.text import read_text
from hinet.taxonomy import Taxonomy
from hinet.taxonomy.arff import hierarchy_draft


class Declared(NamedTuple):
    """The columns of a file by kind, and the hierarchy of its labels, if it has one."""

    columns: Columns
    taxonomy: Taxonomy | None


def declared_columns(
    path: str, options: TableOptions, labels: Sequence[str] = (), leave_out: Iterable[str] = ()
) -> Declared | None:
    """Return what an ARFF file declares; None for other files, and for pipes, which cannot be read twice.

    Other columns of ``labels``, and those to ``leave_out``, do not tell the label.
    """
    if path == STANDARD or not Path(path).is_file():
        return None
    with open_bytes(path) as raw:
        head = peek_stream(raw).head
    if format_of(path, head, options, (), explicit=False) != "arff":
        return None
    header = parse_header(path, read_text(path, options.encoding))
    hierarchy = header.hierarchy
    unused = {*labels, *leave_out}
    inputs: dict[str, Any] = {
        kind: tuple(n for n in names if n not in unused) for kind, names in input_columns(header).items()
    }
    columns = replace(Columns(text=()), **inputs)
    if hierarchy is None or (labels and tuple(labels) != (hierarchy.name,)):
        return Declared(replace(columns, label=tuple(labels) or columns.label), None)
    taxonomy = Taxonomy.from_draft(hierarchy_draft(path, hierarchy), source=path)
    return Declared(replace(columns, label=(hierarchy.name,), label_sep=LABEL_SEP), taxonomy)
