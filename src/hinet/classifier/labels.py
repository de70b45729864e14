"""Every form of ``y`` that users bring -> a taxonomy and traces, and nodes back to the form they came in.

=========  ==============================================================  =================================
form       a row of ``y``                                                  a prediction
=========  ==============================================================  =================================
plain      a label, without a taxonomy: all labels stand side by side      the label
ids        the id of a node of the given taxonomy                          the id
paths      a tuple or list of steps from the top down, of any length       a tuple of steps
table      a row of a 2-D array, empty cells after the last step           a row of the same width
=========  ==============================================================  =================================

A set of these in a row stands for several labels. With a taxonomy the steps of a path are its ids; without one they are
names, and a node is known by its whole path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.truth import NOTHING, Truth
from hinet.data import Traces
from hinet.errors import HiNetError, LabelError, shown
from hinet.ragged import offsets_of
from hinet.taxonomy import PATH_SEP, Layers, Taxonomy, as_id, path_id, unpadded

Form = Literal["plain", "ids", "paths", "table"]


@dataclass(frozen=True, eq=False)
class LabelForm:
    """How a user writes labels: what turns ``y`` into traces, and nodes into what the user would have written."""

    form: Form
    layers: Layers
    number: bool = False  # whether labels were whole numbers
    columns: int = 0  # of a table
    named: bool = False  # whether steps of paths are names, not ids
    values: NDArray[Any] | None = None  # of plain labels: the label of each node

    @property
    def taxonomy(self) -> Taxonomy:
        """Whose nodes the labels are."""
        return self.layers.taxonomy

    @property
    def inferred(self) -> bool:
        """Whether the taxonomy was made from the labels."""
        return self.form == "plain" or self.named

    @cached_property
    def label_nodes(self) -> NDArray[np.int64]:
        """Nodes at which a trace may end, as positions in the taxonomy, in its order."""
        nodes = np.unique(self.layers.node[self.layers.ends])
        return nodes[nodes >= 0].astype(np.int64)

    def encode(self, y: Any) -> Traces:
        """Return labels as traces of these layers; raises LabelError, which names the row."""
        rows, _ = _rows_of(y)
        if any(isinstance(row, (set, frozenset)) for row in rows):
            return Traces.encode_sets(self.layers, [self._ids(at, row) for at, row in enumerate(rows)])
        if self.form in ("paths", "table") and not self.named:
            return Traces.encode_paths(self.layers, rows)
        return Traces.encode(self.layers, [self._id(at, row) for at, row in enumerate(rows)])

    def truth(self, y: Any) -> Truth:
        """Return labels as nodes, those among them that no training row had.

        Raises
        ------
        LabelError
            If a given taxonomy does not know a label; names the row. An inferred one need not know all.
        """
        rows, _ = _rows_of(y)
        several = [self._ids(at, row) for at, row in enumerate(rows)]
        offsets = offsets_of(np.array([len(ids) for ids in several], np.int64))
        names = [name for ids in several for name in ids]
        exact = np.array([name in self.taxonomy for name in names], bool)
        if exact.all():
            return Truth(self.taxonomy, offsets, self.taxonomy.positions(names), exact)
        if not self.inferred:
            unknown = int(np.flatnonzero(~exact)[0])
            row = int(np.searchsorted(offsets, unknown, side="right")) - 1
            raise LabelError(f"row {row}: label {self._unknown(names[unknown])}")
        nodes = np.array([self._nearest(name) for name in names], np.int64)
        return Truth(self.taxonomy, offsets, nodes, exact)

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
            if not found:
                return NOTHING
        return self.taxonomy.position(name)

    def predictable(self, truth: Truth) -> NDArray[np.bool_]:
        """Return which rows have labels that can all be predicted."""
        unknown = ~(np.isin(truth.nodes, self.label_nodes) & truth.exact)
        able: NDArray[np.bool_] = np.bincount(truth.owner[unknown], minlength=len(truth)) == 0
        return able

    def traces_of(self, truth: Truth) -> Traces:
        """Return labels that can all be predicted as traces."""
        return Traces.encode_sets(self.layers, truth.ids())

    def _ids(self, at: int, row: Any) -> list[str]:
        return sorted(self._id(at, label) for label in _several(row))

    def _id(self, at: int, label: Any) -> str:
        if not _is_path(label):
            name = as_id(label)
            if name == "":
                raise LabelError(f"row {at}: the label is missing; leave the row out or name its label")
            return name
        steps = unpadded(at, label)
        if not steps:
            raise LabelError(f"row {at}: the path is empty; name at least one node")
        return path_id(steps) if self.named else steps[-1]

    def widened(self, y: Any) -> LabelForm:
        """Return the form with the labels of ``y`` as well: an inferred taxonomy grows, a given one knows them."""
        rows, is_table = _rows_of(y)
        if not self.inferred:
            more = {self._id(at, label) for at, row in enumerate(rows) for label in _several(row)}
            ends = {self.taxonomy.ids[node] for node in self.label_nodes.tolist()}
            return replace(self, layers=Layers.of(self.taxonomy, _known(self.taxonomy, ends | more)))
        known = [self._written(node) for node in self.label_nodes.tolist()]
        more_labels = [label for row in rows for label in _several(row)]
        labels = [*known, *more_labels]
        steps = [step for label in more_labels for step in (label if self.named else (label,)) if as_id(step) != ""]
        if self.number and not _all_whole(steps):
            raise LabelError("the labels were whole numbers so far, some are not; give labels of one kind")
        found = _form(labels, labels, None, paths=self.named, is_table=is_table, number=self.number)
        if self.values is not None and found.values is not None and found.values.dtype.kind != self.values.dtype.kind:
            raise LabelError(
                f"the labels were of kind {self.values.dtype} so far, some are not; give labels of one kind"
            )
        return replace(found, form=self.form, columns=self.columns)

    def in_taxonomy(self, taxonomy: Taxonomy, renamed: Mapping[str, str]) -> LabelForm:
        """Return the form in a changed taxonomy: labels that are still there, and all its leaves."""
        if self.inferred:
            raise HiNetError("the taxonomy was inferred from the labels; fit with taxonomy=... to be able to change it")
        ends = {self.taxonomy.ids[node] for node in self.label_nodes.tolist()}
        return replace(self, layers=Layers.of(taxonomy, _known(taxonomy, {renamed.get(end, end) for end in ends})))

    def weights_of(self, class_weight: Any, traces: Traces) -> NDArray[np.float64]:
        """Return the weight of every row by its labels: of several, the mean.

        ``"balanced"`` weighs labels so that all count the same; a mapping gives weights of labels, others have 1.
        """
        owner = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        counts = np.bincount(traces.end_nodes, minlength=len(self.taxonomy)).astype(np.float64)
        if isinstance(class_weight, str):
            if class_weight != "balanced":
                raise HiNetError(f"class_weight is 'balanced' or a mapping; got {class_weight!r}")
            weights = len(owner) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        else:
            weights = np.ones(len(self.taxonomy))
            for label, weight in class_weight.items():
                name = self._id(0, label)
                if name in self.taxonomy:
                    weights[self.taxonomy.position(name)] = weight
        total = np.bincount(owner, weights[traces.end_nodes], len(traces))
        found: NDArray[np.float64] = total / np.maximum(np.diff(traces.row_offsets), 1)
        return found

    def decode(self, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """Return nodes, positions in the taxonomy, as the user writes them; ``NOTHING`` becomes None or empty."""
        distinct, inverse = np.unique(nodes, return_inverse=True)
        if self.form == "plain" and self.values is not None and (distinct != NOTHING).all():
            return self.values[nodes]
        written = [self._written(node) for node in distinct.tolist()]
        if self.form == "table":
            width = max([self.columns, *map(len, written)])
            table = np.full((len(distinct), width), "", object)
            for at, steps in enumerate(written):
                table[at, : len(steps)] = steps
            return table[inverse]
        if self.form == "ids" and self.number and (distinct != NOTHING).all():
            return np.array(written, np.int64)[inverse]
        answers = np.empty(len(distinct), object)
        answers[:] = written
        return answers[inverse]

    def decode_traces(self, traces: Traces) -> NDArray[Any]:
        """Return the first trace of every row as the user writes labels: of a DAG, the path itself."""
        ends = traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64)
        if self.form not in ("paths", "table") or self.taxonomy.is_tree:
            return self.decode(ends)
        paths = [found[0] for found in traces.paths()]
        written = [tuple(int(step) for step in path) if self.number else path for path in paths]
        width = max([self.columns, *map(len, written)]) if self.form == "table" else 0
        answers = np.full((len(written), width) if width else len(written), "", object)
        for row, steps in enumerate(written):
            if width:
                answers[row, : len(steps)] = steps
            else:
                answers[row] = steps
        return answers

    def _written(self, node: int) -> Any:
        if node == NOTHING:
            return None if self.form in ("plain", "ids") else ()
        if self.form == "plain" and self.values is not None:
            return self.values[node]
        if self.form == "ids":
            name = self.taxonomy.ids[node]
            return int(name) if self.number else name
        return self.steps(node)

    def steps(self, node: int) -> tuple[Any, ...]:
        """Return a path to a node from the top, in names or ids as the user has them; in a DAG the first one."""
        taxonomy = self.taxonomy
        parents, offsets = taxonomy.parent_lists
        texts = taxonomy.titles if self.named else taxonomy.ids
        path = []
        while node != taxonomy.root:
            path.append(int(texts[node]) if self.number else texts[node])
            above = parents[offsets[node] : offsets[node + 1]]
            if not len(above):
                break
            node = int(above[0])
        return tuple(path[::-1])


def read_labels(y: Any, taxonomy: Taxonomy | None) -> tuple[LabelForm, Traces]:
    """Return the form of training labels, with the layers of their taxonomy, and the labels as traces.

    Raises
    ------
    LabelError
        If a label is missing, is not in the taxonomy, or paths and other labels are mixed; names the row.
    """
    rows, is_table = _rows_of(y)
    if not len(rows):
        raise HiNetError("there are no rows: y is empty; give at least one labelled row")
    labels = [label for row in rows for label in _several(row)]
    paths = _all_paths(rows)
    number = _all_whole(step for label in labels for step in (label if paths else (label,)) if as_id(step) != "")
    form = _form(rows, labels, taxonomy, paths=paths, is_table=is_table, number=number)
    return form, form.encode(y)


def checked_labels(y: Any, count: int) -> Any:
    """Return labels in a container with a length, one label a row."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    if y is None:
        raise HiNetError("the classifier requires y to be passed, but the target y is None; give one label a row")
    if not hasattr(y, "__len__"):
        y = np.asarray(y)
    if len(y) != count:
        raise HiNetError(f"{count:,} rows and {len(y):,} labels; give one label a row")
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind == "f" and np.ndim(y) == 1 and not np.isfinite(y).all():
        row = int(np.flatnonzero(~np.isfinite(y))[0])
        value = "infinity" if np.isinf(np.asarray(y)[row]) else "NaN"
        raise LabelError(f"row {row}: Input y contains {value}; leave the row out or name its label")
    if kind in ("i", "u", "f", "b") and np.ndim(y) == 2 and y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if kind and np.ndim(y) == 1:
        check_classification_targets(y)
    return y


