"""``hinet taxonomy``: check, show and convert hierarchies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.choices import DRAWN_CHILDREN, DRAWN_DEPTH, TAXONOMY_FORMATS, TaxonomyFormatName
from hinet.cli.main import with_options
from hinet.cli.options import AsJson, CommandGroup, QuietRun, SharedOptions, check_outputs, option, print_json
from hinet.cli.table_options import LabelSep, parse_delimiter
from hinet.errors import HiNetError, counted

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.taxonomy import Problem, Report, Taxonomy, TaxonomyFormat
    from hinet.taxonomy.check import RowLabels

app = CommandGroup(help="Check, show and convert hierarchies.", no_args_is_help=True)

_MAX_WARNINGS = 5  # warnings per kind without --all
_MAX_DEPTHS = 60  # levels in a summary
_BAR = 40  # characters

_TITLES = {
    "cycle": "cycles",
    "unknown-parent": "unknown parents",
    "self-parent": "nodes that are their own parent",
    "empty-id": "empty ids",
    "duplicate-id": "duplicate ids",
    "repeated-edge": "repeated edges",
    "bad-character": "names with invalid characters",
    "guessed-separator": "several parents in one cell",
    "long-cell": "cells that run over several lines",
    "several-schemes": "several concept schemes",
    "guessed-language": "titles in several languages",
    "undeclared-concept": "concepts that are declared nowhere",
    "left-out-parent": "parents that are left out",
    "unrolls": "layers",
    "unknown-label": "labels of rows that are not in the taxonomy",
    "empty-label": "rows without a label",
    "single-child": "single-child chains",
    "same-title": "siblings with the same title",
    "wide": "very wide nodes",
    "unreachable": "nodes that the root does not reach",
    "flat": "no hierarchy",
    "no-rows": "subtrees without rows",
}


@dataclass(frozen=True)
class HierarchyOptions(SharedOptions):
    """A hierarchy file and how to read it."""

    panel = "Hierarchy"
    file: Annotated[
        Path,
        typer.Argument(
            help="The hierarchy, plain or compressed (.gz, .xz, .zst); - for standard input.", show_default=False
        ),
    ]
    format: Annotated[
        TaxonomyFormatName | None,
        option(
            ", ".join(f"{name} ({description})" for name, (*_, description) in TAXONOMY_FORMATS.items())
            + ". Default: detected."
        ),
    ] = None
    sep: Annotated[str | None, option("Separator of the steps in 'labels' (default: >).")] = None
    delimiter: Annotated[
        str | None, option("Delimiter of a table or of edges: a character or 'tab' (default: detected).")
    ] = None
    parent_sep: Annotated[
        str | None, option("Separator of several parents in a cell of a table (default: detected).")
    ] = None
    node_col: Annotated[str | None, option("Column of the node ids (default: node, id or the first column).")] = None
    parent_col: Annotated[str | None, option("Column of the parents (default: parent or parents).")] = None
    language: Annotated[
        str | None, option("Language of the titles of 'skos', such as en (default: that of most preferred labels).")
    ] = None
    scheme: Annotated[str | None, option("Concept scheme of 'skos' to read, or the end of its IRI (default: all).")] = (
        None
    )
    part_of: Annotated[bool, option("Read part_of of 'obo' as a parent, like is_a.", "--part-of")] = False
    root: Annotated[str | None, option("The root (default: the only node without a parent).")] = None
    encoding: Annotated[str, option("Encoding of the file.")] = "utf-8"

    @property
    def file_format(self) -> TaxonomyFormat | str | None:
        """The format of the file, which an option for one format implies."""
        from hinet.taxonomy import Edges, LabelPaths, Obo, Skos, Table

        chosen: TaxonomyFormat | str | None = self.format
        delimiter, columns = parse_delimiter(self.delimiter), (self.parent_sep, self.node_col, self.parent_col)
        if "" in columns:
            raise typer.BadParameter("--parent-sep, --node-col and --parent-col must not be empty")
        if self.format == "edges" and delimiter is not None:
            chosen = Edges(delimiter)
        elif any(setting is not None for setting in (delimiter, *columns)):
            if self.sep is not None or self.format not in (None, "table"):
                raise typer.BadParameter("--parent-sep, --node-col and --parent-col require --format table")
            chosen = Table(delimiter, *columns)
        elif self.sep is not None:
            if not self.sep or self.format not in (None, "labels"):
                raise typer.BadParameter("--sep requires --format labels, and must not be empty")
            chosen = LabelPaths(self.sep)
        if self.language is not None or self.scheme is not None:
            if chosen not in (None, "skos"):
                raise typer.BadParameter("--language and --scheme require --format skos")
            chosen = Skos(self.language, self.scheme)
        if self.part_of:
            if chosen not in (None, "obo"):
                raise typer.BadParameter("--part-of requires --format obo")
            chosen = Obo(self.part_of)
        return chosen

    def taxonomy(self) -> Taxonomy:
        """Read the taxonomy."""
        from hinet.taxonomy import Taxonomy

        return Taxonomy.from_file(self.file, format=self.file_format, encoding=self.encoding, root=self.root)


@app.command()
def check(
    hierarchy: HierarchyOptions,
    run: QuietRun,
    rows: Annotated[list[Path] | None, option("Table of rows whose labels are checked too; repeatable.")] = None,
    label: Annotated[
        str | None, option("Label column of --rows (default: 'label'; of ARFF files, the hierarchical attribute).")
    ] = None,
    label_sep: LabelSep = None,
    every: Annotated[bool, option("List all warnings, not only the first ones of each kind.", "--all")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a hierarchy: list errors and warnings with their lines, and a summary. Exits with 2 on errors.

    Example: hinet taxonomy check categories.csv --rows products.csv --label category
    """
    from hinet.taxonomy import Problem, Report, read_draft
    from hinet.taxonomy import check as check_draft

    file_format = hierarchy.file_format
    try:
        draft = read_draft(hierarchy.file, format=file_format, encoding=hierarchy.encoding)
        labels = [_row_labels(path, label, label_sep, hierarchy.encoding) for path in rows or []]
        report = check_draft(draft, source=str(hierarchy.file), root=hierarchy.root, rows=labels)
    except HiNetError as error:
        if not as_json:
            raise
        line, path = getattr(error, "line", None), getattr(error, "path", None)
        report = Report(str(hierarchy.file), (Problem("error", "unreadable", str(error), line, (), path),), None)
    if as_json:
        print_json(_as_dict(report))
    else:
        _print_report(report, every)
    if report.errors:
        raise typer.Exit(2)


