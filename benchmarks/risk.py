"""Check risk bounds: 100 draws per case from a source of rows, evaluated on fresh rows of that source.

    python benchmarks/risk.py [case ...]

Every case runs alone in a fresh process. Like held-out rows, fresh rows may have labels that no other row has. A draw
without a threshold for the risk breaks no bound. Results: ``benchmarks/results/risk.json``.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier, HiNetError, Taxonomy, load
from hinet.cli import main
from hinet.evaluation.risk import CERTAINTY

DRAWS = 100
ROWS = 2_500  # rows per draw, including held-out rows
SHARE = 0.4  # share of held-out rows
FRESH = 10_000  # fresh rows per bound
FRESH_SEED = 1_000_000
WORDS = 5  # words per text
SMALL: dict[str, Any] = {"width": 16, "epochs": 4, "vectors": "none"}
THREADS = 1  # threads per draw; one draw runs per core
LABELS = [(top, top + middle, top + middle + end) for top in "abcd" for middle in "xyz" for end in "12345"]

Labelled = tuple[list[str], list[tuple[str, ...]]]
Way = Callable[[Labelled, int, float], HiNetClassifier]


@dataclass(frozen=True)
class Source:
    """An endless source of rows: texts, and labels at depth 3 that are frequent, rare, or unique.

    Attributes
    ----------
    single : float
        Share of rows whose label no other row has. Their first word belongs to another label, the others are their own.
    hidden : float
        Share of these without words of their own, which cannot be distinguished from rows of the other label.
    hard : bool
        Whether every other row is hard: most of its words belong to random labels.
    """

    single: float = 0.1
    hidden: float = 0.1
    hard: bool = False

    def rows(self, count: int, seed: int) -> Labelled:
        """Return ``count`` rows."""
        random = np.random.default_rng(seed)
        share = np.arange(1, len(LABELS) + 1) ** -1.5  # a long tail: the last labels have two or three rows per draw
        label = random.choice(len(LABELS), count, p=share / share.sum())
        single, hidden = random.random((2, count)) < [[self.single], [self.hidden]]
        own = random.integers(3, WORDS + 1, count)
        if self.hard:
            own = np.where(np.arange(count) % 2 == 0, 1, WORDS)
        spoken = np.where(
            np.arange(WORDS) < own[:, None], label[:, None], random.integers(0, len(LABELS), (count, WORDS))
        )
        words = random.integers(0, 8, (count, WORDS))
        above = random.integers(0, len(LABELS), count)  # parent of a label with one row
        texts, paths = [], []
        for row in range(count):
            text = [f"{LABELS[of][2]}w{word}" for of, word in zip(spoken[row], words[row], strict=True)]
            if single[row] and not hidden[row]:
                text[1:] = [f"only{seed}x{row}x{number}" for number in range(1, WORDS)]
            texts.append(" ".join(text))
            paths.append((*LABELS[above[row]][:2], f"only {seed} {row}") if single[row] else LABELS[label[row]])
        return texts, paths


def part(rows: Labelled, start: int, end: int | None = None) -> Labelled:
    """Return a range of rows."""
    return rows[0][start:end], rows[1][start:end]


def in_python(rows: Labelled, seed: int, risk: float, taxonomy: Taxonomy | None = None) -> HiNetClassifier:
    """Hold out, train, mix and calibrate with the estimator: mix and threshold are fitted on the same rows."""
    classifier = HiNetClassifier(taxonomy, validation_fraction=SHARE, random_state=seed, n_jobs=THREADS, **SMALL).fit(
        *rows
    )
    classifier.calibrate(risk=risk)
    return classifier


def with_taxonomy(rows: Labelled, seed: int, risk: float) -> HiNetClassifier:
    """Do the same with a taxonomy that contains the labels of all rows."""
    edges = {edge for path in rows[1] for edge in zip(("all", *path), path, strict=False)}
    return in_python(rows, seed, risk, Taxonomy.from_edges(sorted(edges)))


def from_the_shell(rows: Labelled, seed: int, risk: float) -> HiNetClassifier:
    """Do the same with the command-line program."""
    small = [f"--{name}={value}" for name, value in {**SMALL, "threads": THREADS}.items()]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as output:
        table = Path(folder, "rows.tsv")
        lines = [f"{text}\t{' > '.join(path)}\n" for text, path in zip(*rows, strict=True)]
        table.write_text("".join(["text\tlabel\n", *lines]))
        asked = [
            f"--valid-share={SHARE}",
            f"--risk={risk}",
            f"--seed={seed}",
            f"--out={folder}/model",
            "--quiet",
            *small,
        ]
        try:
            main(["train", str(table), *asked])
        except SystemExit as ended:
            if ended.code:
                raise HiNetError(output.getvalue()) from None
        return load(f"{folder}/model")


def mixed_on_others(rows: Labelled, seed: int, risk: float) -> HiNetClassifier:
    """Fit the mix on rows that are not used for calibration; the others calibrate in their order."""
    trained, others = round((1 - SHARE) * ROWS), round(SHARE * ROWS)
    valid = part(rows, trained + others)
    classifier = HiNetClassifier(random_state=seed, n_jobs=THREADS, **SMALL).fit(*part(rows, 0, trained), valid=valid)
    classifier.calibrate(*part(rows, trained, trained + others), risk=risk)
    return classifier


def path_of(answer: tuple[str, ...] | str | None) -> tuple[str, ...]:
    """Return an answer as a path: models of the program write paths as text, and None for no answer."""
    return tuple(answer.split(" > ") if isinstance(answer, str) else answer or ())


def outcome(classifier: HiNetClassifier, fresh: Labelled) -> tuple[float, float, float]:
    """Return the shares of rows answered and answered to full depth, and the share of wrong answers."""
    answers = [path_of(answer) for answer in classifier.predict(fresh[0], min_confidence="calibrated")]
    depth = np.array([len(answer) for answer in answers])
    wrong = [path[: len(answer)] != answer for answer, path in zip(answers, fresh[1], strict=True)]
    return (
        float((depth > 0).mean()),
        float((depth == len(LABELS[0])).mean()),
        float(np.mean(np.array(wrong)[depth > 0])),
    )


def draw(source: Source, way: Way, risk: float, rows: int, seed: int) -> tuple[float, float, float] | None:
    """Return the outcome of the bound of one draw; nothing if there is none."""
    try:
        classifier = way(source.rows(rows, seed), seed, risk)
    except HiNetError as error:
        if "no threshold promises" not in str(error):
            raise
        return None
    return outcome(classifier, source.rows(FRESH, FRESH_SEED + seed))


def drawn(source: Source, way: Way, risk: float, rows: int = ROWS) -> dict[str, Any]:
    """Return the outcomes of bounds for a risk over many draws."""
    watch = Stopwatch()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        found = list(pool.map(partial(draw, source, way, risk, rows), range(DRAWS)))
    kept = [each for each in found if each is not None]
    answered, full_depth, wrong = np.array(kept).reshape(-1, 3).T
    broken = int((wrong > risk).sum())
    result = {"draws": DRAWS, "risk": risk, "certainty": CERTAINTY, "promised": len(kept), "broken": broken}
    if kept:
        means = {"mean_error": wrong, "mean_answered": answered, "mean_full_depth": full_depth}
        result |= {name: round(float(values.mean()), 4) for name, values in means.items()}
        result["largest_error"] = round(float(wrong.max()), 4)
    return {**result, "seconds": watch.seconds}


SINGLE, HIDDEN, HARD = Source(), Source(hidden=1.0), Source(single=0.0, hard=True)
CASES: dict[str, Case] = {
    "one row in ten alone, in Python": partial(drawn, SINGLE, in_python, 0.05),
    "one row in ten alone, from the shell": partial(drawn, SINGLE, from_the_shell, 0.05),
    "one row in ten alone, taxonomy given": partial(drawn, SINGLE, with_taxonomy, 0.05),
    "one row in ten alone, mix on other rows": partial(
        drawn, SINGLE, mixed_on_others, 0.05, ROWS + round(SHARE * ROWS)
    ),
    "one row in ten alone, texts say nothing about the label": partial(drawn, HIDDEN, in_python, 0.05),
    "hard and easy rows in turn": partial(drawn, HARD, mixed_on_others, 0.1, ROWS + round(SHARE * ROWS)),
}


if __name__ == "__main__":
    run_cases(__file__, "risk", CASES)
