"""The root of a graph, and the depth of every node below it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet.errors import TaxonomyError, did_you_mean, quoted
from hinet.ragged import Bools, Ints, first_seen, gather, group_by
from hinet.taxonomy.draft import Graph, longest_depth
from hinet.taxonomy.path_ids import as_id

VIRTUAL_ROOT = -1


def find_root(graph: Graph, source: str, root: str | None) -> int:
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


def depth_below(graph: Graph, root: int) -> NDArray[np.int32]:
    """Return the length of the longest path from the root to every node; -1 if there is none."""
    size = len(graph.ids)
    if root == VIRTUAL_ROOT:
        return longest_depth(size, graph.edge_parent, graph.edge_child) + np.int32(1)
    reached = _reachable(size, graph.edge_parent, graph.edge_child, root)
    inside = reached[graph.edge_parent]
    depth = longest_depth(size, graph.edge_parent[inside], graph.edge_child[inside])
    depth[~reached] = -1
    return depth


def _reachable(size: int, edge_parent: Ints, edge_child: Ints, start: int) -> Bools:
    """Mark ``start`` and all its descendants."""
    order, offsets = group_by(edge_parent, size)
    children = edge_child[order]
    reached = np.zeros(size, bool)
    scratch = np.empty(size, np.int64)
    level = np.array([start])
    while len(level):
        reached[level] = True
        below, _ = gather(children, offsets, level)
        below = below[~reached[below]]
        level = below[first_seen(below, scratch)]
    return reached
