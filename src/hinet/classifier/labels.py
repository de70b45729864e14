"""Labels of any container as rows, and their codec: ``y`` to traces and truth, and nodes back to the form of ``y``.

=========  ==============================================================  =================================
kind       a row of ``y``                                                  a prediction
=========  ==============================================================  =================================
plain      a label, without a taxonomy: all labels are siblings            the label
ids        the id of a node of the given taxonomy                          the id
paths      a tuple or list of steps from the top down, of any length       a tuple of steps
table      a row of a 2-D array, empty cells after the last step           a row of the same width
text       a path as text, ``A > B``                                       the text
=========  ==============================================================  =================================

A set of these means that the row has several labels; then predictions are sets, too. With a taxonomy the steps of a
path are its ids. Without one they are names, and a node is identified by its whole path.
:func:`read_labels` finds the codec of ``y``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.errors import HiNetError, LabelError, counted, did_you_mean, format_value, quoted
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import (
    PATH_MARK,
    PATH_SEP,
    VIRTUAL_ROOT,
    Layers,
    Taxonomy,
    as_id,
    has_paths,
    path_id,
    split_path,
    strip_padding,
)
from hinet.taxonomy.draft import find_separator, path_error

Read = TypeVar("Read")
SetForm = Literal["closed", "deepest", "any"]  # sets with all ancestors; without any; with some
AUTO = "auto"  # the rule of hinet.taxonomy.draft
PathSep = Literal["auto"] | str | None
NOTHING = -1  # node of a row without a label or an answer
LabelKind = Literal["plain", "ids", "paths", "table", "text"]
WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]*")
INT64 = range(-(1 << 63), 1 << 63)
SETS = (set, frozenset)


def checked_labels(y: Any, count: int) -> Any:
    """Return labels in a container with a length, after checking that there is one per row."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    if y is None:
        raise HiNetError("the classifier requires y to be passed, but the target y is None; give one label per row")
    if not hasattr(y, "__len__"):
        y = np.asarray(y)
    if getattr(y, "ndim", 1) == 0:
        raise HiNetError(f"y: expected a list of labels, got {format_value(y.item())}; give one label per row")
    if len(y) != count:
        raise HiNetError(f"{counted(count, 'row')} and {counted(len(y), 'label')}; give one label per row")
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind == "f" and np.ndim(y) == 1 and not np.isfinite(y).all():
        row = int(np.flatnonzero(~np.isfinite(y))[0])
        value = "infinity" if np.isinf(np.asarray(y)[row]) else "NaN"
        raise LabelError(f"row {row}: Input y contains {value}; leave the row out or name its label")
    if kind and hasattr(y, "isna") and not isinstance(y.dtype, np.dtype) and y.isna().any():  # numbers or NA
        raise missing_label(int(np.argmax(y.isna())))
    shape: tuple[int, ...] = getattr(y, "shape", ())
    try:
        if len(shape) == 2 and shape[1] == 1 and not hasattr(y, "to_pylist"):
            y = column_or_1d(y, warn=True)
        if kind and kind != "O" and np.ndim(y) == 1:  # scikit-learn does not support paths and sets
            check_classification_targets(y)
    except (TypeError, ValueError) as error:
        raise LabelError(str(error)) from error
    return y


def missing_label(row: int) -> LabelError:
    """Return the error for a row without a label."""
    return LabelError(f"row {row}: the label is missing; leave the row out or name its label")


def paths_as_text(y: Any) -> list[str]:
    r"""Return paths, in any container, as texts such as ``A > B > C``; texts stay as they are.

    The classifier reads such texts as paths, and all of scikit-learn reads them as labels: it can stratify them
    (``cv=5``), score them (``scoring="accuracy"``) and report on them, which it cannot with tuples and level columns.

    >>> paths_as_text([("Food", "Bread"), ("Toys", ""), ("Size > 3",)])
    ['Food > Bread', 'Toys', 'Size \\> 3']
    """
    rows, _ = rows_of(y)
    for row, label in enumerate(rows):
        if isinstance(label, SETS):
            raise LabelError(f"row {row}: several labels cannot be one text; give each row one path")
    return [label if isinstance(label, str) else path_id(steps_of(row, label)) for row, label in enumerate(rows)]


def steps_of(row: int, label: Any) -> tuple[str, ...]:
    """Return the steps of a path, at least one; errors name the row."""
    steps = strip_padding(row, label)
    if not steps:
        raise LabelError(f"row {row}: the path is empty; name at least one node")
    return steps


