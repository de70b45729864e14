"""Measure one epoch on ICD-10-CM in torch, 19,608 labels, k = 256: time and memory of flat and hierarchical networks.

python benchmarks/icd_torch.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from measure import answer_if_asked, run_alone, save

from hinet import Layers, Taxonomy, Traces, load_icd10cm
from hinet.data.datasets import tfidf_texts
from hinet.evaluation.comparison import ComparisonData, run_model

MAX_GB = 4.0


def one_epoch(model: str) -> dict[str, Any]:
    icd = load_icd10cm()
    layers = Layers.of(icd.taxonomy, ends=sorted({*icd.train.labels}))
    train_rows, test_rows = tfidf_texts(icd.train.texts, icd.valid.texts)
    train, test = Traces.encode(layers, icd.train.labels), Traces.encode(layers, icd.valid.labels)
    data = ComparisonData("ICD-10-CM", layers, train_rows, train, test_rows, test)
    outcome = run_model(data, model, 0, None, {"epochs": 1, "batch": 256})
    return {
        "labels": len({*icd.train.labels}),
        "rows": len(train),
        "seconds_per_epoch": round(outcome.seconds_per_epoch, 1),
        "output_parameters": outcome.output_parameters,
        "valid_accuracy": round(outcome.accuracy, 4),
        "valid_hierarchical_f1": round(outcome.hierarchical_f1, 4),
    }


def wide_epoch(labels: int = 12_000, rows: int = 6_400, features: int = 50_000) -> dict[str, Any]:
    """Train on the worst case for sibling groups: all labels directly below the root."""
    layers = Layers.of(Taxonomy.from_edges([(None, f"n{number}") for number in range(labels)]))
    random = np.random.default_rng(0)
    matrix = sp.random_array((rows, features), density=30 / features, format="csr", dtype=np.float32, rng=random)
    traces = Traces.of_nodes(layers, random.integers(labels, size=rows))
    data = ComparisonData("wide", layers, matrix, traces, matrix[:100], Traces.of_nodes(layers, np.arange(100)))
    outcome = run_model(data, "default", 0, None, {"epochs": 1, "batch": 256})
    return {"labels": labels, "rows": rows, "seconds_per_epoch": round(outcome.seconds_per_epoch, 1)}


CASES = {
    "default": lambda: one_epoch("default"),
    "flatten": lambda: one_epoch("flatten"),
    "default, one wide group": wide_epoch,
}


def main() -> None:
    answer_if_asked(CASES)
    results = {case: run_alone(__file__, case) for case in CASES}
    ours, flat = results["default"], results["flatten"]
    ours["flatten_seconds_ratio"] = round(flat["seconds_per_epoch"] / ours["seconds_per_epoch"], 2)
    for case, row in results.items():
        print(f"{case:24} " + "  ".join(f"{name} {value:,}" for name, value in row.items()))
    save("icd_torch", results)
    if max(row["peak_gb"] for row in results.values()) > MAX_GB:
        raise SystemExit(f"missed: more than {MAX_GB} GB")


if __name__ == "__main__":
    main()
