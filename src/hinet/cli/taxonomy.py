"""``hinet taxonomy``: check, show and convert hierarchies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.hierarchy_options import Reading, reads_hierarchy
from hinet.cli.options import Running, runs
from hinet.cli.outputs import check_outputs
from hinet.errors import HiNetError

if TYPE_CHECKING:  # the rooms are imported when a command runs, so that --help stays instant
    from hinet.taxonomy import Problem, Report
    from hinet.taxonomy.check import RowLabels

app = typer.Typer(help="Check, show and convert hierarchies.", no_args_is_help=True)

_EXAMPLES_SHOWN = 5
_BAR = 40

_TITLES = {
    "cycle": "cycles",
    "unknown-parent": "unknown parents",
    "self-parent": "nodes that are their own parent",
    "empty-id": "empty ids",
    "duplicate-id": "duplicate ids",
    "repeated-edge": "repeated edges",
    "bad-character": "names that no text file can hold",
    "guessed-separator": "several parents in one cell",
    "long-cell": "cells that run over several lines",
    "unrolls": "layers",
    "unknown-label": "labels of rows that are not in the taxonomy",
    "empty-label": "rows without a label",
    "single-child": "single-child chains",
    "same-title": "siblings with the same title",
    "wide": "very wide nodes",
    "unreachable": "nodes beside the root or out of its reach",
    "flat": "no hierarchy",
    "no-rows": "subtrees without rows",
}


@app.command(epilog="Example: hinet taxonomy check categories.csv --rows products.csv --label category")
@runs
@reads_hierarchy
def check(
    reading: Reading,
    running: Running,
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            "--rows", help="Table of rows whose labels are checked too; repeat it for more.", show_default=False
        ),
    ] = None,
    label: Annotated[str, typer.Option("--label", help="Column of --rows that holds the label.")] = "label",
    label_sep: Annotated[
        str | None,
        typer.Option("--label-sep", help="Separator of several labels in one cell.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every warning, not the first few of a kind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
) -> None:
    """List errors with their lines, what looks odd, and a summary. Exit 0, or 2 on errors."""
    from hinet.taxonomy import Problem, Report, read_draft
    from hinet.taxonomy import check as check_draft

    try:
        draft = read_draft(reading.file, format=reading.format, encoding=reading.encoding)
        labels = [_row_labels(path, label, label_sep, reading.encoding) for path in rows or []]
        report = check_draft(draft, source=str(reading.file), root=reading.root, rows=labels)
    except HiNetError as error:
        if not as_json:
            raise
        line, path = getattr(error, "line", None), getattr(error, "path", None)
        report = Report(str(reading.file), (Problem("error", "unreadable", str(error), line, (), path),), None)
    if as_json:
        _print_json(report)
    else:
        _print_report(report, every)
    if report.errors:
        raise typer.Exit(2)


@app.command(epilog="Example: hinet taxonomy show categories.csv electronics --depth 3")
@runs
@reads_hierarchy
def show(
    reading: Reading,
    running: Running,
    node: Annotated[str | None, typer.Argument(help="Draw what is below this node.", show_default=False)] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", min=0, help="Levels to draw, by default 2.", show_default=False)
    ] = None,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Children to draw of a node, by default 40.", show_default=False)
    ] = None,
) -> None:
    """Draw the tree in the terminal."""
    from hinet.taxonomy.drawing import DEPTH, MOST_CHILDREN, draw

    taxonomy = reading.taxonomy()
    depth, most = DEPTH if depth is None else depth, MOST_CHILDREN if most is None else most
    for line in draw(taxonomy, node, depth=depth, most_children=most):
        typer.echo(line)


@app.command(epilog="Example: hinet taxonomy convert cat_hier.txt categories.tsv")
@runs
@reads_hierarchy
def convert(
    reading: Reading,
    running: Running,
    out: Annotated[Path, typer.Argument(help="The table to write, .tsv or .csv.", show_default=False)],
) -> None:
    """Write the hierarchy as a table with the columns node and parent."""
    check_outputs([reading.file], {"the table to write": out})
    taxonomy = reading.taxonomy()
    taxonomy.write(out)
    running.say(f"{out}: {len(taxonomy):,} nodes, {len(taxonomy.edge_child):,} edges")


def _row_labels(path: Path, column: str, separator: str | None, encoding: str) -> RowLabels:
    """Return the labels of rows as they are, missing and unknown ones too."""
    from hinet.data.tables import Columns, ColumnSelection, FailFast, TableOptions, read_blocks
    from hinet.taxonomy.check import RowLabels

    if separator == "":
        raise typer.BadParameter("--label-sep is empty; give the character between two labels")
    columns = Columns(label=(column,), label_sep=separator)
    places: list[int] = []
    labels: list[list[str]] = []
    for block in read_blocks([str(path)], ColumnSelection((column,)), TableOptions(encoding=encoding), FailFast()):
        places += block.numbers
        for cell in block.cells[column]:
            found = columns.parse_label([cell]) or ""
            labels.append([label for label in ([found] if isinstance(found, str) else sorted(found)) if label.strip()])
    return RowLabels(str(path), places, labels)


def _print_json(report: Report) -> None:
    import json
    from dataclasses import asdict

    found = {
        "source": report.source,
        "ok": not report.errors,
        "errors": [asdict(problem) for problem in report.errors],
        "warnings": [asdict(problem) for problem in report.warnings],
        "summary": report.summary,
    }
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


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
            shown = group if every or word == "error" else group[:_EXAMPLES_SHOWN]
            for problem in shown:
                place = problem.path or report.source
                where = f"{place}:{problem.line}: " if problem.line else ""
                console.print(Text(f"  {where}{problem.message}"))
            if len(group) > len(shown):
                console.print(Text(f"  … {len(group) - len(shown):,} more (--all lists them)"))
    if report.summary is not None:
        for line in summary_lines(report.source, report.summary):
            console.print(Text(line))
    if report.errors:
        console.print(Text(_counted(len(report.errors), "error"), style="bold red"))
    else:
        console.print(Text(f"no errors, {_counted(len(report.warnings), 'warning')}", style="green"))


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def summary_lines(source: str, summary: dict[str, Any]) -> list[str]:
    """Return the summary of a taxonomy as lines for people."""
    branching = summary["branching"]
    widest = f", widest {branching['widest']!r}" if branching["widest"] is not None else ""
    lines = [
        f"{source}: {summary['kind']} of {summary['nodes']:,} nodes in {_counted(summary['levels'], 'level')}",
        f"  root        {summary['root'] if summary['root'] is not None else '(virtual)'}, "
        f"{summary['tops']:,} nodes right below it",
        f"  edges       {summary['edges']:,}",
        f"  leaves      {summary['leaves']:,}   inner nodes {summary['inner']:,}",
        f"  parents     {summary['several_parents']:,} nodes with several parents",
        f"  branching   mean {branching['mean']}, median {branching['median']:g}, max {branching['max']:,}{widest}",
        *_depth_lines(summary),
    ]
    if "rows" in summary:
        rows = summary["rows"]
        depths = ", ".join(f"{depth}: {count:,}" for depth, count in rows["labels_by_depth"].items())
        lines += [
            f"  labels      {rows['labels']:,} different among {rows['labels_given']:,} given; by depth {depths}",
            f"  inner       {rows['inner_labels']:,} labels are inner nodes, "
            f"{rows['given_at_inner_labels']:,} times given",
            f"  no rows     {rows['nodes_without_rows']:,} nodes have no row at or below them",
        ]
    return lines


def _depth_lines(summary: dict[str, Any]) -> list[str]:
    depths = summary["nodes_by_depth"]
    most = max(depths.values())
    lines = ["  depth       nodes" + ("" if summary["kind"] == "tree" else ", by their longest path from the root")]
    shown = list(depths.items())
    for depth, count in shown if len(shown) <= 60 else shown[:60]:
        leaves = summary["leaves_by_depth"].get(depth, 0)
        bar = "█" * max(1, round(_BAR * count / most))
        lines.append(f"  {depth:>5} {count:>12,}  {bar} {leaves:,} leaves")
    if len(shown) > 60:
        lines.append(f"      … {len(shown) - 60:,} more depths")
    return lines
