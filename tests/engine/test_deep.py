"""How deep experts train beyond the parity of costs and gradients: dropout, and all labels at once.

The flat expert's kernel takes several rows at once; on one level it does what the sibling groups' kernel does.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine import DeepExpert, EngineSettings, Groups, Targets
from hinet.engine.model.groups import LabelSpans
from hinet.engine.training.deep import DeepAccumulators, DropoutMasks, LabelTargets, Train
from hinet.engine.training.deep_kernels import LabelWorkspace, exponentials, grads_of_labels, train_deep, train_flat
from hinet.engine.training.rows import RowChunk, TrainingSet
from tests.strategies import all_traces, taxonomies

FEATURES, WIDTH, LABELS, ROWS = 12, 10, 9, 11
SMALL_RATE = (1e-6, 1e-6)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def label_targets(targets: Targets, spans: LabelSpans, upper: float = 0.4) -> LabelTargets:
    return LabelTargets.of(targets, spans, np.ones(len(spans.neuron)), EngineSettings(flat_upper=upper))


class OneLevel:
    """Rows with one to three of the labels of a taxonomy without inner nodes, as lessons of both kinds."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        layers = Layers.of(Taxonomy.from_edges([(None, f"label {at}") for at in range(LABELS)]))
        names = np.array([f"label {at}" for at in range(LABELS)])
        chosen = [random.choice(names, random.integers(1, 4), replace=False).tolist() for _ in range(ROWS)]
        targets = Targets.of(Traces.encode_sets(layers, chosen)).weighted(random.uniform(0.2, 3, ROWS))
        rows = SparseMatrix.of(sp.random_array((ROWS, FEATURES), density=0.4, format="csr", rng=random))
        groups, spans = Groups.of(layers), LabelSpans.of(layers)
        adjustment = random.standard_normal(LABELS).astype(np.float32)
        self.training = TrainingSet.of(rows, targets.arrays, groups, adjustment)
        self.order = spans.first[:LABELS]  # label of each option below the root
        by_label = np.empty(LABELS, np.float32)
        by_label[self.order] = adjustment
        self.labels = label_targets(targets, spans)._replace(adjustment=by_label)
        self.read(rows)
        self.expert = DeepExpert.start(FEATURES, np.zeros(LABELS, np.float32), WIDTH, random)
        self.masks = DropoutMasks(
            *((random.random(50) < 0.7).astype(np.float32) for _ in range(2)), np.ones(1, np.float32)
        )

    def read(self, rows: SparseMatrix) -> None:
        self.rows = rows
        self.by_group = partial(train_deep, self.training._replace(rows=rows))
        self.by_label = partial(train_flat, rows, self.labels)

    def trained(
        self,
        train: Train,
        chosen: NDArray[np.int64],
        rates: tuple[float, float],
        first: int = 0,
    ) -> tuple[float, DeepExpert]:
        expert = DeepExpert(*(array.copy() for array in self.expert))
        if train is self.by_label:
            expert.weight[self.order], expert.bias[self.order] = self.expert.weight, self.expert.bias
        slots = DeepAccumulators(np.full(FEATURES, 0.01, np.float32), np.full(LABELS, 0.01, np.float32))
        cost = train(RowChunk(chosen, first, ROWS, rates), self.masks, expert, slots)
        if train is self.by_label:
            expert = expert._replace(weight=expert.weight[self.order], bias=expert.bias[self.order])
        return cost, expert


@pytest.mark.parametrize("seed", range(20))
def test_a_row_moves_both_in_the_same_way(seed: int) -> None:
    data = OneLevel(seed)
    for row in range(ROWS):
        chosen = np.array([row])
        (cost, expert), (flat_cost, flat) = (
            data.trained(objective, chosen, (0.1, 0.1)) for objective in (data.by_group, data.by_label)
        )
        assert flat_cost == pytest.approx(cost, rel=1e-4)
        for name, array in expert._asdict().items():
            np.testing.assert_allclose(getattr(flat, name), array, err_msg=name, **CLOSE)
        assert not np.array_equal(flat.bias, data.expert.bias)


