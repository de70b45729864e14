"""Nodes that are known by their path of names: how such a path becomes one id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hinet.taxonomy.draft import Draft

PATH_SEP = " > "


def path_id(names: Iterable[str], sep: str = PATH_SEP) -> str:
    r"""Return the id of the node at the end of a path of names; two paths never share one.

    >>> path_id(["Animals", "Sheep"])
    'Animals > Sheep'
    >>> path_id(["Size > 3"])
    'Size \\> 3'
    """
    mark = sep.strip() or sep
    return sep.join(name.replace(mark, "\\" + mark) for name in names)


def named_path_draft(paths: Iterable[Sequence[str]], lines: Sequence[int] | None, sep: str = PATH_SEP) -> Draft:
    """Return a draft with a node for every prefix of every path, titled by its last name."""
    nodes: list[str] = []
    parents: list[str | None] = []
    titles: list[str] = []
    sources: list[int] = []
    seen: set[str] = set()
    for number, path in enumerate(paths):
        parent: str | None = None
        for name in path:
            step = path_id([name], sep)
            node = step if parent is None else parent + sep + step
            if node not in seen:
                seen.add(node)
                nodes.append(node)
                parents.append(parent)
                titles.append(name)
                sources.append(number)
            parent = node
    return Draft(nodes, parents, None if lines is None else [lines[n] for n in sources], {"title": titles})
