"""Columns that say what a node means: its title, synonyms and definition; and several synonyms in one cell."""

from __future__ import annotations

import re
from collections.abc import Iterable

TITLE, SYNONYMS, DEFINITION = "title", "synonyms", "definition"
TERM_SEP = "|"

_UNESCAPED_SEP = re.compile(r"(?<!\\)((?:\\\\)*)\|")


def join_terms(terms: Iterable[str]) -> str:
    r"""Return terms as one cell, separated by ``|``; a ``|`` or backslash within one has a backslash before it.

    >>> join_terms(["car", "auto|mobile"])
    'car|auto\\|mobile'
    """
    return TERM_SEP.join(term.replace("\\", "\\\\").replace(TERM_SEP, "\\" + TERM_SEP) for term in terms)


def split_terms(cell: str) -> list[str]:
    r"""Return the terms of a cell, the inverse of :func:`join_terms`; empty ones are left out.

    >>> split_terms("car|auto\\|mobile"), split_terms("")
    (['car', 'auto|mobile'], [])
    """
    if "\\" not in cell:
        return [term for term in cell.split(TERM_SEP) if term]
    parts = _UNESCAPED_SEP.sub("\\1\0", cell).split("\0")
    return [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in parts if part]
