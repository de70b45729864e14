"""The header of an ARFF file: its attributes, and the hierarchy that Clus declares in one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hinet.errors import FileError, quoted
from hinet.taxonomy.draft import Draft, TaxonomyFormat, id_path_draft

AttributeKind = Literal["number", "category", "text", "key", "hierarchy"]

ROOT = "root"
SEPARATOR = "/"

_START = re.compile(r"(?:\s|%[^\n]*\n)*@relation\b", re.IGNORECASE)
_DATA = re.compile(r"^[ \t]*@data[ \t]*(?:%.*)?\r?$", re.IGNORECASE | re.MULTILINE)
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)\s*(.*)""", re.IGNORECASE)
_VALUE = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*?)\s*(?:,|$)""")
_KINDS: dict[str, AttributeKind] = {
    "numeric": "number", "real": "number", "integer": "number", "string": "text", "key": "key", "date": "key",
}  # fmt: skip
_REMEDY = "expected numeric, string, {values} or hierarchical"


@dataclass(frozen=True)
class Attribute:
    """A declared column: its values if it has categories, or the nodes or edges of its hierarchy."""

    name: str
    kind: AttributeKind
    values: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class ArffHeader:
    """The attributes of a file, and the offset and line after ``@data``."""

    attributes: tuple[Attribute, ...]
    data_start: int
    data_line: int

    @property
    def hierarchy(self) -> Attribute | None:
        """The attribute of the labels, if one is hierarchical."""
        return next((attribute for attribute in self.attributes if attribute.kind == "hierarchy"), None)

    def names(self, kind: AttributeKind) -> tuple[str, ...]:
        """Return the attributes of a kind."""
        return tuple(attribute.name for attribute in self.attributes if attribute.kind == kind)


def is_arff(text: str) -> bool:
    r"""Return whether a text starts like an ARFF file.

    >>> is_arff("% genes\n@RELATION cellcycle"), is_arff("node,parent")
    (True, False)
    """
    return _START.match(text) is not None


def parse_header(path: str | Path, text: str) -> ArffHeader:
    """Return the header of an ARFF file, or raise FileError with the line; repeated names get a number."""
    data = _DATA.search(text)
    if data is None:
        raise FileError(path, "there is no line @data after the attributes of the ARFF file; is it cut short?")
    attributes = [
        _attribute(path, line.strip(), number)
        for number, line in enumerate(text[: data.start()].split("\n"), start=1)
        if line.lstrip()[:10].lower() == "@attribute"
    ]
    hierarchies = [attribute for attribute in attributes if attribute.kind == "hierarchy"]
    if len(hierarchies) > 1:
        raise FileError(path, "a second attribute is hierarchical; keep one", line=hierarchies[1].line)
    names = _distinct_names([attribute.name for attribute in attributes])
    renamed = (replace(attribute, name=name) for name, attribute in zip(names, attributes, strict=True))
    return ArffHeader(tuple(renamed), data.end(), text.count("\n", 0, data.start()) + 1)


def _attribute(path: str | Path, line: str, number: int) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise FileError(path, f"expected '@attribute name type', got {quoted(line)}", line=number)
    name, declared = unquote(match[1]), match[2].strip()
    if declared.startswith("{"):
        inner = declared.partition("%")[0].rstrip() if not declared.endswith("}") else declared
        if not inner.endswith("}"):
            raise FileError(path, f"the values of {quoted(name)} do not end with '}}'", line=number)
        return Attribute(name, "category", _values(inner[1:-1]), number)
    word, rest = [*declared.split(None, 1), "", ""][:2]
    if word.lower() == "hierarchical":
        return Attribute(name, "hierarchy", tuple(dict.fromkeys(_values(rest))), number)
    if word.lower() not in _KINDS:
        raise FileError(path, f"the type of {quoted(name)} is {quoted(declared)}, {_REMEDY}", line=number)
    return Attribute(name, _KINDS[word.lower()], (), number)


def _distinct_names(names: list[str]) -> list[str]:
    """Return the names, repeated ones with the number of their occurrence."""
    used, counts, distinct = {*names}, dict.fromkeys(names, 0), []
    for name in names:
        counts[name] += 1
        number, candidate = counts[name], name
        while number > 1 and (candidate := f"{name} {number}") in used:
            number += 1
        used.add(candidate)
        distinct.append(candidate)
    return distinct


def _values(text: str) -> tuple[str, ...]:
    return tuple(value for value in split_values(text) if value)


def split_values(text: str) -> list[str]:
    """Return the values between commas, without the spaces and quotes around them.

    >>> split_values("1, 'a, b' ,?")
    ['1', 'a, b', '?']
    """
    if "'" not in text and '"' not in text:
        return [part.strip() for part in text.split(",")]
    values, position = [], 0
    while position <= len(text):
        match = _VALUE.match(text, position)
        assert match is not None  # it matches any text
        values.append(unquote(match[1]))
        position = match.end() if match[0].endswith(",") and match.end() > match.end(1) else len(text) + 1
    return values


def unquote(text: str) -> str:
    r"""Return a name or value without the quotes around it.

    >>> unquote("'it\\'s'"), unquote('"two words"'), unquote("plain")
    ("it's", 'two words', 'plain')
    """
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


@dataclass(frozen=True)
class Arff(TaxonomyFormat):
    """The attribute ``class hierarchical``: a tree as paths ``01/01/03``, or a DAG as edges ``parent/child``.

    It is a DAG if all are edges, and one of them starts at ``root``. The id of a node of a tree is its path; the only
    top node of a tree has ``root`` above it.
    """

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Return whether a text starts like an ARFF file."""
        return is_arff(text)

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
    if not (all(len(steps) == 2 for steps in paths) and any(steps[0] == ROOT for steps in paths)):  # a tree
        top = (ROOT,) if len({steps[0] for steps in paths}) == 1 else ()
        prefixes = ([SEPARATOR.join(steps[:length]) for length in range(1, len(steps) + 1)] for steps in paths)
        paths = [(*top, *nodes) for nodes in prefixes]
    return id_path_draft(paths, [attribute.line] * len(paths))
