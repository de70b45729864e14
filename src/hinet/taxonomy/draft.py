r"""A hierarchy as its source declares it, its node ids and paths, and its conversion to a checked graph.

Without a taxonomy, labels are paths if at least one of them has ``>`` with text on both sides. All of them are then
split at ``>``; spaces around steps are ignored, and ``\>`` is a ``>`` within a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.errors import LabelError, TaxonomyError, did_you_mean, quoted
from hinet.ragged import Ints, first_seen, gather, group_by

Severity = Literal["error", "warning"]

TITLE, SYNONYMS, DEFINITION = "title", "synonyms", "definition"  # attributes that describe a node
TERM_SEP = "|"  # between several synonyms in one cell

MAX_NAME = 100_000
UNWRITABLE = f"has a character that no text file can hold (NUL or a lone surrogate) or over {MAX_NAME:,} of them"

_NONE, _UNKNOWN, _REFUSED = -1, -2, -3  # parents that are not nodes: no parent, unknown, the node itself
_NULL_WORDS = {"null", "nan", "none", "na", "n/a", "-", "0", "-1", "\\n"}
_MAX_CYCLE_SHOWN = 20
_UNESCAPED_SEP = re.compile(r"(?<!\\)((?:\\\\)*)\|")
MAX_SUGGESTIONS = 20  # a fuzzy search reads every id, so only the first few unknown ids get a suggestion
PATH_MARK = ">"
PATH_SEP = " > "
MAX_PATH_ID = 100_000  # characters; the ids of all prefixes of a path take quadratic memory
_NOT_ESCAPED = r"(?<!\\)"
_MISSING = ("NAType", "NaTType")  # types of missing values in pandas


@dataclass(frozen=True)
class Problem:
    """An error or a warning about a hierarchy, with its line and a remedy."""

    severity: Severity
    code: str
    message: str
    line: int | None = None
    nodes: tuple[str, ...] = ()
    path: str | None = None  # the file of the line, if not that of the hierarchy


class Link(NamedTuple):
    """A declared node with one of its parents, and its attributes."""

    node: str
    parent: str | None
    line: int | None
    attributes: Mapping[str, str]


@dataclass(frozen=True)
class Draft:
    """Links (node, parent) in the order of the source, not yet checked.

    A table declares every node, so a parent without a row of its own is an error;
    edge lists and paths (``declares_nodes=False``) declare a node by naming it.
    """

    nodes: list[str]
    parents: list[str | None]
    lines: list[int] | None = None
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    declares_nodes: bool = False
    repeats_allowed: bool = True
    problems: tuple[Problem, ...] = ()  # found while parsing the source

    @classmethod
    def declared(cls, links: Sequence[Link], problems: Sequence[Problem] = ()) -> Draft:
        """Return a draft in which a node must be declared; attributes that are empty for all nodes are left out."""
        names = dict.fromkeys(name for link in links for name in link.attributes)
        columns = {name: [link.attributes.get(name, "") for link in links] for name in names}
        return cls(
            nodes=[link.node for link in links],
            parents=[link.parent for link in links],
            lines=[link.line for link in links if link.line is not None] or None,
            attributes={name: column for name, column in columns.items() if any(column)},
            declares_nodes=True,
            repeats_allowed=False,
            problems=tuple(problems),
        )


class TaxonomyFormat:
    """A file format of hierarchies; a subclass is a frozen dataclass whose fields are the settings of the format.

    A format whose texts can be recognised overrides ``recognises``. One that :meth:`Taxonomy.write` can write sets
    ``write_suffix`` and overrides ``to_text``.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()  # file suffixes that imply ``memory_per_byte``
    memory_per_byte: ClassVar[int] = 64  # memory to parse a byte of text: its parts are short Python objects
    write_suffix: ClassVar[str] = ""

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Return whether a text is in this format, from its first characters."""
        return False

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return the links that the text declares; raise FileError with the line if it is invalid."""
        raise NotImplementedError

    @staticmethod
    def to_text(ids: Sequence[str], parents: Sequence[Sequence[str]], attributes: Mapping[str, Sequence[str]]) -> str:
        """Return a taxonomy as text; raise TaxonomyError if the format cannot hold it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Graph:
    """A checked hierarchy as arrays: nodes in order of first appearance, edges sorted by parent and child."""

    ids: tuple[str, ...]
    edge_parent: Ints  # (e,)
    edge_child: Ints  # (e,)
    first_link: Ints  # (n,) the first link of the draft that declares each node, -1 for parents without one
    attributes: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...]


def join_terms(terms: Iterable[str]) -> str:
    r"""Return terms as one cell, separated by ``|``; a ``|`` or backslash within one has a backslash before it.

    >>> join_terms(["car", "auto|mobile"])
    'car|auto\\|mobile'
    """
    return TERM_SEP.join(term.replace("\\", "\\\\").replace(TERM_SEP, "\\" + TERM_SEP) for term in terms)


def split_terms(cell: str) -> list[str]:
    r"""Return the terms of a cell, the inverse of :func:`join_terms`; empty ones are left out.

    >>> split_terms("car|auto\\|mobile"), split_terms("")
    (['car', 'auto|mobile'], [])
    """
    if "\\" not in cell:
        return [term for term in cell.split(TERM_SEP) if term]
    parts = _UNESCAPED_SEP.sub("\\1\0", cell).split("\0")
    return [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in parts if part]


def resolve(draft: Draft) -> Graph:
    """Check a draft and return its graph with all problems; invalid links are left out."""
    return _Resolution(draft).graph()


class _Resolution:
    """The links of a draft as positions in ``ids``, and the problems found so far."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.problems = draft, [*draft.problems]
        names: Iterable[str | None] = draft.nodes
        if not draft.declares_nodes:
            names = chain.from_iterable(zip(draft.parents, draft.nodes, strict=True))
        self.ids = tuple(name for name in dict.fromkeys(names) if name)
        index = {name: number for number, name in enumerate(self.ids)}
        parents = (_NONE if name is None else index.get(name, _UNKNOWN) for name in draft.parents)
        self.child = np.array([index.get(name, -1) for name in draft.nodes], np.int64)
        self.parent = np.fromiter(parents, np.int64, len(draft.parents))
        self.declared = np.flatnonzero(self.child >= 0)  # links with a node
        self.first_link = np.full(len(self.ids), -1, np.int64)
        self.first_link[self.child[self.declared[::-1]]] = self.declared[::-1]

    def graph(self) -> Graph:
        """Return the graph with all problems."""
        self._check_names()
        self._check_self_parents()
        self._check_unknown_parents()
        self._check_repeated_links()
        attributes = {name: self._attribute(name, cells) for name, cells in self.draft.attributes.items()}
        self._check_tops()
        edges = self.declared[self.parent[self.declared] >= 0]
        edges = edges[_first_of_pairs(self.parent[edges], self.child[edges])]
        edges = edges[np.lexsort((self.child[edges], self.parent[edges]))]
        edge_parent, edge_child = self.parent[edges].astype(np.int32), self.child[edges].astype(np.int32)
        self._check_cycles(edge_parent, edge_child, edges)
        problems = sorted(self.problems, key=lambda problem: (problem.severity != "error", problem.line or 0))
        return Graph(self.ids, edge_parent, edge_child, self.first_link, attributes, tuple(problems))

    def _report(self, link: int, code: str, message: str, *nodes: str, severity: Severity = "error") -> None:
        line = None if self.draft.lines is None else self.draft.lines[link]
        self.problems.append(Problem(severity, code, message, line, nodes))

    def _check_names(self) -> None:
        draft = self.draft
        for link, name in enumerate(draft.nodes):
            if not name.strip():
                self._report(link, "empty-id", "the node id is empty; give every node an id")
        if draft.lines is None:  # text from a file was checked when it was read
            named = {*draft.nodes, *(p for p in draft.parents if p), *chain.from_iterable(draft.attributes.values())}
            for name in sorted(name for name in named if not is_writable(name)):
                message = f"{quoted(name)} {UNWRITABLE}"
                self.problems.append(Problem("error", "bad-character", message, None, (name,)))

    def _check_self_parents(self) -> None:
        """Report and unlink nodes that are their own parents; a single one at the top only marks the root."""
        child, parent = self.child, self.parent
        own = np.flatnonzero((child == parent) & (child >= 0))
        others = (child >= 0) & (parent >= 0) & (child != parent)
        has_parent = np.zeros(len(self.ids), bool)
        has_parent[child[others]] = True
        is_root = len(own) == 1 and np.array_equal(np.flatnonzero(~has_parent), child[own]) and bool(others.any())
        parent[own] = _NONE if is_root else _REFUSED
        severity: Severity = "warning" if is_root else "error"
        remedy = "read as the mark of the root" if is_root else "leave the parent empty or name another"
        for link in own.tolist():
            name = self.draft.nodes[link]
            self._report(link, "self-parent", f"{quoted(name)} is its own parent; {remedy}", name, severity=severity)

    def _check_unknown_parents(self) -> None:
        draft, links = self.draft, np.flatnonzero(self.parent == _UNKNOWN).tolist()
        missing = {draft.parents[link] for link in links}
        for count, link in enumerate(links):
            node, name = draft.nodes[link], draft.parents[link] or ""
            hint = _parent_hint(name, self.ids, only_one=len(missing) == 1) if count < MAX_SUGGESTIONS else ""
            message = f"the parent {quoted(name)} of {quoted(node)} is not among the nodes{hint}"
            self._report(link, "unknown-parent", message, node, name)

    def _check_repeated_links(self) -> None:
        draft, links = self.draft, self.declared
        if draft.repeats_allowed and draft.lines is None:
            return
        severity: Severity = "warning" if draft.repeats_allowed else "error"
        code, what = ("repeated-edge", "edge") if draft.repeats_allowed else ("duplicate-id", "id")
        for link in links[~_first_of_pairs(self.parent[links], self.child[links])].tolist():
            name, parent = draft.nodes[link], draft.parents[link]
            under = f" under {quoted(parent)}" if parent else ""
            message = f"duplicate {what}: {quoted(name)}{under} was declared before; remove one"
            self._report(link, code, message, name, severity=severity)

    def _attribute(self, name: str, cells: Sequence[str]) -> tuple[str, ...]:
        """Return an attribute of every node, from the first link that has it; report links that contradict it."""
        column = [cells[link] if link >= 0 else "" for link in self.first_link.tolist()]
        links = self.declared
        for link in links[self.first_link[self.child[links]] != links].tolist():
            node, before, now = self.draft.nodes[link], cells[self.first_link[self.child[link]]], cells[link]
            if before and now and before != now:
                message = (
                    f"duplicate id: {quoted(node)} has {name} {quoted(now)} here and {quoted(before)} above; "
                    "give each node its own id"
                )
                self._report(link, "duplicate-id", message, node)
            column[self.child[link]] = column[self.child[link]] or now
        return tuple(column)

    def _check_tops(self) -> None:
        """Report nodes that are declared with a parent and without one."""
        if not self.draft.declares_nodes:
            return
        is_top = self.parent[self.declared] == _NONE
        tops, others = self.declared[is_top], self.declared[~is_top]
        for link in tops[np.isin(self.child[tops], self.child[others])].tolist():
            name = self.draft.nodes[link]
            message = f"{quoted(name)} is here without a parent and elsewhere with one; keep one"
            self._report(link, "duplicate-id", message, name)

    def _check_cycles(self, edge_parent: Ints, edge_child: Ints, edge_link: Ints) -> None:
        """Report the cycles: a node without a depth has such a parent, so following parents leads into a cycle."""
        unplaced = longest_depth(len(self.ids), edge_parent, edge_child) < 0
        edges_inside = np.flatnonzero(unplaced[edge_parent])[::-1]
        parent_edge = np.full(len(self.ids), -1, np.int64)  # the edge to follow upwards
        parent_edge[edge_child[edges_inside]] = edges_inside
        visit = np.full(len(self.ids), -1, np.int64)
        for start in np.flatnonzero(unplaced).tolist():
            node = start
            while visit[node] < 0:
                visit[node] = start
                node = int(edge_parent[parent_edge[node]])
            if visit[node] == start:
                edges = [int(parent_edge[node])]
                while (above := int(edge_parent[edges[-1]])) != node:
                    edges.append(int(parent_edge[above]))
                self._report_cycle(edge_child[edges[::-1]].tolist(), edge_link[edges].tolist())

    def _report_cycle(self, cycle: list[int], links: list[int]) -> None:
        """Report a cycle of nodes, parent before child like in all paths."""
        first = cycle.index(min(cycle))
        names = tuple(self.ids[node] for node in cycle[first:] + cycle[:first])
        ellipsis = ["…"] if len(names) > _MAX_CYCLE_SHOWN else []
        path = " > ".join([*names[:_MAX_CYCLE_SHOWN], *ellipsis, names[0]])
        lines = sorted({self.draft.lines[link] for link in links}) if self.draft.lines else []
        where = f" (line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:_MAX_CYCLE_SHOWN]))})" if lines else ""
        message = f"cycle of {len(names)}: {path}{where}; remove one of these links"
        self.problems.append(Problem("error", "cycle", message, lines[0] if lines else None, names))


