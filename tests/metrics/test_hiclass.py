"""Hierarchical precision, recall and F1 on trees are those of HiClass."""

from __future__ import annotations

import random
import warnings

import hiclass.metrics
import pytest

from hinet import Taxonomy
from hinet.metrics import hierarchical_f1, hierarchical_precision, hierarchical_recall

MEASURES = {"precision": hierarchical_precision, "recall": hierarchical_recall, "f1": hierarchical_f1}
AVERAGES = ("micro", "macro")

# Parents, truth, prediction, and what hiclass.metrics 5.0.8 says of their paths padded with empty strings:
# precision, recall, f1, micro, then macro.
FROZEN: list[tuple[dict[str, str], list[str], list[str], list[float]]] = [
    (
        {"a": "", "b": "", "c": "b", "d": "c", "e": "a", "f": "d", "g": "c"},
        ["c", "a", "c", "d"],
        ["d", "d", "c", "d"],
        [0.6363636363636364, 0.875, 0.7368421052631579, 0.6666666666666666, 0.75, 0.7],
    ),
    (
        {"a": "", "b": "", "c": "a", "d": "b", "e": "d", "f": "d", "g": ""},
        ["c", "c", "a"],
        ["g", "f", "c"],
        [0.16666666666666666, 0.2, 0.1818181818181818, 0.16666666666666666, 0.3333333333333333, 0.2222222222222222],
    ),
    (
        {"a": "", "b": "", "c": "a", "d": "b", "e": "b"},
        ["c", "b", "c", "e"],
        ["c", "b", "c", "c"],
        [0.7142857142857143, 0.7142857142857143, 0.7142857142857143, 0.75, 0.75, 0.75],
    ),
    (
        {"a": "", "b": "", "c": "b", "d": "", "e": "c", "f": "", "g": "b"},
        ["d", "b", "c", "g", "a", "b"],
        ["d", "a", "e", "b", "a", "b"],
        [0.75, 0.75, 0.75, 0.7777777777777777, 0.75, 0.7444444444444445],
    ),
]


def ours(parents: dict[str, str], truth: list[str], predicted: list[str]) -> list[float]:
    taxonomy = Taxonomy.from_edges([(parent, node) for node, parent in parents.items()])
    return [
        measure(truth, predicted, average=average, taxonomy=taxonomy)  # type: ignore[arg-type]
        for average in AVERAGES
        for measure in MEASURES.values()
    ]


@pytest.mark.parametrize(("parents", "truth", "predicted", "theirs"), FROZEN)
def test_we_agree_with_what_hiclass_said(
    parents: dict[str, str], truth: list[str], predicted: list[str], theirs: list[float]
) -> None:
    assert ours(parents, truth, predicted) == pytest.approx(theirs)


def path(parents: dict[str, str], node: str) -> list[str]:
    return [*path(parents, parents[node]), node] if node else []


def test_we_agree_with_hiclass() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HiClass warns of an F1 of 0
        rng = random.Random(0)
        for _ in range(50):
            nodes = [f"n{number}" for number in range(rng.randint(2, 30))]
            parents = {node: rng.choice(["", *nodes[:at]]) if at > 1 else "" for at, node in enumerate(nodes)}
            truth = rng.choices(nodes, k=rng.randint(1, 40))
            predicted = [rng.choice([label, rng.choice(nodes)]) for label in truth]
            paths = [[path(parents, label) for label in side] for side in (truth, predicted)]
            theirs = [
                getattr(hiclass.metrics, name)(*paths, average=average) for average in AVERAGES for name in MEASURES
            ]
            assert ours(parents, truth, predicted) == pytest.approx(theirs)
