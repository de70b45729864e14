"""Measure reading and writing thesauri and ontologies: seconds and peak memory, each case in a fresh process.

    python benchmarks/ontologies.py

The thesaurus and the ontology are synthetic: a tree with eight children per concept, labels in two languages, a synonym
and a definition. They have a million triples, or the same number of terms in OBO.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Case, Stopwatch, answer_if_asked, run_alone, save

from hinet import Taxonomy

CONCEPTS = 143_000  # seven triples each
CHILDREN = 8
BARS = (60.0, 2.0)  # maximum seconds and GB
SKOS = "http://www.w3.org/2004/02/skos/core#"
TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
SCHEME = "http://example.org/scheme"


def triples() -> Iterator[tuple[str, str, str]]:
    """Yield the triples of the synthetic thesaurus in N-Triples notation."""
    yield f"<{SCHEME}>", f"<{TYPE}>", f"<{SKOS}ConceptScheme>"
    for number in range(CONCEPTS):
        node = f"<http://example.org/concept/{number}>"
        yield node, f"<{TYPE}>", f"<{SKOS}Concept>"
        yield node, f"<{SKOS}inScheme>", f"<{SCHEME}>"
        above = f"<http://example.org/concept/{(number - 1) // CHILDREN}>"
        yield (node, f"<{SKOS}broader>", above) if number else (node, f"<{SKOS}topConceptOf>", f"<{SCHEME}>")
        yield node, f"<{SKOS}prefLabel>", f'"concept number {number}"@en'
        yield node, f"<{SKOS}prefLabel>", f'"Begriff Nummer {number}"@de'
        yield node, f"<{SKOS}altLabel>", f'"another name of {number}"@en'
        yield node, f"<{SKOS}definition>", f'"what the concept {number} is about, in a few words"@en'


def read_thesaurus(suffix: str) -> dict[str, Any]:
    """Read the thesaurus in one syntax."""
    import pyoxigraph as ox

    formats = {".nt": ox.RdfFormat.N_TRIPLES, ".ttl": ox.RdfFormat.TURTLE, ".rdf": ox.RdfFormat.RDF_XML}
    formats[".jsonld"] = ox.RdfFormat.JSON_LD
    with tempfile.TemporaryDirectory() as folder:
        plain, path = Path(folder) / "lines.nt", Path(folder) / f"thesaurus{suffix}"
        with plain.open("w") as file:
            file.writelines(f"{' '.join(triple)} .\n" for triple in triples())
        quads = (quad.triple for quad in ox.parse(path=plain, format=ox.RdfFormat.N_TRIPLES))
        ox.serialize(quads, output=path, format=formats[suffix])
        watch = Stopwatch()
        taxonomy = Taxonomy.from_file(path)
        seconds, processor_seconds = watch.seconds, watch.processor_seconds
        sizes = {"triples": 7 * CONCEPTS + 1, **measured(taxonomy, path, seconds)}
        return {**sizes, "processor_seconds": processor_seconds}


def round_trip(suffix: str) -> dict[str, Any]:
    """Write the hierarchy as OBO or Turtle, and read it back."""
    nodes = [f"X:{number:07}" for number in range(CONCEPTS)]
    edges = [(nodes[(number - 1) // CHILDREN] if number else None, node) for number, node in enumerate(nodes)]
    titles = {node: f"concept number {number}" for number, node in enumerate(nodes)}
    synonyms = {node: f"another name of {number}|one more" for number, node in enumerate(nodes)}
    made_up = Taxonomy.from_edges(edges, attributes={"title": titles, "synonyms": synonyms})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"ontology{suffix}"
        watch = Stopwatch()
        made_up.write(path)
        written = watch.seconds
        taxonomy = Taxonomy.from_file(path)
        assert taxonomy == made_up
        return {"seconds_to_write": written, **measured(taxonomy, path, round(watch.seconds - written, 3))}


def measured(taxonomy: Taxonomy, path: Path, seconds: float) -> dict[str, Any]:
    return {"nodes": len(taxonomy), "megabytes": round(path.stat().st_size / 1e6, 1), "seconds": seconds}


CASES: dict[str, Case] = {
    "N-Triples": lambda: read_thesaurus(".nt"),
    "Turtle": lambda: read_thesaurus(".ttl"),
    "RDF/XML": lambda: read_thesaurus(".rdf"),
    "JSON-LD": lambda: read_thesaurus(".jsonld"),
    "OBO": lambda: round_trip(".obo"),
    "SKOS written": lambda: round_trip(".ttl"),
}


def main() -> None:
    answer_if_asked(CASES)
    results = {name: run_alone(__file__, name) for name in CASES}
    for name, result in results.items():
        within = result["seconds"] <= BARS[0] and result["peak_gb"] <= BARS[1]
        print(f"{name:14} {result}  {'within' if within else 'ABOVE'} {BARS[0]:g} s and {BARS[1]:g} GB")
    save("ontologies", {"data": "made up", **results})


if __name__ == "__main__":
    main()
