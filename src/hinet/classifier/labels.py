"""How a user writes labels: ``y`` -> traces and truth, and nodes back to the form they came in.

=========  ==============================================================  =================================
form       a row of ``y``                                                  a prediction
=========  ==============================================================  =================================
plain      a label, without a taxonomy: all labels stand side by side      the label
ids        the id of a node of the given taxonomy                          the id
paths      a tuple or list of steps from the top down, of any length       a tuple of steps
table      a row of a 2-D array, empty cells after the last step           a row of the same width
text       a path as text, ``A > B``                                       the text
=========  ==============================================================  =================================

A set of these in a row stands for several labels. With a taxonomy the steps of a path are its ids; without one they are
names, and a node is known by its whole path. What turns ``y`` into a form is in :mod:`hinet.classifier.label_reading`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.label_rows import empty_path, is_missing, is_path, missing_label, read_each, rows_of, several
from hinet.classifier.text_paths import TextStyle
from hinet.classifier.truth import NOTHING, Truth
from hinet.data import Traces
from hinet.errors import LabelError
from hinet.ragged import offsets_of
from hinet.taxonomy import PATH_SEP, VIRTUAL_ROOT, Layers, Taxonomy, as_id, path_id, strip_padding

Form = Literal["plain", "ids", "paths", "table", "text"]
WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]*")
INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, eq=False)
class LabelForm:
    """How a user writes labels: what turns ``y`` into traces, and nodes into what the user would have written."""

    form: Form
    layers: Layers
    number: bool = False  # whether labels were whole numbers
    columns: int = 0  # of a table
    named: bool = False  # whether steps of paths are names, not ids
    values: NDArray[Any] | None = None  # of plain labels: the label of each node
    rooted: bool = False  # whether paths start at the root itself, not below it
    style: TextStyle | None = None  # of paths as text
    wrote: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # in a DAG, the first path a label was given as
    typed: Mapping[str, bool | int | float] = field(default_factory=dict)  # by id, steps and ids that were no text

    @property
    def taxonomy(self) -> Taxonomy:
        """Whose nodes the labels are."""
        return self.layers.taxonomy

    @property
    def inferred(self) -> bool:
        """Whether the taxonomy was made from the labels."""
        return self.form == "plain" or self.named

    @property
    def has_paths(self) -> bool:
        """Whether a label is written as its whole path."""
        return self.form in ("paths", "table", "text")

    @property
    def by_path(self) -> bool:
        """Whether a label may be written in several ways: as one of the paths to a node of a DAG."""
        return self.has_paths and not self.taxonomy.is_tree

    @cached_property
    def label_nodes(self) -> NDArray[np.int64]:
        """Nodes at which a trace may end, as positions in the taxonomy, in its order."""
        nodes = np.unique(self.layers.node[self.layers.ends])
        return nodes[nodes >= 0].astype(np.int64)

    # Labels in

    def encode(self, y: Any) -> Traces:
        """Return labels as traces of these layers; raises LabelError, which names the row."""
        rows, _ = rows_of(y)
        if any(isinstance(row, (set, frozenset)) for row in rows):
            return Traces.encode_sets(self.layers, read_each(rows, self._ids))
        if self.has_paths and not self.named:
            return Traces.encode_paths(self.layers, read_each(rows, self.steps_below_root))
        return Traces.encode(self.layers, read_each(rows, self.id_of))

    def truth(self, y: Any, *, allow_missing: bool = False) -> Truth:
        """Return labels as nodes, those among them that no training row had.

        With ``allow_missing`` a row may have none, as predictions may.

        Raises
        ------
        LabelError
            If a given taxonomy does not know a label, or one is missing; names the row. An inferred one need not know
            all.
        """
        rows, _ = rows_of(y)
        if allow_missing:
            rows = [frozenset() if is_missing(row) else row for row in rows]
        ids = read_each(rows, self._ids)
        offsets = offsets_of(np.array([len(row) for row in ids], np.int64))
        names = [name for row in ids for name in row]
        exact = np.array([name in self.taxonomy for name in names], bool)
        if exact.all():
            return Truth(self.taxonomy, offsets, self.taxonomy.positions(names), exact, self._given_paths(rows))
        if not self.inferred:
            unknown = int(np.flatnonzero(~exact)[0])
            row = int(np.searchsorted(offsets, unknown, side="right")) - 1
            raise LabelError(f"row {row}: label {self._unknown(names[unknown])}")
        nodes = np.array([self._nearest(name) for name in names], np.int64)
        return Truth(self.taxonomy, offsets, nodes, exact)

    def _given_paths(self, rows: Sequence[Any]) -> tuple[tuple[str, ...], ...] | None:
        """Return the paths of rows where a node has several, checked, if all rows are paths."""
        if not self.by_path or not all(is_path(row) or self.style is not None for row in rows):
            return None
        if any(isinstance(row, (set, frozenset)) for row in rows):
            return None
        paths = tuple(read_each(rows, self.steps_below_root))
        Traces.along(self.layers, paths)  # raises where one leads nowhere
        return paths

    def _unknown(self, name: str) -> str:
        """Return the message for an id that the taxonomy does not know."""
        try:
            self.taxonomy.position(name)
        except LabelError as error:
            return str(error)
        raise AssertionError(name)

    def _nearest(self, name: str) -> int:
        """Return the node of an id or, of a path of names, the deepest node above it that is known."""
        while name not in self.taxonomy:
            name, found, _ = name.rpartition(PATH_SEP)
            if not found or not self.named:
                return NOTHING
        return self.taxonomy.position(name)

    def predictable(self, truth: Truth) -> NDArray[np.bool_]:
        """Return which rows have labels that can all be predicted."""
        unknown = ~(np.isin(truth.nodes, self.label_nodes) & truth.exact)
        able: NDArray[np.bool_] = np.bincount(truth.owner[unknown], minlength=len(truth)) == 0
        return able

    def traces_of(self, truth: Truth) -> Traces:
        """Return labels that can all be predicted as traces: the paths themselves where they were given in a DAG."""
        if truth.paths is not None:
            return Traces.encode_paths(self.layers, truth.paths)
        return Traces.encode_sets(self.layers, truth.ids())

    def _ids(self, at: int, row: Any) -> list[str]:
        return sorted(self.id_of(at, label) for label in several(row))

    def id_of(self, at: int, label: Any) -> str:
        """Return the id that a label names, known or not; the error names the row."""
        if not is_path(label) and self.style is None:
            name = as_id(label)
            if name == "":
                raise missing_label(at)
            return name
        steps = self._steps(at, label)
        return path_id(steps) if self.named else steps[-1]

    def _steps(self, at: int, label: Any) -> tuple[str, ...]:
        """Return a path, or a path as text, as its steps."""
        steps = self.style.cut(at, label) if self.style is not None and not is_path(label) else strip_padding(at, label)
        if not steps:
            raise empty_path(at)
        return steps

    def steps_below_root(self, at: int, label: Any) -> tuple[str, ...]:
        """Return the steps of a path of ids below the root, at which it may start."""
        steps = self._steps(at, label)
        root = self.taxonomy.root
        return steps[1:] if root != VIRTUAL_ROOT and steps[0] == self.taxonomy.ids[root] else steps

    def weights_of(self, class_weight: Any, traces: Traces) -> NDArray[np.float64]:
        """Return the weight of every row by its labels: of several, the mean.

        ``"balanced"`` weighs labels so that all count the same; a mapping gives weights of labels, others have 1.
        """
        owner = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        counts = np.bincount(traces.end_nodes, minlength=len(self.taxonomy)).astype(np.float64)
        if isinstance(class_weight, str):
            weights = len(owner) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        else:
            weights = np.ones(len(self.taxonomy))
            for label, weight in class_weight.items():
                name = self.id_of(0, label)
                if name in self.taxonomy:
                    weights[self.taxonomy.position(name)] = weight
        total = np.bincount(owner, weights[traces.end_nodes], len(traces))
        found: NDArray[np.float64] = total / np.maximum(np.diff(traces.row_offsets), 1)
        return found

    # Labels out

    def decode(self, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """Return nodes, positions in the taxonomy, as the user writes them; ``NOTHING`` becomes None or empty.

        Of several paths to a node the one that was written first counts: where rows have a trace, see
        :meth:`decode_traces`.
        """
        distinct, inverse = np.unique(nodes, return_inverse=True)
        if self.form == "plain" and self.values is not None and (distinct != NOTHING).all():
            return self.values[nodes]
        written = [self.label_of(None if node == NOTHING else self.path_to(node)) for node in distinct.tolist()]
        if self.form == "ids" and self.number and all(type(label) is int and label in INT64 for label in written):
            return np.array(written, np.int64)[inverse]
        return self._shaped(written)[inverse]

    def decode_traces(self, traces: Traces) -> NDArray[Any]:
        """Return the first trace of every row as the user writes labels, in a DAG by its path; of none, no answer."""
        has = np.diff(traces.row_offsets) > 0
        if not self.by_path:
            ends = np.full(len(traces), NOTHING, np.int64)
            ends[has] = traces.end_nodes[traces.row_offsets[:-1][has]]
            return self.decode(ends)
        first = np.where(has, traces.row_offsets[:-1], NOTHING)
        return self._shaped([self.label_of(path) for path in paths_of(traces, first)])

    def label_of(self, path: Sequence[int] | None) -> Any:
        """Return what a user writes for the end of a path of nodes below the root, or for no answer (None)."""
        if path is None:
            return () if self.form in ("paths", "table") else None
        if self.has_paths:
            steps = self.steps(path)
            return steps if self.style is None else self.style.written(steps)
        node = path[-1] if path else self.taxonomy.root
        if self.form == "plain" and self.values is not None:
            return self.values[node]
        return self._value(node, self.taxonomy.ids[node])

    def padded(self, label: Any) -> Any:
        """Return a label as it stands in a row of predictions: of a table, with empty cells at its end."""
        return (*label, *[""] * (self.columns - len(label))) if self.form == "table" else label

    def steps(self, path: Sequence[int]) -> tuple[Any, ...]:
        """Return a path of nodes below the root in names or ids, as the user has them; with the root if they do."""
        root = self.taxonomy.root
        starts_at_root = root != VIRTUAL_ROOT and (self.rooted or not path)
        texts = self.taxonomy.titles if self.named else self.taxonomy.ids
        return tuple(self._value(node, texts[node]) for node in ([root, *path] if starts_at_root else path))

    def _value(self, node: int, text: str) -> Any:
        """Return what the user writes for the text of a node; where labels are numbers, other nodes may be none."""
        if self.number:
            return int(text) if WHOLE_NUMBER.fullmatch(text) else text
        return self.typed.get(self.taxonomy.ids[node], text)

    def path_to(self, node: int) -> list[int]:
        """Return the nodes of a path to a node from below the root; in a DAG the one that was written first, or is."""
        if (given := self.wrote.get(self.taxonomy.ids[node])) is not None:
            return [self.taxonomy.position(step) for step in given]
        parents, offsets = self.taxonomy.parent_lists
        path: list[int] = []
        while node != self.taxonomy.root:
            path.append(node)
            above = parents[offsets[node] : offsets[node + 1]]
            if not len(above):
                break
            node = int(above[0])
        return path[::-1]

    def _shaped(self, written: Sequence[Any]) -> NDArray[Any]:
        """Return written labels as an array: a table as a 2-D one."""
        if self.form != "table":
            answers = np.empty(len(written), object)
            answers[:] = written
            return answers
        table = np.full((len(written), max([self.columns, *map(len, written)])), "", object)
        for row, steps in enumerate(written):
            table[row, : len(steps)] = steps
        return table


def paths_of(traces: Traces, chosen: NDArray[np.int64]) -> Iterator[list[int] | None]:
    """Yield the nodes of the chosen traces, by number; None for ``NOTHING``."""
    nodes, bounds = traces.layers.node[traces.neurons], traces.offsets
    for trace in chosen.tolist():
        yield None if trace == NOTHING else nodes[bounds[trace] : bounds[trace + 1]].tolist()
