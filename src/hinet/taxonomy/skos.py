"""SKOS thesauri in RDF/XML, Turtle, N-Triples or JSON-LD, read by pyoxigraph; written as Turtle."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote
from xml.parsers import expat

from hinet.errors import FileError, did_you_mean, quoted
from hinet.extras import require
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

MAX_DEPTH = 500  # levels of elements, or of objects and arrays in JSON-LD; parsers slow down or crash far deeper
MAX_ENTITY_LENGTH = 1_000  # characters; usual entities are namespaces
MAX_EXPANSION = 10  # characters that entities may add per character of the file
MIN_EXPANSION = 1 << 20  # characters that entities may add to any file

_SKIPPED = r"<\?.*?\?>|<!--.*?-->"
_SUBSET = rf"""\[(?>{_SKIPPED}|"[^"]*"|'[^']*'|[^\]"'<]|<(?!!--|\?))*+\]\s*"""
_DOCTYPE = rf"""<!DOCTYPE(?>"[^"]*"|'[^']*'|[^\[>"'])*+(?>{_SUBSET})?+>"""
PROLOG = rf"(?>\s+|{_SKIPPED}|{_DOCTYPE})*+"  # everything before the first element
_DECLARED = re.compile(rf"((?>\s+|{_SKIPPED})*+)({_DOCTYPE})", re.DOTALL)
_REFERENCE = re.compile(rf"{_SKIPPED}|<!\[CDATA\[.*?\]\]>|&([^&;\s#][^&;\s]*);", re.DOTALL)
_REMEDY = "convert the file to Turtle"

Syntax = Literal["RDF/XML", "Turtle", "JSON-LD"]

CORE = "http://www.w3.org/2004/02/skos/core#"
OWN = "urn:hinet:"  # prefix of percent-encoded ids that are not IRIs
OWN_COLUMN = "urn:hinet-column:"  # prefix of a column other than title, synonyms and definition
UNTAGGED = ""  # the language of a literal without one
DEFAULT_LANGUAGE = "en"  # preferred among languages of equally many concepts

_OTHER = 3  # the rank of a text in another language
_RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
_DEPRECATED = "http://www.w3.org/2002/07/owl#deprecated"
_TEXTS = {CORE + "prefLabel": TITLE, CORE + "altLabel": SYNONYMS, CORE + "definition": DEFINITION}
_JOINS: Mapping[str, Callable[[list[str]], str]] = {  # several texts of a concept as one cell
    TITLE: lambda texts: texts[0],
    SYNONYMS: lambda texts: join_terms(dict.fromkeys(texts)),
    DEFINITION: lambda texts: " ".join(dict.fromkeys(texts)),
}
_LINKS = {CORE + name for name in ("broader", "narrower", "inScheme", "topConceptOf", "hasTopConcept")}
_XML = re.compile(rf"{PROLOG}<(?:\w+:)?RDF\b", re.DOTALL)
_TURTLE = re.compile(
    r"(?:\s|#[^\n]*\n)*(?:@(?:prefix|base)\b|(?:prefix|base)\s+\S*\s*<|(?:<[^<>\s]*>|_:\S+)\s+(?:a\s|<[^<>\s]*>\s))",
    re.IGNORECASE,
)
_JSON_LD = re.compile(r'"@(?:context|graph|id)"\s*:')
_JSON_NESTING = re.compile(r'"(?:[^"\\]+|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)
_IRI = re.compile(r"(?:https?://|urn:[a-z0-9][a-z0-9-]+:)[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def syntax_of(text: str) -> Syntax | None:
    """Return the syntax of RDF that a text is in, if any.

    >>> syntax_of("@prefix skos: <http://www.w3.org/2004/02/skos/core#> ."), syntax_of("node,parent")
    ('Turtle', None)
    """
    if _XML.match(text):
        return "RDF/XML"
    if text.lstrip()[:1] in ("{", "["):
        return "JSON-LD" if _JSON_LD.search(text) else None
    return "Turtle" if _TURTLE.match(text) else None  # N-Triples are Turtle


@dataclass(frozen=True)
class Skos(TaxonomyFormat):
    """A thesaurus of concepts with ``skos:broader`` and ``skos:narrower``; the id of a node is the IRI of its concept.

    ``language`` is that of the titles, synonyms and definitions, by default the one in which most concepts have a
    preferred label. ``scheme`` is the concept scheme to read, by its IRI or the end of it; by default all are.
    Deprecated concepts are left out.
    """

    suffixes = (".ttl", ".nt", ".rdf", ".xml", ".owl", ".jsonld")
    memory_per_byte = 16  # most of a file is syntax or repetition
    write_suffix = ".ttl"

    language: str | None = None
    scheme: str | None = None

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Return whether a text is RDF in any syntax."""
        return syntax_of(text) is not None

    def parse(self, path: str | Path, text: str) -> Draft:
        """Return a link for every concept and broader concept; messages name the concept."""
        graph = _Graph.read(path, text)
        concepts = graph.concepts(None if self.scheme is None else _find_scheme(path, graph, self.scheme))
        if not concepts:
            raise FileError(path, "there is no skos:Concept in the file; is it a SKOS thesaurus?")
        language = self._language(path, graph, concepts)
        columns = {
            name: {node: join(texts) for node, texts in graph.texts(name, language).items()}
            for name, join in _JOINS.items()
        }
        columns |= graph.own_columns
        above = graph.broader(concepts)
        links = []
        for node in concepts:
            attributes = {name: column.get(node, "") for name, column in columns.items()}
            parents: list[str | None] = [_as_id(parent) for parent in above.get(node, ())]
            links += [Link(_as_id(node), parent, None, attributes) for parent in parents or [None]]
        return Draft.declared(links, [*self._warnings(graph, language)])

    def _language(self, path: str | Path, graph: _Graph, concepts: Iterable[str]) -> str:
        known = {*concepts}
        counts = Counter(tag for _, tag in {(node, tag) for node, tag, _ in graph.literals[TITLE] if node in known})
        if self.language is None:
            return min(counts, key=lambda tag: (-counts[tag], tag != DEFAULT_LANGUAGE, tag), default=UNTAGGED)
        language = self.language.lower()
        if counts and not any(_is_language(tag, language) for tag in counts):
            listed = ", ".join(quoted(tag) for tag, _ in counts.most_common(12) if tag) or "no language"
            message = (
                f"no preferred label is in the language {quoted(self.language)}; set `language` to one of {listed}"
            )
            raise FileError(path, message)
        return language

    def _warnings(self, graph: _Graph, language: str) -> Iterator[Problem]:
        schemes = list(graph.schemes)
        if self.scheme is None and len(schemes) > 1:
            message = f"the file has {len(schemes):,} concept schemes, all read; set `scheme` to read one, such as"
            yield Problem("warning", "several-schemes", f"{message} {quoted(schemes[0])}")
        languages = {tag for _, tag, _ in graph.literals[TITLE]}
        if self.language is None and len(languages) > 1:
            name = quoted(language) if language else "no language"
            message = f"titles are in {name}, and labels in {len(languages)}; set `language` to be sure"
            yield Problem("warning", "guessed-language", message)
        for node in graph.undeclared:
            message = f"{quoted(node)} is named as broader or narrower, and is declared nowhere as a skos:Concept"
            yield Problem("warning", "undeclared-concept", message, nodes=(_as_id(node),))

    @staticmethod
    def to_text(ids: Sequence[str], parents: Sequence[Sequence[str]], attributes: Mapping[str, Sequence[str]]) -> str:
        """Return a taxonomy as Turtle: concepts with their parents, titles, synonyms, definitions and other columns."""
        predicates = {name: f"<{OWN_COLUMN}{quote(name, safe='')}>" for name in attributes}
        predicates |= {name: predicate.replace(CORE, "skos:") for predicate, name in _TEXTS.items()}
        lines = [f"@prefix skos: <{CORE}> ."]
        for row, (node, above) in enumerate(zip(ids, parents, strict=True)):
            parts = ["a skos:Concept", *(f"skos:broader <{_as_iri(parent)}>" for parent in above)]
            for name, column in attributes.items():
                texts = split_terms(column[row]) if name == SYNONYMS else [column[row]] if column[row] else []
                parts += [f'{predicates[name]} "{text.translate(_ESCAPES)}"' for text in texts]
            lines.append(f"<{_as_iri(node)}> " + " ;\n    ".join(parts) + " .")
        return "\n".join(lines) + "\n"


@dataclass
class _Graph:
    """The triples of a thesaurus that matter, in the order of the file."""

    types: dict[str, set[str]] = field(default_factory=dict)
    links: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: {name: [] for name in _LINKS})
    literals: dict[str, list[tuple[str, str, str]]] = field(
        default_factory=lambda: {name: [] for name in _TEXTS.values()}
    )  # titles, synonyms and definitions as (concept, language, text)
    own_columns: dict[str, dict[str, str]] = field(default_factory=dict)
    deprecated: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: str | Path, text: str) -> _Graph:
        """Parse RDF in any syntax, or raise FileError with the line."""
        require("pyoxigraph", "a SKOS file")
        import pyoxigraph as ox

        syntax = syntax_of(text) or "Turtle"
        if syntax == "RDF/XML":
            text = _expand_entities(path, text)
        elif syntax == "JSON-LD":
            _check_nesting(path, text)
        formats = {"RDF/XML": ox.RdfFormat.RDF_XML, "Turtle": ox.RdfFormat.TURTLE, "JSON-LD": ox.RdfFormat.JSON_LD}
        graph = cls()
        try:
            for quad in ox.parse(input=text, format=formats[syntax]):
                graph._add(_name(quad.subject), quad.predicate.value, quad.object)
        except SyntaxError as error:
            raise FileError(path, f"not valid {syntax}: {error.msg}", line=error.lineno) from None
        return graph

    def _add(self, subject: str, predicate: str, value: Any) -> None:
        if predicate in _TEXTS:
            language = getattr(value, "language", None) or UNTAGGED
            self.literals[_TEXTS[predicate]].append((subject, language, value.value))
        elif predicate in self.links:
            self.links[predicate].append((subject, _name(value)))
        elif predicate == _RDF_TYPE:
            self.types.setdefault(subject, set()).add(value.value)
        elif predicate == _DEPRECATED and value.value in ("true", "1"):
            self.deprecated.add(subject)
        elif predicate.startswith(OWN_COLUMN):
            self.own_columns.setdefault(unquote(predicate[len(OWN_COLUMN) :]), {})[subject] = value.value

    def _typed(self, name: str) -> list[str]:
        return [node for node, types in self.types.items() if CORE + name in types]

    @cached_property
    def _memberships(self) -> list[tuple[str, str]]:
        """The pairs (concept, scheme)."""
        tops = ((concept, scheme) for scheme, concept in self.links[CORE + "hasTopConcept"])
        return [*self.links[CORE + "inScheme"], *self.links[CORE + "topConceptOf"], *tops]

    @cached_property
    def _hierarchy(self) -> dict[tuple[str, str], None]:
        """The pairs (concept, broader concept)."""
        narrower = ((child, parent) for parent, child in self.links[CORE + "narrower"])
        return dict.fromkeys([*self.links[CORE + "broader"], *narrower])

    @cached_property
    def schemes(self) -> dict[str, None]:
        """The concept schemes, in the order of the file."""
        return dict.fromkeys([*self._typed("ConceptScheme"), *(scheme for _, scheme in self._memberships)])

    @property
    def undeclared(self) -> list[str]:
        """Concepts that are only named as broader or narrower ones."""
        declared = {*self._typed("Concept"), *(node for node, _, _ in self.literals[TITLE])}
        ends = dict.fromkeys(node for pair in self._hierarchy for node in pair)
        return [node for node in ends if node not in declared]

    def concepts(self, scheme: str | None) -> list[str]:
        """Return the concepts of a scheme, or all, in the order of the file."""
        nodes = dict.fromkeys(
            [
                *self._typed("Concept"),
                *(node for node, _ in self._memberships),
                *(node for pair in self._hierarchy for node in pair),
            ]
        )
        left_out = {*self.schemes, *self.deprecated}
        members = nodes if scheme is None else {node for node, other in self._memberships if other == scheme}
        return [node for node in nodes if node in members and node not in left_out]

    def broader(self, concepts: Sequence[str]) -> dict[str, list[str]]:
        """Return the broader ones of these concepts among them."""
        known = {*concepts}
        above: dict[str, list[str]] = {}
        for child, parent in self._hierarchy:
            if child in known and parent in known:
                above.setdefault(child, []).append(parent)
        return above

    def texts(self, name: str, language: str) -> dict[str, list[str]]:
        """Return the texts of each concept in a language: with that tag, else with a variant of it, else with none."""
        best: dict[str, int] = {}
        texts: dict[str, list[str]] = {}
        for node, tag, text in self.literals[name]:
            rank = 0 if tag == language else 1 if _is_language(tag, language) else 2 if tag == UNTAGGED else _OTHER
            if rank == _OTHER or not text.strip():
                continue
            if rank < best.get(node, _OTHER):
                best[node], texts[node] = rank, [text]
            elif rank == best[node]:
                texts[node].append(text)
        return texts


def _check_nesting(path: str | Path, text: str) -> None:
    """Raise FileError if objects and arrays of JSON are nested too deeply for the parser, which would crash."""
    depth = 0
    for match in _JSON_NESTING.finditer(text):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > MAX_DEPTH:
            raise FileError(path, _too_deep(), line=text.count("\n", 0, match.start()) + 1)


def _name(term: Any) -> str:
    """Return the IRI of a node, or the name of a blank one."""
    value: str = term.value
    return value if ":" in value else f"_:{value}"


def _is_language(tag: str, language: str) -> bool:
    return tag == language or (bool(language) and tag.startswith(f"{language}-"))


def _find_scheme(path: str | Path, graph: _Graph, name: str) -> str:
    schemes = list(graph.schemes)
    matches = [iri for iri in schemes if iri == name]
    matches = matches or [iri for iri in schemes if re.split(r"[/#]", iri.rstrip("/#"))[-1] == name]
    if len(matches) != 1:
        listed = ", ".join(map(quoted, schemes[:12]))
        hint = did_you_mean(name, schemes)
        raise FileError(path, f"the file has no concept scheme {quoted(name)}; set `scheme` to one of {listed}{hint}")
    return matches[0]


def _as_id(node: str) -> str:
    return unquote(node[len(OWN) :]) if node.startswith(OWN) else node


def _as_iri(node: str) -> str:
    is_iri = _IRI.fullmatch(node) and not node.startswith((OWN, OWN_COLUMN))
    return node if is_iri else OWN + quote(node, safe="")


def _expand_entities(path: str | Path, text: str) -> str:
    """Return XML without a document type, with its entities written out and the same lines.

    Raises
    ------
    FileError
        If the XML is not well-formed or nested too deeply, or if an entity is not plain, short text; names the line.
    """
    entities = _declared_entities(path, text)
    head = _DECLARED.match(text)
    if head is None:
        return text
    body = text[head.end() :]
    replacements = {name: escape(value) for name, value in entities.items()}

    def replace(match: re.Match[str]) -> str:
        return replacements.get(match[1], match[0])  # the parser reports undeclared references

    added = sum(len(replacements.get(match[1], "")) for match in _REFERENCE.finditer(body))
    if added > max(MAX_EXPANSION * len(text), MIN_EXPANSION):
        raise FileError(path, f"the entities of the file stand for {added:,} characters; {_REMEDY}", line=1)
    return head[1] + "\n" * head[2].count("\n") + _REFERENCE.sub(replace, body)


def _declared_entities(path: str | Path, text: str) -> dict[str, str]:
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
            raise FileError(path, _too_deep(), line=parser.CurrentLineNumber)

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.EntityDeclHandler, parser.StartElementHandler, parser.EndElementHandler = declare, start, end
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise FileError(path, f"not valid RDF/XML: {expat.ErrorString(error.code)}", line=error.lineno) from None
    return entities


def _too_deep() -> str:
    return f"more than {MAX_DEPTH:,} elements are nested in each other; {_REMEDY}"
