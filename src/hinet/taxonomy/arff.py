"""The hierarchy in the header of an ARFF file, as Clus writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hinet.errors import FileError, quoted
from hinet.files.arff import Attribute, parse_header
from hinet.taxonomy.draft import Draft

ROOT = "root"
SEPARATOR = "/"


@dataclass(frozen=True)
class Arff:
    """The attribute ``class hierarchical``: a tree as paths ``01/01/03``, or a DAG as edges ``parent/child``.

    It is a DAG if all are edges, and one of them starts at ``root``. The id of a node of a tree is its path; the only
    top node of a tree has ``root`` above it.
    """

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every declared node or edge."""
        attribute = parse_header(path, text).hierarchy
        if attribute is None:
            raise FileError(path, "no attribute is hierarchical, so the ARFF file has no hierarchy; name another file")
        return hierarchy_draft(path, attribute)


def hierarchy_draft(path: str | Path, attribute: Attribute) -> Draft:
    """Return the links that a hierarchical attribute declares."""
    paths = [tuple(step.strip() for step in value.split(SEPARATOR)) for value in attribute.values]
    if not paths or not all(map(all, paths)):
        bad = next((value for value, steps in zip(attribute.values, paths, strict=True) if not all(steps)), "")
        raise FileError(path, f"a step of the hierarchical attribute is empty: {quoted(bad)}", line=attribute.line)
    edges: dict[tuple[str, str | None], None] = {}
    if all(len(steps) == 2 for steps in paths) and any(steps[0] == ROOT for steps in paths):
        edges = dict.fromkeys((child, parent) for parent, child in paths)
    else:
        top = ROOT if len({steps[0] for steps in paths}) == 1 else None
        for steps in paths:
            above = top
            for length in range(1, len(steps) + 1):
                node = SEPARATOR.join(steps[:length])
                edges[node, above] = None
                above = node
    return Draft([node for node, _ in edges], [above for _, above in edges], [attribute.line] * len(edges))
