"""Measure several labels per row: AU(PRC) on the Clus-HMC sets, micro-F1 on WordNet, laws, calibration, time.

``python benchmarks/several_labels.py`` runs all cases, each in a fresh process; arguments select some. ``HINET_DATA``
is the folder with the data sets; the last two cases are synthetic.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from measure import DATA, Case, Stopwatch, errors_by_chance, run_cases

from hinet import HiNetClassifier, Layers, Taxonomy, Traces
from hinet.classifier.calibration import first_answers, kept_rows
from hinet.data import load_arff
from hinet.engine import EngineSettings, fit
from hinet.metrics import au_prc, expected_calibration_error, ndcg_at_k, precision_at_k, set_f1

SEEDS = 10
HMC, WORDNET, EURLEX = DATA / "hmc_arff", DATA / "wordnet_nouns", DATA / "eurlex_sample"
HMC_SETS = {  # training files and test file
    "cellcycle_FUN": (("cellcycle_FUN.train", "cellcycle_FUN.valid"), "cellcycle_FUN.test"),
    "derisi_FUN": (("derisi_FUN.train", "derisi_FUN.valid"), "derisi_FUN.test"),
    "cellcycle_GO": (("cellcycle_GO.train", "cellcycle_GO.valid"), "cellcycle_GO.test"),
    "Enron": (("Enron_corr_trainvalid",), "Enron_corr_test"),
}
TOP_TERMS = ("GO0003674", "GO0005575", "GO0008150")  # left out of published figures, because nearly all rows have them
MAX_WRONG = 0.05
ROWS, LABELS, LABELS_OF_ROW, FEATURES, WORDS = 200_000, 20_000, 5, 100_000, 20


def au_prc_of(name: str, seeds: int = SEEDS) -> dict[str, Any]:
    """Return the AU(PRC) on test rows, mean and deviation over seeds, trained on training and validation rows."""
    files, test_file = HMC_SETS[name]
    parts = [load_arff(HMC / f"{file}.arff.xz") for file in files]
    test = load_arff(HMC / f"{test_file}.arff.xz")
    rows, labels = _labelled(
        pa.concat_tables([part.rows for part in parts]), [row for part in parts for row in part.labels]
    )
    taxonomy = parts[0].taxonomy
    left_out = [node for node in TOP_TERMS if node in taxonomy]
    areas, all_nodes, trained, worked = [], [], 0.0, 0.0
    for seed in range(seeds):
        watch = Stopwatch()
        classifier = HiNetClassifier(taxonomy, columns=parts[0].columns, multilabel=True, random_state=seed)
        classifier.fit(rows, labels)
        trained, worked = trained + watch.seconds, worked + watch.processor_seconds
        scores = classifier.predict_node_proba(test.rows)
        areas.append(au_prc(test.labels, scores, leave_out=left_out, taxonomy=taxonomy))
        all_nodes.append(au_prc(test.labels, scores, taxonomy=taxonomy))
    measured = {"au_prc": round(float(np.mean(areas)), 4), "deviation": round(float(np.std(areas)), 4)}
    if left_out:
        measured["au_prc_with_top_terms"] = round(float(np.mean(all_nodes)), 4)
    seconds = {"seconds_a_fit": round(trained / seeds, 2), "processor_seconds_a_fit": round(worked / seeds, 2)}
    return {**measured, "seeds": seeds, **seconds}


def wordnet() -> dict[str, Any]:
    """Return micro-F1 of predicted sets and precision at 1 on test rows, with thresholds from held-out training rows.

    Also return the precision at 1 of a single-label model, which splits a row among its labels.
    """
    taxonomy = _nouns()
    (texts, labels), (test_texts, test_labels) = _glosses("train"), _glosses("test")
    truth = [tuple(sorted(row)) for row in test_labels]  # labels are nodes
    measured: dict[str, Any] = {}
    for multilabel in (False, True):
        watch = Stopwatch()
        classifier = HiNetClassifier(taxonomy, validation_fraction=0.05, multilabel=multilabel, vectors=None)
        classifier.fit(texts, labels)
        seconds = {"seconds": watch.seconds, "processor_seconds": watch.processor_seconds}
        first = [[labels[0].label] for labels in classifier.predict_labels(test_texts)]
        precision = round(precision_at_k(truth, first, 1, taxonomy=taxonomy), 4)
        prefix = "" if multilabel else "single_label_"
        measured |= {f"{prefix}{name}": value for name, value in {"precision_at_1": precision, **seconds}.items()}
    predicted = classifier.node_ids(classifier.predict(test_texts))
    rule = classifier.fitted_.set_rule
    assert rule is not None
    micro_f1 = round(set_f1(truth, predicted, taxonomy=taxonomy), 4)
    return {"micro_f1": micro_f1, **measured, "threshold": round(rule.thresholds[0], 3)}


def calibration(name: str) -> dict[str, Any]:
    """Return the calibration error of first answers to test rows, and the share answered with at most 5% wrong.

    The model is calibrated on held-out training rows; ``held_out_error`` is theirs, by cross-validation. Where the
    ``accuracy`` of test rows is far from ``held_out_accuracy``, test rows are of another kind, and held-out rows cannot
    calibrate for them. ``perfect`` is the error that perfectly calibrated probabilities would show by chance. A model
    for one label per row, which shares a row among its labels, is measured on the same rows.
    """
    taxonomy, (rows, labels), (test_rows, test_labels), options = _set_data(name)
    measured: dict[str, Any] = {"rows": len(test_labels)}
    for multilabel, prefix in ((True, ""), (False, "single_label_")):
        classifier = HiNetClassifier(taxonomy, validation_fraction=0.15, multilabel=multilabel, vectors=None, **options)
        classifier.fit(rows, labels)
        figures: dict[str, float] = {}
        if multilabel:
            figures["error_before"] = _answer_figures(classifier, test_rows, test_labels)["error"]
        calibrated = classifier.calibrate()
        figures |= {"held_out_rows": calibrated.rows, "held_out_error": calibrated.error_after}
        held = kept_rows(classifier.fitted_)
        if held is not None:
            figures["held_out_accuracy"] = float(first_answers(classifier.fitted_, held.rows, held.truth)[1].mean())
        figures |= _answer_figures(classifier, test_rows, test_labels)
        measured |= {f"{prefix}{name}": round(value, 4) for name, value in figures.items()}
    return measured


def _answer_figures(classifier: HiNetClassifier, rows: Any, labels: Sequence[Collection[str]]) -> dict[str, float]:
    """Return figures of the most probable labels; ``coverage`` is the share answered with at most 5% wrong."""
    answers = [row[0] for row in classifier.predict_labels(rows)]
    confidence = np.minimum([answer.probability for answer in answers], 1)
    right = np.array([answer.label in truth for answer, truth in zip(answers, labels, strict=True)])
    order = np.argsort(-confidence, kind="stable")
    wrong_share = np.cumsum(~right[order]) / np.arange(1, len(right) + 1)
    allowed = np.flatnonzero(wrong_share <= MAX_WRONG)
    return {
        "confidence": float(confidence.mean()),
        "accuracy": float(right.mean()),
        "error": expected_calibration_error(confidence, right),
        "perfect": float(errors_by_chance(confidence).mean()),
        "coverage": (int(allowed[-1]) + 1) / len(right) if len(allowed) else 0.0,
    }


def _set_data(name: str) -> tuple[Taxonomy, tuple[Any, Any], tuple[Any, Any], dict[str, Any]]:
    """Return the taxonomy, the training rows, the test rows with a label, and parameters of the classifier."""
    if name == "wordnet":
        return _nouns(), _glosses("train"), _glosses("test"), {}
    files, test_file = HMC_SETS[name]
    parts = [load_arff(HMC / f"{file}.arff.xz") for file in files]
    test = load_arff(HMC / f"{test_file}.arff.xz")
    joined = _labelled(pa.concat_tables([part.rows for part in parts]), [row for part in parts for row in part.labels])
    return parts[0].taxonomy, joined, _labelled(test.rows, test.labels), {"columns": parts[0].columns}


def _labelled(rows: Any, labels: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the rows that have a label, with their labels."""
    chosen = np.flatnonzero([bool(row) for row in labels])
    return rows.take(chosen), [labels[row] for row in chosen.tolist()]


