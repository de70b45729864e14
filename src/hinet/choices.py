"""Values that parameters and options choose from, in a module without imports so that ``hinet --help`` stays fast."""

from __future__ import annotations

from typing import Literal, TypeAlias

TableFormat: TypeAlias = Literal["csv", "tsv", "jsonl", "parquet", "arff", "xlsx", "text"]
TaxonomyFormatName: TypeAlias = Literal["table", "edges", "paths", "labels", "json", "arff", "skos", "obo"]
Decoding: TypeAlias = Literal["map", "expected_f1", "label"]
SplitBy: TypeAlias = Literal["auto", "jobs", "rows"]  # how workers share training
