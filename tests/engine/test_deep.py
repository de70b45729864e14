"""The flat expert's kernel takes several rows at once; on one level it does what the sibling groups' kernel does."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine import DeepExpert, Goals, Groups
from hinet.engine.deep import DeepSlots, GroupLesson, LabelLesson, LabelTargets
from hinet.engine.deep_kernels import exponentials
from hinet.engine.experts import LabelSpans
from hinet.engine.tasks import Stretch, TrainingRows

FEATURES, WIDTH, LABELS, ROWS = 12, 10, 9, 11
SMALL_RATE = (1e-6, 1e-6)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class OneLevel:
    """Rows with one to three of the labels of a taxonomy without inner nodes, as lessons of both kinds."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        layers = Layers.of(Taxonomy.from_edges([(None, f"label {at}") for at in range(LABELS)]))
        names = np.array([f"label {at}" for at in range(LABELS)])
        chosen = [random.choice(names, random.integers(1, 4), replace=False).tolist() for _ in range(ROWS)]
        goals = Goals.of(Traces.encode_sets(layers, chosen)).weighted(random.uniform(0.2, 3, ROWS))
        rows = SparseMatrix.of(sp.random_array((ROWS, FEATURES), density=0.4, format="csr", rng=random))
        groups, spans = Groups.of(layers), LabelSpans.of(layers)
        adjustment = random.standard_normal(LABELS).astype(np.float32)
        self.by_group = GroupLesson(TrainingRows.of(rows, goals.arrays, groups, adjustment))
        self.order = spans.first[:LABELS]  # of each option below the root, its label
        by_label = np.empty(LABELS, np.float32)
        by_label[self.order] = adjustment
        self.by_label = LabelLesson(rows, LabelTargets.of(goals, spans), by_label)
        self.expert = DeepExpert.start(FEATURES, LABELS, WIDTH, random)
        self.drops = (random.random(50) < 0.7).astype(np.float32)

    def trained(
        self, lesson: GroupLesson | LabelLesson, chosen: NDArray[np.int64], rates: tuple[float, float]
    ) -> tuple[float, DeepExpert]:
        expert = DeepExpert(*(array.copy() for array in self.expert))
        if lesson is self.by_label:
            expert.weight[self.order], expert.bias[self.order] = self.expert.weight, self.expert.bias
        slots = DeepSlots(np.full(FEATURES, 0.01, np.float32), np.full(LABELS, 0.01, np.float32))
        cost = lesson.train(Stretch(chosen, 0, ROWS, rates), self.drops, expert, slots)
        if lesson is self.by_label:
            expert = expert._replace(weight=expert.weight[self.order], bias=expert.bias[self.order])
        return cost, expert


@pytest.mark.parametrize("seed", range(20))
def test_a_row_moves_both_in_the_same_way(seed: int) -> None:
    data = OneLevel(seed)
    for row in range(ROWS):
        chosen = np.array([row])
        (cost, expert), (flat_cost, flat) = (
            data.trained(lesson, chosen, (0.1, 0.1)) for lesson in (data.by_group, data.by_label)
        )
        assert flat_cost == pytest.approx(cost, rel=1e-4)
        for name, array in expert._asdict().items():
            np.testing.assert_allclose(getattr(flat, name), array, err_msg=name, **CLOSE)
        assert not np.array_equal(flat.weight, data.expert.weight)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 11])
def test_rows_taken_together_cost_what_they_cost_one_by_one(count: int) -> None:
    data = OneLevel(count)
    chosen = np.arange(count)
    cost, flat_cost = (data.trained(lesson, chosen, SMALL_RATE)[0] for lesson in (data.by_group, data.by_label))
    assert flat_cost == pytest.approx(cost, rel=1e-4)


def test_exponentials_are_close_for_every_size() -> None:
    values = np.concatenate([np.linspace(-80, 0, 5_001), [-1e6, -np.inf]]).astype(np.float32)
    expected = np.exp(values.astype(np.float64))
    total = exponentials(values, np.float32(0), np.empty(len(values), np.int32))
    np.testing.assert_allclose(values, expected, rtol=3e-5, atol=1e-30)
    assert total == pytest.approx(expected.sum(), rel=1e-5)
