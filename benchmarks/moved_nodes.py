"""Measure moved nodes of a taxonomy: accuracy on their test rows before and after, and the loss on other rows.

    HINET_DATA=folder python benchmarks/moved_nodes.py [case ...]

Leaves, or inner nodes with all their descendants, move at random to a parent of the same depth below another top node.
A model is then updated to the new taxonomy. ``left alone`` keeps no rows; ``kept`` learns from the rows it keeps;
``given`` also learns from the training rows of the moved labels, without their labels; ``trained`` with their labels;
``retrained`` is a new model, the upper bound. Results: ``benchmarks/results/moved_nodes.json``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from engine_data import Texts, icd_texts, naics_texts
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier, Taxonomy
from hinet.engine import FusedModel

LARGEST = 40  # maximum number of labels below an inner node that moves
SMALLEST = 3


@dataclass(frozen=True)
class Move:
    """A changed taxonomy, and the labels at or below moved nodes."""

    taxonomy: Taxonomy
    nodes: list[str]
    labels: set[str]


def moved(taxonomy: Taxonomy, labels: set[str], leaves: int, inner: int, seed: int) -> Move:
    """Move ``leaves`` leaves and ``inner`` inner nodes of a tree."""
    parent = {node: next(iter(taxonomy.parents(node)), None) for node in taxonomy}
    path = {node: _path(parent, node) for node in taxonomy}
    below: dict[str, set[str]] = {node: set() for node in taxonomy}
    for label in labels:
        for node in path[label]:
            below[node].add(label)
    deep = [node for node in taxonomy if len(path[node]) > 2 and len(taxonomy.children(str(parent[node]))) > 1]
    pools = (
        ([node for node in deep if not taxonomy.children(node) and node in labels], leaves),
        ([node for node in deep if taxonomy.children(node) and SMALLEST <= len(below[node]) <= LARGEST], inner),
    )
    random, chosen = np.random.default_rng(seed), dict[str, str]()
    for pool, wanted in pools:
        limit = len(chosen) + wanted
        for node in random.permutation(pool).tolist():
            if len(chosen) == limit:
                break
            if any(node in path[other] or other in path[node] for other in chosen):
                continue
            places = [
                other
                for other in taxonomy
                if len(path[other]) == len(path[node]) - 1
                and taxonomy.children(other)
                and path[other][0] != path[node][0]
                and not any(step in chosen for step in path[other])
            ]
            if places:
                chosen[node] = places[random.integers(len(places))]
    edges = [(chosen.get(node, parent[node]), node) for node in taxonomy]
    root = taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else None
    changed = Taxonomy.from_edges(edges, root=root)
    return Move(changed, list(chosen), set().union(*(below[node] for node in chosen)))


def _path(parent: dict[str, str | None], node: str | None) -> list[str]:
    """Return the steps from the top to a node."""
    steps = []
    while node is not None:
        steps.append(node)
        node = parent[node]
    return steps[::-1]


def measured(texts: Texts, leaves: int, inner: int, seed: int = 0) -> dict[str, Any]:
    """Measure a move on a data set."""
    train, labels = list(texts.train[0]), [label[0] for label in texts.train[1]]
    test, truth = list(texts.test[0]), np.array([label[0] for label in texts.test[1]])
    move = moved(texts.taxonomy, set(labels), leaves, inner, seed)
    of_moved = np.isin(truth, list(move.labels))
    watch = Stopwatch()
    classifier = HiNetClassifier(texts.taxonomy, vectors=None).fit(train, labels)
    trained_in = watch.seconds
    before = classifier.predict(test)
    examples, model_before = classifier.fitted_.examples, classifier.fitted_.predictor.model
    assert isinstance(model_before, FusedModel)
    bytes_of_model = model_before.nbytes
    rows = [row for row, label in enumerate(labels) if label in move.labels]
    given, given_labels = [train[row] for row in rows], [labels[row] for row in rows]

    def evaluate(model: HiNetClassifier) -> dict[str, float]:
        answers = model.predict(test)
        right = answers == truth
        return {
            "moved": round(float(right[of_moved].mean()), 4),
            "rest": round(float(right[~of_moved].mean()), 4),
            "rest_as_before": round(float((answers == before)[~of_moved].mean()), 4),
        }

    def updated(rows: Any = None, y: Any = None, *, keeps: bool = True) -> dict[str, float]:
        model = copy.copy(classifier)
        if not keeps:
            model.fitted_ = replace(model.fitted_, examples=None)
        watch = Stopwatch()
        model.update_taxonomy(move.taxonomy, X=rows, y=y)
        seconds = watch.seconds
        return {**evaluate(model), "seconds": seconds}

    return {
        "moved_nodes": len(move.nodes),
        "moved_labels": len(move.labels),
        "moved_test_rows": int(of_moved.sum()),
        "kept_rows": len(examples or ()),
        "training_rows": len(train),
        "kept_share_of_model": round(_bytes(examples) / bytes_of_model, 4),
        "before": evaluate(classifier),
        "left alone": updated(keeps=False),
        "kept": updated(),
        "given": updated(given),
        "trained": updated(given, given_labels),
        "retrained": {
            **evaluate(HiNetClassifier(move.taxonomy, vectors=None).fit(train, labels)),
            "seconds": trained_in,
        },
    }


def _bytes(examples: Any) -> int:
    return sum(array.nbytes for array in examples.to_arrays().values())


CASES: dict[str, Case] = {
    "naics, 30 leaves": lambda: measured(naics_texts(), 30, 0),
    "naics, 10 inner": lambda: measured(naics_texts(), 0, 10),
    "icd, 100 leaves": lambda: measured(icd_texts(), 100, 0),
    "icd, 20 inner": lambda: measured(icd_texts(), 0, 20),
}


if __name__ == "__main__":
    run_cases(__file__, "moved_nodes", CASES)
