"""Dense columns next to sparse features: the same as sparse ones, except for the wide expert and prototypes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import MixedRows, SparseMatrix
from hinet.engine import EngineSettings, Search, fit
from hinet.engine.model.experts import DeepExpert
from hinet.engine.model.groups import Groups, LabelSpans, Targets
from hinet.engine.settings import Dropout
from hinet.engine.training import deep
from hinet.engine.training.deep import DeepJob, DeepPlan, LabelTargets
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.rows import TrainingRows, TrainingSet
from hinet.errors import HiNetError

EDGES = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train")]
LABELS = ("bread", "milk", "car", "train", "food")
SETTINGS = EngineSettings(members=1, width=8, flat_width=8, deep_epochs=4, threads=1, flat=True)


@pytest.fixture(scope="module")
def rows() -> MixedRows:
    random = np.random.default_rng(0)
    sparse = sp.random_array((60, 30), density=0.2, rng=random, dtype=np.float32, format="csr")
    return MixedRows(sparse, random.standard_normal((60, 5)).astype(np.float32))


@pytest.fixture(scope="module")
def traces() -> Traces:
    return Traces.encode(Layers.of(Taxonomy.from_edges(EDGES), LABELS), [LABELS[row % 5] for row in range(60)])


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    return {name: array for name, array in model.to_arrays().items() if name != "mix"}


def trained(rows: Any, traces: Traces, *, flat: bool, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of the embeddings and of the output rows of a deep expert in one epoch."""
    matrix, targets, groups = SparseMatrix.of(rows), Targets.of(traces), Groups.of(traces.layers)
    spans = LabelSpans.of(traces.layers)
    outputs = len(spans.neuron) if flat else groups.rows
    if flat:
        train = partial(train_flat, matrix, LabelTargets.of(targets, spans, np.ones(outputs), SETTINGS))
    else:
        adjustment = np.zeros(outputs, np.float32)
        train = partial(train_deep, TrainingSet.of(matrix, targets.arrays, groups, adjustment))
    expert = DeepExpert.start(rows.shape[1], np.zeros(outputs, np.float32), 8, np.random.default_rng(0))
    before = expert.embedding.copy(), expert.weight.copy()
    plan = DeepPlan(100, rate, 1.0, Dropout(0.0, 0.3))  # many epochs, so that the rate hardly decays in one
    given = TrainingRows(matrix, targets, rows.shape[1])
    DeepJob("deep", given, lambda *_: train, 1.0, expert, plan, (0,)).run_epoch(0, lambda rows: None)
    return expert.embedding - before[0], expert.weight - before[1]


@pytest.mark.parametrize(
    ("flat", "rate", "tolerance"),
    [(True, 0.1, 1e-4), (False, 1e-3, 0.02)],  # groups learn from each row at once, dense columns from four together
)
def test_deep_experts_train_as_on_sparse_columns(
    rows: MixedRows, traces: Traces, monkeypatch: pytest.MonkeyPatch, flat: bool, rate: float, tolerance: float
) -> None:
    monkeypatch.setattr(deep, "FAINT_ROWS", 0.0)
    mixed, sparse = (trained(given, traces, flat=flat, rate=rate) for given in (rows, rows.tocsr()))
    for change, wanted in zip(mixed, sparse, strict=True):
        assert np.abs(change - wanted).max() < tolerance * np.abs(wanted).max()


def test_answers_are_those_for_sparse_columns(rows: MixedRows, traces: Traces) -> None:
    search = Search(fit(rows, traces, SETTINGS), threads=1)
    mixed, sparse = search.label_probabilities(rows), search.label_probabilities(rows.tocsr())
    assert np.abs((mixed - sparse).toarray()).max() < 1e-5
    one = Search(search.model, threads=1).traces(rows[3:4]).traces
    assert one.log_p == pytest.approx(search.traces(rows).traces.log_p[3], abs=1e-5)  # type: ignore[index]


def test_threads_do_not_change_bits(rows: MixedRows, traces: Traces) -> None:
    alone = fit(rows, traces, SETTINGS)
    both = fit(rows, traces, EngineSettings(**{**SETTINGS.shaping(), "threads": 2}))  # type: ignore[arg-type]
    assert all(np.array_equal(array, both.to_arrays()[name]) for name, array in alone.to_arrays().items())


def test_parts_of_a_logit_add_up(rows: MixedRows, traces: Traces) -> None:
    model = fit(rows, traces, SETTINGS)
    search = Search(model, threads=1)
    row = rows[7:8]
    parts = model.contributions(SparseMatrix.of(row), 0)
    assert parts.by_feature.shape[1] == rows.sparse[7:8].nnz + 5
    logits = parts.logits
    shares = np.exp(logits - np.logaddexp.reduce(logits))
    assert shares.max() == pytest.approx(np.exp(search.traces(row).log_p[0]), abs=1e-4)


def test_the_wide_expert_leaves_dense_columns_out(rows: MixedRows, traces: Traces) -> None:
    wide = fit(rows, traces, SETTINGS).experts.wide
    dense = wide.feature_rank[30:]
    assert not np.isin(wide.feature, dense).any()


def test_rows_that_do_not_fit_are_refused(rows: MixedRows, traces: Traces) -> None:
    with pytest.raises(HiNetError, match="60 sparse rows and 59 dense"):
        MixedRows(rows.sparse, rows.dense[:59])
    broken = MixedRows(rows.sparse, np.where(np.arange(5) == 2, np.nan, rows.dense))
    with pytest.raises(HiNetError, match="row 0: feature 2 is nan"):
        fit(broken, traces, SETTINGS)
    model = fit(rows, traces, SETTINGS)
    with pytest.raises(HiNetError, match="35 features, got 34"):
        Search(model).traces(MixedRows(rows.sparse, rows.dense[:, :4]))