def longest_depth(size: int, edge_parent: Ints, edge_child: Ints) -> NDArray[np.int32]:
    """Return the length of the longest path to every node from a node without parents; -1 in or below a cycle."""
    depth = np.full(size, -1, np.int32)
    pending = np.bincount(edge_child, minlength=size)  # parents without a depth yet
    order, offsets = group_by(edge_parent, size)
    children = edge_child[order]
    scratch = np.empty(size, np.int64)
    level = np.flatnonzero(pending == 0)
    level_number = 0
    while len(level):
        depth[level] = level_number
        below, _ = gather(children, offsets, level)
        np.subtract.at(pending, below, 1)
        below = below[pending[below] == 0]
        level = below[first_seen(below, scratch)]
        level_number += 1
    return depth


def is_writable(name: str) -> bool:
    """Return whether a text file can hold ``name``."""
    try:
        return "\0" not in name and len(name) <= MAX_NAME and bool(name.isascii() or name.encode())
    except UnicodeEncodeError:
        return False


def _parent_hint(name: str, ids: Sequence[str], *, only_one: bool) -> str:
    if name.strip().casefold() in _NULL_WORDS:
        return "; leave the cell of a top node empty"
    padded = next((node_id for node_id in ids if node_id != name and node_id.strip() == name.strip()), None)
    if padded is not None:
        return f"; did you mean {quoted(padded)}? They differ in the spaces around them"
    suggestion = did_you_mean(name, ids)
    if suggestion:
        return suggestion
    if only_one:
        return f"; add a row for {quoted(name)} with an empty parent"
    if any(separator in name for separator in "|;, "):
        return "; add a row for it, or set `parent_sep` if the cell holds several parents"
    return "; add a row for it"


