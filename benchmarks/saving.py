"""Save to one folder from several processes while others load from it: every load gets one whole model.

python benchmarks/saving.py        saves benchmarks/results/saving.json
"""

from __future__ import annotations

import tempfile
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier, HiNetError, load

WRITERS, READERS, SAVES = 4, 2, 400
TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train"] * 5
LABELS = ["bread", "bread", "milk", "milk", "toy", "toy"] * 5


def _model(number: int) -> HiNetClassifier:
    labels = [f"{label} {number}" for label in LABELS]
    return HiNetClassifier(width=8, members=1, epochs=2 + number, n_jobs=1).fit(TEXTS, labels)


def _save(model: HiNetClassifier, folder: str) -> None:
    for _ in range(SAVES):
        model.save(folder)


def _read(folder: str, answers: list[Any], done: Any, found: Any) -> None:
    """Load and predict until all writers are done; count the outcomes."""
    counts: Counter[str] = Counter()
    while not done.is_set():
        try:
            model = load(folder)
            number = int(model.classes_[0].split()[1])
            right = model.predict_proba(TEXTS[:6]).tolist() == answers[number]
            counts["whole" if right else "mixed"] += 1
        except HiNetError as error:
            counts[str(error)] += 1
    found.put(dict(counts))


def concurrent() -> dict[str, Any]:
    watch, context = Stopwatch(), get_context("fork")
    models = [_model(number) for number in range(WRITERS)]
    answers = [model.predict_proba(TEXTS[:6]).tolist() for model in models]
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch) / "model")
        models[0].save(folder)
        done, found = context.Event(), context.Queue()
        readers = [context.Process(target=_read, args=(folder, answers, done, found)) for _ in range(READERS)]
        writers = [context.Process(target=_save, args=(model, folder)) for model in models]
        for process in (*readers, *writers):
            process.start()
        for process in writers:
            process.join()
        done.set()
        counts = sum((Counter(found.get()) for _ in readers), Counter())
        last = load(folder).predict_proba(TEXTS[:6]).tolist() in answers
        left = len(list(Path(folder).iterdir()))
    failed = sum(process.exitcode != 0 for process in writers)
    whole = counts.pop("whole", 0)
    return {
        "saves": WRITERS * SAVES, "writers_failed": failed, "loads": whole + sum(counts.values()), "whole": whole,
        "other": dict(counts), "last_is_whole": last, "files_left": left, "seconds": watch.seconds,
    }  # fmt: skip


CASES: dict[str, Case] = {"concurrent": concurrent}

if __name__ == "__main__":
    run_cases(__file__, "saving", CASES)
