"""Rows of data: tables, texts, matrices, traces, and the built-in ICD-10-CM set."""

from hinet.data.icd10cm import load_icd10cm
from hinet.data.rows import LabelledRows, split_by_hash
from hinet.data.traces import Traces

__all__ = ["LabelledRows", "Traces", "load_icd10cm", "split_by_hash"]
