"""The taxonomy as the paper's layers of neurons: masked edges, sibling groups, a stop neuron per layer.

Layer 0 holds only the root. Layer ``l`` has one neuron for every node that a path of ``l`` edges from the root
reaches, so a node of a DAG at two depths has two neurons. A neuron at which a trace may end has an edge to the stop
neuron of the layer below it; the layer after the last real one holds only a stop neuron.

For rows with several labels, every node has one neuron, below one of its parents: a row that has a node has all its
parents, so one path is as informative as all. ``other_parents`` has the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.errors import TaxonomyError, quoted
from hinet.ragged import Bools, Ints, first_seen, freeze, frozen, gather, group_by, offsets_of
from hinet.taxonomy.taxonomy import VIRTUAL_ROOT, Taxonomy

STOP = -1
MAX_NEURONS = 25_000_000  # about 2 GB during construction; a DAG with many depths per node may unroll to more


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer with the edges that enter it; its stop neuron, if any, is number ``len(nodes)``.

    Attributes
    ----------
    nodes : int array of shape (w,)
        Node of every neuron.
    ends : bool array of shape (w,)
        Whether a trace may end at the neuron: whether it has an edge to the next layer's stop neuron.
    edge_parent, edge_child : int arrays of shape (e,)
        Allowed edges from neurons of the layer above to neurons of this one, sorted by parent, stop last.
    group_offsets : int array of shape (w_above + 1,)
        The sibling group of parent ``a`` is ``edge_child[group_offsets[a]:group_offsets[a + 1]]``.
    has_stop : bool
        Whether an edge leads to the stop neuron of this layer.
    """

    nodes: Ints
    ends: Bools
    edge_parent: Ints
    edge_child: Ints
    group_offsets: Ints
    has_stop: bool

    def __post_init__(self) -> None:
        freeze(self.nodes, self.ends, self.edge_parent, self.edge_child, self.group_offsets)

    @property
    def width(self) -> int:
        """Number of neurons, the stop neuron included."""
        return len(self.nodes) + self.has_stop


