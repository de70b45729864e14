"""Numbers by their rank: scores against the definition, round trips, and forged arrays."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hinet import HiNetClassifier, HiNetError
from hinet.classifier.ranks import KNOTS, OUTERMOST, Ranks

COLUMNS = {"number": ["first", "second", "flag"]}


def test_scores_are_those_of_a_normal_distribution_at_the_rank() -> None:
    random = np.random.default_rng(0)
    values = np.exp(3 * random.normal(size=(4_001, 1)))
    scores = Ranks.fit(values).scores(values)[:, 0]
    rank = np.empty(len(values))
    rank[np.argsort(values[:, 0])] = np.linspace(0, 1, len(values))
    inner = (rank > 0.02) & (rank < 0.98)
    expected = np.array([NormalDist().inv_cdf(share) for share in rank[inner]])
    np.testing.assert_allclose(scores[inner], expected, atol=0.15)
    assert (np.diff(scores[np.argsort(values[:, 0])]) >= 0).all()
    assert abs(scores).max() <= -NormalDist().inv_cdf(OUTERMOST) + 1e-6


def test_equal_numbers_have_the_middle_of_their_ranks_and_missing_ones_none() -> None:
    column = np.array([0.0] * 50 + [1.0] * 30 + [2.0] * 20)
    ranks = Ranks.fit(np.stack([column, -column, np.r_[column[:60], [np.nan] * 40], column > 0], 1))
    assert ranks.ranked.tolist() == [True, True, False, False]  # two numbers have no rank that says more
    scores = ranks.scores(np.array([[0.0, 0.0, 0, 0], [1, -1, 0, 0], [2, -2, 0, 0], [np.nan] * 4, [99, -99, 0, 0]]))
    np.testing.assert_allclose(scores[:, 0], -scores[:, 1], atol=1e-6)  # the same from both ends
    assert scores[0, 0] < 0 < scores[1, 0] < scores[2, 0]
    assert scores[3].tolist() == [0, 0]
    assert scores[4, 0] >= scores[2, 0]


@pytest.fixture(scope="module")
def skewed() -> tuple[pa.Table, list[set[str]]]:
    random = np.random.default_rng(1)
    numbers = np.exp(2 * random.normal(size=(80, 2)))
    labels = [{f"a{int(row[0] > 1)}", f"b{int(row[1] > 1)}"} for row in numbers]
    return pa.table({"first": numbers[:, 0], "second": numbers[:, 1], "flag": numbers[:, 0] > 3}), labels


def test_a_model_keeps_ranks(skewed: tuple[pa.Table, list[set[str]]], tmp_path: Path) -> None:
    table, labels = skewed
    classifier = HiNetClassifier(columns=COLUMNS, epochs=5, width=8, members=2, n_jobs=1).fit(table, labels)
    features: Any = classifier.fitted_.features
    assert features.ranks.knots.shape == (2, KNOTS)
    assert features.names(np.arange(features.count)).count("first") == 2
    classifier.save(tmp_path / "model")
    loaded = HiNetClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(table), classifier.predict_proba(table))
    told = classifier.explain(table.slice(0, 1)).to_frame()
    assert not told.duplicated(["step", "feature"]).any()  # a number and its rank are one


def test_one_label_a_row_has_no_ranks(skewed: tuple[pa.Table, list[set[str]]]) -> None:
    table, labels = skewed
    classifier = HiNetClassifier(columns=COLUMNS, epochs=2, width=8, members=2, n_jobs=1).fit(
        table, [min(row) for row in labels]
    )
    features: Any = classifier.fitted_.features
    assert not features.ranks.ranked.any()
    assert not features.ranks.to_arrays()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("columns.ranked"), "the arrays have no 'columns.ranked'"),
        (lambda arrays: arrays.update({"columns.knots": arrays["columns.knots"][:, :9]}), "has the shape"),
        (lambda arrays: arrays.update({"columns.knots": arrays["columns.knots"][:1]}), "1 columns have knots, and 2"),
        (lambda arrays: arrays.update({"columns.knots": -arrays["columns.knots"]}), "knots of a column fall"),
        (lambda arrays: arrays.update({"columns.knots": arrays["columns.knots"] * np.nan}), "holds nan"),
    ],
)
def test_forged_ranks_are_refused(change: Any, message: str) -> None:
    arrays = Ranks.fit(np.random.default_rng(0).normal(size=(20, 2))).to_arrays()
    assert Ranks.restored(2, arrays).ranked.all()
    change(arrays)
    with pytest.raises(HiNetError, match=message):
        Ranks.restored(2, arrays)
