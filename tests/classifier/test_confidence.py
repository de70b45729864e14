"""Probabilities mean what they say after calibration, and promised risks are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from hinet import HiNetError, Taxonomy
from hinet.evaluation.risk import THRESHOLDS, promised_threshold, upper_bound
from tests.classifier.data import numbers, small, taxonomy, texts


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.5, 0.999))
def test_the_bound_is_that_of_clopper_and_pearson(errors: int, more: int, certainty: float) -> None:
    answered = errors + more
    bound = float(upper_bound(np.array([errors]), np.array([answered]), certainty)[0])
    assert binom.cdf(errors, answered, bound) == pytest.approx(1 - certainty, rel=1e-6)
    assert bound > errors / answered


def test_a_promise_is_kept_over_random_splits() -> None:
    """Of 200 draws of held-out rows, the risk on fresh rows exceeds the wish in fewer than one in ten."""
    random = np.random.default_rng(0)
    wish, certainty, broken, answers = 0.1, 0.9, 0, []
    confidence = random.beta(4, 1, 200_000)
    right = random.random(len(confidence)) < confidence**1.2  # overconfident
    for _ in range(200):
        chosen = random.choice(len(confidence), 1_500, replace=False)
        given_at = np.array([confidence[chosen] >= threshold for threshold in THRESHOLDS])
        promise = promised_threshold(
            THRESHOLDS, given_at.sum(1), (given_at & ~right[chosen]).sum(1), len(chosen), risk=wish, certainty=certainty
        )
        answered = confidence >= promise.threshold
        broken += (~right[answered]).mean() > wish
        answers.append(answered.mean())
    assert broken / 200 <= 1 - certainty
    assert np.mean(answers) > 0.1  # it does not keep its word by silence


def test_what_cannot_be_promised_is_said() -> None:
    answered = np.full(len(THRESHOLDS), 20)
    with pytest.raises(
        HiNetError, match=r"no threshold promises a risk of 0.01 .* on 20 held-out rows.*give more rows"
    ):
        promised_threshold(THRESHOLDS, answered, np.zeros_like(answered), 20, risk=0.01)
    for risk in (0, 1, -0.5):
        with pytest.raises(HiNetError, match="risk is a share"):
            promised_threshold(THRESHOLDS, answered, answered, 20, risk=risk)
    with pytest.raises(HiNetError, match="certainty is a share"):
        promised_threshold(THRESHOLDS, answered, answered, 20, risk=0.1, certainty=1)


def noisy(rows: int, seed: int, noise: float = 0.25) -> tuple[list[str], list[str]]:
    """Return texts some of whose labels are wrong, so that a model should be unsure."""
    found, labels = texts(rows, seed)
    random = np.random.default_rng(seed)
    wrong = random.random(rows) < noise
    return found, [
        random.choice(["bread", "milk", "toy"]) if bad else good for good, bad in zip(labels, wrong, strict=True)
    ]


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_calibration_mends_what_noise_spoils(engine: Any) -> None:
    epochs = {"fused": 30, "torch": 150}[engine]
    classifier = small(taxonomy=taxonomy(), engine=engine, epochs=epochs, dropout=0.0).fit(*noisy(300, 0))
    held = noisy(1_500, 1)
    found = classifier.calibrate(*held)
    assert found.temperature > 1.1  # it was too sure of itself
    assert found.error_after < found.error_before
    assert found.error_after < 0.07
    assert found.rows == 1_500
    probability = classifier.predict_proba(held[0])
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-5)
    assert classifier.calibrate(*held).temperature == pytest.approx(found.temperature, rel=0.05)  # since training


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_answers_at_the_calibrated_confidence_keep_the_risk(engine: Any) -> None:
    classifier = small(taxonomy=taxonomy(), engine=engine).fit(*noisy(300, 0))
    with pytest.raises(HiNetError, match=r"no risk was calibrated; call calibrate\(X, y, risk=...\) first"):
        classifier.predict(["rye"], min_confidence="calibrated")
    found = classifier.calibrate(*noisy(2_000, 1), risk=0.2)
    assert found.promise is not None
    assert found.promise.bound <= 0.2
    assert classifier.min_confidence_ == found.promise.threshold
    rows, labels = noisy(4_000, 2)
    answers = classifier.predict(rows, min_confidence="calibrated")
    above = {"bread": {"bread", "food"}, "milk": {"milk", "food"}, "toy": {"toy"}}
    given_answers = [(answer, label) for answer, label in zip(answers, labels, strict=True) if answer is not None]
    assert len(given_answers) > 400
    assert np.mean([answer not in above[label] for answer, label in given_answers]) < 0.2


@pytest.mark.parametrize("engine", ["fused", "torch"])
@pytest.mark.parametrize("rows", [20, 400])
def test_calibration_leaves_the_answers_as_they_are(engine: Any, rows: int) -> None:
    """With many labels and few rows each, a scale that makes all answers wrong would look well calibrated."""
    random = np.random.default_rng(0)
    labels = [(a, a + b, a + b + c) for a in "abcd" for b in "xyz" for c in "1234"]
    chosen = random.integers(0, len(labels), 1_200)
    texts_of = [f"w{at} v{at % 12} {random.choice(list('pqrs'))} u{random.integers(0, 60)}" for at in chosen]
    paths = [labels[at if random.random() < 0.7 else random.integers(0, len(labels))] for at in chosen]
    classifier = small(engine=engine, width=32, epochs=None).fit(texts_of[:400], paths[:400])
    before = classifier.score(texts_of[800:], paths[800:])
    found = classifier.calibrate(texts_of[400 : 400 + rows], paths[400 : 400 + rows])
    assert 0.2 < found.temperature < 5
    assert classifier.score(texts_of[800:], paths[800:]) >= before - 0.03


def test_a_dag_is_calibrated_by_its_labels() -> None:
    dag = Taxonomy.from_edges(
        [("all", "food"), ("all", "gifts"), ("food", "bread"), ("food", "milk"), ("gifts", "bread"), ("gifts", "toy")]
    )
    classifier = small(taxonomy=dag, epochs=30, dropout=0.0).fit(*noisy(300, 0))
    found = classifier.calibrate(*noisy(800, 1))
    assert found.error_after < found.error_before
    rows, labels = noisy(1_500, 2)
    probability = classifier.predict_proba(rows)
    right = classifier.classes_[probability.argmax(1)] == np.array(labels)
    assert abs(probability.max(1).mean() - right.mean()) < 0.06


def test_a_failed_calibration_leaves_the_classifier_as_it_was() -> None:
    classifier = small(taxonomy=taxonomy()).fit(*texts())
    rows, labels = texts(20, seed=3)
    before = classifier.predict_proba(rows)
    with pytest.raises(HiNetError, match=r"no threshold promises a risk of 0\.001"):
        classifier.calibrate(rows, labels, risk=0.001)
    np.testing.assert_array_equal(classifier.predict_proba(rows), before)
    with pytest.raises(HiNetError, match="at least two"):
        classifier.calibrate(rows[:1], labels[:1])


def test_dense_rows_are_calibrated_too() -> None:
    rows, labels = numbers(400)
    classifier = small(epochs=20).fit(rows[:200], labels[:200])
    assert classifier.calibrate(rows[200:], labels[200:]).error_after < 0.1