def listed(labels: Any) -> list[Any]:
    """Return labels, in any container, as a list."""
    return list(labels.tolist() if hasattr(labels, "tolist") else labels)


def _form(
    rows: Sequence[Any], labels: list[Any], taxonomy: Taxonomy | None, *, paths: bool, is_table: bool, number: bool
) -> LabelForm:
    if not paths:
        if taxonomy is None:
            return _plain(labels)
        ends = {as_id(label) for label in labels}
        return LabelForm("ids", Layers.of(taxonomy, _known(taxonomy, ends)), number)
    cut = [unpadded(at, label) for at, label in enumerate(labels)]
    for at, row in enumerate(rows):
        if not isinstance(row, (set, frozenset)) and not unpadded(at, row):
            raise LabelError(f"row {at}: the path is empty; name at least one node")
    columns = max(len(row) for row in rows) if is_table else 0
    kind: Form = "table" if is_table else "paths"
    if taxonomy is not None:
        ends = {path[-1] for path in cut if path}
        return LabelForm(kind, Layers.of(taxonomy, _known(taxonomy, ends)), number, columns)
    inferred = Taxonomy.from_paths(cut)
    layers = Layers.of(inferred, sorted({path_id(path) for path in cut}))
    return LabelForm(kind, layers, number, columns, named=True)


