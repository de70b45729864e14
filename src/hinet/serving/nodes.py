"""The taxonomy of a model: nodes, pages of children, and a search."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hinet.classifier.labels import LabelCodec
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy
from hinet.taxonomy.taxonomy import TITLE_ATTRIBUTES

SYNONYM_ATTRIBUTES = ("synonym", "synonyms", "alias", "aliases", "altlabel", "alt_label")
SYNONYM_SEP = re.compile(r"\s*[|;]\s*")  # between synonyms in a cell
END = "\n"  # separator of the searched texts, which do not contain it

Json = dict[str, Any]


class _Entry(NamedTuple):
    """Searchable texts of one kind, with their nodes."""

    kind: str
    texts: list[str]
    nodes: list[int]
    folded: str  # all texts, case-folded and separated by END
    starts: list[int]  # offset of each text in ``folded``


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of a taxonomy as JSON values."""

    codec: LabelCodec

    @property
    def taxonomy(self) -> Taxonomy:
        """The taxonomy."""
        return self.codec.taxonomy

    def page(self, node: int, offset: int, limit: int) -> Json:
        """Return a node, its ancestors and a page of its children; ``VIRTUAL_ROOT`` is above the top nodes."""
        if node == self.taxonomy.root:
            children = self.taxonomy.tops
        else:
            flat, offsets = self.taxonomy.child_lists
            children = flat[offsets[node] : offsets[node + 1]]
        return {
            "node": None if node == VIRTUAL_ROOT else self._describe(node),
            "ancestors": self._ancestors(node),
            "children": [self._describe(child) for child in children[offset : offset + limit].tolist()],
            "total": len(children),
            "offset": offset,
            "limit": limit,
        }

    def search(self, query: str, offset: int, limit: int) -> Json:
        """Return a page of the nodes that have all words of a query in their id, title or a synonym."""
        ranked = self._ranked(query)
        matches = [
            {**self._describe(node), "matched": kind, "text": text, "ancestors": self._ancestors(node)}
            for node, kind, text in ranked[offset : offset + limit]
        ]
        return {"query": query, "matches": matches, "total": len(ranked), "offset": offset, "limit": limit}

    def _describe(self, node: int) -> Json:
        return {
            "node": self.ids[node],
            "title": self.titles[node],
            "children": self.child_counts[node],
            "is_label": bool(self._is_label[node]),
        }

    def _ancestors(self, node: int) -> list[Json]:
        root = self.taxonomy.root
        if node in (VIRTUAL_ROOT, root):
            return []
        above = self.codec.path_to(node)[:-1]
        return [self._describe(each) for each in (above if root == VIRTUAL_ROOT else [root, *above])]

    def _ranked(self, query: str) -> list[tuple[int, str, str]]:
        """Return matching nodes with the matching text: ids first, and texts that start with the query first."""
        words = query.casefold().split()
        if not words:
            return []
        whole = " ".join(words)
        matches: dict[int, tuple[int, str, str]] = {}
        for entry in self._entries:
            numbers = _with_all(entry, words)
            by_rank: tuple[list[int], ...] = ([], [], [], [])
            for number in numbers:
                by_rank[_rank(entry.texts[number].casefold(), whole)].append(number)
            for number in (number for rank in by_rank for number in rank):
                node = entry.nodes[number]
                matches.setdefault(node, (node, entry.kind, entry.texts[number]))
        return list(matches.values())

    # By position of the node, the virtual root last

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of all nodes."""
        return (*self.taxonomy.ids, "") if self.taxonomy.root == VIRTUAL_ROOT else self.taxonomy.ids

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """Titles of all nodes, or ids of nodes without a title."""
        titles = tuple(title or node for title, node in zip(self.taxonomy.titles, self.taxonomy.ids, strict=True))
        return (*titles, "") if self.taxonomy.root == VIRTUAL_ROOT else titles

    @cached_property
    def child_counts(self) -> list[int]:
        """Numbers of children of all nodes."""
        return [*np.diff(self.taxonomy.child_lists[1]).tolist(), len(self.taxonomy.tops)]

    @cached_property
    def _is_label(self) -> Any:
        is_label = np.zeros(len(self.taxonomy), bool)
        is_label[self.codec.label_nodes] = True
        return is_label

    @cached_property
    def _entries(self) -> list[_Entry]:
        taxonomy = self.taxonomy
        synonyms = [
            (node, synonym)
            for name, column in taxonomy.attributes.items()
            if name.casefold() in SYNONYM_ATTRIBUTES and name not in TITLE_ATTRIBUTES
            for node, cell in enumerate(column)
            for synonym in SYNONYM_SEP.split(cell)
            if synonym
        ]
        entries = [_entry("id", enumerate(taxonomy.ids))]
        if taxonomy.titles is not taxonomy.ids:
            entries.append(_entry("title", ((node, title) for node, title in enumerate(taxonomy.titles) if title)))
        return [*entries, _entry("synonym", synonyms)] if synonyms else entries


def _entry(kind: str, pairs: Iterable[tuple[int, str]]) -> _Entry:
    nodes, texts = zip(*pairs, strict=True)
    folded = [" ".join(text.casefold().split()) for text in texts]
    starts = np.cumsum([1, *(len(text) + 1 for text in folded[:-1])]).tolist()
    return _Entry(kind, list(texts), list(nodes), END + END.join(folded) + END, starts)


def _with_all(entry: _Entry, words: list[str]) -> Iterator[int]:
    """Yield the numbers of texts with all words, by searching the longest word and checking the others."""
    longest = max(words, key=len)
    position, ends = entry.folded.find(longest), len(entry.folded)
    while 0 <= position < ends:
        number = bisect_right(entry.starts, position) - 1
        stop = entry.folded.find(END, position)
        start = entry.starts[number]
        if all(entry.folded.find(word, start, stop) >= 0 for word in words):
            yield number
        position = entry.folded.find(longest, stop)


def _rank(text: str, query: str) -> int:
    """Return the rank of a match: 0 for the whole text, 1 for its start, 2 for the start of a word, else 3."""
    if text == query:
        return 0
    if text.startswith(query):
        return 1
    return 2 if f" {query}" in text else 3
