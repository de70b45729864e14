"""Measure what labels are worth in the order of the queue of a labelling project, next to random order.

    HINET_DATA=folder python benchmarks/active.py [case ...]

A case is ``set, order, labels``, such as ``naics, queue, 1000``: a simulated annotator labels rows of the training set,
which is the pool, with their true labels. In the order of the queue, the model is retrained as often as by the service,
and the queue is the very one of the service: the same choice of rows, with its random ones, for one person. In random
order, it is trained where accuracy is measured. Accuracy is that on test rows, which nothing is chosen by. Models have
the defaults of a project, whose first one learns from the taxonomy alone. A case ends after a number of labels;
``naics, queue, 1000, 1`` has the seed 1 instead of 0. Results: ``benchmarks/results/active.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from meaning import Task
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier
from hinet.labelling.folder import ProjectSettings
from hinet.labelling.queue import Queue, prepare
from hinet.labelling.store import Label, Ledger
from hinet.labelling.training import fitted_classifier, labels_to_wait_for
from hinet.metrics import accuracy

SETS = ("naics", "icd", "wikitaxa")
ORDERS = ("queue", "random")
SIZES = (0, 100, 300, 1_000, 3_000)
SEEDS = (0, 1, 2)
MAX_TEST_ROWS = 4_000
MAX_POOL = 20_000


class Simulation:
    """A pool of rows, and the rows that were labelled so far."""

    def __init__(self, task: Task, seed: int) -> None:
        rng = np.random.default_rng(seed)
        pool = rng.permutation(len(task.train.texts))[:MAX_POOL].tolist()
        self.task, self.settings = task, ProjectSettings(seed=seed)
        self.texts = [task.train.texts[row] for row in pool]
        self.truth = [task.train.labels[row] for row in pool]
        self.labelled: list[int] = []  # positions in the pool
        some = np.random.default_rng(0).permutation(len(task.test.texts))[:MAX_TEST_ROWS]
        self.test = task.test.take(np.isin(np.arange(len(task.test.texts)), some))

    def train(self) -> HiNetClassifier:
        """Return the model of a project with these labels."""
        texts = [self.texts[row] for row in self.labelled]
        labels = [(self.truth[row],) for row in self.labelled]
        classifier: HiNetClassifier = fitted_classifier(self.task.taxonomy, texts, labels, self.settings)
        return classifier

    def accuracy(self, classifier: HiNetClassifier) -> float:
        """Return the accuracy on test rows."""
        answers = list(classifier.predict(self.test.texts))
        return round(accuracy(self.test.labels, answers, taxonomy=self.task.taxonomy), 4)


def by_queue(simulation: Simulation, sizes: Sequence[int]) -> Iterator[tuple[int, HiNetClassifier]]:
    """Yield a number of labels and the model after them, with labels in the order of the queue."""
    ledger = Ledger()
    queue = Queue(len(simulation.texts), ledger, simulation.settings.seed)
    for size in sizes:
        while True:
            classifier, count = simulation.train(), len(simulation.labelled)
            if count == size:
                yield size, classifier
            if count >= size:
                break
            queue.expire_scores()
            prepare(queue, classifier.fitted_, simulation.texts)
            for _ in range(min(labels_to_wait_for(count), size - count)):
                ((row, reason),), _ = queue.next("simulated", 1)
                truth, number = simulation.truth[row - 1], len(simulation.labelled) + 1
                ledger.add(Label(number, row, "label", (truth,), "simulated", "", "", (), 0.0, "", reason))
                queue.done(row)
                simulation.labelled.append(row - 1)


def at_random(simulation: Simulation, sizes: Sequence[int]) -> Iterator[tuple[int, HiNetClassifier]]:
    """Yield a number of labels and the model after them, with labels in random order."""
    order = np.random.default_rng([simulation.settings.seed, 1]).permutation(len(simulation.texts)).tolist()
    for size in sizes:
        simulation.labelled = order[:size]
        yield size, simulation.train()


def measured(name: str, order: str, labels: int, seed: int) -> dict[str, Any]:
    """Return the accuracy after some numbers of labels."""
    simulation, watch = Simulation(Task.load(name), seed), Stopwatch()
    orders = {"queue": by_queue, "random": at_random}
    sizes = [size for size in SIZES if size <= labels]
    curve = {str(size): simulation.accuracy(model) for size, model in orders[order](simulation, sizes)}
    distinct = len({simulation.truth[row] for row in simulation.labelled})
    return {
        "accuracy": curve, "pool": len(simulation.texts), "labels_seen": distinct, "seed": seed,
        "processor_seconds": watch.processor_seconds,
    }  # fmt: skip


CASES: dict[str, Case] = {
    f"{name}, {order}, {size}" + (f", {seed}" if seed else ""): partial(measured, name, order, size, seed)
    for name in SETS
    for order in ORDERS
    for size in SIZES[1:]
    for seed in SEEDS
}

if __name__ == "__main__":
    run_cases(str(Path(__file__)), "active", CASES)
