"""Options of commands that read a hierarchy from a file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import option, shared_options

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.taxonomy import Taxonomy, TaxonomyFormat


class FormatName(StrEnum):
    """The formats of hierarchies; a test keeps them equal to the library's."""

    table = "table"
    edges = "edges"
    paths = "paths"
    labels = "labels"
    json = "json"
    arff = "arff"
    skos = "skos"
    obo = "obo"


@dataclass(frozen=True)
class HierarchyOptions:
    """A hierarchy file and how to read it."""

    file: Path
    format: TaxonomyFormat | str | None
    encoding: str
    root: str | None

    def taxonomy(self) -> Taxonomy:
        """Read the taxonomy."""
        from hinet.taxonomy import Taxonomy

        return Taxonomy.from_file(self.file, format=self.format, encoding=self.encoding, root=self.root)


def _hierarchy(
    file: Annotated[
        Path,
        typer.Argument(
            help="The hierarchy, plain or compressed (.gz, .xz, .zst); - for standard input.", show_default=False
        ),
    ],
    format: Annotated[
        FormatName | None,
        option(
            "table (node and parent columns), edges (parent child), paths (ids from the root down), "
            "labels (A > B > C), json (nested), arff (its hierarchical attribute), skos (RDF/XML, Turtle, N-Triples, "
            "JSON-LD), obo (default: detected)."
        ),
    ] = None,
    sep: Annotated[str | None, option("Separator of the steps in 'labels' (default: >).")] = None,
    delimiter: Annotated[
        str | None, option("Delimiter of a table or of edges: a character or 'tab' (default: detected).")
    ] = None,
    parent_sep: Annotated[
        str | None, option("Separator of several parents in a cell of a table (default: detected).")
    ] = None,
    node_col: Annotated[str | None, option("Column of the node ids (default: node, id or the first column).")] = None,
    parent_col: Annotated[str | None, option("Column of the parents (default: parent or parents).")] = None,
    language: Annotated[
        str | None, option("Language of the titles of 'skos', such as en (default: that of most preferred labels).")
    ] = None,
    scheme: Annotated[
        str | None, option("Concept scheme of 'skos' to read, or the end of its IRI (default: all).")
    ] = None,
    part_of: Annotated[bool, option("Read part_of of 'obo' as a parent, like is_a.", "--part-of")] = False,
    root: Annotated[str | None, option("The root (default: the only node without a parent).")] = None,
    encoding: Annotated[str, option("Encoding of the file.")] = "utf-8",
) -> HierarchyOptions:
    """Return how to read the file; an option of one format implies the format."""
    from hinet.taxonomy import Edges, LabelPaths, Obo, Skos, Table

    chosen: TaxonomyFormat | str | None = None if format is None else format.value
    delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
    if "" in (delimiter, parent_sep, node_col, parent_col):
        raise typer.BadParameter("--delimiter, --parent-sep, --node-col and --parent-col must not be empty")
    if format is FormatName.edges and delimiter is not None:
        chosen = Edges(delimiter)
    elif any(setting is not None for setting in (delimiter, parent_sep, node_col, parent_col)):
        if sep is not None or format not in (None, FormatName.table):
            raise typer.BadParameter("--parent-sep, --node-col and --parent-col go with --format table")
        chosen = Table(delimiter, parent_sep, node_col, parent_col)
    elif sep is not None:
        if not sep or format not in (None, FormatName.labels):
            raise typer.BadParameter("--sep goes with --format labels and is not empty")
        chosen = LabelPaths(sep)
    if language is not None or scheme is not None:
        if chosen not in (None, "skos"):
            raise typer.BadParameter("--language and --scheme go with --format skos")
        chosen = Skos(language, scheme)
    if part_of:
        if chosen not in (None, "obo"):
            raise typer.BadParameter("--part-of goes with --format obo")
        chosen = Obo(part_of)
    return HierarchyOptions(file, chosen, encoding, root)


hierarchy_options = shared_options(_hierarchy, "hierarchy", "Hierarchy")