def rows_of(y: Any) -> tuple[Sequence[Any], bool]:
    """Return ``y`` as a sequence of rows, and whether it was a 2-D table."""
    if isinstance(y, (str, bytes)):
        raise LabelError(f"expected a list of labels, got the text {quoted(str(y))}; put it into a list")
    if isinstance(y, (list, tuple)):
        return y, False
    if hasattr(y, "to_pylist") and not hasattr(y, "columns"):  # an Arrow array
        return y.to_pylist(), False
    if hasattr(y, "to_pylist"):  # an Arrow table
        array = np.empty(y.shape, object)
        for level, column in enumerate(y.columns):
            array[:, level] = column.to_pylist()
    else:
        array = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise LabelError(
            f"expected one label per row, or one path per row in a 2-D array; got an array of {array.ndim} axes"
        )
    if array.ndim == 2 and array.shape[1] > 2 and array.dtype.kind in "bi" and np.isin(array, (0, 1)).all():
        raise LabelError("y looks like a matrix of zeros and ones; give each row its labels, several as a set")
    return array.tolist(), array.ndim == 2


def is_text(label: Any) -> bool:
    """Return whether a label is text or a path of texts, so that equal labels name the same node."""
    return type(label) is str or (type(label) is tuple and all(type(step) is str for step in label))


def map_labels(rows: Sequence[Any], read: Callable[[int, Any], Read]) -> list[Read]:
    """Return ``read(row, label)`` for every row, computed once for equal texts and paths."""
    known: dict[Any, Read] = {}
    keys = [label if is_text(label) else row for row, label in enumerate(rows)]  # other labels may not be hashable
    for row, key in enumerate(keys):
        if key not in known:
            known[key] = read(row, rows[row])
    return [known[key] for key in keys]


