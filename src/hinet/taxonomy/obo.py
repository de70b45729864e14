"""OBO ontologies, such as the Gene Ontology: read and written line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hinet.errors import FileError, TaxonomyError, quoted
from hinet.files.streams import split_lines
from hinet.taxonomy.draft import (
    DEFINITION,
    SYNONYMS,
    TITLE,
    Draft,
    Link,
    Problem,
    TaxonomyFormat,
    join_terms,
    split_terms,
)

_START = re.compile(r"(?:\s|![^\n]*\n)*(?:format-version:|\[Term\]\s)")
_STANZA = re.compile(r"\[(\w+)\]")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r"[ \t]!")
_MODIFIERS = re.compile(r"[ \t]+\{[^{}]*=[^{}]*\}[ \t]*$")
_UNESCAPED = re.compile(r"\\(.)")
_CHARACTERS = {"n": "\n", "W": " ", "t": "\t"}
_SPECIAL = re.compile(r"[^\w.:#/+*@=~^$%&-]")
_NAMES = {character: f"\\{name}" for name, character in _CHARACTERS.items()}
_COLUMN = "hinet:"  # before the name of a column other than title, synonyms and definition


@dataclass(frozen=True)
class Obo(TaxonomyFormat):
    """The terms of an ontology with their ``is_a`` and optionally ``part_of`` links; obsolete terms are left out."""

    suffixes = (".obo",)
    memory_per_byte = 16  # most of a file is syntax or repetition
    write_suffix = ".obo"

    part_of: bool = False

    @classmethod
    def recognises(cls, text: str) -> bool:
        r"""Return whether a text starts like an OBO file.

        >>> Obo.recognises("format-version: 1.2\n"), Obo.recognises("node,parent")
        (True, False)
        """
        return _START.match(text) is not None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every term and parent."""
        terms = [term for term in _terms(path, text) if not term.obsolete]
        if not terms:
            raise FileError(path, "there is no [Term] in the file that is not obsolete; is it an OBO ontology?")
        known = {term.id for term in terms}
        problems: list[Problem] = []
        links: list[Link] = []
        for term in terms:
            attributes = {**term.attributes, SYNONYMS: join_terms(dict.fromkeys(term.synonyms))}
            above: dict[str, int] = {}
            for parent, line in [*term.parents, *(term.wholes if self.part_of else ())]:
                if parent in known:
                    above.setdefault(parent, line)
                else:
                    message = f"the parent {quoted(parent)} of {quoted(term.id)} is obsolete, or not a term of the file"
                    problems.append(Problem("warning", "left-out-parent", message, line, (term.id, parent)))
            links += [Link(term.id, parent, line, attributes) for parent, line in above.items()]
            if not above:
                links.append(Link(term.id, None, term.line, attributes))
        return Draft.declared(links, problems)

    @staticmethod
    def to_text(ids: Sequence[str], parents: Sequence[Sequence[str]], attributes: Mapping[str, Sequence[str]]) -> str:
        """Return a taxonomy as OBO, or raise TaxonomyError for a text that it cannot hold."""
        lines = ["format-version: 1.4"]
        for row, (node, above) in enumerate(zip(ids, parents, strict=True)):
            lines += ["", "[Term]", f"id: {_escaped_id(node)}"]
            cells = {name: column[row] for name, column in attributes.items() if column[row]}
            if TITLE in cells:
                lines.append(f"name: {_escaped_name(cells[TITLE])}")
            if DEFINITION in cells:
                lines.append(f"def: {_escaped_text(cells[DEFINITION])} []")
            lines += [f"synonym: {_escaped_text(term)} RELATED []" for term in split_terms(cells.get(SYNONYMS, ""))]
            lines += [f"is_a: {_escaped_id(parent)}" for parent in above]
            others = (name for name in cells if name not in (TITLE, DEFINITION, SYNONYMS))
            lines += [f"property_value: {_COLUMN}{_escaped_id(name)} {_escaped_text(cells[name])}" for name in others]
        return "\n".join(lines) + "\n"


