"""Measure all label metrics of a million rows on every ICD-10-CM code, compared with HiClass and plain sets.

    python benchmarks/metrics.py

HiClass loops over rows, so it is compared on fewer rows, the same for both. If it is not installed, the case is
skipped.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from measure import Stopwatch, answer_if_asked, run_alone, save

from hinet import Layers, Taxonomy, Traces, metrics
from hinet.data.datasets import _entries, _icd_package

ROWS = 1_000_000
FEW = 20_000
RIGHT = 0.6  # share of rows whose prediction is the truth; the others are random nodes
BARS = {"ids": (10.0, 2.0), "traces": (10.0, 2.0)}  # maximum seconds and GB
SIX = [(name, average) for average in ("micro", "macro") for name in ("precision", "recall", "f1")]


@cache
def taxonomy() -> Taxonomy:
    """Return every code; the built-in set has only those with codes below them."""
    return Taxonomy.from_edges([(entry.parent, entry.node) for entry in _entries(_icd_package())])


def positions(rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    true, other = rng.integers(len(taxonomy()), size=(2, rows))
    return true, np.where(rng.random(rows) < RIGHT, true, other)


def labels(rows: int) -> tuple[list[str], list[str]]:
    ids = np.array(taxonomy().ids, object)
    true, predicted = positions(rows)
    return ids[true].tolist(), ids[predicted].tolist()


def result_of(seconds: float, **more: Any) -> dict[str, Any]:
    return {"nodes": len(taxonomy()), **more, "seconds": seconds}


def report_of_ids() -> dict[str, Any]:
    true, predicted = labels(ROWS)
    watch = Stopwatch()
    report = metrics.label_report(true, predicted, taxonomy=taxonomy())
    return result_of(watch.seconds, rows=ROWS, hierarchical_f1=round(report.hierarchical_f1, 4))


def report_of_traces() -> dict[str, Any]:
    layers = Layers.of(taxonomy())
    true, predicted = (Traces.of_nodes(layers, nodes) for nodes in positions(ROWS))
    watch = Stopwatch()
    report = metrics.label_report(true, predicted)
    return result_of(watch.seconds, rows=ROWS, hierarchical_f1=round(report.hierarchical_f1, 4))


def report_of_two_labels() -> dict[str, Any]:
    true, predicted = labels(ROWS)
    pairs = list(zip(true, true[1:] + true[:1], strict=True))
    watch = Stopwatch()
    metrics.label_report(pairs, predicted, taxonomy=taxonomy())
    return result_of(watch.seconds, rows=ROWS)


def probabilities() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    confidence = rng.random(ROWS)
    correct = rng.random(ROWS) < confidence
    watch = Stopwatch()
    metrics.log_loss(confidence)
    metrics.brier_score(confidence, correct)
    error = metrics.expected_calibration_error(confidence, correct)
    area = metrics.coverage_risk(confidence, correct).area
    seconds = watch.seconds
    return {"rows": ROWS, "calibration_error": round(error, 4), "area": round(area, 4), "seconds": seconds}


def six_measures() -> dict[str, Any]:
    """Compute hierarchical precision, recall and F1, micro and macro, in separate calls."""
    true, predicted = labels(FEW)
    watch = Stopwatch()
    found = [
        getattr(metrics, f"hierarchical_{name}")(true, predicted, average=average, taxonomy=taxonomy())
        for name, average in SIX
    ]
    return result_of(watch.seconds, rows=FEW, values=[round(value, 6) for value in found])


def six_measures_of_hiclass() -> dict[str, Any]:
    from hiclass import metrics as hiclass

    true, predicted = ([path(label) for label in side] for side in labels(FEW))
    watch = Stopwatch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HiClass warns about each row with an F1 of 0
        found = [getattr(hiclass, name)(true, predicted, average=average) for name, average in SIX]
    return result_of(watch.seconds, rows=FEW, values=[round(float(value), 6) for value in found])


@cache
def path(label: str) -> tuple[str, ...]:
    above = taxonomy().parents(label)
    return (*path(above[0]), label) if above else (label,)


def micro_f1() -> dict[str, Any]:
    true, predicted = labels(ROWS)
    watch = Stopwatch()
    f1 = metrics.hierarchical_f1(true, predicted, taxonomy=taxonomy())
    return result_of(watch.seconds, rows=ROWS, hierarchical_f1=round(f1, 4))


def micro_f1_of_sets() -> dict[str, Any]:
    """Compute the metric by hand: a cached set of ancestors per label, and a loop over rows."""
    true, predicted = labels(ROWS)
    watch = Stopwatch()
    ancestors = {label: frozenset(path(label)) for label in {*true, *predicted}}
    common = total = 0
    for truth, label in zip(true, predicted, strict=True):
        common += len(ancestors[truth] & ancestors[label])
        total += len(ancestors[truth]) + len(ancestors[label])
    return result_of(watch.seconds, rows=ROWS, hierarchical_f1=round(2 * common / total, 4))


CASES = {
    "ids": report_of_ids,
    "traces": report_of_traces,
    "two labels": report_of_two_labels,
    "probabilities": probabilities,
    "micro f1": micro_f1,
    "micro f1, sets": micro_f1_of_sets,
    "six measures": six_measures,
    "six measures, hiclass": six_measures_of_hiclass,
}


def main() -> None:
    answer_if_asked(CASES)
    results: dict[str, Any] = {}
    for case in CASES:
        if case.endswith("hiclass") and find_spec("hiclass") is None:
            print(f"{case}: skipped, HiClass is not installed")
            continue
        results[case] = run_alone(__file__, case)
        print(f"{case:22} " + "  ".join(f"{name} {value}" for name, value in results[case].items()))
    for ours, theirs in (("micro f1", "micro f1, sets"), ("six measures", "six measures, hiclass")):
        if theirs in results:
            ratio = results[theirs]["seconds"] / results[ours]["seconds"]
            results[ours]["seconds_ratio"] = round(ratio, 1)
            print(f"{theirs}: {ratio:.1f} x the time of {ours}")
    save("metrics", results)
    missed = [
        case
        for case, (seconds, memory) in BARS.items()
        if results[case]["seconds"] > seconds or results[case]["peak_gb"] > memory
    ]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