def _nouns() -> Taxonomy:
    """Return WordNet's DAG of nouns."""
    edges: list[tuple[str | None, str]] = []
    for row in csv.DictReader((WORDNET / "hierarchy.tsv").open(encoding="utf-8"), delimiter="\t"):
        edges += [(parent, row["node"]) for parent in row["parents"].split()] or [(None, row["node"])]
    return Taxonomy.from_edges(edges)


def _glosses(part: str) -> tuple[list[str], list[set[str]]]:
    text = lzma.decompress((WORDNET / f"{part}.tsv.xz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text"] for row in rows], [set(row["labels"].split()) for row in rows]


def eurlex(*, hierarchy: bool) -> dict[str, Any]:
    """Return the ranking metrics on validation laws, with or without EuroVoc's hierarchy."""
    edges = []
    for row in csv.DictReader((EURLEX / "hierarchy.tsv").open(encoding="utf-8"), delimiter="\t"):
        edges += [(parent, row["node"]) for parent in row["parent"].split("|") if parent] or [(None, row["node"])]
    taxonomy = Taxonomy.from_edges(edges)
    (texts, labels), (valid_texts, valid_labels) = _laws("train"), _laws("valid")
    watch = Stopwatch()
    classifier = HiNetClassifier(taxonomy if hierarchy else None, multilabel=True)
    classifier.fit(texts, labels)
    seconds = {"seconds": watch.seconds, "processor_seconds": watch.processor_seconds}
    ranked = [[each.label for each in row] for row in classifier.predict_labels(valid_texts, k=5)]
    truth = [tuple(sorted(row)) for row in valid_labels]
    measured = {
        "precision_at_1": precision_at_k(truth, ranked, 1, taxonomy=taxonomy),
        "precision_at_5": precision_at_k(truth, ranked, 5, taxonomy=taxonomy),
        "ndcg_at_5": ndcg_at_k(truth, ranked, 5, taxonomy=taxonomy),
    }
    return {**{name: round(value, 4) for name, value in measured.items()}, **seconds}


