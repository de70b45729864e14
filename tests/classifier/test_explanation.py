"""The reasons of every step add up to the difference of the logits, for all experts and both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from hinet import HiNetError
from hinet.data.matrices import SparseMatrix
from hinet.engine import FusedModel, Search
from tests.classifier.data import numbers, small, taxonomy, texts
from tests.engine.test_parity import Case, cases, fused_model

TEXTS, LABELS = texts()


def log_p_of_steps(steps: Any) -> list[float]:
    return [step.probability for step in steps]


@pytest.mark.parametrize(
    "settings",
    [{}, {"wide": False}, {"flat": True}, {"engine": "torch"}, {"width": 1}],
    ids=["deep and wide", "deep", "flat", "torch", "narrow"],
)
def test_reasons_add_up(settings: dict[str, Any]) -> None:
    classifier = small(taxonomy=taxonomy(), **settings).fit(TEXTS, LABELS)
    for text in TEXTS[:6]:
        found = classifier.explain(text, most=3)
        best = classifier.predict_traces([text])[0][0]
        assert found.trace.steps == best.steps
        assert found.trace.probabilities == pytest.approx(best.probabilities, rel=1e-4)
        assert np.prod([step.probability for step in found.steps]) == pytest.approx(found.trace.probability, rel=1e-3)
        for step in found.steps:
            assert len(step.reasons) <= 3
            total = sum(reason.push for reason in step.reasons) + step.others + step.rest
            assert total == pytest.approx(step.difference, abs=1e-4)
            sizes = [abs(reason.push) for reason in step.reasons]
            assert sizes == sorted(sizes, reverse=True)


def test_words_that_name_a_label_push_to_it() -> None:
    classifier = small(taxonomy=taxonomy(), epochs=20).fit(TEXTS, LABELS)
    found = classifier.explain("crust loaf")
    assert found.trace.steps == ("food", "bread")
    assert [step.chosen for step in found.steps] == ["food", "bread"]
    assert found.steps[1].rival == "milk"
    assert {"crust", "loaf"} & {reason.feature for reason in found.steps[1].reasons[:3]}
    assert found.steps[1].reasons[0].push > 0
    assert "against milk by +" in str(found)
    other = classifier.explain("crust loaf", "toy")
    assert other.trace.steps == ("toy",)
    assert other.steps[0].difference < 0


def test_dense_rows_are_explained_by_column() -> None:
    rows, labels = numbers()
    classifier = small(epochs=40).fit(rows, labels)
    found = classifier.explain(rows[0])
    step = found.steps[0]
    assert {reason.feature for reason in step.reasons} <= {f"feature {at}" for at in range(4)}
    assert sum(reason.push for reason in step.reasons) + step.others + step.rest == pytest.approx(
        step.difference, abs=1e-4
    )
    with pytest.raises(HiNetError, match="expected one row to explain, got 2"):
        classifier.explain(rows[:2])


@pytest.mark.parametrize("mix", ["deep", "wide", "flat", "prototypes", "all"])
@given(case=cases(1))
def test_parts_sum_to_the_log_probabilities_of_the_search(mix: str, case: Case) -> None:
    if mix in ("flat", "prototypes", "all") and not case.layers.taxonomy.is_tree:
        return
    model: FusedModel = fused_model(case, mix)
    row = SparseMatrix.of(sp.csr_array(case.rows[[0]]))
    best = Search(model, threads=1).traces(case.rows[[0]])
    total = 0.0
    options, _ = best.traces.options()
    for option in options.tolist():
        group = int(case.layers.option_parent[option])
        low, high = case.layers.option_offsets[group], case.layers.option_offsets[group + 1]
        if high - low > 1:
            parts = model.contributions(row, group)
            logits = parts.by_feature.sum(1) + parts.rest
            total += logits[option - low] - np.logaddexp.reduce(logits)
    assert total == pytest.approx(float(best.traces.log_p[0]), rel=1e-3, abs=1e-3)


def test_words_that_are_not_known_are_told() -> None:
    classifier = small(taxonomy=taxonomy()).fit(TEXTS, LABELS)
    for given_as in ("rye Zebra loaf okapi", ["rye Zebra loaf okapi"]):
        found = classifier.explain(given_as)
        assert found.unknown_words == ("zebra", "okapi")
        assert "unknown words: zebra, okapi" in str(found)
    assert classifier.explain("rye loaf").unknown_words == ()
    assert "unknown" not in str(classifier.explain("rye loaf"))
    rows, labels = numbers()
    assert small().fit(rows, labels).explain(rows[0]).unknown_words == ()