def _first_of_pairs(left: Ints, right: Ints) -> NDArray[np.bool_]:
    """Mark the first occurrence of every pair."""
    first = np.zeros(len(left), bool)
    key = (left.astype(np.int64) + 3) * (int(right.max(initial=0)) + 2) + right
    first[np.unique(key, return_index=True)[1]] = True
    return first


def as_id(value: Any) -> str:
    """Return a value as a node id: strings unchanged, numbers as text, missing values as an empty string.

    >>> as_id(7), as_id(7.0), as_id(None), as_id(float("nan"))
    ('7', '7', '', '')
    """
    if isinstance(value, str):
        return str(value)
    if value is None or type(value).__name__ in _MISSING or value != value:  # NA has no truth value
        return ""
    if isinstance(value, float) and value.is_integer():  # tables with missing values hold integers as floats
        return str(int(value))
    return str(value)


def last_name(node: str) -> str:
    """Return the part of an id after the last separator, which is the last step of a path; the whole id without one.

    >>> last_name("Animals > Sheep"), last_name("A01")
    ('Sheep', 'A01')
    """
    return node.rpartition(PATH_SEP)[2]


def path_id(names: Iterable[str], sep: str = PATH_SEP) -> str:
    r"""Return the id of the node at the end of a path of names; with the default separator, ids are unique.

    With a separator that has no space before its mark they may not be: ``a\`` and ``b`` have the id of ``a>b``.

    >>> path_id(["Animals", "Sheep"])
    'Animals > Sheep'
    >>> path_id(["Size > 3"])
    'Size \\> 3'
    """
    mark = sep.strip() or sep
    return sep.join(name.replace(mark, "\\" + mark) for name in names)