@dataclass
class _Term:
    """A term as it is read, line by line."""

    id: str
    line: int
    attributes: dict[str, str] = field(default_factory=lambda: dict.fromkeys((TITLE, SYNONYMS, DEFINITION), ""))
    synonyms: list[str] = field(default_factory=list)
    parents: list[tuple[str, int]] = field(default_factory=list)
    wholes: list[tuple[str, int]] = field(default_factory=list)
    obsolete: bool = False


def _terms(path: str | Path, text: str) -> Iterator[_Term]:
    term: _Term | None = None
    in_term = False
    for number, line in enumerate(split_lines(path, text), start=1):
        line = line.strip(" \t\r\n")
        if line.startswith("[") and (stanza := _STANZA.match(line)):
            if term is not None:
                yield term
            term, in_term = None, stanza[1] == "Term"
            continue
        if not in_term or not line or line.startswith("!"):
            continue
        tag, colon, value = line.partition(":")
        if not colon:
            raise FileError(path, f"expected 'tag: value', got {quoted(line)}", line=number)
        value = value.strip(" \t")
        if tag == "id":
            if term is not None:
                raise FileError(path, f"a second id in the term {quoted(term.id)}; start a new [Term]", line=number)
            term = _Term(_plain(value), number)
        elif term is None:
            raise FileError(path, f"expected the id of the term first, got {quoted(line)}", line=number)
        else:
            _add(path, term, tag, value, number)
    if term is not None:
        yield term


def _add(path: str | Path, term: _Term, tag: str, value: str, line: int) -> None:
    if tag == "name":
        term.attributes[TITLE] = _unescaped(_without_comment(value))
    elif tag == "def":
        term.attributes[DEFINITION] = _quoted_text(path, value, line)
    elif tag == "synonym" or tag.endswith("_synonym"):  # OBO 1.0: exact_synonym and others
        term.synonyms.append(_quoted_text(path, value, line))
    elif tag == "is_a":
        term.parents.append((_plain(value), line))
    elif tag == "relationship":
        kind, _, whole = value.partition(" ")
        if kind.rpartition(":")[2] in ("part_of", "0000050"):  # BFO:0000050 is part of
            term.wholes.append((_plain(whole), line))
    elif tag == "is_obsolete":
        term.obsolete = _plain(value) == "true"
    elif tag == "property_value" and value.startswith(_COLUMN):
        name, _, rest = value[len(_COLUMN) :].partition(" ")
        term.attributes[_unescaped(name)] = _quoted_text(path, rest, line)


def _without_comment(value: str) -> str:
    """Return a value without the comment ``! …`` and the modifiers ``{a=b}`` after it, which have no backslash."""
    end = _COMMENT.search(value)
    return _MODIFIERS.sub("", value if end is None else value[: end.start()]).rstrip(" \t")


def _plain(value: str) -> str:
    return _unescaped(_without_comment(value).split(" ")[0].strip("\t"))


def _quoted_text(path: str | Path, value: str, line: int) -> str:
    match = _TEXT.match(value)
    if match is None:
        raise FileError(path, f"expected a text in double quotes, got {quoted(value)}", line=line)
    return _unescaped(match[1])


def _unescaped(text: str) -> str:
    return text if "\\" not in text else _UNESCAPED.sub(lambda match: _CHARACTERS.get(match[1], match[1]), text)


def _escaped_id(text: str) -> str:
    _check(text)
    return _SPECIAL.sub(lambda match: _NAMES.get(match[0]) or "\\" + match[0], text)


def _escaped_name(text: str) -> str:
    """Return a title, in which only the spaces around it need an escape."""
    inner = text.strip(" ")
    before, _, after = text.partition(inner) if inner else (text, "", "")
    return _escaped_id(before) + _escaped_id(inner).replace("\\W", " ") + _escaped_id(after)


def _escaped_text(text: str) -> str:
    _check(text)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _check(text: str) -> None:
    if "\r" in text:
        raise TaxonomyError(f"{quoted(text)} has a carriage return, which OBO cannot hold; write a table")
