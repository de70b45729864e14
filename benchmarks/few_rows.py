"""Measure learning from little: accuracy and everyday phrases after 0 to all training rows, next to peers.

    HINET_DATA=folder python benchmarks/few_rows.py [case ...]
    HINET_DATA=folder python benchmarks/few_rows.py corrections

A case is ``set, rows, method``, such as ``naics, 1000, encoder``. Without rows, models see the taxonomy alone. Rows are
a random sample of the training rows, another one for each seed. Methods of hinet are ``words`` (n-grams only),
``default`` (texts are also compared with known ones), ``box`` (all experts read the vectors of the extra ``meaning``)
and ``encoder`` (all-MiniLM-L6-v2). Those of peers are ``nearest`` (the row or title with the greatest cosine of the
encoder's vectors), ``logistic`` (logistic regression on these vectors), ``svm``
(LinearSVC on n-grams of words and characters) and ``fasttext``; they see the titles of labels as rows, too. Nothing is
tuned on test rows or phrases. Results: ``benchmarks/results/few_rows.json``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from engine import SEEDS
from meaning import PHRASES, Rows, Task, means, read_phrases
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier
from hinet.encoders import CachedEncoder, Encoder, packaged_encoder
from hinet.metrics import accuracy

SIZES = ("0", "100", "300", "1000", "3000", "all")
SETS = ("naics", "icd", "wikitaxa")
OPTIONS: dict[str, dict[str, Any]] = {
    "words": {"vectors": None}, "default": {}, "box": {"vectors": "wordllama"}, "encoder": {},
}  # fmt: skip
MAX_TEST_ROWS = 4_000
CORRECTIONS = (15, 300)

Answers = Callable[[list[str]], Any]


def sample(task: Task, size: str, seed: int) -> Rows:
    """Return some of the training rows."""
    count = len(task.train.texts)
    order = np.random.default_rng(seed).permutation(count)[: count if size == "all" else int(size)]
    return task.train.take(np.isin(np.arange(count), order))


def with_titles(task: Task, rows: Rows) -> Rows:
    """Return rows with the titles of all labels."""
    labels = sorted(set(task.train.labels))
    titles = [task.taxonomy.titles[node] for node in task.taxonomy.positions(labels).tolist()]
    return Rows(rows.texts + titles, rows.labels + labels)


def hinet(method: str, task: Task, rows: Rows, seed: int) -> Answers:
    """Train hinet with its defaults."""
    options = {"encoder": packaged_encoder()} if method == "encoder" else OPTIONS[method]
    classifier, labels = HiNetClassifier(task.taxonomy, random_state=seed, **options), sorted(set(task.train.labels))
    if not rows.texts:
        return classifier.fit_taxonomy(labels).predict
    return classifier.partial_fit(rows.texts, rows.labels, classes=labels).predict


def encode(texts: list[str]) -> Any:
    """Return unit vectors of texts by the encoder."""
    vectors = CachedEncoder(Encoder.load(packaged_encoder())).encode(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def nearest(task: Task, rows: Rows, seed: int) -> Answers:
    """Answer with the label of the most similar row or title."""
    known = with_titles(task, rows)
    memory, labels = encode(known.texts), np.array(known.labels)
    return lambda texts: labels[(encode(texts) @ memory.T).argmax(1)]


def logistic(task: Task, rows: Rows, seed: int) -> Answers:
    """Train logistic regression on vectors of the encoder."""
    from sklearn.linear_model import LogisticRegression

    known = with_titles(task, rows)
    model = LogisticRegression(C=10, max_iter=200).fit(encode(known.texts), known.labels)
    return lambda texts: model.predict(encode(texts))


def svm(task: Task, rows: Rows, seed: int) -> Answers:
    """Train a linear support vector machine on n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.svm import LinearSVC

    known = with_titles(task, rows)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    parts = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    model = make_pipeline(make_union(words, parts), LinearSVC(random_state=seed)).fit(known.texts, known.labels)
    return lambda texts: model.predict(texts)