def strip_padding(row: int, path: Sequence[Any]) -> tuple[str, ...]:
    """Return a path as a tuple of ids without the empty cells at its end; errors name the row."""
    if isinstance(path, str) or not hasattr(path, "__iter__"):
        raise LabelError(f"row {row}: expected a path of steps, got {quoted(str(path))}; split it into a tuple")
    steps = [as_id(step) for step in path]
    while steps and not steps[-1].strip():
        steps.pop()
    for index, step in enumerate(steps):
        if not step.strip():
            raise LabelError(f"row {row}: step {index} of the path {steps} is empty; only the end may be padded")
    return tuple(steps)


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


def named_path_draft(paths: Iterable[Sequence[str]], lines: Sequence[int] | None, sep: str = PATH_SEP) -> Draft:
    """Return a draft with a node for every prefix of every path; its title is the last name."""
    links: dict[str, tuple[str | None, str, int]] = {}  # node: parent, name, number of the first path
    for number, path in enumerate(paths):
        parent: str | None = None
        for name in path:
            step = path_id([name], sep)
            node = step if parent is None else parent + sep + step
            if len(node) > MAX_PATH_ID:
                raise TaxonomyError(
                    f"path {number}: the id of {quoted(name)}, its path of names, has more than {MAX_PATH_ID:,} "
                    "characters; give such nodes ids of their own, in a table or as edges"
                )
            if node not in links:
                links[node] = parent, name, number
            parent = node
    sources = None if lines is None else [lines[number] for _, _, number in links.values()]
    titles = [name for _, name, _ in links.values()]
    return Draft([*links], [parent for parent, _, _ in links.values()], sources, {"title": titles})


