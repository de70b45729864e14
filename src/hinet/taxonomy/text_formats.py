"""Hierarchies in lines of text: tables of nodes and parents, edges, paths of ids and paths of names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hinet.errors import FileError, quoted
from hinet.files.delimited import DelimitedTable, guess_delimiter, parse_delimited
from hinet.files.streams import split_lines
from hinet.taxonomy.draft import Draft, Problem, TaxonomyFormat, id_path_draft, named_path_draft

NODE_COLUMNS = ("node", "child", "id", "node_id", "code")
PARENT_COLUMNS = ("parent", "parents", "parent_id", "parents_id", "parent_ids", "parent_code")
PARENT_SEPARATORS = ("|", ";", ",", " ")

_COLUMN_REMEDY = "set `node_column` and `parent_column`"


@dataclass(frozen=True)
class Table(TaxonomyFormat):
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
        """Return a link for every row and parent of a parsed table."""
        node_column, parent_column = self._key_columns(table)
        nodes, cells = table.column(node_column), table.column(parent_column)
        if not nodes:
            message = "the table has a header and no rows; add a row for every node"
            raise FileError(table.path, message, line=table.header_line)
        problems = [
            Problem("warning", "long-cell", "a quoted cell runs over several lines; is a quote misplaced?", line)
            for line in table.long_records
        ]
        separator = self.parent_sep
        node_ids = set(nodes)
        if separator is None and (separator := _parent_separator(node_ids, cells)) is not None:
            rows = zip(table.lines, cells, strict=True)
            first = next(line for line, cell in rows if cell.strip() and cell not in node_ids)
            message = f"cells with several parents are split at {quoted(separator)}; set `parent_sep` to be sure"
            problems.append(Problem("warning", "guessed-separator", message, first))
        split = [
            [cell] if separator is None or cell in node_ids else _split_parents(cell, separator) or [""]
            for cell in cells
        ]
        row_of_link = [row for row, parents in enumerate(split) for _ in parents]
        return Draft(
            nodes=[nodes[row] for row in row_of_link],
            parents=[parent if parent.strip() else None for parents in split for parent in parents],
            lines=[table.lines[row] for row in row_of_link],
            attributes={
                name: [column[row] for row in row_of_link]
                for name, column in table.columns.items()
                if name not in (node_column, parent_column)
            },
            declares_nodes=node_column.casefold() != "child",
            repeats_allowed=False,
            problems=tuple(problems),
        )

    def _key_columns(self, table: DelimitedTable) -> tuple[str, str]:
        parent_column = self.parent_column or _find_column(table, PARENT_COLUMNS)
        if parent_column is None:
            columns = ", ".join(map(quoted, [*table.columns][:12]))
            message = f"expected a column 'parent', got {columns}; {_COLUMN_REMEDY}"
            raise FileError(table.path, message, line=table.header_line)
        others = (name for name in table.columns if name != parent_column)
        node_column = self.node_column or _find_column(table, NODE_COLUMNS) or next(others, parent_column)
        if node_column == parent_column:
            message = "`node_column` and `parent_column` are the same column; name two"
            raise FileError(table.path, message, line=table.header_line)
        return node_column, parent_column


def _find_column(table: DelimitedTable, candidates: Sequence[str]) -> str | None:
    by_name = {name.casefold(): name for name in reversed(table.columns.keys())}
    by_name |= {name: name for name in table.columns}
    return next((by_name[name] for name in candidates if name in by_name), None)


def _split_parents(cell: str, separator: str) -> list[str]:
    return [*dict.fromkeys(part.strip() for part in cell.split(separator) if part.strip())]


def _parent_separator(node_ids: set[str], cells: Sequence[str]) -> str | None:
    """Return the separator that splits every cell that is not a node id into node ids, or None."""
    unknown = [cell for cell in cells if cell.strip() and cell not in node_ids]
    for separator in PARENT_SEPARATORS:
        if unknown and all(
            separator in cell and node_ids.issuperset(_split_parents(cell, separator)) for cell in unknown
        ):
            return separator
    return None


@dataclass(frozen=True)
class Edges(TaxonomyFormat):
    """An edge ``parent child`` per line, as in ``hierarchy.txt`` of LSHTC 2011 to 2014."""

    delimiter: str | None = None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every line."""
        lines = list(data_lines(path, text))
        first = lines[0][1] if lines else ""
        delimiter = self.delimiter or (guess_delimiter(first) if "\t" in first or len(first.split()) != 2 else None)
        edges = []
        for number, line in lines:
            ends = [end.strip() for end in line.split(delimiter)]
            if len(ends) != 2 or not all(ends):
                raise FileError(path, f"expected 'parent child', got {len(ends)} words: {quoted(line)}", line=number)
            edges.append(ends)
        return Draft([child for _, child in edges], [parent for parent, _ in edges], [number for number, _ in lines])


@dataclass(frozen=True)
class IdPaths(TaxonomyFormat):
    """A path of node ids per line, from the root down, as in ``cat_hier.txt`` of LSHTC 2010."""

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every step; an id under two parents is one node of a DAG."""
        lines = list(data_lines(path, text))
        return id_path_draft((line.split() for _, line in lines), [number for number, _ in lines])


@dataclass(frozen=True)
class LabelPaths(TaxonomyFormat):
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


def detect_lines(path: str | Path, text: str) -> TaxonomyFormat | None:
    """Return the format of a text by its first line and the words per line; None if it could be any text.

    Raises
    ------
    FileError
        If the first line looks like the header of a table without a parent column.
    """
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
    return None


def _normalise(name: str) -> str:
    return name.strip().strip('"').casefold().replace(" ", "_").replace("-", "_")


def data_lines(path: str | Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without blank ones and without the comments (#) at the start of the file."""
    in_head = True
    for number, line in enumerate(split_lines(path, text), start=1):
        stripped = line.strip()
        if not stripped or (in_head and stripped.startswith("#")):
            continue
        in_head = False
        yield number, stripped