@app.command()
def show(
    hierarchy: HierarchyOptions,
    run: QuietRun,
    node: Annotated[
        str | None, typer.Argument(help="Node to draw the subtree of (default: the root).", show_default=False)
    ] = None,
    depth: Annotated[int, option("Levels to draw.", min=0)] = DRAWN_DEPTH,
    most: Annotated[int, option("Children to draw per node.", min=1)] = DRAWN_CHILDREN,
) -> None:
    """Draw a hierarchy as a tree.

    Example: hinet taxonomy show categories.csv electronics --depth 3
    """
    from hinet.taxonomy.check import draw

    for line in draw(hierarchy.taxonomy(), node, depth=depth, max_children=most):
        typer.echo(line)


@app.command()
def convert(
    hierarchy: HierarchyOptions,
    run: QuietRun,
    out: Annotated[
        Path, typer.Argument(help="The file to write: a table (.tsv, .csv), SKOS (.ttl) or .obo.", show_default=False)
    ],
) -> None:
    """Convert a hierarchy to a table with the columns node and parent, to SKOS or to OBO.

    Example: hinet taxonomy convert cat_hier.txt categories.tsv
    """
    check_outputs([hierarchy.file], {"the file to write": out})
    taxonomy = hierarchy.taxonomy()
    taxonomy.write(out)
    run.message(f"{out}: {counted(len(taxonomy), 'node')}, {counted(len(taxonomy.edge_child), 'edge')}")


def _row_labels(path: Path, column: str | None, separator: str | None, encoding: str) -> RowLabels:
    """Return the labels of rows, missing and unknown ones included."""
    from hinet.data.tables import Columns, ColumnSelection, FailFast, TableOptions, declared_columns, read_blocks
    from hinet.taxonomy.check import RowLabels

    if separator == "":
        raise typer.BadParameter("--label-sep is empty; give the separator of labels")
    options = TableOptions(encoding=encoding)
    declared = declared_columns(str(path), options) if column is None else None
    columns = Columns() if declared is None else declared.columns
    columns = replace(columns, label=(column,) if column else columns.label, label_sep=separator or columns.label_sep)
    (column,) = columns.label
    selection = ColumnSelection((column,), parameters={column: "label"})
    numbers: list[int] = []
    labels: list[list[str]] = []
    for block in read_blocks([str(path)], selection, options, FailFast()):
        numbers += block.numbers
        for cell in block.values(column):
            parsed = columns.parse_label([cell]) or ""
            labels.append(
                [label for label in ([parsed] if isinstance(parsed, str) else sorted(parsed)) if label.strip()]
            )
    return RowLabels(str(path), numbers, labels)