def split_path(text: str, mark: str = PATH_MARK) -> tuple[str, ...]:
    r"""Return the steps of a path, without the spaces around them; empty steps are kept.

    >>> split_path("Food > Bread"), split_path("Food>Bread"), split_path("Food"), split_path(r"Size \> 3 > Shoes")
    (('Food', 'Bread'), ('Food', 'Bread'), ('Food',), ('Size > 3', 'Shoes'))
    """
    bare_mark = mark.strip() or mark
    escaped = "\\" + bare_mark
    if "\\" in mark or escaped not in text:
        return tuple(step.strip() for step in text.split(mark))
    parts = re.split(_NOT_ESCAPED + re.escape(mark), text)
    return tuple(part.strip().replace(escaped, bare_mark) for part in parts)


def is_path(text: str, mark: str = PATH_MARK) -> bool:
    """Return whether a string has the mark with text on both sides.

    >>> is_path("Food > Bread"), is_path(">50K"), is_path("Food")
    (True, False, False)
    """
    return mark in text and sum(map(bool, split_path(text, mark))) > 1


def has_paths(labels: Iterable[object], mark: str = PATH_MARK) -> bool:
    """Return whether at least one label is a path."""
    return any(isinstance(label, str) and is_path(label, mark) for label in labels)


def find_separator(labels: Iterable[str], mark: str = PATH_MARK) -> str:
    """Return the separator in the first label with several steps, spaces included.

    >>> find_separator(["Food", "Food>Bread", "Food > Milk"])
    '>'
    """
    unescaped = "" if "\\" in mark else _NOT_ESCAPED
    pattern = re.compile(rf"\S(\s*{unescaped}{re.escape(mark)}\s*)\S")
    matches = (pattern.search(label) for label in labels if mark in label)
    return next((match.group(1) for match in matches if match), PATH_SEP if mark == PATH_MARK else mark)


def path_error(text: str, mark: str = PATH_MARK) -> str:
    """Return why a string is not a valid path, or an empty string."""
    return empty_step_message(text) if mark in text and not all(split_path(text, mark)) else ""


def empty_step_message(path: str) -> str:
    """Return the message for a path with an empty step."""
    return f"a step of the path {quoted(path)} is empty; name every step"