def fasttext(task: Task, rows: Rows, seed: int) -> Answers:
    """Train fastText with many epochs, as few rows need."""
    import fasttext as peer

    known = with_titles(task, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.txt")
        lines = (f"__label__{label} {text.lower()}" for text, label in zip(known.texts, known.labels, strict=True))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        model = peer.train_supervised(
            str(path), lr=1.0, epoch=50, wordNgrams=2, minn=3, maxn=5, thread=1, seed=seed, verbose=0
        )
    return lambda texts: [
        model.predict(text.lower().replace("\n", " "))[0][0].removeprefix("__label__") for text in texts
    ]


METHODS: dict[str, Callable[[Task, Rows, int], Answers]] = {
    **{method: partial(hinet, method) for method in OPTIONS},
    "nearest": nearest, "logistic": logistic, "svm": svm, "fasttext": fasttext,
}  # fmt: skip


def measured(name: str, size: str, method: str, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Return accuracy on test rows and the share of phrases whose first answer is right, means over seeds."""
    task = Task.load(name)
    some = np.random.default_rng(0).permutation(len(task.test.texts))[:MAX_TEST_ROWS]
    test = task.test.take(np.isin(np.arange(len(task.test.texts)), some))
    phrases, codes = read_phrases(name, task.train.labels) if name in PHRASES else ([], [])
    runs, watch = [], Stopwatch()
    seeds = seeds[:1] if size in ("0", "all") and method in ("nearest", "logistic", "svm") else seeds
    for seed in seeds:
        answers = METHODS[method](task, sample(task, size, seed), seed)
        found = {"accuracy": accuracy(test.labels, list(answers(test.texts)), taxonomy=task.taxonomy)}
        if phrases:
            first = answers(phrases)
            found["phrases"] = float(np.mean([label in right for label, right in zip(first, codes, strict=True)]))
        runs.append(found)
    return {**means(runs), "seeds": len(seeds), "processor_seconds": watch.processor_seconds}


def corrections(method: str = "box") -> dict[str, Any]:
    """Return what corrections do: wrong test rows are corrected, and others asked again."""
    task = Task.load("naics")
    options = {"encoder": packaged_encoder()} if method == "encoder" else OPTIONS[method]
    classifier = HiNetClassifier(task.taxonomy, **options).fit(task.train.texts, task.train.labels)
    half = np.arange(len(task.test.texts)) % 2 == 0
    asked, other = task.test.take(half), task.test.take(~half)
    before = accuracy(other.labels, list(classifier.predict(other.texts)), taxonomy=task.taxonomy)
    wrong = np.flatnonzero([a != b for a, b in zip(classifier.predict(asked.texts), asked.labels, strict=True)])
    found: dict[str, Any] = {"accuracy_before": round(before, 4)}
    for count in CORRECTIONS:
        chosen = asked.take(np.isin(np.arange(len(asked.texts)), wrong[:count]))
        for text, label in zip(chosen.texts, chosen.labels, strict=True):
            classifier.remember([text], [label])
        right = accuracy(chosen.labels, list(classifier.predict(chosen.texts)), taxonomy=task.taxonomy)
        after = accuracy(other.labels, list(classifier.predict(other.texts)), taxonomy=task.taxonomy)
        found[f"{count}_corrected_right"] = round(right, 4)
        found[f"{count}_other_rows"] = round(after, 4)
    return found


CASES: dict[str, Case] = {
    **{
        f"{name}, {size}, {method}": partial(measured, name, size, method)
        for name in SETS
        for size in SIZES
        for method in METHODS
    },
    **{f"corrections, {method}": partial(corrections, method) for method in ("box", "encoder")},
}

if __name__ == "__main__":
    run_cases(str(Path(__file__)), "few_rows", CASES)
