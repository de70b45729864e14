"""A taxonomy as lines of text, drawn as a tree."""

from __future__ import annotations

from collections.abc import Iterator

from hinet.taxonomy.taxonomy import VIRTUAL_ROOT, Taxonomy

DEPTH = 2
MOST_CHILDREN = 40


def draw(
    taxonomy: Taxonomy, node: str | None = None, *, depth: int = DEPTH, most_children: int = MOST_CHILDREN
) -> Iterator[str]:
    """Yield the lines of the tree below ``node``, by default the root, ``depth`` levels deep.

    A node of a DAG is drawn below each of its parents.

    >>> for line in draw(Taxonomy.from_paths([("A", "x"), ("A", "y"), ("B",)])):
    ...     print(line)
    (root)
    ├── A
    │   ├── A > x  x
    │   └── A > y  y
    └── B
    """
    flat, offsets = taxonomy.child_lists
    start = taxonomy.root if node is None else taxonomy.position(node)
    if node is not None:
        yield from _paths_to(taxonomy, start)
    yield _text(taxonomy, start)

    def children_of(parent: int) -> list[int]:
        below = taxonomy.tops if parent == VIRTUAL_ROOT else flat[offsets[parent] : offsets[parent + 1]]
        return list(below.tolist())

    # Entries: indent, children, number of the next child.
    stack: list[tuple[str, list[int], int]] = [("", children_of(start), 0)] if depth else []
    while stack:
        indent, children, number = stack.pop()
        if number >= min(len(children), most_children):
            if len(children) > most_children:
                yield f"{indent}└── … {len(children) - most_children:,} more"
            continue
        stack.append((indent, children, number + 1))
        last = number == len(children) - 1
        child = children[number]
        below = children_of(child)
        hidden = f"  [{len(below):,} below]" if below and len(stack) >= depth else ""
        yield f"{indent}{'└── ' if last else '├── '}{_text(taxonomy, child)}{hidden}"
        if below and not hidden:
            stack.append((indent + ("    " if last else "│   "), below, 0))


def _text(taxonomy: Taxonomy, position: int) -> str:
    if position == VIRTUAL_ROOT:
        return "(root)"
    name, title = _printable(taxonomy.ids[position]), _printable(taxonomy.titles[position])
    return f"{name}  {title}" if title and title != name else name


def _printable(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _paths_to(taxonomy: Taxonomy, position: int, limit: int = 5) -> Iterator[str]:
    """Yield the paths from the root to the parents of a node, one per line."""
    flat, offsets = taxonomy.parent_lists
    stack, count = [[position]], 0
    while stack and count < limit:
        path = stack.pop()
        parents = flat[offsets[path[-1]] : offsets[path[-1] + 1]].tolist()
        if parents:
            stack.extend([*path, parent] for parent in reversed(parents))
        elif len(path) > 1:
            yield "in " + " > ".join(taxonomy.ids[step] for step in reversed(path[1:]))
            count += 1
    if stack:
        yield "in … further paths"
