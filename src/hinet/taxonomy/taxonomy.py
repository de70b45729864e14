"""The user's hierarchy: named nodes, tree or DAG, under one root; frozen and valid by construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hinet.errors import FileError, LabelError, TaxonomyError, counted, did_you_mean, quoted
from hinet.files.atomic import write_text
from hinet.files.delimited import format_delimited
from hinet.ragged import Bools, Ints, freeze, frozen, gather, group_by, offsets_of
from hinet.taxonomy.draft import (
    UNWRITABLE,
    Draft,
    Graph,
    Problem,
    TaxonomyFormat,
    as_id,
    id_path_draft,
    is_writable,
    longest_depth,
    named_path_draft,
    resolve,
    strip_padding,
)
from hinet.taxonomy.formats import FORMATS, read_draft

VIRTUAL_ROOT = -1
TITLE_ATTRIBUTES = ("title", "name", "label", "description")
LABEL_SEPARATORS = ";|,@"  # common separators of several labels in a cell

_KEY_COLUMNS = ("node", "parent")
_MAX_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """A hierarchy of nodes with unique ids under one root.

    If exactly one node has no parent, and it has children, it is the root, at depth 0. Otherwise a virtual root is
    added above the nodes without parents, which are at depth 1.

    Build one with :meth:`from_paths`, :meth:`from_edges`, :meth:`from_networkx` or :meth:`from_file`.

    Attributes
    ----------
    ids : tuple of str
        The node ids, in the order of the source.
    edge_parent, edge_child : int arrays of shape (e,)
        The edges as positions in ``ids``, sorted by parent, then by child.
    attributes : mapping of str to tuple of str
        Further columns of the source, with one value per node.
    root : int
        Position of the root in ``ids``, or -1 for a virtual root.
    depth : int array of shape (n,)
        Length of the longest path from the root to every node; -1 if there is none.

    Examples
    --------
    >>> animals = Taxonomy.from_edges([("animal", "sheep"), ("animal", "cow"), ("cow", "calf")])
    >>> animals.ids
    ('animal', 'sheep', 'cow', 'calf')
    >>> animals.children("animal")
    ('sheep', 'cow')
    >>> animals.is_tree, animals.depth.tolist()
    (True, [0, 1, 1, 2])
    """

    ids: tuple[str, ...]
    edge_parent: Ints
    edge_child: Ints
    attributes: Mapping[str, tuple[str, ...]]
    root: int
    depth: NDArray[np.int32]

    def __post_init__(self) -> None:
        freeze(self.edge_parent, self.edge_child, self.depth)
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.ids, self.edge_parent, self.edge_child, dict(self.attributes), self.root, self.depth)
        return Taxonomy, fields  # a read-only mapping cannot be pickled

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[Sequence[Any]],
        *,
        steps: Literal["names", "ids"] = "names",
        root: str | None = None,
    ) -> Taxonomy:
        """Build from root-to-node paths; empty cells at the end of a path are padding.

        With ``steps="names"`` the whole path identifies a node, so a name may occur under two parents, and the id of a
        node is its path, such as ``"A > B"``. With ``steps="ids"`` each distinct step is one node, so a step under two
        parents makes a DAG.

        >>> Taxonomy.from_paths([("A", "x"), ("B", "x"), ("B", "")]).ids
        ('A', 'A > x', 'B', 'B > x')
        >>> Taxonomy.from_paths([("A", "x"), ("B", "x")], steps="ids").ids
        ('A', 'x', 'B')
        """
        checked = [strip_padding(row, path) for row, path in enumerate(paths)]
        if steps not in ("names", "ids"):
            raise TaxonomyError(f"steps are 'names' or 'ids', got {steps!r}")
        draft = named_path_draft(checked, None) if steps == "names" else id_path_draft(checked)
        return cls.from_draft(draft, root=root)

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[tuple[Any, Any]],
        *,
        attributes: Mapping[str, Mapping[Any, Any]] | None = None,
        root: str | None = None,
    ) -> Taxonomy:
        """Build from (parent, child) pairs; a parent of None, NaN or "" makes the child a top node.

        ``attributes`` maps an attribute to its value for each node that has one.

        >>> Taxonomy.from_edges([(None, "A"), ("A", "B")], attributes={"title": {"B": "Bee"}}).titles
        ('', 'Bee')
        """
        pairs = [_pair(number, edge) for number, edge in enumerate(edges)]
        taxonomy = cls.from_draft(Draft([child for _, child in pairs], [parent for parent, _ in pairs]), root=root)
        columns = {
            name: _attribute_column(taxonomy, name, {as_id(node): as_id(value) for node, value in values.items()})
            for name, values in (attributes or {}).items()
        }
        return replace(taxonomy, attributes=columns)

    @classmethod
    def from_networkx(cls, graph: Any, *, root: str | None = None) -> Taxonomy:
        """Build from a directed networkx graph with edges from parent to child, keeping node attributes."""
        if not graph.is_directed():
            raise TaxonomyError("the graph is not directed; use a networkx.DiGraph with edges from parent to child")
        names: dict[str, dict[Any, Any]] = {}
        for node, data in graph.nodes(data=True):
            for name, value in data.items():
                names.setdefault(str(name), {})[node] = value
        tops = ((None, node) for node, degree in graph.in_degree() if degree == 0)
        return cls.from_edges([*tops, *graph.edges()], attributes=names, root=root)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        format: TaxonomyFormat | str | None = None,
        encoding: str = "utf-8",
        root: str | None = None,
    ) -> Taxonomy:
        """Read a plain, ``.gz`` or ``.xz`` file; the format is detected unless it is given.

        ``format`` is a name in ``hinet.taxonomy.FORMATS``, such as ``"table"`` or ``"skos"``, or a format with its
        settings, such as ``hinet.taxonomy.Table(parent_sep=" ")``.

        Raises
        ------
        FileError
            If the file cannot be read; names the line.
        TaxonomyError
            If the hierarchy is invalid, such as by a cycle; names lines and nodes.
        """
        return cls.from_draft(read_draft(path, format=format, encoding=encoding), source=str(path), root=root)

    @classmethod
    def from_draft(cls, draft: Draft, *, source: str = "taxonomy", root: str | None = None) -> Taxonomy:
        """Build from a draft, or raise TaxonomyError with its problems."""
        return cls.from_graph(resolve(draft), source=source, root=root)

    @classmethod
    def from_graph(cls, graph: Graph, *, source: str = "taxonomy", root: str | None = None) -> Taxonomy:
        """Build from a checked graph; raise TaxonomyError if it has errors."""
        errors = [problem for problem in graph.problems if problem.severity == "error"]
        if errors:
            raise TaxonomyError(_error_text(source, errors), graph.problems)
        if not graph.ids:
            raise TaxonomyError(f"{source}: a taxonomy needs at least one node, got none")
        top = _find_root(graph, source, root)
        return cls(graph.ids, graph.edge_parent, graph.edge_child, graph.attributes, top, _depth_below(graph, top))

    def under_virtual_root(self) -> Taxonomy:
        """Return the same nodes and edges below a virtual root; a former root is then a node at depth 1.

        >>> Taxonomy.from_paths([("Food", "Bread"), ("Food", "Milk")]).under_virtual_root().depth.tolist()
        [1, 2, 2]
        """
        if self.root == VIRTUAL_ROOT:
            return self
        depth = longest_depth(len(self), self.edge_parent, self.edge_child) + np.int32(1)
        return replace(self, root=VIRTUAL_ROOT, depth=depth)

    def with_nodes(self, parents: Mapping[str, str | None]) -> Taxonomy:
        """Return the taxonomy with new nodes after its own, by id: the parent of each, or None for the root.

        A new parent must come before its children. Raises TaxonomyError for an existing id and for an unknown parent.

        >>> Taxonomy.from_paths([("Food", "Bread"), ("Toys",)]).with_nodes({"Food > Milk": "Food", "Art": None}).ids
        ('Food', 'Food > Bread', 'Toys', 'Food > Milk', 'Art')
        """
        position, depth = dict(self._positions), self.depth.tolist()
        edges = []
        for node, parent in parents.items():
            if node in position:
                raise TaxonomyError(f"{quoted(node)} is in the taxonomy already; give each new node an id of its own")
            if parent is not None and parent not in position:
                raise TaxonomyError(
                    f"{quoted(node)}: its parent {quoted(parent)} is neither in the taxonomy nor a new node before it"
                    f"{did_you_mean(parent, position)}"
                )
            above = self.root if parent is None else position[parent]
            position[node] = len(position)
            depth.append(1 if above == VIRTUAL_ROOT else depth[above] + 1)
            if above != VIRTUAL_ROOT:
                edges.append((above, position[node]))
        new_edges = np.array(edges, self.edge_parent.dtype).reshape(-1, 2)
        edge_parent = np.append(self.edge_parent, new_edges[:, 0])
        edge_child = np.append(self.edge_child, new_edges[:, 1])
        order = np.lexsort((edge_child, edge_parent))
        attributes = {name: (*values, *repeat("", len(parents))) for name, values in self.attributes.items()}
        depths = np.array(depth, np.int32)
        return Taxonomy(tuple(position), edge_parent[order], edge_child[order], attributes, self.root, depths)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, node: object) -> bool:
        return as_id(node) in self._positions

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Taxonomy):
            return NotImplemented
        return (
            self.ids == other.ids
            and self.root == other.root
            and dict(self.attributes) == dict(other.attributes)
            and np.array_equal(self.edge_parent, other.edge_parent)
            and np.array_equal(self.edge_child, other.edge_child)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = "tree" if self.is_tree else "DAG"
        leaves = counted(int(self.leaves.sum()), "leaf/leaves")
        return f"<Taxonomy: {kind} of {counted(len(self), 'node')}, {leaves}, height {self.height}>"

    def position(self, node: str) -> int:
        """Return the position of ``node`` in ``ids``, or raise LabelError with the nearest id."""
        name = as_id(node)
        if name not in self._positions:
            raise LabelError(self.unknown(name))
        return self._positions[name]

    def unknown(self, name: str) -> str:
        """Return the message for an unknown name."""
        return f"{quoted(name)} is not in the taxonomy of {counted(len(self), 'node')}{self.hint_for(name)}"

    def hint_for(self, name: str) -> str:
        """Return a hint for an unknown name: it is a title, several ids, or similar to an id; else an empty string."""
        titled = [self.ids[node] for node, title in enumerate(self.titles) if title == name]
        if titled:
            return f"; it is the title of {quoted(titled[0])}, and labels are ids"
        for mark in LABEL_SEPARATORS:
            if mark in name and all(part.strip() in self._positions for part in name.split(mark)):
                return f"; its parts are: give several labels as a set, or in a file --label-sep {mark!r}"
        return did_you_mean(name, self.ids)

    def positions(self, nodes: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions of ``nodes``; the error names the first row with an unknown node."""
        positions = self.find(nodes)
        missing = np.flatnonzero(positions < 0).tolist()
        if missing:
            row, others = missing[0], len(missing) - 1
            more = f" ({counted(others, 'more row has/more rows have')} unknown labels)" if others else ""
            raise LabelError(f"row {row}: label {self.unknown(as_id(nodes[row]))}{more}")
        return positions

    def find(self, nodes: Sequence[Any]) -> NDArray[np.int64]:
        """Return the positions of ``nodes``, -1 for unknown ones."""
        known = self._positions
        return np.array([known.get(node if type(node) is str else as_id(node), -1) for node in nodes], np.int64)

    def children(self, node: str) -> tuple[str, ...]:
        """Return the children of ``node`` in the order of the source."""
        return self._listed(self.child_lists, node)

    def parents(self, node: str) -> tuple[str, ...]:
        """Return the parents of ``node``; none for a top node."""
        return self._listed(self.parent_lists, node)

    def _listed(self, lists: tuple[Ints, Ints], node: str) -> tuple[str, ...]:
        flat, offsets = lists
        position = self.position(node)
        return tuple(self.ids[other] for other in flat[offsets[position] : offsets[position + 1]].tolist())

    def ancestor_lists(self, nodes: Ints) -> tuple[Ints, NDArray[np.int64]]:
        """Return each of ``nodes`` with all its ancestors except the root, as a ragged array: flat and offsets.

        >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "sheep"), ("cow", "calf")])
        >>> flat, offsets = animals.ancestor_lists(animals.positions(["calf", "sheep"]))
        >>> [[animals.ids[node] for node in flat[s:e]] for s, e in zip(offsets, offsets[1:])]
        [['cow', 'calf'], ['sheep']]
        """
        flat, offsets = self.parent_lists
        size = np.int64(len(self))
        keys = np.arange(len(nodes)) * size + nodes  # (index, ancestor) as one number
        level = keys
        while len(level):
            above, splits = gather(flat, offsets, level % size)
            level = np.unique(np.repeat(level // size, splits) * size + above)
            keys = np.concatenate([keys, level])
        keys = np.unique(keys)
        keys = keys[keys % size != self.root] if self.root != VIRTUAL_ROOT else keys
        return keys % size, offsets_of(np.bincount(keys // size, minlength=len(nodes)))

    @property
    def titles(self) -> tuple[str, ...]:
        """The title of each node: the first attribute that is a title, else the ids."""
        return next((self.attributes[name] for name in TITLE_ATTRIBUTES if name in self.attributes), self.ids)

    @property
    def height(self) -> int:
        """Length of the longest path from the root."""
        return int(self.depth.max())

    @cached_property
    def is_tree(self) -> bool:
        """Whether no node has two parents."""
        return len(self.edge_child) == 0 or int(np.bincount(self.edge_child).max()) == 1

    @cached_property
    def leaves(self) -> Bools:
        """(n,) Whether a node has no children."""
        return frozen(np.asarray(np.diff(self.child_lists[1]) == 0))

    @cached_property
    def child_lists(self) -> tuple[Ints, Ints]:
        """The children of every node as a ragged array: flat and offsets."""
        order, offsets = group_by(self.edge_parent, len(self))
        return frozen(self.edge_child[order]), frozen(offsets)

    @cached_property
    def parent_lists(self) -> tuple[Ints, Ints]:
        """The parents of every node as a ragged array: flat and offsets."""
        order, offsets = group_by(self.edge_child, len(self))
        return frozen(self.edge_parent[order]), frozen(offsets)

    @cached_property
    def tops(self) -> Ints:
        """Positions of the children of the root, in the order of the source."""
        if self.root == VIRTUAL_ROOT:
            return frozen(np.flatnonzero(np.diff(self.parent_lists[1]) == 0))
        flat, offsets = self.child_lists
        return flat[offsets[self.root] : offsets[self.root + 1]]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.ids)}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row (node, parent, attributes) for every node and parent, as written by :meth:`write`."""
        columns = list(self.attributes.values())
        for position, (node, parents) in enumerate(zip(self.ids, self._parent_ids(), strict=True)):
            attributes = [column[position] for column in columns]
            for parent in parents or [""]:
                yield (node, parent, *attributes)

    def _parent_ids(self) -> list[list[str]]:
        """Return the ids of the parents of every node."""
        flat, offsets = self.parent_lists
        return [[self.ids[parent] for parent in flat[start:end].tolist()] for start, end in pairwise(offsets.tolist())]

    def write(self, path: str | Path) -> None:
        """Write a table of nodes and parents, or by the suffix SKOS as Turtle or OBO; ``-`` prints a table.

        The suffix is ``.tsv``, ``.csv``, ``.txt``, ``.ttl`` or ``.obo``, also with ``.gz`` or ``.xz``.

        Raises
        ------
        FileError
            If the suffix is another.
        TaxonomyError
            If the format cannot hold a name.
        """
        name = str(path).lower().removesuffix(".gz").removesuffix(".xz")
        formats = {format.write_suffix: format for format in FORMATS.values() if format.write_suffix}
        if (format := formats.get(Path(name).suffix)) is not None:
            write_text(path, format.to_text(self.ids, self._parent_ids(), self.attributes))
            return
        if not name.endswith((".csv", ".tsv", ".txt")) and str(path) != "-" and not Path(path).is_char_device():
            suffixes = ", ".join((".tsv", ".csv", *formats))
            raise FileError(path, f"a taxonomy is written as {suffixes} or .txt, also with .gz or .xz; rename it")
        for key in _KEY_COLUMNS:
            if key in self.attributes:
                raise TaxonomyError(f"an attribute is called {key!r}, like a key column of the table; rename it")
        header = (*_KEY_COLUMNS, *self.attributes)
        write_text(path, format_delimited(header, self.rows(), "," if name.endswith(".csv") else "\t"))


def _pair(number: int, edge: tuple[Any, Any]) -> tuple[str | None, str]:
    if isinstance(edge, str) or len(edge) != 2:
        raise TaxonomyError(f"edge {number}: expected a pair (parent, child), got {quoted(str(edge))}")
    parent, child = as_id(edge[0]), as_id(edge[1])
    if not child.strip():
        raise TaxonomyError(f"edge {number}: the child of {quoted(parent)} is empty; name every node")
    return parent if parent.strip() else None, child


def _attribute_column(taxonomy: Taxonomy, name: str, values: Mapping[str, str]) -> tuple[str, ...]:
    if not name or name != name.strip() or not is_writable(name):
        raise TaxonomyError(f"an attribute is called {quoted(name)}; give it a name without spaces around it")
    for node, value in values.items():
        if node not in taxonomy:
            raise TaxonomyError(f"attribute {quoted(name)} names {quoted(node)}, which is not a node of the edges")
        if not is_writable(value):
            raise TaxonomyError(f"attribute {quoted(name)} of {quoted(node)}: {quoted(value)} {UNWRITABLE}")
    return tuple(values.get(node, "") for node in taxonomy.ids)


def _error_text(source: str, errors: Sequence[Problem]) -> str:
    lines = [
        f"{source}:{problem.line}: {problem.message}" if problem.line else f"{source}: {problem.message}"
        for problem in errors[:_MAX_PROBLEMS_SHOWN]
    ]
    if len(errors) > _MAX_PROBLEMS_SHOWN:
        lines.append(f"… and {len(errors) - _MAX_PROBLEMS_SHOWN:,} more errors")
    return "\n".join(lines)


def _find_root(graph: Graph, source: str, root: str | None) -> int:
    """Return the position of the named root, else of the only node without parents, else ``VIRTUAL_ROOT``."""
    has_parent = np.zeros(len(graph.ids), bool)
    has_parent[graph.edge_child] = True
    if root is None:
        tops = np.flatnonzero(~has_parent)
        return int(tops[0]) if len(tops) == 1 and len(graph.edge_parent) else VIRTUAL_ROOT
    root = as_id(root)
    if root not in graph.ids:
        hint = did_you_mean(root, graph.ids) or "; set `root` to a node without parents"
        raise TaxonomyError(f"{source}: the root {quoted(root)} is not among the nodes{hint}")
    position = graph.ids.index(root)
    if has_parent[position]:
        raise TaxonomyError(f"{source}: the root {quoted(root)} has a parent; set `root` to a node without one")
    if position not in graph.edge_parent:
        raise TaxonomyError(
            f"{source}: the root {quoted(root)} has no children; set `root` to the node above all others"
        )
    return position


def _depth_below(graph: Graph, root: int) -> NDArray[np.int32]:
    """Return the length of the longest path from the root to every node; -1 if there is none."""
    size, parent, child = len(graph.ids), graph.edge_parent, graph.edge_child
    depth = longest_depth(size, parent, child)
    if root == VIRTUAL_ROOT:
        return depth + np.int32(1)
    if np.count_nonzero(depth == 0) > 1:  # the root does not reach the other top nodes
        from scipy.sparse import csgraph, csr_array

        below = csr_array((np.ones(len(parent), bool), (parent, child)), shape=(size, size))
        reached = np.zeros(size, bool)
        reached[csgraph.breadth_first_order(below, root, return_predecessors=False)] = True
        inside = reached[parent]
        depth = longest_depth(size, parent[inside], child[inside])
        depth[~reached] = -1
    return depth
