"""Measure confidence with unknown words: everyday phrases and test rows, with and without trust.

    HINET_DATA=folder python benchmarks/unknown_words.py [case ...]

A classifier trains with validation rows and is calibrated on them, as in ``hinet demo``. It is measured on the phrases
of ``benchmarks/phrases``, which nothing is fitted to, and on test rows: ``before`` it learned to trust texts with
unknown words less (:mod:`hinet.engine.model.fused`), calibrated with temperature and scale only, and ``after``.
``calibration_error`` is that of the top level. ``perfect`` is the mean error that perfectly calibrated probabilities of
the same size would show on the same number of rows; with few rows, it is above 0 by chance. ``excess`` is what the
error has above it, and ``by_chance`` the share of draws of perfect probabilities with at least this error. ``answered``
and ``wrong`` refer to ``min_confidence=0.9``; a label and its ancestors are right. ``titles`` are models without
vectors, ``default`` those whose neighbours read the vectors of the extra ``meaning``, ``box`` those whose experts all
do. Every case runs alone in a fresh process. Results: ``benchmarks/results/unknown_words.json``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from classifier import parts
from engine import SEEDS, TEXTS
from meaning import distilled, means, read_phrases, vector_options
from measure import Case, errors_by_chance, run_cases

from hinet import HiNetClassifier, Taxonomy
from hinet.classifier.calibration import calibrate_fitted
from hinet.classifier.fitted import Fitted
from hinet.encoders import packaged_encoder
from hinet.evaluation.risk import CERTAINTY
from hinet.metrics import expected_calibration_error

MIN_CONFIDENCE = 0.9


def ancestors(taxonomy: Taxonomy, labels: Sequence[str]) -> set[str]:
    """Return labels with all their ancestors."""
    flat, _ = taxonomy.ancestor_lists(taxonomy.positions(labels))
    return {taxonomy.ids[node] for node in flat.tolist()}


def evaluate(classifier: HiNetClassifier, texts: list[str], codes: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the confidence and accuracy of first steps and of answers."""
    right_nodes = [ancestors(classifier.taxonomy_, labels) for labels in codes]
    best = [row[0] for row in classifier.predict_traces(texts)]
    confidence = np.minimum([trace.probabilities[0] for trace in best], 1)
    right = np.array([trace.steps[0] in nodes for trace, nodes in zip(best, right_nodes, strict=True)])
    labels_right = np.array([trace.label in labels for trace, labels in zip(best, codes, strict=True)])
    label_confidence = np.minimum([trace.probability for trace in best], 1)
    answers = classifier.predict(texts, min_confidence=MIN_CONFIDENCE)
    given = np.array([answer is not None for answer in answers])
    wrong = [answer not in nodes for answer, nodes in zip(answers, right_nodes, strict=True) if answer is not None]
    error, perfect = expected_calibration_error(confidence, right), errors_by_chance(confidence)
    return {
        "confidence": float(confidence.mean()),
        "accuracy": float(right.mean()),
        "calibration_error": error,
        "perfect": float(perfect.mean()),
        "excess": error - float(perfect.mean()),
        "by_chance": float((perfect >= error).mean()),
        "label_accuracy": float(labels_right.mean()),
        "label_calibration_error": expected_calibration_error(label_confidence, labels_right),
        "answered": int(given.sum()),
        "wrong": sum(wrong),
        "wrong_share": sum(wrong) / max(len(wrong), 1),
    }


def calibrated_without_trust(classifier: HiNetClassifier, texts: list[str], labels: list[str]) -> Fitted:
    """Return the state of a classifier that is calibrated with temperature and scale only."""
    fitted = classifier.fitted_.with_trust(None)
    rows, truth, seed = fitted.rows(texts), fitted.codec.truth(labels), classifier.random_state
    return calibrate_fitted(fitted, rows, truth, None, CERTAINTY, temperature=1.0, seed=seed)[0]


def phrases_and_rows(name: str, kind: str) -> dict[str, Any]:
    """Measure phrases and test rows, means over seeds."""
    texts = TEXTS[name]()
    train, held, test = parts(texts)
    asked: dict[str, tuple[list[str], Any]] = {
        "phrases": read_phrases(name, texts.taxonomy.ids),
        "test_rows": (test[0], [(label,) for label in test[1]]),
    }
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    trust = []
    with tempfile.TemporaryDirectory() as folder:
        vectors = distilled(train[0], Path(folder, "vectors")) if kind == "static" else Path(folder)
        packaged: dict[str, dict[str, Any]] = {"default": {}, "box": {"vectors": "wordllama"}}
        options = packaged[kind] if kind in packaged else vector_options(kind, vectors)
        for seed in SEEDS:
            classifier = HiNetClassifier(texts.taxonomy, random_state=seed, **options).fit(*train, valid=held)
            untrusting = calibrated_without_trust(classifier, *held)
            classifier.calibrate()
            fitted = classifier.fitted_
            assert fitted.predictor.trust is not None
            trust.append(fitted.predictor.trust._asdict())
            for variant, used in (("before", untrusting), ("after", fitted)):
                classifier.fitted_ = used
                for rows, given in asked.items():
                    runs.setdefault((rows, variant), []).append(evaluate(classifier, *given))
    results: dict[str, Any] = {rows: {"rows": len(given[0])} for rows, given in asked.items()}
    for (rows, variant), figures in runs.items():
        results[rows][variant] = means(figures)
    return {"trust": means(trust), **results}


CASES: dict[str, Case] = {
    f"{name}, {kind}": partial(phrases_and_rows, name, kind)
    for kind in ("titles", "default", "box", "static")
    for name in ("icd", "naics")
}


if __name__ == "__main__":
    if "static" in " ".join(sys.argv[1:]) or len(sys.argv) == 1:
        packaged_encoder()
    run_cases(__file__, "unknown_words", CASES)
