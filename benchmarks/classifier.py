"""Measure the classifier from texts to a saved model: calibration on test rows, loading, ONNX scores.

    HINET_DATA=folder python benchmarks/classifier.py [case ...]

Every case runs alone in a fresh process. Results: ``benchmarks/results/classifier.json``.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from engine_data import Texts, icd_texts, naics_texts
from measure import LONGEST, Case, Stopwatch, run_cases

from hinet import HiNetClassifier
from hinet.metrics import expected_calibration_error, hierarchical_f1, level_calibration_error

HELD_OUT = 0.2  # share of training rows, for sets without validation rows; half weight the experts, half calibrate
RISK = 0.05
LOADING = """
import sys, time
start = time.perf_counter()
from hinet import load
imported = time.perf_counter()
classifier = load(sys.argv[1])
loaded = time.perf_counter()
classifier.predict(["a text"])
print(imported - start, loaded - imported, time.perf_counter() - start)
"""


def parts(texts: Texts) -> tuple[Any, Any, Any]:
    """Return training, held-out and test rows as texts and labels."""
    (train, labels), (test, truth), (held, held_labels) = (
        (list(rows), [label[0] for label in names]) for rows, names in (texts.train, texts.test, texts.valid)
    )
    if not held:
        chosen = np.random.default_rng(0).random(len(train)) < HELD_OUT
        held, held_labels = _select(train, chosen), _select(labels, chosen)
        train, labels = _select(train, ~chosen), _select(labels, ~chosen)
    return (train, labels), (held, held_labels), (test, truth)


def _select(values: list[str], chosen: Any) -> list[str]:
    return [values[row] for row in np.flatnonzero(chosen).tolist()]


def calibration_errors(classifier: HiNetClassifier, texts: list[str], truth: list[str]) -> dict[str, Any]:
    """Return the calibration errors of labels and of each level."""
    found = classifier.predict_traces(texts)
    right = np.array(found.traces.decode()) == np.array(truth)
    levels = level_calibration_error(truth, found.traces, found.found.log_p)
    return {
        "calibration_error": round(expected_calibration_error(np.minimum(np.exp(found.log_p), 1), right), 4),
        "calibration_error_by_level": [round(level, 4) for level in levels],
    }


def calibration(texts: Texts) -> dict[str, Any]:
    """Measure calibration and risk on test rows; everything is chosen on held-out rows."""
    train, held, test = parts(texts)
    valid, held = ((held[0][half::2], held[1][half::2]) for half in (0, 1))
    classifier = HiNetClassifier(texts.taxonomy, vectors=None).fit(*train, valid=valid)
    before = calibration_errors(classifier, *test)
    accuracy = classifier.score(*test)
    scaled = copy.deepcopy(classifier)
    scaled.calibrate(*held)
    chosen = classifier.calibrate(*held, risk=RISK)  # half of the rows determine the scale, half the threshold
    answers = classifier.predict(test[0], min_confidence="calibrated")
    given = np.array([answer is not None for answer in answers])
    right = classifier._truth(*test).are_right(
        np.array([-1 if answer is None else classifier.taxonomy_.position(answer) for answer in answers]), or_above=True
    )
    return {
        "accuracy": round(accuracy, 4),
        "before": before,
        "after": calibration_errors(scaled, *test),
        "after_with_risk": calibration_errors(classifier, *test),
        "accuracy_after": round(classifier.score(*test), 4),
        "temperature": round(chosen.temperature, 3),
        "risk_wished": RISK,
        "threshold": chosen.promise.threshold if chosen.promise else None,
        "answered": round(float(given.mean()), 4),
        "error_of_answers": round(float(1 - right[given].mean()), 4),
    }


def keeping() -> dict[str, Any]:
    """Measure a saved ICD-10-CM model: its size, loading in a fresh process, and its scores as an ONNX graph."""
    texts = icd_texts()
    train, held, test = parts(texts)
    classifier = HiNetClassifier(texts.taxonomy, vectors=None).fit(*train, valid=held)
    with tempfile.TemporaryDirectory() as folder:
        watch = Stopwatch()
        classifier.save(f"{folder}/model")
        saved = watch.seconds
        size = sum(path.stat().st_size for path in Path(folder, "model").iterdir())
        command = [sys.executable, "-c", LOADING, f"{folder}/model"]
        subprocess.run(command, check=True, capture_output=True, timeout=LONGEST)  # compiles the kernels
        runs = (subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST) for _ in range(3))
        times = [done.stdout.split() for done in runs]
        imported, loaded, answered = np.median(np.array(times, float), axis=0)
        report = classifier.export_onnx(f"{folder}/graph", *test)
        away = onnx_difference(classifier, Path(folder, "graph"), test[0][:500])
    return {
        "megabytes": round(size / 1e6, 1),
        "save_seconds": saved,
        "import_seconds": round(imported, 3),
        "load_seconds": round(loaded, 3),
        "first_answer_seconds": round(answered, 3),
        "onnx_difference": away,
        "onnx_accuracy": round(report.accuracy or 0, 4),
        "accuracy": round(report.accuracy_of_model or 0, 4),
        "hierarchical_f1": round(hierarchical_f1(test[1], classifier.predict(test[0]), taxonomy=texts.taxonomy), 4),
    }


def onnx_difference(classifier: HiNetClassifier, folder: Path, texts: list[str]) -> float:
    """Return the largest difference between log probabilities of best traces by onnxruntime and by our search."""
    import onnxruntime
    import scipy.sparse as sp

    from hinet.classifier import PredictedTraces
    from hinet.engine import FusedModel, Search
    from hinet.exporting.decode import decode, read
    from hinet.exporting.export import exported_part

    rows = classifier.features_of(texts)
    entries = sp.coo_array(rows)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    fed = {"row": entries.row.astype(np.int64), "feature": entries.col.astype(np.int64), "value": entries.data,
           "rows": np.array(len(texts), np.int64)}  # fmt: skip
    found = decode(session.run(["log_p"], fed)[0], read(str(folder / "traces.npz")))
    model = classifier.fitted_.predictor.model
    assert isinstance(model, FusedModel)
    ours = PredictedTraces(Search(exported_part(model)).traces(rows)).log_p
    return float(np.abs(found.log_p - ours).max())


CASES: dict[str, Case] = {
    "icd, calibration": lambda: calibration(icd_texts()),
    "naics, calibration": lambda: calibration(naics_texts()),
    "icd, keeping": keeping,
}


if __name__ == "__main__":
    run_cases(__file__, "classifier", CASES)
