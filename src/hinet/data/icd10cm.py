"""The built-in data set: ICD-10-CM diagnosis codes as a taxonomy, with labelled texts.

The codes come from the package ``simple-icd-10-cm``. The description of a leaf code is a text labelled with the
leaf's parent; an inclusion term is a text labelled with its code, or with the parent where the code is a leaf.
So the taxonomy has the codes that have children, and a label is any of them but a chapter.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType

from hinet.data.rows import LabelledRows, split_by_hash
from hinet.errors import HiNetError
from hinet.taxonomy import Taxonomy

SHARES = {"valid": 0.05, "test": 0.15}


@dataclass(frozen=True)
class Icd10cm:
    """ICD-10-CM as a taxonomy and three sets of rows; every label has a training row."""

    taxonomy: Taxonomy
    train: LabelledRows
    valid: LabelledRows
    test: LabelledRows


@lru_cache(maxsize=1)
def load_icd10cm() -> Icd10cm:
    """Load the built-in data set; takes seconds the first time, then it stays in memory.

    Raises
    ------
    HiNetError
        If the package ``simple-icd-10-cm`` is not installed.
    """
    entries = list(_entries(_icd_package()))
    inner = {entry.parent for entry in entries if entry.parent}
    edges = [(entry.parent, entry.node) for entry in entries if entry.node in inner]
    titles = {entry.node: entry.description for entry in entries if entry.node in inner}
    rows = dict.fromkeys(
        (text, entry.node if entry.node in inner else entry.parent)
        for entry in entries
        for text in (entry.inclusion_terms if entry.node in inner else (entry.description, *entry.inclusion_terms))
    )
    labelled = LabelledRows(tuple(text for text, _ in rows), tuple(label for _, label in rows))
    return Icd10cm(
        Taxonomy.from_edges(edges, attributes={"title": titles}),
        **split_by_hash(labelled, SHARES, rest="train"),
    )


@dataclass(frozen=True)
class _Entry:
    node: str
    parent: str
    description: str
    inclusion_terms: tuple[str, ...]


def _icd_package() -> ModuleType:
    try:
        with warnings.catch_warnings():  # the package uses a deprecated function
            warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
            return import_module("simple_icd_10_cm")  # importing it takes seconds
    except ImportError:
        raise HiNetError(
            "the built-in ICD-10-CM set needs the package simple-icd-10-cm; install it with: pip install 'hinet[demo]'"
        ) from None


def _entries(icd: ModuleType) -> Iterator[_Entry]:
    """Yield chapters, blocks and codes, parents first.

    A block of one category has the category's code, such as B99; the id of the block is then B99-B99.
    Blocks that only contain other blocks, such as C00-C96, have no children and are left out.
    """
    for code in dict.fromkeys(icd.get_all_codes(True)):
        if icd.is_chapter(code):
            yield _entry(icd, code, code, "")
        if icd.is_block(code) and icd.get_children(code, prioritize_blocks=True):
            yield _entry(icd, code, _block_id(code), icd.get_parent(code, prioritize_blocks=True), block=True)
        if icd.is_category_or_subcategory(code):
            parent = icd.get_parent(code)
            yield _entry(icd, code, code, _block_id(parent) if icd.is_category(code) else parent)


def _block_id(code: str) -> str:
    return code if "-" in code else f"{code}-{code}"


def _entry(icd: ModuleType, code: str, node: str, parent: str, *, block: bool = False) -> _Entry:
    terms = icd.get_inclusion_term(code, prioritize_blocks=block)
    description = icd.get_description(code, prioritize_blocks=block)
    return _Entry(node, parent, description.strip(), tuple(term.strip() for term in terms if term.strip()))
