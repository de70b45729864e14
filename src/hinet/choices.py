"""Choices and defaults of parameters that are also options, without imports so that ``hinet --help`` stays fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

TableFormat: TypeAlias = Literal["csv", "tsv", "jsonl", "parquet", "arff", "xlsx", "text"]
Decoding: TypeAlias = Literal["map", "expected_f1", "label"]
Effort: TypeAlias = Literal["quick", "default"]  # amount of training
ThresholdsBy: TypeAlias = Literal["all", "level"]  # one threshold of sets for all labels, or one per level
SplitBy: TypeAlias = Literal["auto", "jobs", "rows"]  # how workers share training

VECTOR_WIDTH = 256  # columns of distilled word vectors
DRAWN_DEPTH = 2  # levels of a drawn taxonomy
DRAWN_CHILDREN = 40  # children per node of a drawn taxonomy

TAXONOMY_FORMATS = {  # name: module and class in hinet.taxonomy, description
    "table": ("text_formats", "Table", "node and parent columns"),
    "edges": ("text_formats", "Edges", "parent child"),
    "paths": ("text_formats", "IdPaths", "ids from the root down"),
    "labels": ("text_formats", "LabelPaths", "A > B > C"),
    "json": ("nested_json", "NestedJson", "nested"),
    "arff": ("arff", "Arff", "its hierarchical attribute"),
    "skos": ("skos", "Skos", "RDF/XML, Turtle, N-Triples, JSON-LD"),
    "obo": ("obo", "Obo", "such as the Gene Ontology"),
}
if TYPE_CHECKING:
    TaxonomyFormatName: TypeAlias = str
else:
    TaxonomyFormatName = Literal[tuple(TAXONOMY_FORMATS)]
