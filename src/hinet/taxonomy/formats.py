"""The file formats of hierarchies: each one parses text into a Draft."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hinet.errors import FileError, quoted
from hinet.files.delimited import DelimitedTable, column_names, guess_delimiter, parse_delimited
from hinet.files.excel import EXCEL, sheet_rows
from hinet.files.streams import STANDARD, open_bytes, seekable_file, strip_compression
from hinet.files.text import read_text, split_lines
from hinet.taxonomy.arff import Arff, is_arff
from hinet.taxonomy.draft import Draft, Problem
from hinet.taxonomy.nested_json import NestedJson
from hinet.taxonomy.obo import Obo, is_obo
from hinet.taxonomy.paths import as_id, named_path_draft
from hinet.taxonomy.skos import Skos, syntax_of

NODE_COLUMNS = ("node", "child", "id", "node_id", "code")
PARENT_COLUMNS = ("parent", "parents", "parent_id", "parents_id", "parent_ids", "parent_code")
PARENT_SEPARATORS = ("|", ";", ",", " ")
MEMORY_PER_BYTE = 64  # of text: its parts are short, and each becomes a Python object
MEMORY_PER_BYTE_OF_ONTOLOGY = 16  # most of it is syntax, or said again and again
_ONTOLOGIES = (".ttl", ".nt", ".rdf", ".xml", ".owl", ".jsonld", ".obo")

_JSON_START = re.compile(r"""\s*(?:\{\s*["}]|\[\s*["{\[\]\d])""")
_COLUMN_REMEDY = "set `node_column` and `parent_column`"


class TaxonomyFormat(Protocol):
    """Parses the text of a file."""

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return the links that the text declares; raise FileError with the line if it is invalid."""
        ...


@dataclass(frozen=True)
class Table:
    """A CSV or TSV table with a node and a parent column; the other columns are attributes.

    Several parents: repeated rows, or one cell split at ``parent_sep``. Without it, cells that are not node ids are
    split at ``|``, ``;``, ``,`` or a space if that yields node ids for every such cell. Every node needs a row, unless
    the node column is called ``child``: then the rows are edges.
    """

    delimiter: str | None = None
    parent_sep: str | None = None
    node_column: str | None = None
    parent_column: str | None = None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every row and parent."""
        return self.draft(parse_delimited(path, text, self.delimiter))

    def draft(self, table: DelimitedTable) -> Draft:
        """Return a link for every row and parent of a table that is read already."""
        path = table.path
        parent_column = self.parent_column or _find_column(table, PARENT_COLUMNS)
        if parent_column is None:
            raise FileError(path, _no_parent_column(table), line=table.header_line)
        others = [name for name in table.columns if name != parent_column]
        node_column = self.node_column or _find_column(table, NODE_COLUMNS) or next(iter(others), parent_column)
        if node_column == parent_column:
            raise FileError(
                path, "`node_column` and `parent_column` are the same column; name two", line=table.header_line
            )
        nodes, cells = table.column(node_column), table.column(parent_column)
        if not nodes:
            raise FileError(
                path, "the table has a header and no rows; add a row for every node", line=table.header_line
            )
        problems = [
            Problem("warning", "long-cell", "a quoted cell runs over several lines; is a quote misplaced?", line)
            for line in table.long_records
        ]
        separator = self.parent_sep
        node_ids = set(nodes)
        if separator is None and (separator := _parent_separator(node_ids, cells)) is not None:
            first = next(
                line for line, cell in zip(table.lines, cells, strict=True) if cell.strip() and cell not in node_ids
            )
            message = f"cells with several parents are split at {quoted(separator)}; set `parent_sep` to be sure"
            problems.append(Problem("warning", "guessed-separator", message, first))
        attributes = {name: table.column(name) for name in others if name != node_column}
        declares_nodes = node_column.casefold() != "child"
        if separator is None:
            parents: list[str | None] = [cell if cell.strip() else None for cell in cells]
            return Draft(list(nodes), parents, table.lines, attributes, declares_nodes, False, tuple(problems))
        split = [[cell] if cell in node_ids else _parents_in(cell, separator) for cell in cells]
        rows = [row for row, parts in enumerate(split) for _ in parts]
        return Draft(
            nodes=[nodes[row] for row in rows],
            parents=[parent for parts in split for parent in parts],
            lines=[table.lines[row] for row in rows],
            attributes={name: [column[row] for row in rows] for name, column in attributes.items()},
            declares_nodes=declares_nodes,
            repeats_allowed=False,
            problems=tuple(problems),
        )


@dataclass(frozen=True)
class Edges:
    """An edge ``parent child`` per line, as in ``hierarchy.txt`` of LSHTC 2011 to 2014."""

    delimiter: str | None = None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every line."""
        nodes: list[str] = []
        parents: list[str | None] = []
        lines: list[int] = []
        first = next((line for _, line in data_lines(path, text)), "")
        delimiter = self.delimiter or (guess_delimiter(first) if "\t" in first or len(first.split()) != 2 else None)
        for number, line in data_lines(path, text):
            ends = [end.strip() for end in line.split(delimiter)]
            if len(ends) != 2 or not all(ends):
                raise FileError(path, f"expected 'parent child', got {len(ends)} words: {quoted(line)}", line=number)
            parents.append(ends[0])
            nodes.append(ends[1])
            lines.append(number)
        return Draft(nodes, parents, lines)


@dataclass(frozen=True)
class IdPaths:
    """A path of node ids per line, from the root down, as in ``cat_hier.txt`` of LSHTC 2010."""

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every step; an id under two parents is one node of a DAG."""
        numbered = list(data_lines(path, text))
        return id_path_draft((line.split() for _, line in numbered), [number for number, _ in numbered])


@dataclass(frozen=True)
class LabelPaths:
    """A path of names per line, such as ``A > B > C``; the path identifies a node, so names may repeat."""

    sep: str | None = None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every prefix of every path."""
        sep = self.sep or (" > " if " > " in text else ">")
        mark = sep.strip() or sep
        paths, lines = [], []
        for number, line in data_lines(path, text):
            steps = tuple(step.strip() for step in line.removeprefix(mark).removesuffix(mark).split(mark))
            if not all(steps):
                raise FileError(path, f"empty step between two {quoted(mark)} in {quoted(line)}; name it", line=number)
            paths.append(steps)
            lines.append(number)
        return named_path_draft(paths, lines, sep)


FORMATS: dict[str, type[TaxonomyFormat]] = {
    "table": Table,
    "edges": Edges,
    "paths": IdPaths,
    "labels": LabelPaths,
    "json": NestedJson,
    "arff": Arff,
    "skos": Skos,
    "obo": Obo,
}


def read_draft(path: str | Path, *, format: TaxonomyFormat | str | None = None, encoding: str = "utf-8") -> Draft:
    """Read a file as a draft of its hierarchy; the format is detected unless it is given."""
    if (sheet := _excel_table(path)) is not None:
        if format is not None and format != "table" and not isinstance(format, Table):
            raise FileError(path, "is an Excel file, which holds a table; leave `format` out")
        return (format if isinstance(format, Table) else Table()).draft(sheet)
    is_ontology = strip_compression(path).lower().endswith(_ONTOLOGIES)
    text = read_text(path, encoding, MEMORY_PER_BYTE_OF_ONTOLOGY if is_ontology else MEMORY_PER_BYTE)
    if isinstance(format, str):
        if format not in FORMATS:
            raise FileError(path, f"unknown format {quoted(format)}; use one of {', '.join(FORMATS)}")
        format = FORMATS[format]()
    return (format or detect(path, text)).parse(path, text)


def _excel_table(path: str | Path) -> DelimitedTable | None:
    """Return the first sheet of an Excel file as a table of text; None for other files."""
    with open_bytes(path) as raw:
        if str(path) == STANDARD or not raw.peek(len(EXCEL)).startswith(EXCEL):
            return None
        with seekable_file(path, raw, EXCEL) as file:
            rows = list(sheet_rows(path, file))
    if not rows:
        raise FileError(path, "the first sheet is empty; its first row names the columns")
    header, *others = rows
    names = column_names(path, [as_id(cell) for cell in header.cells], header.number)
    for number, cells in others:
        if len(cells) > len(names):
            raise FileError(path, f"expected {len(names)} cells, got {len(cells)}; name all columns", line=number)
    columns: dict[str, Sequence[str]] = {
        name: [as_id(cells[index]) if index < len(cells) else "" for _, cells in others]
        for index, name in enumerate(names)
    }
    return DelimitedTable(str(path), columns, [number for number, _ in others], header.number, [])


def detect(path: str | Path, text: str) -> TaxonomyFormat:
    """Return the detected format of the text, or raise FileError with a remedy."""
    if syntax_of(text) is not None:
        return Skos()
    if _JSON_START.match(text):
        return NestedJson()
    if is_arff(text):
        return Arff()
    if is_obo(text):
        return Obo()
    numbered = list(data_lines(path, text))
    lines = [line for _, line in numbered]
    first_number, first = numbered[0] if numbered else (1, "")
    delimiter = guess_delimiter(first)
    header = {_normalise(cell) for cell in first.split(delimiter)}
    if first.startswith("sep=") or (delimiter and header & set(PARENT_COLUMNS)):
        return Table()
    if 2 * sum(">" in line for line in lines) >= len(lines) > 0:
        return LabelPaths()
    if delimiter:
        raise FileError(
            path,
            f"no column is called 'parent' in {quoted(first)}; {_COLUMN_REMEDY}, or `format` if the file has no header",
            line=first_number,
        )
    words = [line.split() for line in lines]
    if 10 * sum(len(line) == 2 for line in words) >= 9 * len(words):  # the parser reports the odd line
        return Edges()
    one_root = (
        len(words) > 1 and len({line[0] for line in words}) == 1 and all(len({*line}) == len(line) for line in words)
    )
    if one_root or (all(word.isdigit() for line in words for word in line) and max(map(len, words)) > 2):
        return IdPaths()
    raise FileError(
        path,
        f"the format of the hierarchy is not recognised; the first line is {quoted(first)}; set `format` to one of "
        f"{', '.join(FORMATS)}, or `sep` to the separator of the steps if the lines are paths of names",
        line=first_number,
    )


def data_lines(path: str | Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without blank ones and without the comments (#) at the start of the file."""
    in_head = True
    for number, line in enumerate(split_lines(path, text), start=1):
        stripped = line.strip()
        if not stripped or (in_head and stripped.startswith("#")):
            continue
        in_head = False
        yield number, stripped


def id_path_draft(paths: Iterable[Sequence[str]], lines: Sequence[int] | None = None) -> Draft:
    """Return a draft whose nodes are the distinct steps of ``paths``."""
    links: dict[tuple[str, str | None], int] = {}
    for number, path in enumerate(paths):
        for child, parent in zip(path, (None, *path), strict=False):
            links.setdefault((child, parent), number)
    return Draft(
        nodes=[child for child, _ in links],
        parents=[parent for _, parent in links],
        lines=None if lines is None else [lines[number] for number in links.values()],
    )


def _find_column(table: DelimitedTable, candidates: Sequence[str]) -> str | None:
    by_name = {name.casefold(): name for name in reversed(table.columns.keys())} | {
        name: name for name in table.columns
    }
    return next((by_name[name] for name in candidates if name in by_name), None)


def _normalise(name: str) -> str:
    return name.strip().strip('"').casefold().replace(" ", "_").replace("-", "_")


def _no_parent_column(table: DelimitedTable) -> str:
    columns = ", ".join(map(quoted, [*table.columns][:12]))
    return f"expected a column 'parent', got {columns}; {_COLUMN_REMEDY}"


def _parents_in(cell: str, separator: str) -> list[str | None]:
    return [*dict.fromkeys(part.strip() for part in cell.split(separator) if part.strip())] or [None]


def _parent_separator(node_ids: set[str], cells: Sequence[str]) -> str | None:
    """Return the separator that splits every cell that is not a node id into node ids, or None."""
    unknown = [cell for cell in cells if cell.strip() and cell not in node_ids]
    for separator in PARENT_SEPARATORS:
        if unknown and all(separator in cell and node_ids.issuperset(_parents_in(cell, separator)) for cell in unknown):
            return separator
    return None