def _laws(part: str) -> tuple[list[str], list[set[str]]]:
    with lzma.open(EURLEX / f"{part}.jsonl.xz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows], [set(row["labels"]) for row in rows]


def training_time(*, several: bool) -> dict[str, Any]:
    """Return the seconds of training on rows with five labels, or on the same number of (row, label) pairs.

    Every label has its own words among the synthetic features, and rows have those of their labels.
    """
    random = np.random.default_rng(0)
    taxonomy = Taxonomy.from_paths([(f"a{label // 400}", f"b{label // 20}", f"c{label}") for label in range(LABELS)])
    names = [node for node in taxonomy if not taxonomy.children(node)]
    of_row = LABELS_OF_ROW if several else 1
    count = ROWS * LABELS_OF_ROW // of_row
    chosen = random.integers(0, LABELS, (count, of_row))
    words = random.integers(0, FEATURES, (LABELS, WORDS))
    picked = words[chosen[:, :, None], random.integers(0, WORDS, (count, of_row, WORDS // LABELS_OF_ROW))]
    indices = picked.reshape(count, -1)
    entries = np.ones(indices.size, np.float32), (np.repeat(np.arange(count), indices.shape[1]), indices.ravel())
    rows = sp.csr_array(entries, shape=(count, FEATURES))
    layers = Layers.of(taxonomy, [], multilabel=several)
    traces = Traces.encode_sets(layers, [[names[label] for label in labels] for labels in chosen.tolist()])
    watch = Stopwatch()
    fit(rows, traces, EngineSettings(deep_epochs=5))
    seconds = {"seconds": watch.seconds, "processor_seconds": watch.processor_seconds}
    return {"rows": count, "labels_of_row": of_row, **seconds}


CASES: dict[str, Case] = {
    **{name: partial(au_prc_of, name) for name in HMC_SETS},
    "wordnet": wordnet,
    "eurlex": partial(eurlex, hierarchy=True),
    "eurlex_without_hierarchy": partial(eurlex, hierarchy=False),
    **{f"calibration, {name}": partial(calibration, name) for name in ("wordnet", *HMC_SETS)},
    "synthetic_sets": partial(training_time, several=True),
    "synthetic_single": partial(training_time, several=False),
}

if __name__ == "__main__":
    run_cases(str(Path(__file__)), "several_labels", CASES)
