"""Rows of data: tables, texts, matrices, traces, ARFF files, and the built-in ICD-10-CM set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.data.datasets import LabelledRows, load_icd10cm, split_by_hash
from hinet.data.traces import Traces
from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.data.tables.arff import ArffData, load_arff

__all__ = ["ArffData", "LabelledRows", "Traces", "load_arff", "load_icd10cm", "split_by_hash"]
__getattr__, __dir__, _ = lazy_exports(__name__, {"tables.arff": "ArffData load_arff"})  # imports Arrow
