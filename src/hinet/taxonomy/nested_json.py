"""Nested JSON hierarchies, parsed without recursion, so of any depth, with the line of every node.

Three shapes are supported: objects of children by name, ``{"A": {"B": {}, "C": null}, "D": ["E"]}``;
objects with a list of children, ``{"id": "1", "title": "A", "children": [{"id": "2", "title": "B"}]}``; and a list of
objects that name their parent, ``[{"id": "1", "parent": null}, {"id": "2", "parent": "1"}]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hinet.errors import FileError, quoted
from hinet.taxonomy.draft import MAX_PATH_ID, PATH_SEP, UNWRITABLE, Draft, Link, TaxonomyFormat, is_writable, path_id

_TOKEN = re.compile(r'[ \t\n\r]*(?:("(?:[^"\\]|\\.)*")|([{}\[\],:])|([^ \t\n\r{}\[\],:"]+))')
_START = re.compile(r"""\s*(?:\{\s*["}]|\[\s*["{\[\]\d])""")
_OPENING = {"{": "}", "[": "]"}
_CHILDREN = "children"
_PARENT = "parent"
_ID_KEYS = ("id", "node", "code")
_TITLE_KEYS = ("title", "name", "label")


@dataclass
class _Value:
    """A JSON value with its line: ``items`` of an object are (key, value), of an array ("", value)."""

    line: int
    kind: str  # "{", "[" or "" for a scalar
    scalar: Any = None
    items: list[tuple[str, _Value]] = field(default_factory=list)

    def get(self, *keys: str) -> _Value | None:
        return next((value for key in keys for name, value in self.items if name == key), None)


@dataclass(frozen=True)
class NestedJson(TaxonomyFormat):
    """Nested JSON: objects of children by name, or objects with a list of ``children``."""

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Return whether a text starts like an object or array."""
        return _START.match(text) is not None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every nested value."""
        root = _parse(path, text)
        tops = [root] if root.kind == "{" else [value for _, value in root.items]
        described = any(_is_text(top.get(*_ID_KEYS, *_TITLE_KEYS)) for top in tops)
        flat = root.kind == "[" and any(top.get(_PARENT) is not None for top in tops)
        links = list(_walk_described(path, root, flat) if described else _walk_named(path, root))
        if not links:
            raise FileError(path, "the JSON holds no node; nest the nodes as objects", line=1)
        if described:  # a node of a DAG may be repeated, whole or by its id, under each of its parents
            first_links: dict[tuple[str, str | None], Link] = {}
            for link in links:
                first_links.setdefault((link.node, link.parent), link)
            links = list(first_links.values())
        return Draft.declared(links)


def _is_text(value: _Value | None) -> bool:
    return value is not None and not value.kind and isinstance(value.scalar, (str, int)) and value.scalar != ""


def _walk_named(path: str | Path, root: _Value) -> Iterator[Link]:
    stack: list[tuple[_Value, str | None]] = [(root, None)]
    while stack:
        value, parent = stack.pop()
        inner = []
        for key, child in value.items:
            if value.kind == "[" and child.kind == "{":  # an array of objects: their keys are the children
                inner.append((child, parent))
                continue
            name = key if value.kind == "{" else _text(path, child)
            if not name.strip():
                raise FileError(path, "the name of a node is empty; give every node a name", line=child.line)
            node = _path_id(path, parent, name, child.line)
            yield Link(node, parent, child.line, {"title": name})
            if value.kind == "{" and child.kind:
                inner.append((child, node))
            elif value.kind == "{" and child.scalar not in (None, ""):
                raise FileError(
                    path,
                    f"expected the children of {quoted(name)} as an object, an array or null, got {child.scalar!r}",
                    line=child.line,
                )
        stack.extend(reversed(inner))


def _walk_described(path: str | Path, root: _Value, flat: bool) -> Iterator[Link]:
    """Yield the links of nodes with fields; in a ``flat`` list they name their parents, else their children."""
    stack: list[tuple[_Value, str | None]] = [(root, None)]
    while stack:
        value, parent = stack.pop()
        if value.kind == "[":
            stack.extend((child, parent) for _, child in reversed(value.items))
            continue
        identifier = _field(path, value, _ID_KEYS)
        title = _field(path, value, _TITLE_KEYS) if value.kind else _text(path, value)
        if flat:
            if not identifier:
                raise FileError(path, "a node has no id; nodes that name their parent need one", line=value.line)
            parent = _field(path, value, (_PARENT,)) or None
        elif not identifier:
            if not title or not title.strip():
                raise FileError(path, "a node has neither an id nor a title; give it one", line=value.line)
            identifier = _path_id(path, parent, title, value.line)
        attributes = {} if title is None else {"title": title}
        used = {*_ID_KEYS, *_TITLE_KEYS}
        if flat:  # only one key of each kind is used
            used = {next((k for k in keys if value.get(k) is not None), "") for keys in (_ID_KEYS, _TITLE_KEYS)}
        for key, child in value.items:
            if not child.kind and key not in (*used, _PARENT, _CHILDREN):
                attributes[key] = _text(path, child)
        yield Link(identifier, parent, value.line, attributes)
        below = None if flat else value.get(_CHILDREN)
        if below is not None and below.kind == "[":
            stack.append((below, identifier))
        elif below is not None and (below.kind or below.scalar is not None):
            raise FileError(path, f"the children of {quoted(identifier)} are not a list", line=below.line)


def _path_id(path: str | Path, parent: str | None, name: str, line: int) -> str:
    node = path_id([name]) if parent is None else parent + PATH_SEP + path_id([name])
    if len(node) > MAX_PATH_ID:
        raise FileError(
            path, f"the path of names to {quoted(name)} is too long for an id; give the nodes ids", line=line
        )
    return node


def _field(path: str | Path, value: _Value, keys: tuple[str, ...]) -> str | None:
    entry = value.get(*keys)
    return None if entry is None else _text(path, entry)


def _text(path: str | Path, value: _Value) -> str:
    if value.kind:
        raise FileError(path, "expected a name, got a nested value", line=value.line)
    if value.scalar is None:
        return ""
    return value.scalar if isinstance(value.scalar, str) else json.dumps(value.scalar)


def _tokens(path: str | Path, text: str) -> Iterator[tuple[int, str]]:
    line, position, end = 1, 0, len(text.rstrip(" \t\n\r"))
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise FileError(path, f"not valid JSON near {quoted(text[position : position + 20].strip())}", line=line)
        token = match[match.lastindex or 0]
        line += text.count("\n", position, match.end() - len(token))
        yield line, token
        line += token.count("\n")
        position = match.end()


def _scalar(path: str | Path, line: int, token: str) -> Any:
    if token in "}],:":
        raise FileError(path, f"not valid JSON: unexpected {quoted(token)}", line=line)
    try:
        value = json.loads(token)
    except ValueError as error:
        raise FileError(path, f"not valid JSON: {quoted(token)} ({error})", line=line) from None
    if isinstance(value, str) and not is_writable(value):
        raise FileError(path, f"{quoted(value)} {UNWRITABLE}", line=line)
    return value


def _parse(path: str | Path, text: str) -> _Value:
    """Parse JSON with an explicit stack."""
    top = _Value(1, "")  # its only item is the value of the text
    open_values = [top]
    key, line, start = "", 1, 1  # name of the current item, its line and the line of its name
    state = "item"  # what comes next: "item", "item" or end ("first"), "colon", "value", or "comma" or end
    for line, token in _tokens(path, text):
        holder = open_values[-1]
        expected = ""
        if top.items and holder is top:
            raise FileError(path, f"not valid JSON: {quoted(token)} after its end", line=line)
        if token == _OPENING.get(holder.kind) and state in ("first", "comma"):
            open_values.pop()
            state = "comma"
        elif state == "comma":
            state, expected = "item", "" if token == "," else "',' or a closing bracket"
        elif state == "colon":
            state, expected = "value", "" if token == ":" else f"':' after {quoted(key)}"
        elif holder.kind == "{" and state != "value":
            if token.startswith('"'):
                key, start, state = _scalar(path, line, token), line, "colon"
            else:
                expected = 'a name in "quotes"'
        else:
            value = _Value(start if state == "value" else line, token if token in _OPENING else "")
            holder.items.append((key if state == "value" else "", value))
            if value.kind:
                open_values.append(value)
                state = "first"
            else:
                value.scalar = _scalar(path, line, token)
                state = "comma"
        if expected:
            raise FileError(path, f"not valid JSON: expected {expected}, got {quoted(token)}", line=line)
    if len(open_values) > 1 or not top.items:
        raise FileError(path, "not valid JSON: the text ends before its brackets close", line=line)
    value = top.items[0][1]
    if not value.kind:
        raise FileError(path, "the JSON is a single value; nest the nodes as objects", line=line)
    return value
