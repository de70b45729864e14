"""Traces: paths through the layers, for true labels and for predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hinet.errors import LabelError, quoted
from hinet.ragged import Ints, freeze, gather, group_by, offsets_of
from hinet.taxonomy import VIRTUAL_ROOT, Layers, path_id, strip_padding

MAX_PATHS_PER_LABEL = 10_000


@dataclass(frozen=True, eq=False)
class Traces:
    """Traces of rows; each trace is a path of neurons from layer 1 down, without the stop neuron.

    A row has several traces if its label has several paths (traces that end in one node) or if it has several
    labels (traces that end in different nodes). A trace without neurons ends at the root itself.

    Attributes
    ----------
    layers : Layers
        The layers of the neurons.
    row_offsets : int array of shape (n + 1,)
        The traces of row ``i`` are ``row_offsets[i]:row_offsets[i + 1]``.
    offsets : int array of shape (t + 1,)
        The neurons of trace ``j`` are ``neurons[offsets[j]:offsets[j + 1]]``.
    neurons : int array of shape (total length of the traces,)
        Positions in ``layers.node``.
    log_p : float array of shape (t,), or None
        Log probability (or score) of every predicted trace.

    Examples
    --------
    >>> from hinet.taxonomy import Taxonomy
    >>> layers = Layers.of(Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat")]))
    >>> traces = Traces.encode(layers, ["cat", "pet"])
    >>> traces.paths()
    [[('pet', 'cat')], [('pet',)]]
    >>> traces.decode()
    ['cat', 'pet']
    """

    layers: Layers
    row_offsets: NDArray[np.int64]
    offsets: NDArray[np.int64]
    neurons: NDArray[np.int32]
    log_p: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        freeze(self.row_offsets, self.offsets, self.neurons)

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @classmethod
    def encode(cls, layers: Layers, labels: Sequence[Any]) -> Traces:
        """Encode one label per row, with all its paths.

        Raises
        ------
        LabelError
            If a label is unknown, cannot end a trace, or has too many paths to keep; names the row.
        """
        if isinstance(labels, str):
            raise LabelError(f"expected a list of labels, got the text {quoted(labels)}; put it into a list")
        for row, label in enumerate(labels):
            if isinstance(label, (list, tuple, set, frozenset)):
                raise LabelError(f"row {row}: expected one label, got {len(label)}; use encode_sets for several")
        return cls.of_nodes(layers, layers.taxonomy.positions(labels))

    @classmethod
    def encode_sets(cls, layers: Layers, label_sets: Sequence[Iterable[str]]) -> Traces:
        """Encode any number of labels per row, each with all its paths."""
        rows = [list(dict.fromkeys(labels)) for labels in label_sets]
        row_offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
        return cls.of_node_lists(layers, _positions(layers, rows), row_offsets)

    @classmethod
    def encode_paths(
        cls, layers: Layers, paths: Sequence[Sequence[Any]], *, steps: Literal["ids", "names"] = "ids"
    ) -> Traces:
        """Encode one path per row, from below the root down; empty cells at the end of a path are padding.

        With ``steps="names"`` the paths are those of a taxonomy built from paths of names, root included.

        >>> from hinet.taxonomy import Taxonomy
        >>> paths = [("Food", "Milk"), ("Toys", "")]
        >>> layers = Layers.of(Taxonomy.from_paths(paths))
        >>> Traces.encode_paths(layers, paths, steps="names").decode()
        ['Food > Milk', 'Toys']
        """
        stripped = [strip_padding(row, path) for row, path in enumerate(paths)]
        if steps == "names":
            return cls.encode(layers, [path_id(path) for path in stripped])
        traces = cls.along(layers, stripped)
        ends = traces.end_neurons
        for row in np.flatnonzero(~layers.ends[ends])[:1].tolist():
            raise LabelError(f"row {row}: {_cannot_end(layers, layers.node[ends[row]])}")
        return traces

    @classmethod
    def along(cls, layers: Layers, paths: Sequence[Sequence[str]]) -> Traces:
        """Encode one path of ids per row, from below the root down, wherever it ends.

        Raises
        ------
        LabelError
            If a step is unknown or not a child of the one before it; names the row.
        """
        lengths = np.array([len(path) for path in paths], np.int64)
        offsets = offsets_of(lengths)
        nodes = _positions(layers, paths)
        neurons = np.empty(len(nodes), np.int32)
        above = np.zeros(len(paths), np.int64)
        for step in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > step)
            entries = offsets[rows] + step
            above[rows] = neurons[entries] = _follow(layers, above[rows], nodes[entries], rows)
        return cls(layers, np.arange(len(paths) + 1), offsets, neurons)

    @classmethod
    def of_nodes(cls, layers: Layers, nodes: Ints) -> Traces:
        """Encode one label per row, given as a position in the taxonomy."""
        return cls.of_node_lists(layers, nodes, np.arange(len(nodes) + 1))

    @classmethod
    def joined(cls, layers: Layers, parts: Sequence[Traces]) -> Traces:
        """Return the concatenated rows of all parts."""
        if not parts:
            return cls.encode(layers, [])
        scored = all(part.log_p is not None for part in parts)
        return cls(
            layers,
            offsets_of(np.concatenate([np.diff(part.row_offsets) for part in parts])),
            offsets_of(np.concatenate([np.diff(part.offsets) for part in parts])),
            np.concatenate([part.neurons for part in parts]),
            np.concatenate([part.log_p for part in parts if part.log_p is not None]) if scored else None,
        )

    @classmethod
    def of_node_lists(cls, layers: Layers, nodes: Ints, row_offsets: NDArray[np.int64]) -> Traces:
        """Encode any number of labels per row, given as a ragged array of positions in the taxonomy."""
        distinct, inverse = np.unique(nodes, return_inverse=True)
        lists, offsets, neurons, bad = _traces_of(layers, distinct)
        if len(bad):
            entry = int(np.flatnonzero(np.isin(nodes, bad))[0])
            row = int(np.searchsorted(row_offsets, entry, side="right")) - 1
            raise LabelError(f"row {row}: {_cannot_encode(layers, int(nodes[entry]))}")
        trace, counts = gather(np.arange(len(offsets) - 1), lists, inverse)
        neurons, lengths = gather(neurons, offsets, trace)
        return cls(layers, offsets_of(counts)[row_offsets], offsets_of(lengths), np.asarray(neurons, dtype=np.int32))

    def take(self, rows: NDArray[Any]) -> Traces:
        """Return the selected rows, by a mask or by number."""
        trace, counts = gather(np.arange(len(self.offsets) - 1), self.row_offsets, np.arange(len(self))[rows])
        neurons, lengths = gather(self.neurons, self.offsets, trace)
        log_p = None if self.log_p is None else self.log_p[trace]
        return Traces(self.layers, offsets_of(counts), offsets_of(lengths), np.asarray(neurons, dtype=np.int32), log_p)

    @property
    def end_neurons(self) -> NDArray[np.int32]:
        """(t,) The last real neuron of every trace; neuron 0, the root, for a trace without neurons."""
        ends = np.zeros(len(self.offsets) - 1, np.int32)
        real = np.diff(self.offsets) > 0
        ends[real] = self.neurons[self.offsets[1:][real] - 1]
        return ends

    @property
    def end_nodes(self) -> NDArray[np.int32]:
        """(t,) The node at the end of every trace."""
        return self.layers.node[self.end_neurons]

    def options(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the options of every trace, its stop included, as a ragged array: flat and offsets."""
        layers = self.layers
        lengths = np.diff(self.offsets)
        offsets = offsets_of(lengths + 1)
        options = np.empty(offsets[-1], np.int64)
        options[offsets[1:] - 1] = (
            layers.option_offsets[self.end_neurons + 1] - 1
        )  # stop is the last option of its group
        is_step = np.ones(len(options), bool)
        is_step[offsets[1:] - 1] = False
        above = np.zeros_like(self.neurons)
        above[1:] = self.neurons[:-1]
        above[self.offsets[:-1][lengths > 0]] = 0
        options[is_step] = layers.options_between(above, self.neurons)
        return options, offsets

    def decode(self) -> list[str]:
        """Return the label of every row; raise LabelError for a row that has none or several."""
        if (np.diff(self.row_offsets) == 1).all():
            ids = self.layers.taxonomy.ids
            return [ids[node] for node in self.end_nodes.tolist()]
        labels = self.decode_sets()
        for row, row_labels in enumerate(labels):
            if len(row_labels) != 1:
                raise LabelError(f"row {row}: {len(row_labels)} labels where one is expected; use decode_sets")
        return [row_labels[0] for row_labels in labels]

    def decode_sets(self) -> list[tuple[str, ...]]:
        """Return the distinct labels of every row, in order."""
        ids = self.layers.taxonomy.ids
        names = [ids[node] for node in self.end_nodes.tolist()]
        bounds = self.row_offsets.tolist()
        return [tuple(dict.fromkeys(names[s:e])) for s, e in pairwise(bounds)]

    def paths(self) -> list[list[tuple[str, ...]]]:
        """Return the traces of every row as paths of node ids below the root."""
        ids = self.layers.taxonomy.ids
        steps = [ids[node] for node in self.layers.node[self.neurons].tolist()]
        bounds, rows = self.offsets.tolist(), self.row_offsets.tolist()
        traces = [tuple(steps[s:e]) for s, e in pairwise(bounds)]
        return [traces[s:e] for s, e in pairwise(rows)]


def _traces_of(layers: Layers, labels: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return all traces of distinct labels (lists of traces, offsets, neurons), and the labels with none or too many.

    Follows parents from the end of every trace, one level at a time, and branches where a neuron has several.
    """
    flat, offsets = layers.neurons_of
    neurons, counts = gather(flat, offsets, labels)
    owner = np.repeat(np.arange(len(labels)), counts)
    can_end = layers.ends[neurons]
    neurons, owner = neurons[can_end], owner[can_end]
    path_counts = np.minimum(layers.path_counts[neurons], MAX_PATHS_PER_LABEL + 1).astype(np.float64)
    paths = np.bincount(owner, path_counts, len(labels))
    bad = labels[(paths == 0) | (paths > MAX_PATHS_PER_LABEL)]
    if len(bad):
        empty = np.zeros(1, np.int64)
        return empty, empty, empty[:0], bad

    at_root = owner[neurons == 0]  # a trace that ends at the root has no neuron at all
    owners, traces = [at_root], [np.zeros((len(at_root), 0), np.int64)]  # finished ones, by length
    rest = neurons[:, None]  # (unfinished traces, neurons so far), from the top down
    parents, parent_offsets = layers.parent_lists
    while len(rest):
        above, splits = gather(parents, parent_offsets, rest[:, 0])
        rest, owner = np.repeat(rest, splits, axis=0), np.repeat(owner, splits)
        done = above == 0
        owners.append(owner[done])
        traces.append(rest[done])
        rest, owner = np.column_stack([above[~done], rest[~done]]), owner[~done]
    order, lists = group_by(np.concatenate(owners), len(labels))
    lengths = np.repeat(np.arange(len(traces)), [len(each) for each in traces])
    neurons, lengths = gather(np.concatenate([each.ravel() for each in traces]), offsets_of(lengths), order)
    return lists, offsets_of(lengths), neurons, bad


def _follow(layers: Layers, above: Ints, nodes: Ints, rows: Ints) -> Ints:
    """Return the neuron of each of ``nodes`` among the children of the neurons ``above``."""
    neurons = layers.children_at(above, nodes)
    for missing in np.flatnonzero(neurons < 0)[:1].tolist():
        ids, parent = layers.taxonomy.ids, int(layers.node[above[missing]])
        name = "the root" if parent == VIRTUAL_ROOT else quoted(ids[parent])
        raise LabelError(f"row {int(rows[missing])}: {quoted(ids[int(nodes[missing])])} is not a child of {name}")
    return neurons


def _positions(layers: Layers, rows: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """Return the concatenated nodes of all rows; raise LabelError for the first row with an unknown one."""
    try:
        return layers.taxonomy.positions([label for row in rows for label in row])
    except LabelError:  # it numbers labels; here the error names the row
        for number, labels in enumerate(rows):
            try:
                for label in labels:
                    layers.taxonomy.position(label)
            except LabelError as error:
                raise LabelError(f"row {number}: label {error}") from None
        raise


def _cannot_encode(layers: Layers, node: int) -> str:
    flat, offsets = layers.neurons_of
    neurons = flat[offsets[node] : offsets[node + 1]]
    paths = int(layers.path_counts[neurons[layers.ends[neurons]]].sum())
    if paths > MAX_PATHS_PER_LABEL:
        name = quoted(layers.taxonomy.ids[node])
        return f"label {name} has {paths:,} paths, more than {MAX_PATHS_PER_LABEL:,}; give the path itself"
    return _cannot_end(layers, node)


def _cannot_end(layers: Layers, node: int | np.integer[Any]) -> str:
    if node == VIRTUAL_ROOT:
        return "the path is empty, and no trace can end at a virtual root; name at least one node"
    name = quoted(layers.taxonomy.ids[int(node)])
    if layers.taxonomy.depth[int(node)] < 0:
        return f"{name} cannot be reached from the root; give it a parent, or choose another root"
    return f"no trace may end at {name}; add it to `ends` of the layers"