@pytest.mark.parametrize("kind", ["by_group", "by_label"])
@pytest.mark.parametrize("seed", range(5))
def test_a_dropped_feature_is_as_if_it_were_not_there(kind: str, seed: int) -> None:
    data = OneLevel(seed)
    objective, half = getattr(data, kind), np.array([0, 2], np.float32)  # every second feature, from either of them on
    data.masks = DropoutMasks(half, np.ones(WIDTH + 1, np.float32), np.ones(1, np.float32))
    chosen = np.arange(1)
    _, found = data.trained(objective, chosen, (0.1, 0.1), first=seed)
    rows, data.masks = data.rows, data.masks._replace(features=np.ones(2, np.float32))
    expected = []
    for factors in (half, half[::-1]):
        factor = np.resize(factors, len(rows.indices))
        kept = sp.csr_array((rows.data * factor, rows.indices, rows.indptr), (ROWS, FEATURES))
        kept.eliminate_zeros()
        data.read(SparseMatrix.of(kept))
        expected.append(data.trained(getattr(data, kind), chosen, (0.1, 0.1), first=seed)[1])
    assert any(all(np.array_equal(*pair) for pair in zip(found, one, strict=True)) for one in expected)
    assert not all(np.array_equal(*pair) for pair in zip(*expected, strict=True))


@pytest.mark.parametrize("upper", [0.0, 0.7])
@given(st.data())
@settings(max_examples=40)
def test_the_nodes_above_its_labels_count_in_the_cost_of_a_row(upper: float, data: st.DataObject) -> None:
    taxonomy = data.draw(taxonomies(dag=False))
    ends = {*data.draw(st.lists(st.sampled_from(taxonomy.ids), unique=True))}
    ends |= {node for node in taxonomy if not taxonomy.children(node)}
    layers, paths = Layers.of(taxonomy, ends=sorted(ends)), list(all_traces(taxonomy, ends))
    true = data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True))
    spans, weight = LabelSpans.of(layers), data.draw(st.floats(0.2, 3))
    targets = Targets.of(Traces.encode_sets(layers, [[end_of(path, taxonomy) for path in true]]))
    targets = label_targets(targets.weighted(np.array([weight])), spans, upper)

    grads = np.random.default_rng(0).normal(0, 3, len(paths)).astype(np.float32)
    logits = torch.tensor(grads, dtype=torch.float64, requires_grad=True)
    place = {taxonomy.ids[node]: at for at, node in enumerate(layers.node[spans.neuron])}
    cost = torch.zeros(())
    for path in true:
        below = [frozenset(other for other in paths if other[: at + 1] == path[: at + 1]) for at in range(len(path))]
        for labels, counts in [
            ({path}, 1.0),
            *((labels, upper) for labels in {*below} if 1 < len(labels) < len(paths)),
        ]:
            chosen = [place[end_of(label, taxonomy)] for label in labels]
            log_p = torch.logsumexp(logits[chosen], 0) - torch.logsumexp(logits, 0)
            cost = cost - weight / len(true) * counts * log_p
    expected = torch.autograd.grad(cost, logits)[0]
    count = len(grads)
    room = LabelWorkspace(np.zeros(count, np.float32), np.empty(count, np.float32), np.empty(count, np.int32))
    assert grads_of_labels(0, targets, grads, room) == pytest.approx(cost.item(), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(grads, expected, **CLOSE)
    assert not room.upper_grad.any()


def end_of(path: tuple[str, ...], taxonomy: Taxonomy) -> str:
    """Return the label at the end of a path below the root."""
    return path[-1] if path else taxonomy.ids[taxonomy.root]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 11])
def test_rows_taken_together_cost_what_they_cost_one_by_one(count: int) -> None:
    data = OneLevel(count)
    chosen = np.arange(count)
    cost, flat_cost = (data.trained(objective, chosen, SMALL_RATE)[0] for objective in (data.by_group, data.by_label))
    assert flat_cost == pytest.approx(cost, rel=1e-4)


def test_a_heavy_row_far_from_its_label_has_finite_gradients() -> None:
    layers = Layers.of(Taxonomy.from_paths([("a", "x"), ("a", "y"), ("b",)], steps="ids"), ends=())
    targets = Targets.of(Traces.encode(layers, ["x"])).weighted(np.array([1_000.0]))
    spans = LabelSpans.of(layers)
    grads = np.zeros(3, np.float32)
    grads[layers.node[spans.neuron] == layers.taxonomy.ids.index("b")] = 500
    room = LabelWorkspace(np.zeros(3, np.float32), np.empty(3, np.float32), np.empty(3, np.int32))
    assert np.isfinite(grads_of_labels(0, label_targets(targets, spans), grads, room))
    assert np.isfinite(grads).all()


def test_exponentials_are_close_for_every_size() -> None:
    values = np.concatenate([np.linspace(-80, 0, 5_001), [-1e6, -np.inf]]).astype(np.float32)
    expected = np.exp(values.astype(np.float64))
    total = exponentials(values, np.float32(0), np.empty(len(values), np.int32))
    np.testing.assert_allclose(values, expected, rtol=3e-5, atol=1e-30)
    assert total == pytest.approx(expected.sum(), rel=1e-5)
