"""Reports about a hierarchy: errors with their lines, warnings, a summary of the shape, and a drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hinet.choices import DRAWN_CHILDREN, DRAWN_DEPTH
from hinet.errors import TaxonomyError, counted, printable, quoted
from hinet.ragged import Bools, Ints, group_by
from hinet.taxonomy.draft import MAX_SUGGESTIONS, PATH_SEP, Draft, Problem, resolve
from hinet.taxonomy.layers import Layers
from hinet.taxonomy.taxonomy import VIRTUAL_ROOT, Taxonomy

Line = Callable[[int], int | None]  # returns the line that first names a node
WIDE = 1_000  # a node with more children usually lacks a level


@dataclass(frozen=True)
class RowLabels:
    """The labels of every row of a data file, with the line of each row."""

    path: str
    lines: Sequence[int]
    labels: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Report:
    """The result of :func:`check`; ``summary`` is None if errors leave no hierarchy."""

    source: str
    problems: tuple[Problem, ...]
    summary: dict[str, Any] | None

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that must be fixed before the hierarchy can be used."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that may be intended."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")


def check(draft: Draft, *, source: str = "taxonomy", root: str | None = None, rows: Sequence[RowLabels] = ()) -> Report:
    """Check a draft of a hierarchy, and the labels of data ``rows`` against it."""
    graph = resolve(draft)
    if any(problem.severity == "error" for problem in graph.problems):
        return Report(source, graph.problems, None)
    taxonomy = Taxonomy.from_graph(graph, source=source, root=root)

    def line(node: int) -> int | None:
        link = int(graph.first_link[node])
        return None if draft.lines is None or link < 0 else draft.lines[link]

    problems = [
        *graph.problems,
        *_single_child_chains(taxonomy, line),
        *_same_titles(taxonomy, line),
        *_wide(taxonomy, line),
        *_unreachable(taxonomy, line),
        *_flat(taxonomy),
    ]
    try:
        summary = summarise(taxonomy)
    except TaxonomyError as error:  # a DAG too large to unroll: report it, and summarise the rest
        problems.append(_warning("unrolls", str(error), None))
        summary = _shape(taxonomy)
    if rows:
        unknown, counts = _count_rows(taxonomy, rows)
        problems += unknown
        problems += _without_rows(taxonomy, counts, line)
        summary["rows"] = _row_summary(taxonomy, counts)
    return Report(source, tuple(problems), summary)


def summarise(taxonomy: Taxonomy) -> dict[str, Any]:
    """Return statistics of a taxonomy and of its layers."""
    return {**_shape(taxonomy), "neurons_by_layer": np.diff(Layers.of(taxonomy).layer_offsets)[1:].tolist()}


def _shape(taxonomy: Taxonomy) -> dict[str, Any]:
    children = np.diff(taxonomy.child_lists[1])
    inner = children[children > 0]
    parents = np.diff(taxonomy.parent_lists[1])
    widest = int(children.argmax())
    return {
        "nodes": len(taxonomy),
        "edges": len(taxonomy.edge_child),
        "leaves": int(taxonomy.leaves.sum()),
        "inner": len(inner),
        "root": None if taxonomy.root == VIRTUAL_ROOT else taxonomy.ids[taxonomy.root],
        "tops": len(taxonomy.tops),
        "levels": taxonomy.height,
        "kind": "tree" if taxonomy.is_tree else "DAG",
        "several_parents": int((parents > 1).sum()),
        "nodes_by_depth": _histogram(taxonomy.depth),
        "leaves_by_depth": _histogram(taxonomy.depth[taxonomy.leaves]),
        "branching": {
            "mean": round(float(inner.mean()), 2) if len(inner) else 0.0,
            "median": float(np.median(inner)) if len(inner) else 0.0,
            "max": int(children.max()),
            "widest": taxonomy.ids[widest] if children[widest] else None,
        },
    }


def _histogram(depths: Ints) -> dict[int, int]:
    return {depth: count for depth, count in sorted(Counter(depths.tolist()).items()) if depth >= 0}


def _warning(code: str, message: str, line: int | None, *nodes: str) -> Problem:
    return Problem("warning", code, message, line, nodes)


def _single_child_chains(taxonomy: Taxonomy, line: Line) -> Iterator[Problem]:
    only_child = np.diff(taxonomy.child_lists[1])[taxonomy.edge_parent] == 1
    only_parent = np.diff(taxonomy.parent_lists[1])[taxonomy.edge_child] == 1
    links = np.flatnonzero(only_child & only_parent)
    below = np.full(len(taxonomy), -1)
    below[taxonomy.edge_parent[links]] = taxonomy.edge_child[links]
    heads = np.setdiff1d(taxonomy.edge_parent[links], taxonomy.edge_child[links])
    for head in heads.tolist():
        chain = [head]
        while below[chain[-1]] >= 0:
            chain.append(int(below[chain[-1]]))
        names = [taxonomy.ids[node] for node in chain]
        path = _format_chain(names)
        yield _warning("single-child", f"single-child chain {path}: a level without a choice", line(head), *names)


def _format_chain(names: list[str]) -> str:
    if names[-1].startswith(names[0]) and PATH_SEP in names[-1]:  # the id of a named path is the whole chain
        return quoted(names[-1])
    return " > ".join(names if len(names) <= 6 else [*names[:3], "…", names[-1]])


def _same_titles(taxonomy: Taxonomy, line: Line) -> Iterator[Problem]:
    if taxonomy.titles is taxonomy.ids:
        return
    titles = [title.strip().casefold() for title in taxonomy.titles]
    seen: dict[tuple[int, str], int] = {}
    edges = list(zip(taxonomy.edge_parent.tolist(), taxonomy.edge_child.tolist(), strict=True))
    if taxonomy.root == VIRTUAL_ROOT:
        edges += [(VIRTUAL_ROOT, top) for top in taxonomy.tops.tolist()]
    for parent, child in edges:
        if not titles[child]:
            continue
        first = seen.setdefault((parent, titles[child]), child)
        if first != child:
            under = "the root" if parent == VIRTUAL_ROOT else quoted(taxonomy.ids[parent])
            pair = f"{quoted(taxonomy.ids[first])} and {quoted(taxonomy.ids[child])}"
            message = f"siblings {pair} under {under} have the same title {quoted(taxonomy.titles[child])}"
            yield _warning("same-title", message, line(child), taxonomy.ids[first], taxonomy.ids[child])


def _wide(taxonomy: Taxonomy, line: Line) -> Iterator[Problem]:
    children = np.diff(taxonomy.child_lists[1])
    for node in np.flatnonzero(children > WIDE).tolist():
        message = (
            f"{quoted(taxonomy.ids[node])} has {children[node]:,} children, more than {WIDE:,}; is a level missing?"
        )
        yield _warning("wide", message, line(node), taxonomy.ids[node])
    if taxonomy.root == VIRTUAL_ROOT and len(taxonomy.tops) > WIDE:
        yield _warning(
            "wide",
            f"{len(taxonomy.tops):,} nodes have no parent, more than {WIDE:,}; is a level missing?",
            None,
        )


def _unreachable(taxonomy: Taxonomy, line: Line) -> Iterator[Problem]:
    """Report nodes that the root does not reach, and isolated nodes next to a single root."""
    unreachable = np.flatnonzero(taxonomy.depth < 0).tolist()
    for node in unreachable:
        message = f"{quoted(taxonomy.ids[node])} cannot be reached from the root, so it is never predicted"
        yield _warning("unreachable", message, line(node), taxonomy.ids[node])
    if taxonomy.root != VIRTUAL_ROOT:
        return
    with_children = taxonomy.tops[~taxonomy.leaves[taxonomy.tops]]
    if len(with_children) == 1 and len(taxonomy.tops) > 1:
        root = taxonomy.ids[int(with_children[0])]
        for node in taxonomy.tops[taxonomy.leaves[taxonomy.tops]].tolist():
            message = (
                f"{quoted(taxonomy.ids[node])} has no parent and no child: it is next to {quoted(root)}, "
                f"not below it; give it a parent, or set `root` to {quoted(root)} to leave it out"
            )
            yield _warning("unreachable", message, line(node), taxonomy.ids[node])


def _flat(taxonomy: Taxonomy) -> Iterator[Problem]:
    if len(taxonomy) > 1 and not len(taxonomy.edge_child):
        yield _warning(
            "flat", f"none of the {len(taxonomy):,} nodes has a parent; are `format` and the separator right?", None
        )


def _count_rows(taxonomy: Taxonomy, rows: Iterable[RowLabels]) -> tuple[list[Problem], Ints]:
    counts = np.zeros(len(taxonomy), np.int64)
    problems = []
    for table in rows:
        for line, labels in zip(table.lines, table.labels, strict=True):
            if not labels:
                problems.append(Problem("error", "empty-label", "the row has no label", line, (), table.path))
            for label in labels:
                if label in taxonomy and taxonomy.depth[node := taxonomy.position(label)] >= 0:
                    counts[node] += 1
                    continue
                hint = taxonomy.hint_for(label) if len(problems) < MAX_SUGGESTIONS else ""
                reason = (
                    "not reachable from the root"
                    if label in taxonomy
                    else f"not in the taxonomy of {counted(len(taxonomy), 'node')}"
                )
                message = f"label {quoted(label)} is {reason}{hint}"
                problems.append(Problem("error", "unknown-label", message, line, (label,), table.path))
    return problems, counts


def _covered(taxonomy: Taxonomy, counts: Ints) -> Bools:
    """Mark nodes that have a row, or a descendant with a row."""
    covered: Bools = counts > 0
    depth = taxonomy.depth[taxonomy.edge_child]
    reachable = np.flatnonzero(depth >= 0)
    order, offsets = group_by(depth[reachable], taxonomy.height + 1)
    for level in range(taxonomy.height, 0, -1):
        edges = reachable[order[offsets[level] : offsets[level + 1]]]
        covered[taxonomy.edge_parent[edges[covered[taxonomy.edge_child[edges]]]]] = True
    return covered


def _without_rows(taxonomy: Taxonomy, counts: Ints, line: Line) -> Iterator[Problem]:
    covered = _covered(taxonomy, counts)
    below_empty = np.zeros(len(taxonomy), bool)
    below_empty[taxonomy.edge_child[~covered[taxonomy.edge_parent]]] = True
    for node in np.flatnonzero(~covered & ~below_empty).tolist():
        message = f"no row is labelled {quoted(taxonomy.ids[node])} or anything below it"
        yield _warning("no-rows", message, line(node), taxonomy.ids[node])


def _row_summary(taxonomy: Taxonomy, counts: Ints) -> dict[str, Any]:
    is_label: Bools = counts > 0
    inner = is_label & ~taxonomy.leaves
    return {
        "labels_given": int(counts.sum()),
        "labels": int(is_label.sum()),
        "labels_by_depth": _histogram(taxonomy.depth[is_label]),
        "inner_labels": int(inner.sum()),
        "given_at_inner_labels": int(counts[inner].sum()),
        "nodes_without_rows": int((~_covered(taxonomy, counts)).sum()),
    }


def draw(
    taxonomy: Taxonomy, node: str | None = None, *, depth: int = DRAWN_DEPTH, max_children: int = DRAWN_CHILDREN
) -> Iterator[str]:
    """Yield the lines of the tree below ``node``, by default the root, ``depth`` levels deep.

    A node of a DAG is drawn below each of its parents.

    >>> for line in draw(Taxonomy.from_paths([("A", "x"), ("A", "y"), ("B",)])):
    ...     print(line)
    (root)
    ├── A
    │   ├── A > x  x
    │   └── A > y  y
    └── B
    """
    flat, offsets = taxonomy.child_lists
    start = taxonomy.root if node is None else taxonomy.position(node)
    if node is not None:
        yield from _paths_to(taxonomy, start)
    yield _text(taxonomy, start)

    def children_of(parent: int) -> list[int]:
        below = taxonomy.tops if parent == VIRTUAL_ROOT else flat[offsets[parent] : offsets[parent + 1]]
        return list(below.tolist())

    # Entries: indent, children, number of the next child.
    stack: list[tuple[str, list[int], int]] = [("", children_of(start), 0)] if depth else []
    while stack:
        indent, children, number = stack.pop()
        if number >= min(len(children), max_children):
            if len(children) > max_children:
                yield f"{indent}└── … {len(children) - max_children:,} more"
            continue
        stack.append((indent, children, number + 1))
        last = number == len(children) - 1
        child = children[number]
        below = children_of(child)
        hidden = f"  [{len(below):,} below]" if below and len(stack) >= depth else ""
        yield f"{indent}{'└── ' if last else '├── '}{_text(taxonomy, child)}{hidden}"
        if below and not hidden:
            stack.append((indent + ("    " if last else "│   "), below, 0))


def _text(taxonomy: Taxonomy, position: int) -> str:
    if position == VIRTUAL_ROOT:
        return "(root)"
    name, title = printable(taxonomy.ids[position]), printable(taxonomy.titles[position])
    return f"{name}  {title}" if title and title != name else name


def _paths_to(taxonomy: Taxonomy, position: int, limit: int = 5) -> Iterator[str]:
    """Yield the paths from the root to the parents of a node, one per line."""
    flat, offsets = taxonomy.parent_lists
    stack, count = [[position]], 0
    while stack and count < limit:
        path = stack.pop()
        parents = flat[offsets[path[-1]] : offsets[path[-1] + 1]].tolist()
        if parents:
            stack.extend([*path, parent] for parent in reversed(parents))
        elif len(path) > 1:
            yield "in " + " > ".join(taxonomy.ids[step] for step in reversed(path[1:]))
            count += 1
    if stack:
        yield "in … further paths"