def _plain(labels: list[Any]) -> LabelForm:
    """Return the form of labels that stand side by side below a virtual root."""
    missing = [at for at, label in enumerate(labels) if as_id(label) == ""]
    if missing:
        raise LabelError(f"row {missing[0]}: the label is missing; leave the row out or name its label")
    values = None
    if not any(isinstance(label, str) for label in labels):
        values = np.unique(np.array(labels))
        if values.dtype.kind not in "biuf":
            raise LabelError(f"labels are text or numbers; got {type(labels[0]).__name__}: write them as text")
    if values is None:
        values = np.array(sorted({as_id(label) for label in labels}), object)
    taxonomy = Taxonomy.from_edges([(None, value) for value in values.tolist()])
    return LabelForm("plain", Layers.of(taxonomy), values=values)


def _known(taxonomy: Taxonomy, ends: set[str]) -> list[str]:
    """Return those ends the taxonomy knows: the others are told with their row when they are encoded."""
    return sorted(end for end in ends if end in taxonomy)


def _rows_of(y: Any) -> tuple[Sequence[Any], bool]:
    """Return ``y`` as a sequence of rows, and whether it was a 2-D table."""
    if isinstance(y, (str, bytes)):
        raise LabelError(f"expected a list of labels, got the text {shown(str(y))}; put it into a list")
    if isinstance(y, (list, tuple)):
        return y, False
    if hasattr(y, "to_pylist"):  # Arrow
        return y.to_pylist(), False
    array = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if array.ndim == 2 and array.shape[1] == 1 and array.dtype != object:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise LabelError(f"expected one label a row, or a path a row in a 2-D array; got an array of {array.ndim} axes")
    if array.ndim == 2 and array.shape[1] > 2 and array.dtype.kind in "bi" and np.isin(array, (0, 1)).all():
        raise LabelError("y looks like a matrix of zeros and ones; give each row its labels, several as a set")
    return array.tolist(), array.ndim == 2


def _several(row: Any) -> Iterable[Any]:
    return row if isinstance(row, (set, frozenset)) else (row,)


def _is_path(label: Any) -> bool:
    return isinstance(label, (tuple, list, np.ndarray))


def _all_paths(rows: Sequence[Any]) -> bool:
    """Return whether labels are paths; raise LabelError if some are and some are not."""
    first: bool | None = None
    for at, row in enumerate(rows):
        for label in _several(row):
            if first is None:
                first = _is_path(label)
            elif first != _is_path(label):
                raise LabelError(f"row {at}: {shown(str(label))} and earlier rows mix paths with single labels")
    return bool(first)


def _all_whole(labels: Iterable[Any]) -> bool:
    """Return whether all labels are whole numbers, which predictions then are as well; tables may hold 7 as 7.0."""
    return all(
        isinstance(label, (int, float, np.integer)) and not isinstance(label, bool) and label == int(label)
        for label in labels
    )