def _as_dict(report: Report) -> dict[str, Any]:
    errors, warnings = (
        [{**vars(problem), "message": with_options(problem.message)} for problem in problems]
        for problems in (report.errors, report.warnings)
    )
    return {
        "source": report.source,
        "ok": not report.errors,
        "errors": errors,
        "warnings": warnings,
        "summary": report.summary,
    }


def _print_report(report: Report, every: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for problems, word, style in ((report.errors, "error", "bold red"), (report.warnings, "warning", "yellow")):
        by_code: dict[str, list[Problem]] = {}
        for problem in problems:
            by_code.setdefault(problem.code, []).append(problem)
        for code, group in by_code.items():
            console.print(Text(f"{word}: {_TITLES.get(code, code)} ({len(group):,})", style=style))
            listed = group if every or word == "error" else group[:_MAX_WARNINGS]
            for problem in listed:
                path = problem.path or report.source
                where = f"{path}:{problem.line}: " if problem.line else ""
                console.print(Text(f"  {where}{with_options(problem.message)}"))
            if len(group) > len(listed):
                console.print(Text(f"  … {len(group) - len(listed):,} more (--all lists them)"))
    if report.summary is not None:
        for line in summary_lines(report.source, report.summary):
            console.print(Text(line))
    if report.errors:
        console.print(Text(counted(len(report.errors), "error"), style="bold red"))
    else:
        console.print(Text(f"no errors, {counted(len(report.warnings), 'warning')}", style="green"))


def summary_lines(source: str, summary: dict[str, Any]) -> list[str]:
    """Return the summary of a taxonomy as lines."""
    branching = summary["branching"]
    widest = f", widest {branching['widest']!r}" if branching["widest"] is not None else ""
    lines = [
        f"{source}: {summary['kind']} of {counted(summary['nodes'], 'node')} in {counted(summary['levels'], 'level')}",
        f"  root        {summary['root'] if summary['root'] is not None else '(virtual)'}, "
        f"{counted(summary['tops'], 'child/children')}",
        f"  edges       {summary['edges']:,}",
        f"  leaves      {summary['leaves']:,}   inner nodes {summary['inner']:,}",
        f"  parents     {counted(summary['several_parents'], 'node')} with several parents",
        f"  branching   mean {branching['mean']}, median {branching['median']:g}, max {branching['max']:,}{widest}",
        *_depth_lines(summary),
    ]
    if "rows" in summary:
        rows = summary["rows"]
        depths = ", ".join(f"{depth}: {count:,}" for depth, count in rows["labels_by_depth"].items())
        lines += [
            f"  labels      {rows['labels']:,} distinct among {rows['labels_given']:,} given; by depth {depths}",
            f"  inner       {counted(rows['inner_labels'], 'label is an inner node/labels are inner nodes')}, "
            f"in {counted(rows['given_at_inner_labels'], 'row')}",
            f"  no rows     {counted(rows['nodes_without_rows'], 'node has/nodes have')} no row at or below them",
        ]
    return lines


def _depth_lines(summary: dict[str, Any]) -> list[str]:
    depths = summary["nodes_by_depth"]
    largest = max(depths.values())
    lines = ["  depth       nodes" + ("" if summary["kind"] == "tree" else ", by their longest path from the root")]
    for depth, count in list(depths.items())[:_MAX_DEPTHS]:
        leaves = summary["leaves_by_depth"].get(depth, 0)
        bar = "█" * max(1, round(_BAR * count / largest))
        lines.append(f"  {depth:>5} {count:>12,}  {bar} {counted(leaves, 'leaf/leaves')}")
    if len(depths) > _MAX_DEPTHS:
        lines.append(f"      … {counted(len(depths) - _MAX_DEPTHS, 'more depth')}")
    return lines
