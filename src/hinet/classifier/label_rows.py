"""Labels of any container as rows, their types, and paths written as text such as ``A > B``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from hinet.errors import HiNetError, LabelError, counted, format_value, quoted
from hinet.taxonomy import PATH_MARK, PATH_SEP, as_id, has_paths, path_id, split_path, strip_padding
from hinet.taxonomy.paths import find_separator, path_error

Read = TypeVar("Read")
SetForm = Literal["closed", "deepest", "any"]  # sets with all ancestors; without any; with some


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
        if isinstance(label, (set, frozenset)):
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
    results = []
    for row, label in enumerate(rows):
        if not is_text(label):
            results.append(read(row, label))
            continue
        if label not in known:
            known[label] = read(row, label)
        results.append(known[label])
    return results


def distinct_labels(rows: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the labels of all rows, each with its first row; labels that are not text may be repeated."""
    known: set[Any] = set()
    distinct = []
    for row, labels in enumerate(rows):
        for label in labels_of_row(labels):
            if is_text(label):
                if label in known:
                    continue
                known.add(label)
            distinct.append((row, label))
    return distinct


def labels_of_row(row: Any) -> Iterable[Any]:
    """Return the labels of a row: the elements of a set, or the label itself."""
    return row if isinstance(row, (set, frozenset)) else (row,)


def has_sets(y: Any) -> bool:
    """Return whether a row has several labels."""
    rows, _ = rows_of(y)
    return any(isinstance(row, (set, frozenset)) and len(row) > 1 for row in rows)


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


AUTO = "auto"  # the rule of hinet.taxonomy.paths
PathSep = Literal["auto"] | str | None


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
