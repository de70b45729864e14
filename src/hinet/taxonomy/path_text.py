r"""Paths as text, such as ``A > B > C``: when labels are paths, and how they are cut into steps.

The rule, in Python and in the shell: without a taxonomy, labels are paths if at least one of them has ``>`` with text
on both sides. All of them are then cut at ``>``; blanks around steps do not count, and ``\>`` belongs to a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hinet.errors import quoted
from hinet.taxonomy.path_ids import PATH_SEP

PATH_MARK = ">"

_NOT_ESCAPED = r"(?<!\\)"


def cut_path(text: str, mark: str = PATH_MARK) -> tuple[str, ...]:
    r"""Return the steps of a path, without the blanks around them; an empty step stays, as an empty text.

    >>> cut_path("Food > Bread"), cut_path("Food>Bread"), cut_path("Food"), cut_path(r"Size \> 3 > Shoes")
    (('Food', 'Bread'), ('Food', 'Bread'), ('Food',), ('Size > 3', 'Shoes'))
    """
    own = mark.strip() or mark
    escaped = "\\" + own
    if "\\" in mark or escaped not in text:
        return tuple(step.strip() for step in text.split(mark))
    parts = re.split(_NOT_ESCAPED + re.escape(mark), text)
    return tuple(part.strip().replace(escaped, own) for part in parts)


def is_path_text(text: str, mark: str = PATH_MARK) -> bool:
    """Return whether a text has the mark with text on both sides.

    >>> is_path_text("Food > Bread"), is_path_text(">50K"), is_path_text("Food")
    (True, False, False)
    """
    return mark in text and sum(map(bool, cut_path(text, mark))) > 1


def has_paths(labels: Iterable[object], mark: str = PATH_MARK) -> bool:
    """Return whether labels, which no taxonomy explains, are paths: at least one is."""
    return any(isinstance(label, str) and is_path_text(label, mark) for label in labels)


def between_steps(labels: Iterable[str], mark: str = PATH_MARK) -> str:
    """Return what stands between two steps in the first label that has several, with its blanks.

    >>> between_steps(["Food", "Food>Bread", "Food > Milk"])
    '>'
    """
    unescaped = "" if "\\" in mark else _NOT_ESCAPED
    pattern = re.compile(rf"\S(\s*{unescaped}{re.escape(mark)}\s*)\S")
    found = (pattern.search(label) for label in labels if mark in label)
    return next((match.group(1) for match in found if match), PATH_SEP if mark == PATH_MARK else mark)


def why_no_path(text: str, mark: str = PATH_MARK) -> str:
    """Tell why a text is no path, if some of its steps are empty; else nothing."""
    return empty_step(text) if mark in text and not all(cut_path(text, mark)) else ""


def empty_step(path: str) -> str:
    """Return the message for a path with an empty step."""
    return f"a step of the path {quoted(path)} is empty; name every step"
