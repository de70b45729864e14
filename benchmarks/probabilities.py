"""Compare label probabilities by one pass over the layers with listing all traces: ratios within one process.

    python benchmarks/probabilities.py

The weights are random with a large spread, so that rows are neither certain nor uniform.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp
from measure import run_cases

from hinet import HiNetClassifier, Layers, Taxonomy
from hinet.classifier.calibration import LOG_FACTORS
from hinet.engine import FusedModel, Groups, Search

FEATURES, WIDTH, SPREAD = 50, 256, 0.15
TURNS = 7
BARS = {"dense dag": ("enumeration_ratio", 100), "calibration": ("enumeration_ratio", 10)}  # minimum ratios
MAX_PREDICT_RATIO = 3  # maximum time of all probabilities of a row, relative to its best trace


def dense_dag(width: int, height: int) -> Taxonomy:
    """Return a dense DAG: each node is below all nodes of the layer above, under one root."""
    edges: list[tuple[str | None, str]] = [("root", f"1.{node}") for node in range(width)]
    nodes = range(width)
    edges += [(f"{layer}.{a}", f"{layer + 1}.{b}") for layer, a, b in product(range(1, height), nodes, nodes)]
    return Taxonomy.from_edges(edges)


def random_search(layers: Layers) -> Search:
    random = np.random.default_rng(0)
    outputs = Groups.of(layers).rows
    arrays = {
        "features.weight": random.standard_normal((FEATURES, WIDTH)) * SPREAD,
        "features.bias": np.zeros(WIDTH),
        "head.weight": random.standard_normal((outputs, WIDTH)) * SPREAD,
        "head.bias": random.standard_normal(outputs) * SPREAD,
    }
    return Search(FusedModel.from_arrays(layers, arrays))


def random_rows(count: int) -> sp.csr_array:
    return sp.random_array((count, FEATURES), density=0.3, format="csr", dtype=np.float32, rng=1)


def enumerated(search: Search, rows: sp.csr_array, least: float = 0.0) -> Any:
    """(n, nodes) The probabilities of labels by the list of all traces of at least ``least``."""
    traces = search.traces(rows, search.model.layers.count_traces(), least=least).traces
    assert traces.log_p is not None
    row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
    found = np.zeros((len(traces), len(search.model.layers.taxonomy)))
    np.add.at(found, (row, traces.end_nodes), np.exp(traces.log_p))
    return found


def seconds_of(work: Callable[[], Any], turns: int = TURNS) -> float:
    """Return the lowest seconds of several runs; if there are several, after an uncounted one."""
    if turns > 1:
        work()
    seconds = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def rounded(**values: Any) -> dict[str, Any]:
    return {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in values.items()}


def dense() -> dict[str, Any]:
    """Measure one row of a dense DAG: all labels, the best and the three best, and all traces."""
    search, row = random_search(Layers.of(dense_dag(30, 4), ends=[])), random_rows(1)
    found = search.label_probabilities(row).toarray()
    pass_seconds = seconds_of(lambda: search.label_probabilities(row))
    start = time.perf_counter()
    expected = enumerated(search, row)
    listing_seconds = time.perf_counter() - start
    return rounded(
        nodes=len(search.model.layers.taxonomy),
        traces=search.model.layers.count_traces(),
        largest_difference=float(np.abs(found - expected).max()),
        pass_seconds=pass_seconds,
        best_label_seconds=seconds_of(lambda: search.labels(row)),
        three_labels_seconds=seconds_of(lambda: search.top_labels(row, 3)),
        enumeration_seconds=listing_seconds,
        enumeration_ratio=listing_seconds / pass_seconds,
    )


def calibration() -> dict[str, Any]:
    """Calibrate on 32 rows of a DAG of 40 nodes, and list all traces of these rows at the first factors tried."""
    random = np.random.default_rng(0)
    labels = [f"4.{node}" for node in range(10)]
    truth = random.integers(0, 10, 432)
    rows = sp.csr_array((random.random((432, 10)) + 2 * np.eye(10)[truth]).astype(np.float32))
    y = [labels[label] for label in truth]
    classifier = HiNetClassifier(dense_dag(10, 4), width=32, members=1, epochs=3).fit(rows[:400], y[:400])
    held = rows[400:]

    def all_traces() -> None:
        for log_factor in LOG_FACTORS:
            search = classifier.fitted_.scaled(float(np.exp(log_factor))).predictor
            assert isinstance(search, Search)
            enumerated(search, held, 1e-4)

    fitted = classifier.fitted_

    def calibrate() -> None:
        classifier.fitted_ = fitted
        classifier.calibrate(held, y[400:])

    listing_seconds, calibrate_seconds = seconds_of(all_traces, 1), seconds_of(calibrate)
    return rounded(
        nodes=len(classifier.taxonomy_),
        traces=fitted.codec.layers.count_traces(),
        rows=len(y) - 400,
        calibrate_seconds=calibrate_seconds,
        enumeration_seconds=listing_seconds,
        enumerated_factors=len(LOG_FACTORS),
        enumeration_ratio=listing_seconds / calibrate_seconds,
    )


def flat() -> dict[str, Any]:
    """Measure one row with 100,000 sibling labels: the best, all probabilities, and all traces."""
    layers = Layers.of(Taxonomy.from_edges([(None, f"{label}") for label in range(100_000)]))
    search, row = random_search(layers), random_rows(1)
    best_seconds = seconds_of(lambda: search.traces(row))
    pass_seconds = seconds_of(lambda: search.label_probabilities(row).toarray())
    listing_seconds = seconds_of(lambda: enumerated(search, row), 1)
    return rounded(
        labels=layers.count_traces(),
        best_trace_seconds=best_seconds,
        pass_seconds=pass_seconds,
        enumeration_seconds=listing_seconds,
        pass_to_best_trace_ratio=pass_seconds / best_seconds,
        enumeration_ratio=listing_seconds / pass_seconds,
    )


CASES = {"dense dag": dense, "calibration": calibration, "flat": flat}


def main() -> None:
    results = run_cases(__file__, "probabilities", CASES)
    missed = [case for case, (name, bar) in BARS.items() if results[case][name] < bar]
    missed += ["flat"] * (results["flat"]["pass_to_best_trace_ratio"] > MAX_PREDICT_RATIO)
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
