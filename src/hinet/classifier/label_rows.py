"""Containers of labels, of whatever library -> rows of labels; what a label is by its type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from hinet.errors import HiNetError, LabelError, shown
from hinet.taxonomy import path_id, unpadded

Read = TypeVar("Read")


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
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] == 1:
        y = column_or_1d(y, warn=True)
    if kind and kind != "O" and np.ndim(y) == 1:  # objects may be paths and sets, which scikit-learn does not know
        check_classification_targets(y)
    return y


def listed(labels: Any) -> list[Any]:
    """Return labels, in any container, as a list."""
    return list(rows_of(labels)[0])


def paths_as_text(y: Any) -> list[str]:
    r"""Return paths, in any container, as texts such as ``A > B > C``; texts stay as they are.

    The classifier reads such texts as paths, and all of scikit-learn reads them as labels: it can stratify them
    (``cv=5``), score them (``scoring="accuracy"``) and report on them, which it cannot with tuples and level columns.

    >>> paths_as_text([("Food", "Bread"), ("Toys", ""), ("Size > 3",)])
    ['Food > Bread', 'Toys', 'Size \\> 3']
    """
    rows, _ = rows_of(y)
    for at, row in enumerate(rows):
        if isinstance(row, (set, frozenset)):
            raise LabelError(f"row {at}: several labels cannot be one text; give each row one path")
    return [row if isinstance(row, str) else path_id(_whole(at, row)) for at, row in enumerate(rows)]


def _whole(at: int, row: Any) -> tuple[str, ...]:
    steps = unpadded(at, row)
    if not steps:
        raise LabelError(f"row {at}: the path is empty; name at least one node")
    return steps


def rows_of(y: Any) -> tuple[Sequence[Any], bool]:
    """Return ``y`` as a sequence of rows, and whether it was a 2-D table."""
    if isinstance(y, (str, bytes)):
        raise LabelError(f"expected a list of labels, got the text {shown(str(y))}; put it into a list")
    if isinstance(y, (list, tuple)):
        return y, False
    if hasattr(y, "to_pylist"):  # Arrow
        return y.to_pylist(), False
    array = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise LabelError(f"expected one label a row, or a path a row in a 2-D array; got an array of {array.ndim} axes")
    if array.ndim == 2 and array.shape[1] > 2 and array.dtype.kind in "bi" and np.isin(array, (0, 1)).all():
        raise LabelError("y looks like a matrix of zeros and ones; give each row its labels, several as a set")
    return array.tolist(), array.ndim == 2


def is_text(label: Any) -> bool:
    """Return whether a label is text, or a path of texts: two such labels that are equal name the same node."""
    return type(label) is str or (type(label) is tuple and all(type(step) is str for step in label))


def read_each(rows: Sequence[Any], read: Callable[[int, Any], Read]) -> list[Read]:
    """Return what ``read`` gives for every row, with its number; of equal texts and paths it is asked once."""
    known: dict[Any, Read] = {}
    found = []
    for at, row in enumerate(rows):
        if not is_text(row):
            found.append(read(at, row))
            continue
        if row not in known:
            known[row] = read(at, row)
        found.append(known[row])
    return found


def distinct_labels(rows: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the labels of all rows, each with the first row that has it; others than texts may come again."""
    known: set[Any] = set()
    found = []
    for at, row in enumerate(rows):
        for label in several(row):
            if is_text(label):
                if label in known:
                    continue
                known.add(label)
            found.append((at, label))
    return found


def several(row: Any) -> Iterable[Any]:
    """Return the labels of a row one by one: a set stands for several."""
    return row if isinstance(row, (set, frozenset)) else (row,)


def is_path(label: Any) -> bool:
    """Return whether a label is a path by its type."""
    return isinstance(label, (tuple, list, np.ndarray))


def all_paths(rows: Sequence[Any]) -> bool:
    """Return whether labels are paths; raise LabelError if some are and some are not."""
    first: bool | None = None
    for at, row in enumerate(rows):
        for label in several(row):
            if first is None:
                first = is_path(label)
            elif first != is_path(label):
                raise LabelError(f"row {at}: {shown(str(label))} and earlier rows mix paths with single labels")
    return bool(first)


def all_whole(labels: Iterable[Any]) -> bool:
    """Return whether all labels are whole numbers, which predictions then are as well; tables may hold 7 as 7.0."""
    return all(
        isinstance(label, (int, float, np.integer)) and not isinstance(label, bool) and label == int(label)
        for label in labels
    )