@dataclass(frozen=True, eq=False)
class Layers:
    """All neurons, numbered layer after layer from the root, neuron 0.

    Attributes
    ----------
    taxonomy : Taxonomy
        The taxonomy of the nodes.
    node : int array of shape (neurons,)
        Node of every neuron; -1 for a virtual root.
    ends : bool array of shape (neurons,)
        Whether a trace may end at the neuron.
    layer_offsets : int array of shape (h + 2,)
        Neurons of layer ``l`` are ``layer_offsets[l]:layer_offsets[l + 1]``.
    option_offsets : int array of shape (neurons + 1,)
        The sibling group below neuron ``a`` is the options ``option_offsets[a]:option_offsets[a + 1]``.
    option_neuron : int array of shape (options,)
        The neuron an option leads to, or ``STOP``, which is the last option of its group.
    multilabel : bool
        Whether a row may take several options of a group, each with a probability of its own.

    Examples
    --------
    >>> layers = Layers.of(Taxonomy.from_paths([("A", "x"), ("A", "y"), ("B",)]))
    >>> layers.height, layers.count_traces()
    (2, 4)
    >>> [layer.edge_child.tolist() for layer in layers]  # the stop neuron comes after the real ones
    [[0, 1], [0, 1, 2, 2], [0, 0]]
    """

    taxonomy: Taxonomy
    node: NDArray[np.int32]
    ends: Bools
    layer_offsets: NDArray[np.int64]
    option_offsets: NDArray[np.int64]
    option_neuron: NDArray[np.int32]
    multilabel: bool = False

    def __post_init__(self) -> None:
        freeze(self.node, self.ends, self.layer_offsets, self.option_offsets, self.option_neuron)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the fields alone: arrays of a copy are read-only as well, so that kernels are not compiled for it."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))

    @classmethod
    def of(cls, taxonomy: Taxonomy, ends: Iterable[str] | None = None, *, multilabel: bool = False) -> Layers:
        """Unroll a taxonomy; ``ends`` names the nodes at which a trace may end, by default all below the root.

        A trace may always end at a leaf, and at the root only if ``ends`` names it. With ``multilabel`` a node of a DAG
        has one neuron, below the parent with the fewest nodes below it.
        """
        may_end = _may_end(taxonomy, ends)
        children, child_offsets, tops = (*taxonomy.child_lists, taxonomy.tops)
        if multilabel and not taxonomy.is_tree:
            children, child_offsets, tops = _spanning_lists(taxonomy)
        scratch = np.empty(len(taxonomy), np.int64)
        nodes = [np.array([taxonomy.root], np.int32)]
        groups: list[NDArray[np.int64]] = []  # children of each neuron, without stop
        targets: list[NDArray[np.int64]] = []  # the neuron of each child
        below: Ints = tops.astype(np.int64)
        lengths = np.array([len(below)])
        total = 1
        while len(below):
            first = first_seen(below, scratch)
            layer = below[first]
            scratch[layer] = np.arange(len(layer))
            groups.append(lengths)
            targets.append(scratch[below] + total)
            nodes.append(layer.astype(np.int32))
            total += len(layer)
            if total > MAX_NEURONS:
                raise TaxonomyError(
                    f"the DAG of {len(taxonomy):,} nodes unrolls into more than {MAX_NEURONS:,} neurons, "
                    f"one for each depth of each node; it has reached depth {len(groups)}: remove shortcut edges"
                )
            below, lengths = gather(children, child_offsets, layer)
        groups.append(lengths)
        node = np.concatenate(nodes)
        can_end = may_end[node]
        can_end[0] = taxonomy.root != VIRTUAL_ROOT and may_end[taxonomy.root]
        child_counts = np.concatenate(groups)  # (neurons,)
        option_offsets = offsets_of(child_counts + can_end)
        option_neuron = np.full(option_offsets[-1], STOP, np.int32)
        is_child = np.ones(len(option_neuron), bool)
        is_child[option_offsets[1:][can_end] - 1] = False
        option_neuron[is_child] = np.concatenate(targets)
        layer_offsets = offsets_of(np.array([len(layer) for layer in nodes]))
        return cls(taxonomy, node, can_end, layer_offsets, option_offsets, option_neuron, multilabel)

    @property
    def height(self) -> int:
        """Number of layers with real neurons below the root, ``h``."""
        return len(self.layer_offsets) - 2

    def layer(self, number: int) -> Layer:
        """Return layer ``number``, 1 to ``h + 1``, with its neurons counted from 0."""
        if not 1 <= number <= self.height + 1:
            raise IndexError(f"layers are numbered 1 to {self.height + 1}, got {number}")
        above, start = self.layer_offsets[number - 1 : number + 1].tolist()
        end = int(self.layer_offsets[number + 1]) if number <= self.height else start
        options = self.option_offsets[above : start + 1]
        targets = self.option_neuron[options[0] : options[-1]]
        stops = targets == STOP
        return Layer(
            nodes=self.node[start:end],
            ends=self.ends[start:end],
            edge_parent=np.repeat(np.arange(start - above, dtype=np.int32), np.diff(options)),
            edge_child=np.where(stops, end - start, targets - start).astype(np.int32),
            group_offsets=options - options[0],
            has_stop=bool(stops.any()),
        )

    def same_as(self, other: Layers) -> bool:
        """Return whether both have the same neurons with the same nodes and options."""
        return self is other or (
            self.taxonomy.ids == other.taxonomy.ids
            and self.multilabel == other.multilabel
            and np.array_equal(self.node, other.node)
            and np.array_equal(self.option_offsets, other.option_offsets)
            and np.array_equal(self.option_neuron, other.option_neuron)
        )

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(number) for number in range(1, self.height + 2))

    def __len__(self) -> int:
        return self.height + 1

    @cached_property
    def depth(self) -> NDArray[np.int32]:
        """(neurons,) The layer of every neuron."""
        return frozen(np.repeat(np.arange(self.height + 1, dtype=np.int32), np.diff(self.layer_offsets)))

    @cached_property
    def option_parent(self) -> NDArray[np.int32]:
        """(options,) The neuron whose sibling group holds the option."""
        return frozen(np.repeat(np.arange(len(self.node), dtype=np.int32), np.diff(self.option_offsets)))

    @cached_property
    def parent_lists(self) -> tuple[Ints, Ints]:
        """The parents of every neuron as a ragged array: flat and offsets."""
        real = self.option_neuron != STOP
        order, offsets = group_by(self.option_neuron[real], len(self.node))
        return frozen(self.option_parent[real][order]), frozen(offsets)

    @cached_property
    def is_tree(self) -> bool:
        """Whether every neuron has one parent, so that the end of a trace determines it."""
        return int(np.diff(self.parent_lists[1]).max(initial=0)) <= 1

    @cached_property
    def exhaustive(self) -> Bools:
        """(neurons,) Whether every row that reaches a neuron takes at least one of the options below it.

        With ``multilabel``, a row may reach a node of a DAG by a child whose neuron is below another parent.
        """
        exhaustive = np.ones(len(self.node), bool)
        if self.multilabel and not self.taxonomy.is_tree:
            children = np.diff(self.taxonomy.child_lists[1])[self.node[1:]]
            exhaustive[1:] = np.diff(self.option_offsets)[1:] == children + self.ends[1:]
        return frozen(exhaustive)

    @cached_property
    def has_choice(self) -> Bools:
        """(neurons,) Whether rows that reach a neuron may differ in the options they take below it."""
        sizes = np.diff(self.option_offsets)
        return frozen((sizes > 1) | ((sizes == 1) & ~self.exhaustive))

    @cached_property
    def neurons_of(self) -> tuple[Ints, Ints]:
        """The neurons of every node, shallow to deep, as a ragged array: flat and offsets."""
        named = np.flatnonzero(self.node >= 0)
        order, offsets = group_by(self.node[named], len(self.taxonomy))
        return frozen(named[order]), frozen(offsets)

    @cached_property
    def other_parents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The parents of every neuron but the one above it, with ``multilabel`` of a DAG: flat and offsets."""
        neuron_of = np.zeros(len(self.taxonomy), np.int64)
        neuron_of[self.node[1:]] = np.arange(1, len(self.node))
        flat, offsets = self.taxonomy.parent_lists
        nodes, counts = gather(flat, offsets, self.node[1:])
        child = np.repeat(np.arange(1, len(self.node)), counts)
        parent = neuron_of[nodes]
        primary = np.append(0, self.parent_lists[0])  # one for each neuron below the root
        other = (parent != primary[child]) & (parent != 0) if self.multilabel else np.zeros(len(child), bool)
        return frozen(parent[other]), frozen(offsets_of(np.bincount(child[other], minlength=len(self.node))))

    def children_at(self, parents: Ints, nodes: Ints) -> NDArray[np.int64]:
        """Return the neuron of each node among the children of each parent neuron, or -1."""
        options = self._options_to(parents, nodes)
        return np.where(options < 0, -1, self.option_neuron[options])

    def options_between(self, parents: Ints, children: Ints) -> NDArray[np.int64]:
        """Return the option that leads from each parent neuron to each child neuron; there must be one."""
        options = self._options_to(parents, self.node[children])
        assert np.array_equal(self.option_neuron[options], children)
        return options

    def _options_to(self, parents: Ints, nodes: Ints) -> NDArray[np.int64]:
        """Return the option from each parent neuron to its child of each node, or -1."""
        keys, options = self._options_by_node
        key = parents.astype(np.int64) * len(self.taxonomy) + nodes
        index = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        return np.where(keys[index] == key, options[index], -1)

    @cached_property
    def _options_by_node(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        real = np.flatnonzero(self.option_neuron != STOP)
        nodes = self.node[self.option_neuron[real]]
        keys = self.option_parent[real].astype(np.int64) * len(self.taxonomy) + nodes
        order = np.argsort(keys, kind="stable")
        return keys[order], real[order]

    @cached_property
    def path_counts(self) -> NDArray[Any]:
        """(neurons,) Number of paths from the root, exact: Python integers if 64 bits are too few."""
        counts: NDArray[Any] = np.zeros(len(self.node), np.float64)
        with np.errstate(over="ignore"):
            self._add_path_counts(counts)
        exact: NDArray[Any] = np.zeros(len(self.node), np.int64 if counts.sum() < 2.0**53 else object)
        self._add_path_counts(exact)
        return exact

    def count_traces(self) -> int:
        """Count the complete traces: paths from layer 1 to a stop neuron."""
        return int(self.path_counts[self.ends].sum())

    def _add_path_counts(self, counts: NDArray[Any]) -> None:
        counts[0] = 1
        for above in range(self.height):
            start, end = self.option_offsets[self.layer_offsets[above : above + 2]].tolist()
            target = self.option_neuron[start:end]
            real = target != STOP
            np.add.at(counts, target[real], counts[self.option_parent[start:end][real]])


def _spanning_lists(taxonomy: Taxonomy) -> tuple[Ints, Ints, Ints]:
    """Return the tree in which a node is below its parent with the fewest nodes below it: child lists and top nodes."""
    reachable = np.flatnonzero(taxonomy.depth > 0)
    above, _ = taxonomy.ancestor_lists(reachable)
    below = np.bincount(above, minlength=len(taxonomy))
    flat, offsets = taxonomy.parent_lists
    parents, counts = gather(flat, offsets, reachable)
    child = np.repeat(reachable, counts)
    known = (taxonomy.depth[parents] >= 0) & (parents != taxonomy.root)
    parents, child = parents[known], child[known]
    order = np.lexsort((below[parents], child))
    first = order[np.append(True, np.diff(child[order]) != 0)[: len(order)]]
    by_parent, child_offsets = group_by(parents[first], len(taxonomy))
    return child[first][by_parent], child_offsets, np.setdiff1d(reachable, child)


def _may_end(taxonomy: Taxonomy, ends: Iterable[str] | None) -> Bools:
    may_end = taxonomy.leaves.copy()
    if ends is None:
        may_end[:] = True
        if taxonomy.root != VIRTUAL_ROOT:
            may_end[taxonomy.root] = False
        return may_end
    nodes = np.array([taxonomy.position(node) for node in ends], np.int64)
    unreachable = nodes[taxonomy.depth[nodes] < 0]
    if len(unreachable):
        raise TaxonomyError(
            f"no trace can end at {quoted(taxonomy.ids[unreachable[0]])}: it cannot be reached from the root"
        )
    may_end[nodes] = True
    return may_end
