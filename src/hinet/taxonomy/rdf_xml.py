"""Guards for RDF/XML: bounded nesting, and entities expanded here, so that no parser expands them without bounds."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from xml.parsers import expat

from hinet.errors import FileError, quoted

MAX_DEPTH = 500  # nested elements, or nested objects and arrays of JSON-LD: parsers slow down or crash far below
MAX_ENTITY_LENGTH = 1_000  # characters; usual entities are namespaces
MAX_EXPANSION = 10  # characters that entities may add per character of the file
MIN_EXPANSION = 1 << 20  # characters that entities may add to any file

_SKIPPED = r"<\?.*?\?>|<!--.*?-->"
_SUBSET = rf"""\[(?>{_SKIPPED}|"[^"]*"|'[^']*'|[^\]"'])*+\]\s*"""
_DOCTYPE = rf"""<!DOCTYPE(?>"[^"]*"|'[^']*'|[^\[>"'])*+(?>{_SUBSET})?+>"""
PROLOG = rf"(?>\s+|{_SKIPPED}|{_DOCTYPE})*+"  # everything before the first element
_DECLARED = re.compile(rf"((?>\s+|{_SKIPPED})*+)({_DOCTYPE})", re.DOTALL)
_REFERENCE = re.compile(rf"{_SKIPPED}|<!\[CDATA\[.*?\]\]>|&([^&;\s#][^&;\s]*);", re.DOTALL)
_REMEDY = "convert the file to Turtle"


def expand_entities(path: str | Path, text: str) -> str:
    """Return XML without a document type, with its entities written out and the same lines.

    Raises
    ------
    FileError
        If the XML is not well-formed or nested too deeply, or if an entity is not plain, short text; names the line.
    """
    entities = _check(path, text)
    head = _DECLARED.match(text)
    if head is None:
        return text
    body = text[head.end() :]
    replacements = {name: escape(value) for name, value in entities.items()}

    def replace(match: re.Match[str]) -> str:
        return replacements.get(match[1], match[0])  # references that nothing declares stay: the parser reports them

    added = sum(len(replacements.get(match[1], "")) for match in _REFERENCE.finditer(body))
    if added > max(MAX_EXPANSION * len(text), MIN_EXPANSION):
        raise FileError(path, f"the entities of the file stand for {added:,} characters; {_REMEDY}", line=1)
    return head[1] + "\n" * head[2].count("\n") + _REFERENCE.sub(replace, body)


def _check(path: str | Path, text: str) -> dict[str, str]:
    """Return the entities that well-formed XML declares."""
    parser = expat.ParserCreate()
    entities: dict[str, str] = {}
    depth = 0

    def declare(name: str, is_parameter: bool, value: str | None, *_: str | None) -> None:
        if is_parameter or value is None or "&" in value or "<" in value or len(value) > MAX_ENTITY_LENGTH:
            reason = f"the entity {quoted(name)} is not plain text of at most {MAX_ENTITY_LENGTH:,} characters"
            raise FileError(path, f"{reason}; write it out, or {_REMEDY}", line=parser.CurrentLineNumber)
        entities.setdefault(name, value)  # the first declaration counts

    def start(*_: object) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise FileError(path, too_deep(), line=parser.CurrentLineNumber)

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.EntityDeclHandler, parser.StartElementHandler, parser.EndElementHandler = declare, start, end
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise FileError(path, f"not valid RDF/XML: {expat.ErrorString(error.code)}", line=error.lineno) from None
    return entities


def too_deep() -> str:
    """Return the message for a file with too many nested elements."""
    return f"more than {MAX_DEPTH:,} elements are nested in each other; {_REMEDY}"
