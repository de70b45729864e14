r"""Node ids and paths: ids of plain values, ids of paths of names, and labels that are paths written as text.

Without a taxonomy, labels are paths if at least one of them has ``>`` with text on both sides. All of them are then
split at ``>``; spaces around steps are ignored, and ``\>`` is a ``>`` within a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hinet.errors import LabelError, TaxonomyError, quoted
from hinet.taxonomy.draft import Draft

PATH_MARK = ">"
PATH_SEP = " > "
MAX_PATH_ID = 100_000  # characters; the ids of all prefixes of a path take quadratic memory

_NOT_ESCAPED = r"(?<!\\)"
_MISSING = ("NAType", "NaTType")  # types of missing values in pandas


def as_id(value: Any) -> str:
    """Return a value as a node id: strings unchanged, numbers as text, missing values as an empty string.

    >>> as_id(7), as_id(7.0), as_id(None), as_id(float("nan"))
    ('7', '7', '', '')
    """
    if isinstance(value, str):
        return str(value)
    if value is None or type(value).__name__ in _MISSING or value != value:  # NA has no truth value
        return ""
    if isinstance(value, float) and value.is_integer():  # tables with missing values hold integers as floats
        return str(int(value))
    return str(value)


def last_name(node: str) -> str:
    """Return the part of an id after the last separator, which is the last step of a path; the whole id without one.

    >>> last_name("Animals > Sheep"), last_name("A01")
    ('Sheep', 'A01')
    """
    return node.rpartition(PATH_SEP)[2]


def path_id(names: Iterable[str], sep: str = PATH_SEP) -> str:
    r"""Return the id of the node at the end of a path of names; with the default separator, ids are unique.

    With a separator that has no space before its mark they may not be: ``a\`` and ``b`` have the id of ``a>b``.

    >>> path_id(["Animals", "Sheep"])
    'Animals > Sheep'
    >>> path_id(["Size > 3"])
    'Size \\> 3'
    """
    mark = sep.strip() or sep
    return sep.join(name.replace(mark, "\\" + mark) for name in names)


def strip_padding(row: int, path: Sequence[Any]) -> tuple[str, ...]:
    """Return a path as a tuple of ids without the empty cells at its end; errors name the row."""
    if isinstance(path, str) or not hasattr(path, "__iter__"):
        raise LabelError(f"row {row}: expected a path of steps, got {quoted(str(path))}; split it into a tuple")
    steps = [as_id(step) for step in path]
    while steps and not steps[-1].strip():
        steps.pop()
    for index, step in enumerate(steps):
        if not step.strip():
            raise LabelError(f"row {row}: step {index} of the path {steps} is empty; only the end may be padded")
    return tuple(steps)


def id_path_draft(paths: Iterable[Sequence[str]], lines: Sequence[int] | None = None) -> Draft:
    """Return a draft whose nodes are the distinct steps of ``paths``."""
    links: dict[tuple[str, str | None], int] = {}
    for number, path in enumerate(paths):
        for child, parent in zip(path, (None, *path), strict=False):
            links.setdefault((child, parent), number)
    return Draft(
        nodes=[child for child, _ in links],
        parents=[parent for _, parent in links],
        lines=None if lines is None else [lines[number] for number in links.values()],
    )


def named_path_draft(paths: Iterable[Sequence[str]], lines: Sequence[int] | None, sep: str = PATH_SEP) -> Draft:
    """Return a draft with a node for every prefix of every path; its title is the last name."""
    links: dict[str, tuple[str | None, str, int]] = {}  # node: parent, name, number of the first path
    for number, path in enumerate(paths):
        parent: str | None = None
        for name in path:
            step = path_id([name], sep)
            node = step if parent is None else parent + sep + step
            if len(node) > MAX_PATH_ID:
                raise TaxonomyError(
                    f"path {number}: the id of {quoted(name)}, its path of names, has more than {MAX_PATH_ID:,} "
                    "characters; give such nodes ids of their own, in a table or as edges"
                )
            if node not in links:
                links[node] = parent, name, number
            parent = node
    sources = None if lines is None else [lines[number] for _, _, number in links.values()]
    titles = [name for _, name, _ in links.values()]
    return Draft([*links], [parent for parent, _, _ in links.values()], sources, {"title": titles})


def split_path(text: str, mark: str = PATH_MARK) -> tuple[str, ...]:
    r"""Return the steps of a path, without the spaces around them; empty steps are kept.

    >>> split_path("Food > Bread"), split_path("Food>Bread"), split_path("Food"), split_path(r"Size \> 3 > Shoes")
    (('Food', 'Bread'), ('Food', 'Bread'), ('Food',), ('Size > 3', 'Shoes'))
    """
    bare_mark = mark.strip() or mark
    escaped = "\\" + bare_mark
    if "\\" in mark or escaped not in text:
        return tuple(step.strip() for step in text.split(mark))
    parts = re.split(_NOT_ESCAPED + re.escape(mark), text)
    return tuple(part.strip().replace(escaped, bare_mark) for part in parts)


def is_path(text: str, mark: str = PATH_MARK) -> bool:
    """Return whether a string has the mark with text on both sides.

    >>> is_path("Food > Bread"), is_path(">50K"), is_path("Food")
    (True, False, False)
    """
    return mark in text and sum(map(bool, split_path(text, mark))) > 1


def has_paths(labels: Iterable[object], mark: str = PATH_MARK) -> bool:
    """Return whether at least one label is a path."""
    return any(isinstance(label, str) and is_path(label, mark) for label in labels)


def find_separator(labels: Iterable[str], mark: str = PATH_MARK) -> str:
    """Return the separator in the first label with several steps, spaces included.

    >>> find_separator(["Food", "Food>Bread", "Food > Milk"])
    '>'
    """
    unescaped = "" if "\\" in mark else _NOT_ESCAPED
    pattern = re.compile(rf"\S(\s*{unescaped}{re.escape(mark)}\s*)\S")
    matches = (pattern.search(label) for label in labels if mark in label)
    return next((match.group(1) for match in matches if match), PATH_SEP if mark == PATH_MARK else mark)


def path_error(text: str, mark: str = PATH_MARK) -> str:
    """Return why a string is not a valid path, or an empty string."""
    return empty_step_message(text) if mark in text and not all(split_path(text, mark)) else ""


def empty_step_message(path: str) -> str:
    """Return the message for a path with an empty step."""
    return f"a step of the path {quoted(path)} is empty; name every step"
