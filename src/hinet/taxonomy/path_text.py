r"""Paths as text, such as ``A > B > C``: when labels are paths, and how they are split into steps.

Without a taxonomy, labels are paths if at least one of them has ``>`` with text on both sides. All of them are then
split at ``>``; spaces around steps are ignored, and ``\>`` is a ``>`` within a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hinet.errors import quoted
from hinet.taxonomy.path_ids import PATH_SEP

PATH_MARK = ">"

_NOT_ESCAPED = r"(?<!\\)"


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
