"""The taxonomy of a model: nodes, pages of children, and a search."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hinet.classifier.labels import LabelCodec
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy
from hinet.taxonomy.taxonomy import TITLE_ATTRIBUTES

SYNONYM_ATTRIBUTES = ("synonym", "synonyms", "alias", "aliases", "altlabel", "alt_label")
SYNONYM_SEP = re.compile(r"\s*[|;]\s*")  # between synonyms in a cell

Json = dict[str, Any]


class _Text(NamedTuple):
    """A text of a node, as it is written and as it is searched."""

    node: int
    text: str
    folded: str  # case-folded, with single spaces


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
            "total": len(children), "offset": offset, "limit": limit,
        }  # fmt: skip

    def search(self, query: str, offset: int, limit: int) -> Json:
        """Return a page of the nodes that have all words of a query in their id, title or a synonym."""
        ranked = self._ranked(query)
        matches = [
            {**self._describe(node), "matched": kind, "text": text, "ancestors": self._ancestors(node)}
            for node, kind, text in ranked[offset : offset + limit]
        ]
        return {"query": query, "matches": matches, "total": len(ranked), "offset": offset, "limit": limit}

    def named(self, node: int) -> Json:
        """Return a node with its title."""
        return {"node": self.ids[node], "title": self.titles[node]}

    def _describe(self, node: int) -> Json:
        return {**self.named(node), "children": self.child_counts[node], "is_label": node in self._labels}

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
        whole, longest = " ".join(words), max(words, key=len)
        matches: dict[int, tuple[int, str, str]] = {}
        for kind, texts in self._texts.items():
            candidates = [each for each in texts if longest in each.folded]
            found = [each for each in candidates if all(word in each.folded for word in words)]
            for node, text, _ in sorted(found, key=lambda each: _rank(each.text.casefold(), whole)):
                matches.setdefault(node, (node, kind, text))
        return list(matches.values())

    # By position of the node, the virtual root last

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of all nodes."""
        return (*self.taxonomy.ids, "") if self.taxonomy.root == VIRTUAL_ROOT else self.taxonomy.ids

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """Titles of all nodes, or ids of nodes without a title."""
        titles = (*self.taxonomy.titles, "") if self.taxonomy.root == VIRTUAL_ROOT else self.taxonomy.titles
        return tuple(title or node for title, node in zip(titles, self.ids, strict=True))

    @cached_property
    def child_counts(self) -> list[int]:
        """Numbers of children of all nodes."""
        return [*np.diff(self.taxonomy.child_lists[1]).tolist(), len(self.taxonomy.tops)]

    @cached_property
    def _labels(self) -> set[int]:
        return set(self.codec.label_nodes.tolist())

    @cached_property
    def _texts(self) -> dict[str, list[_Text]]:
        """Searchable texts by kind."""
        taxonomy = self.taxonomy
        titles = () if taxonomy.titles is taxonomy.ids else taxonomy.titles
        synonyms = [
            (node, synonym)
            for name, column in taxonomy.attributes.items()
            if name.casefold() in SYNONYM_ATTRIBUTES and name not in TITLE_ATTRIBUTES
            for node, cell in enumerate(column)
            for synonym in SYNONYM_SEP.split(cell)
        ]
        return {
            kind: [_Text(node, text, " ".join(text.casefold().split())) for node, text in pairs if text]
            for kind, pairs in (("id", enumerate(taxonomy.ids)), ("title", enumerate(titles)), ("synonym", synonyms))
        }


def _rank(text: str, query: str) -> int:
    """Return the rank of a match: 0 for the whole text, 1 for its start, 2 for the start of a word, else 3."""
    if text == query:
        return 0
    if text.startswith(query):
        return 1
    return 2 if f" {query}" in text else 3