def distinct_labels(rows: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the labels of all rows, each with its first row; labels that are not text may be repeated."""
    distinct: dict[Any, tuple[int, Any]] = {}
    for row, labels in enumerate(rows):
        for label in labels_of_row(labels):
            distinct.setdefault(label if is_text(label) else len(distinct), (row, label))
    return [*distinct.values()]


def labels_of_row(row: Any) -> Iterable[Any]:
    """Return the labels of a row: the elements of a set, or the label itself."""
    return row if isinstance(row, SETS) else (row,)


def has_sets(y: Any) -> bool:
    """Return whether a row has several labels."""
    rows, _ = rows_of(y)
    return any(isinstance(row, SETS) and len(row) > 1 for row in rows)


def is_path(label: Any) -> bool:
    """Return whether a label is a path by its type."""
    return isinstance(label, (tuple, list, np.ndarray))


def is_missing(label: Any) -> bool:
    """Return whether a label is None, NaN, an empty text, or a path of only such steps."""
    return not any(as_id(step).strip() for step in label) if is_path(label) else as_id(label) == ""


def all_paths(rows: Sequence[Any], first: bool | None = None) -> bool:
    """Return whether labels are paths, as earlier ones are if ``first``; raise LabelError if only some are."""
    for row, labels in enumerate(rows):
        for label in labels_of_row(labels):
            if first is None:
                first = is_path(label)
            elif first != is_path(label):
                raise LabelError(f"row {row}: {quoted(str(label))} and earlier rows mix paths with single labels")
    return bool(first)


def prediction_value(value: Any) -> Any:
    """Return a label or step as predictions have it: a bool, an int, a float that is not whole, or text."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return int(value) if value.is_integer() else float(value)
    return as_id(value)


def values_by_node(written: Iterable[tuple[int, str, Any]]) -> dict[str, Any]:
    """Return the value of every node in predictions, given rows, nodes and the labels written for them.

    Raises
    ------
    LabelError
        If values of different types were written for a node, such as ``"1"`` and 1; the message names the row.
    """
    values: dict[str, Any] = {}
    for row, node, label in written:
        value = prediction_value(label)
        if type(values.setdefault(node, value)) is not type(value):
            raise LabelError(
                f"row {row}: {value!r} and the {values[node]!r} of an earlier row are different labels with the same "
                "text; write both as text or both as numbers"
            )
    return values


@dataclass(frozen=True)
class TextStyle:
    """Text form of paths: the mark to split labels at, and the separator to write between steps."""

    mark: str
    between: str = PATH_SEP
    spelled: Mapping[tuple[str, ...], str] = field(default_factory=dict)  # texts of the user that differ

    def split(self, row: int, label: Any) -> tuple[str, ...]:
        """Return the steps of a label; errors name the row."""
        text = as_id(label)
        if text.strip() == "":
            raise missing_label(row)
        if reason := path_error(text, self.mark):
            raise LabelError(f"row {row}: {reason}, or set `path_sep=None` if labels are not paths")
        return split_path(text, self.mark)

    def written(self, steps: Sequence[str]) -> str:
        """Return a path as the user wrote it, or in the usual form."""
        steps = tuple(map(str, steps))
        return self.spelled.get(steps) or self._usual(steps)

    def _usual(self, steps: Sequence[str]) -> str:
        r"""Return a path as text that can be split again: with a space between ``a\`` and ``>``, not ``\>``."""
        if self.between[:1].isspace():
            return path_id(steps, self.between)
        return path_id([*(f"{step} " if step.endswith("\\") else step for step in steps[:-1]), steps[-1]], self.between)

    def with_labels(self, labels: Iterable[str]) -> TextStyle:
        """Return the style that also knows these labels; of several texts of a path the first counts."""
        first: dict[tuple[str, ...], str] = {}
        for text in labels:
            first.setdefault(split_path(text, self.mark), text)
        spelled = {steps: text for steps, text in first.items() if self._usual(steps) != text}
        return replace(self, spelled={**spelled, **self.spelled})


def text_style(labels: Sequence[Any], path_sep: PathSep, *, has_taxonomy: bool) -> TextStyle | None:
    """Return the style of labels that are paths as text, or None if they are not."""
    texts = [label for label in labels if isinstance(label, str)]
    if path_sep is None or not texts or (path_sep == AUTO and (has_taxonomy or not has_paths(texts))):
        return None
    mark = PATH_MARK if path_sep == AUTO else path_sep
    return TextStyle(mark, find_separator(texts, mark)).with_labels(texts)


@dataclass(frozen=True, eq=False)
class Truth:
    """The true labels of rows as nodes of the taxonomy, whether the classifier can predict them or not.

    A label that is not in an inferred taxonomy is represented by its deepest known ancestor, if any, and is not
    ``exact``: no prediction can match it. ``names`` then has the ids of all labels.
    """

    taxonomy: Taxonomy
    offsets: NDArray[np.int64]  # (n + 1,)
    nodes: NDArray[np.int64]  # row i has offsets[i]:offsets[i + 1]; NOTHING if no node is known
    exact: NDArray[np.bool_]  # same length as nodes
    paths: tuple[tuple[str, ...], ...] | None = None  # ids below the root, if rows are paths in a DAG
    names: NDArray[np.object_] | None = None  # same length as nodes; None if all labels are known

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def owner(self) -> NDArray[np.int64]:
        """The row of every node."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def take(self, rows: NDArray[Any]) -> Truth:
        """Return the chosen rows, given a mask or indices."""
        entries, counts = gather(np.arange(len(self.nodes)), self.offsets, np.arange(len(self))[rows])
        paths = None if self.paths is None else tuple(self.paths[row] for row in np.arange(len(self))[rows].tolist())
        names = None if self.names is None else self.names[entries]
        return Truth(self.taxonomy, offsets_of(counts), self.nodes[entries], self.exact[entries], paths, names)

    def are_right(self, nodes: NDArray[np.int64], *, or_above: bool = False) -> NDArray[np.bool_]:
        """Return whether the node of every row is one of its labels or, with ``or_above``, an ancestor of one."""
        known = np.flatnonzero(self.nodes != NOTHING if or_above else self.exact)
        labels, owner = self.nodes[known], self.owner[known]
        if or_above:
            distinct, inverse = np.unique(labels, return_inverse=True)
            above, counts = gather(*self.taxonomy.ancestor_lists(distinct), inverse)
            labels, owner = above.astype(np.int64), np.repeat(owner, counts)
        right = np.zeros(len(self), bool)
        right[owner[labels == nodes[owner]]] = True
        return right

    def has(self, rows: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each node is a label of the row next to it."""
        size = np.int64(len(self.taxonomy))
        return np.isin(rows * size + nodes, self.owner[self.exact] * size + self.nodes[self.exact])

    def ids(self) -> list[tuple[str, ...]]:
        """Return the ids of the known labels of every row."""
        known = self.nodes != NOTHING
        names = [self.taxonomy.ids[node] for node in self.nodes[known].tolist()]
        bounds = offsets_of(np.bincount(self.owner[known], minlength=len(self))).tolist()
        return [tuple(names[start:end]) for start, end in pairwise(bounds)]

    def whole_ids(self) -> list[tuple[str, ...]]:
        """Return the ids of all labels of every row, including unknown ones."""
        if self.names is None:
            return self.ids()
        return [tuple(self.names[start:end].tolist()) for start, end in pairwise(self.offsets.tolist())]


@dataclass(frozen=True, eq=False)
class LabelCodec:
    """Converts ``y`` to traces, and nodes to labels as the user writes them."""

    kind: LabelKind
    layers: Layers
    number: bool = False  # whether labels were whole numbers
    columns: int = 0  # number of columns of a table
    named_steps: bool = False  # whether steps of paths are names, not ids
    values: NDArray[Any] | None = None  # label of each node, if labels are plain
    from_root: bool = False  # whether paths start at the root itself, not below it
    style: TextStyle | None = None  # text form of paths
    first_paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # first given path to each id of a DAG
    typed_values: Mapping[str, bool | int | float] = field(default_factory=dict)  # values that are not text, by id
    sets: SetForm | None = None  # form of the sets, if rows have several labels

    @property
    def taxonomy(self) -> Taxonomy:
        """Whose nodes the labels are."""
        return self.layers.taxonomy

    @property
    def inferred(self) -> bool:
        """Whether the taxonomy was inferred from the labels."""
        return self.kind == "plain" or self.named_steps

    @property
    def has_paths(self) -> bool:
        """Whether a label is written as its whole path."""
        return self.kind in ("paths", "table", "text")

    @property
    def by_path(self) -> bool:
        """Whether a label may be one of several paths to a node of a DAG."""
        return self.has_paths and not self.taxonomy.is_tree and self.sets is None

    @cached_property
    def label_nodes(self) -> NDArray[np.int64]:
        """Nodes at which a trace may end, as ascending positions in the taxonomy."""
        nodes = np.unique(self.layers.node[self.layers.ends])
        return nodes[nodes >= 0].astype(np.int64)

    @property
    def label_ids(self) -> list[str]:
        """The ids of the nodes at which a trace may end."""
        return [self.taxonomy.ids[node] for node in self.label_nodes.tolist()]

    # From labels

    def encode(self, y: Any) -> Traces:
        """Return labels as traces; raise LabelError, which names the row, for invalid labels."""
        rows, _ = rows_of(y)
        if self.sets is not None or any(isinstance(row, SETS) for row in rows):
            return Traces.encode_sets(self.layers, map_labels(rows, self._label_ids))
        if self.has_paths and not self.named_steps:
            return Traces.encode_paths(self.layers, map_labels(rows, self.steps_below_root))
        return Traces.encode(self.layers, map_labels(rows, self.id_of))

    def truth(self, y: Any, *, allow_missing: bool = False) -> Truth:
        """Return labels as nodes, including labels that no training row had.

        With ``allow_missing`` a row may have no label, as in predictions.

        Raises
        ------
        LabelError
            If a label is missing or not in a given taxonomy; the message names the row. An inferred taxonomy need not
            have all labels.
        """
        rows, _ = rows_of(y)
        if allow_missing:
            rows = [frozenset() if is_missing(row) else row for row in rows]
        ids = map_labels(rows, self._label_ids)
        offsets = offsets_of(np.array([len(row) for row in ids], np.int64))
        names = [name for row in ids for name in row]
        exact = np.array([name in self.taxonomy for name in names], bool)
        if exact.all():
            return Truth(self.taxonomy, offsets, self.taxonomy.positions(names), exact, self._given_paths(rows))
        if not self.inferred:
            Traces.encode_sets(self.layers, ids)  # raises an error that names the first unknown label and its row
        nodes = np.array([self._nearest_known(name) for name in names], np.int64)
        return Truth(self.taxonomy, offsets, nodes, exact, names=np.array(names, object))

    def taxonomy_with(self, labels: Iterable[Sequence[str]]) -> Taxonomy:
        """Return the taxonomy extended by unknown labels, given as ids, and their ancestors."""
        parents: dict[str, str | None] = {}
        for label in dict.fromkeys(name for row in labels for name in row):
            name, unknown = label, []
            while name and name not in self.taxonomy and name not in parents:
                above = name.rpartition(PATH_SEP)[0] if self.named_steps else ""
                unknown.append((name, above or None))
                name = above
            parents.update(reversed(unknown))
        return self.taxonomy.with_nodes(parents) if parents else self.taxonomy

    def _given_paths(self, rows: Sequence[Any]) -> tuple[tuple[str, ...], ...] | None:
        """Return the checked paths of rows in a DAG if all rows are paths, else None."""
        if not self.by_path or not all(is_path(row) or (self.style and not isinstance(row, SETS)) for row in rows):
            return None
        paths = tuple(map_labels(rows, self.steps_below_root))
        Traces.along(self.layers, paths)  # raises if a path is not in the taxonomy
        return paths

    def _nearest_known(self, name: str) -> int:
        """Return the node of an id or, for a path of names, its deepest known ancestor."""
        while name not in self.taxonomy:
            name, has_parent, _ = name.rpartition(PATH_SEP)
            if not has_parent or not self.named_steps:
                return NOTHING
        return self.taxonomy.position(name)

    def predictable(self, truth: Truth) -> NDArray[np.bool_]:
        """Return which rows have labels that can all be predicted."""
        unknown = ~(np.isin(truth.nodes, self.label_nodes) & truth.exact)
        predictable: NDArray[np.bool_] = np.bincount(truth.owner[unknown], minlength=len(truth)) == 0
        return predictable

    def traces_of(self, truth: Truth) -> Traces:
        """Return predictable labels as traces: in a DAG along the given paths, if there are any."""
        if truth.paths is not None:
            return Traces.encode_paths(self.layers, truth.paths)
        return Traces.encode_sets(self.layers, truth.ids())

    def _label_ids(self, row: int, labels: Any) -> list[str]:
        return sorted(self.id_of(row, label) for label in labels_of_row(labels))

    def id_of(self, row: int, label: Any) -> str:
        """Return the id of a label, known or not; errors name the row."""
        if not is_path(label) and self.style is None:
            name = as_id(label)
            if name == "":
                raise missing_label(row)
            return name
        steps = _steps(row, label, self.style)
        return path_id(steps) if self.named_steps else steps[-1]

    def steps_below_root(self, row: int, label: Any) -> tuple[str, ...]:
        """Return the steps of a path of ids without the root."""
        steps = _steps(row, label, self.style)
        root = self.taxonomy.root
        return steps[1:] if root != VIRTUAL_ROOT and steps[0] == self.taxonomy.ids[root] else steps

    def branch(self, names: Any) -> NDArray[np.bool_]:
        """Return whether each node is at or below one of some nodes, named by id or as a label; a list has several."""
        names = names.tolist() if hasattr(names, "tolist") else names
        named = names if isinstance(names, list) else [names]
        mark = np.zeros(len(self.taxonomy), bool)
        below = np.array([self._position(name) for name in named], np.int64)
        while len(below):
            mark[below] = True
            children = np.unique(gather(*self.taxonomy.child_lists, below)[0])
            below = children[~mark[children]].astype(np.int64)
        return mark

    def _position(self, name: Any) -> int:
        """Return the node with an id, or of a label."""
        known = isinstance(name, str) and name in self.taxonomy
        return self.taxonomy.position(name if known else self.id_of(0, name))

    def weights_of(
        self, class_weight: Any, traces: Traces, counts: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the weight of every row, the mean weight of its labels.

        ``"balanced"`` gives all labels the same total weight; a mapping has weights of labels, by default 1. ``counts``
        is the number of rows per node, if these traces are not all rows.
        """
        owner = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        if counts is None:
            counts = np.bincount(traces.end_nodes, minlength=len(self.taxonomy)).astype(np.float64)
        if isinstance(class_weight, str):
            weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
        else:
            weights = np.ones(len(self.taxonomy))
            for label, weight in class_weight.items():
                name = self.id_of(0, label)
                if name in self.taxonomy:
                    weights[self.taxonomy.position(name)] = weight
        total = np.bincount(owner, weights[traces.end_nodes], len(traces))
        row_weights: NDArray[np.float64] = total / np.maximum(np.diff(traces.row_offsets), 1)
        return row_weights

    def check_class_weight(self, class_weight: Any) -> None:
        """Raise LabelError if a mapping has a label that cannot be predicted."""
        if not isinstance(class_weight, Mapping):
            return
        known = {*self.label_ids}
        for label in class_weight:
            if (name := self.id_of(0, label)) not in known:
                remedy = did_you_mean(name, known) or "; weigh labels of y, or leave it out"
                raise LabelError(f"class_weight: {quoted(name)} is not among the labels{remedy}")

    # To labels

    def decode(self, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """Return nodes as the user writes them; ``NOTHING`` becomes None or an empty path.

        If there are several paths to a node, it is the first given one; see also :meth:`decode_traces`.
        """
        distinct, inverse = np.unique(nodes, return_inverse=True)
        if self.kind == "plain" and self.values is not None and (distinct != NOTHING).all():
            return self.values[nodes]
        written = [self.label_of(None if node == NOTHING else self.path_to(node)) for node in distinct.tolist()]
        if self.kind == "ids" and self.number and all(type(label) is int and label in INT64 for label in written):
            return np.array(written, np.int64)[inverse]
        return self._as_array(written)[inverse]

    def decode_traces(self, traces: Traces) -> NDArray[Any]:
        """Return the first trace of every row as the user writes labels, in a DAG by its path."""
        first = np.where(np.diff(traces.row_offsets) > 0, traces.row_offsets[:-1], NOTHING)
        if not self.by_path:
            return self.decode(np.append(traces.end_nodes, NOTHING)[first].astype(np.int64))  # NOTHING is the last
        return self._as_array([self.label_of(path) for path in paths_of(traces, first)])

    def decode_sets(self, nodes: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[Any]:
        """Return the set of labels of every row as the user writes them; ``offsets`` split the nodes by row."""
        distinct, inverse = np.unique(nodes, return_inverse=True)
        written = [self.label_of(self.path_to(node)) for node in distinct.tolist()]
        sets = np.empty(len(offsets) - 1, object)
        for row, (start, end) in enumerate(pairwise(offsets.tolist())):
            sets[row] = {written[number] for number in inverse[start:end].tolist()}
        return sets

    def label_of(self, path: Sequence[int] | None) -> Any:
        """Return a path of nodes below the root, or None for no answer, as the user writes labels."""
        if path is None:
            return () if self.kind in ("paths", "table") else None
        if self.has_paths:
            steps = self.steps(path)
            return steps if self.style is None else self.style.written(steps)
        node = path[-1] if path else self.taxonomy.root
        if self.kind == "plain" and self.values is not None:
            return self.values[node]
        return self._value(node, self.taxonomy.ids[node])

    def padded(self, label: Any) -> Any:
        """Return a label as in a row of predictions: in a table, padded with empty cells."""
        return (*label, *[""] * (self.columns - len(label))) if self.kind == "table" else label

    def steps(self, path: Sequence[int]) -> tuple[Any, ...]:
        """Return a path of nodes below the root as names or ids; with the root if the user's paths have it."""
        root = self.taxonomy.root
        from_root = root != VIRTUAL_ROOT and (self.from_root or not path)
        texts = self.taxonomy.titles if self.named_steps else self.taxonomy.ids
        return tuple(self._value(node, texts[node]) for node in ([root, *path] if from_root else path))

    def _value(self, node: int, text: str) -> Any:
        """Return the text of a node as the user writes it: perhaps as a number."""
        if self.number:
            return int(text) if WHOLE_NUMBER.fullmatch(text) else text
        return self.typed_values.get(self.taxonomy.ids[node], text)

    def path_to(self, node: int) -> list[int]:
        """Return the nodes of a path to a node, without the root; in a DAG the first given one, or by first parents."""
        if (first_path := self.first_paths.get(self.taxonomy.ids[node])) is not None:
            return [self.taxonomy.position(step) for step in first_path]
        parents, offsets = self.taxonomy.parent_lists
        path: list[int] = []
        while node != self.taxonomy.root:
            path.append(node)
            above = parents[offsets[node] : offsets[node + 1]]
            if not len(above):
                break
            node = int(above[0])
        return path[::-1]

    def _as_array(self, written: Sequence[Any]) -> NDArray[Any]:
        """Return labels as an array, which is 2-D for a table."""
        if self.kind != "table":
            answers = np.empty(len(written), object)
            answers[:] = written
            return answers
        table = np.full((len(written), max([self.columns, *map(len, written)])), "", object)
        for row, steps in enumerate(written):
            table[row, : len(steps)] = steps
        return table


def paths_of(traces: Traces, chosen: NDArray[np.int64]) -> Iterator[list[int] | None]:
    """Yield the nodes of the chosen traces, given their indices; None for ``NOTHING``."""
    nodes, bounds = traces.layers.node[traces.neurons], traces.offsets
    for trace in chosen.tolist():
        yield None if trace == NOTHING else nodes[bounds[trace] : bounds[trace + 1]].tolist()


Labels = Sequence[tuple[int, Any]]  # distinct labels, each with its first row


def read_labels(
    y: Any, taxonomy: Taxonomy | None, path_sep: PathSep = AUTO, like: LabelCodec | None = None
) -> tuple[LabelCodec, Traces]:
    """Return the codec of training labels, and the labels as traces.

    ``path_sep`` separates the steps of paths as text, see :mod:`hinet.taxonomy.draft`; None never splits texts.
    ``like`` is the codec of all labels, if these are only some of them.

    Raises
    ------
    LabelError
        If a label is missing or not in the taxonomy, or if paths and other labels are mixed; the message names the row.
    """
    rows, is_table = rows_of(y)
    if not len(rows):
        raise HiNetError("there are no rows: y is empty; give at least one labelled row")
    labels = distinct_labels(rows)
    paths = all_paths(rows)
    if like is not None:
        style = like.style
    else:
        texts = [] if paths else [label for _, label in labels]
        style = text_style(texts, path_sep, has_taxonomy=taxonomy is not None)
    if style is not None:
        codec = _path_codec(labels, taxonomy, "text", style=style)
    elif paths:
        number = _are_integers(labels)
        codec = _path_codec(labels, taxonomy, "table" if is_table else "paths", number=number)
    elif taxonomy is None:
        codec = _plain_codec(labels)
    else:
        number = _are_integers(labels)
        ends = _known_ids(taxonomy, {as_id(label) for _, label in labels})
        codec = LabelCodec("ids", Layers.of(taxonomy, ends), number)
    if like is not None:
        typed = {node: value for node, value in like.typed_values.items() if node in codec.taxonomy}
        codec = replace(codec, number=like.number, columns=like.columns, from_root=like.from_root, typed_values=typed)
    else:
        codec = replace(codec, typed_values=_typed_values(codec, labels))
    return codec, codec.encode(y)


def read_with_classes(y: Any, classes: Any, taxonomy: Taxonomy | None, path_sep: PathSep = AUTO) -> LabelCodec:
    """Return the codec of training labels and all ``classes``; errors about classes start with "classes"."""
    with naming("classes: "):
        more, _ = rows_of(classes)
        if path_sep == AUTO and taxonomy is None and has_paths(more):
            path_sep = PATH_MARK  # labels are paths if classes are, even if none in y looks like one
    codec, _ = read_labels(y, taxonomy, path_sep)
    with naming("classes: "):
        codec = widen_codec(codec, classes)
        codec.encode(classes)
    return codec


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Start the messages of errors about labels with the name of the argument."""
    try:
        yield
    except LabelError as error:
        raise LabelError(f"{prefix}{error}") from None


def _are_integers(labels: Labels) -> bool:
    """Return whether all labels, or all steps of paths, are whole numbers or missing.

    Predictions are then whole numbers as well; tables may have 7 as 7.0.
    """
    steps = (step for _, label in labels for step in (label if is_path(label) else (label,)))
    return all(type(prediction_value(step)) is int for step in steps if as_id(step) != "")


def _typed_values(codec: LabelCodec, labels: Labels) -> dict[str, Any]:
    """Return the labels and steps that are not text, by the id of their node."""
    if codec.number or codec.kind in ("plain", "text") or all(is_text(label) for _, label in labels):
        return {}
    values = values_by_node(entry for row, label in labels for entry in _label_nodes(codec, row, label))
    return {node: value for node, value in values.items() if type(value) is not str}


def _label_nodes(codec: LabelCodec, row: int, label: Any) -> Iterator[tuple[int, str, Any]]:
    """Yield the row, the id and the written value of every node of a label."""
    above = ""
    for step in label if is_path(label) else (label,):
        if as_id(step).strip() == "":
            return
        node = above + path_id([as_id(step)]) if codec.named_steps else as_id(step)
        above = node + PATH_SEP
        yield row, node, step


def codec_of_sets(codec: LabelCodec, form: SetForm) -> LabelCodec:
    """Return the codec for rows that may have several labels, in sets of the given form."""
    return replace(codec, layers=Layers.of(codec.taxonomy, codec.label_ids, multilabel=True), sets=form)


def widen_codec(codec: LabelCodec, y: Any) -> LabelCodec:
    """Return the codec extended by the labels of ``y``: an inferred taxonomy grows, a given one must have them."""
    rows, is_table = rows_of(y)
    more = distinct_labels(rows)
    if codec.inferred and codec.style is None:
        all_paths(rows, first=codec.has_paths)
    if codec.kind == "table" and is_table:
        codec = replace(codec, columns=max([codec.columns, *map(len, rows)]))
    if not codec.inferred:
        ends = {codec.id_of(row, label) for row, label in more} | {*codec.label_ids}
        later = _first_paths((codec.steps_below_root(row, label) for row, label in more), codec)
        layers = Layers.of(codec.taxonomy, _known_ids(codec.taxonomy, ends))
        typed_values = {**_typed_values(codec, more), **codec.typed_values}
        wider = replace(codec, layers=layers, first_paths={**later, **codec.first_paths}, typed_values=typed_values)
    else:
        wider = _widen_inferred(codec, more)
    return wider if codec.sets is None else codec_of_sets(wider, codec.sets)


def _widen_inferred(codec: LabelCodec, more: Labels) -> LabelCodec:
    paths = [codec.path_to(node) for node in codec.label_nodes.tolist()]
    known = [(0, codec.steps(path) if codec.named_steps else codec.label_of(path)) for path in paths]
    ends = {*codec.label_ids}
    new = [(row, label) for row, label in more if codec.id_of(row, label) not in ends]
    if not codec.named_steps:
        wider = _plain_codec([*known, *new])
        before, after = codec.values, wider.values
        if before is not None and after is not None and after.dtype.kind != before.dtype.kind:
            raise LabelError(f"the labels were of kind {before.dtype} so far, some are not; give labels of one kind")
        return wider
    if codec.number and not _are_integers(more):
        raise LabelError("the labels were whole numbers so far, some are not; give labels of one kind")
    style = codec.style and codec.style.with_labels(label for _, label in new if isinstance(label, str))
    wider = _path_codec([*known, *new], None, codec.kind, number=codec.number, style=style)
    later = {node: value for node, value in _typed_values(codec, more).items() if node not in codec.taxonomy}
    return replace(wider, columns=codec.columns, typed_values={**codec.typed_values, **later})


def codec_in_taxonomy(codec: LabelCodec, taxonomy: Taxonomy, renamed: Mapping[str, str]) -> LabelCodec:
    """Return the codec for a changed taxonomy: the labels that are still in it, and all its leaves."""
    if codec.inferred:
        raise HiNetError("the taxonomy was inferred from the labels; fit with taxonomy=... to be able to change it")
    known = _known_ids(taxonomy, {renamed.get(end, end) for end in codec.label_ids})
    layers = Layers.of(taxonomy, known, multilabel=codec.sets is not None)
    moved = replace(codec, layers=layers, from_root=codec.from_root and taxonomy.root != VIRTUAL_ROOT)
    paths = (tuple(renamed.get(step, step) for step in path) for path in codec.first_paths.values())
    typed = {node: value for node, value in codec.typed_values.items() if node in taxonomy}
    return replace(moved, first_paths=_first_paths(paths, moved), typed_values=typed)


def _first_paths(paths: Iterable[tuple[str, ...]], codec: LabelCodec) -> dict[str, tuple[str, ...]]:
    """Return the first path below the root to every label of a DAG, ignoring paths that are not in the taxonomy."""
    if not codec.by_path:
        return {}
    taxonomy, first_paths = codec.taxonomy, {}
    tops = {taxonomy.ids[top] for top in taxonomy.tops.tolist()}
    for path in dict.fromkeys(paths):
        if not path or path[-1] in first_paths or path[0] not in tops or path[-1] not in taxonomy:
            continue
        if all(below in taxonomy and above in taxonomy.parents(below) for above, below in pairwise(path)):
            first_paths[path[-1]] = path
    return first_paths


def _steps(row: int, label: Any, style: TextStyle | None) -> tuple[str, ...]:
    """Return a path, or a path as text, as its steps."""
    return steps_of(row, label) if style is None or is_path(label) else style.split(row, label)


def _path_codec(
    labels: Labels, taxonomy: Taxonomy | None, kind: LabelKind, *, number: bool = False, style: TextStyle | None = None
) -> LabelCodec:
    """Return the codec of paths of ids in a given taxonomy, or of names, which form a taxonomy with a virtual root."""
    split = [(row, _steps(row, label, style)) for row, label in labels]
    columns = max(len(label) for _, label in labels) if kind == "table" else 0
    if taxonomy is not None:
        layers = Layers.of(taxonomy, _known_ids(taxonomy, {path[-1] for _, path in split}))
        codec = LabelCodec(kind, layers, number, columns, from_root=_start_at_root(split, taxonomy), style=style)
        return replace(codec, first_paths=_first_paths((codec.steps_below_root(*label) for label in split), codec))
    paths: Iterable[tuple[str, ...]] = dict.fromkeys(path for _, path in split)
    ends = sorted({path_id(path) for path in paths})
    if style is not None:  # classes_ are sorted as text, as in scikit-learn
        paths = sorted({path[:end] for path in paths for end in range(1, len(path) + 1)}, key=style.written)
    layers = Layers.of(Taxonomy.from_paths(paths).under_virtual_root(), ends)
    return LabelCodec(kind, layers, number, columns, named_steps=True, style=style)


def _start_at_root(paths: Sequence[tuple[int, tuple[str, ...]]], taxonomy: Taxonomy) -> bool:
    """Return whether paths start at the root of the taxonomy; raise LabelError if only some do.

    The root alone is always a valid path.
    """
    if taxonomy.root == VIRTUAL_ROOT:
        return False
    root = taxonomy.ids[taxonomy.root]
    from_root = any(path[0] == root for _, path in paths if len(path) > 1)
    for row, path in paths:
        if from_root and path[0] != root:
            raise LabelError(
                f"row {row}: the path {quoted(path_id(path))} starts below the root, where others start at "
                f"{quoted(root)}; start all paths at the same node"
            )
    return from_root


def _plain_codec(labels: Labels) -> LabelCodec:
    """Return the codec of labels that are siblings below a virtual root."""
    for row, label in labels:
        if is_missing(label):
            raise missing_label(row)
        if not isinstance(label, (str, bool, int, float, np.bool_, np.number)):
            raise LabelError(
                f"row {row}: labels are text or numbers; got {type(label).__name__} {quoted(str(label))}: "
                "write them as text"
            )
    values = _sorted_values(values_by_node((row, as_id(label), label) for row, label in labels), labels)
    taxonomy = Taxonomy.from_edges([(None, value) for value in values.tolist()])
    return LabelCodec("plain", Layers.of(taxonomy), values=values)


def _sorted_values(by_text: Mapping[str, Any], labels: Labels) -> NDArray[Any]:
    """Return distinct plain labels in order: as a numeric or boolean array if possible, else as objects."""
    distinct = list(by_text.values())
    kinds = {type(value) for value in distinct}
    if kinds == {bool} or kinds <= {int, float}:
        values = np.unique(np.array([label for _, label in labels]))
        whole = all(isinstance(label, (int, np.integer)) for _, label in labels)
        expected = "b" if kinds == {bool} else "iu" if whole else "f"
        if values.dtype.kind in expected and set(values.tolist()) == set(distinct):
            return values
        distinct.sort()
    else:
        distinct = [by_text[text] for text in sorted(by_text)]
    values = np.empty(len(distinct), object)
    values[:] = distinct
    return values


def _known_ids(taxonomy: Taxonomy, ends: set[str]) -> list[str]:
    """Return the ends that are in the taxonomy; encoding raises an error with the row for the others."""
    return sorted(end for end in ends if end in taxonomy)
