"""Probabilities mean what they say after calibration, and promised risks are kept."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from hinet import HiNetClassifier, HiNetError, Taxonomy, load
from hinet.classifier.saved_model import restored_calibration
from hinet.data.text import TextFeatures
from hinet.engine.search.corrections import rescale
from hinet.evaluation.risk import THRESHOLDS, find_threshold, upper_bound
from hinet.metrics import expected_calibration_error, log_loss
from tests.classifier.data import numbers, small, taxonomy, texts


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.5, 0.999))
def test_the_bound_is_that_of_clopper_and_pearson(errors: int, more: int, certainty: float) -> None:
    answered = errors + more
    bound = float(upper_bound(np.array([errors]), np.array([answered]), certainty)[0])
    assert binom.cdf(errors, answered, bound) == pytest.approx(1 - certainty, rel=1e-6)
    assert bound > errors / answered


def test_a_risk_bound_holds_over_random_splits() -> None:
    """The risk on new rows exceeds the requested risk in at most one in ten of 200 draws of held-out rows."""
    random = np.random.default_rng(0)
    wish, certainty, broken, answers = 0.1, 0.9, 0, []
    confidence = random.beta(4, 1, 200_000)
    right = random.random(len(confidence)) < confidence**1.2  # overconfident
    for _ in range(200):
        chosen = random.choice(len(confidence), 1_500, replace=False)
        given_at = np.array([confidence[chosen] >= threshold for threshold in THRESHOLDS])
        answered, errors = given_at.sum(1), (given_at & ~right[chosen]).sum(1)
        promise = find_threshold(THRESHOLDS, answered, errors, answered, 1_500, risk=wish, certainty=certainty)
        answered = confidence >= promise.threshold
        broken += (~right[answered]).mean() > wish
        answers.append(answered.mean())
    assert broken / 200 <= 1 - certainty
    assert np.mean(answers) > 0.1  # the bound does not hold just because few rows are answered


def test_a_risk_that_cannot_be_bounded_is_refused() -> None:
    answered = np.full(len(THRESHOLDS), 20)
    with pytest.raises(
        HiNetError, match=r"no threshold guarantees a risk of 0.01 .* on 20 held-out rows.*give more rows"
    ):
        find_threshold(THRESHOLDS, answered, np.zeros_like(answered), answered, 20, risk=0.01)
    for risk in (0, 1, -0.5):
        with pytest.raises(HiNetError, match="risk: expected a number above 0 and below 1"):
            find_threshold(THRESHOLDS, answered, answered, answered, 20, risk=risk)
    with pytest.raises(HiNetError, match="certainty: expected a number above 0 and below 1"):
        find_threshold(THRESHOLDS, answered, answered, answered, 20, risk=0.1, certainty=1)


def noisy(rows: int, seed: int, noise: float = 0.25) -> tuple[list[str], list[str]]:
    """Return texts some of whose labels are wrong, so that a model should be unsure."""
    found, labels = texts(rows, seed)
    random = np.random.default_rng(seed)
    wrong = random.random(rows) < noise
    return found, [
        random.choice(["bread", "milk", "toy"]) if bad else good for good, bad in zip(labels, wrong, strict=True)
    ]


def many_labels(rows: int) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return texts of 48 labels at depth 3, nearly a third of them wrong."""
    random = np.random.default_rng(0)
    labels = [(a, a + b, a + b + c) for a in "abcd" for b in "xyz" for c in "1234"]
    chosen = random.integers(0, len(labels), rows)
    found = [f"w{at} v{at % 12} {random.choice(list('pqrs'))} u{random.integers(0, 60)}" for at in chosen]
    return found, [labels[at if random.random() < 0.7 else random.integers(0, len(labels))] for at in chosen]


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_calibration_mends_what_noise_spoils(engine: Any) -> None:
    epochs = {"fused": 30, "torch": 150}[engine]
    classifier = small(taxonomy=taxonomy(), engine=engine, epochs=epochs, dropout=0.0).fit(*noisy(300, 0))
    held = noisy(1_500, 1)
    found = classifier.calibrate(*held)
    assert found.temperature > 1.1  # it was too sure of itself
    assert found.error_after < found.error_before
    assert found.error_after < 0.08
    assert found.rows == 1_500
    probability = classifier.predict_proba(held[0])
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-5)
    assert classifier.calibrate(*held).temperature == pytest.approx(found.temperature, rel=0.05)  # since training


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_answers_at_the_calibrated_confidence_keep_the_risk(engine: Any) -> None:
    classifier = small(taxonomy=taxonomy(), engine=engine).fit(*noisy(300, 0))
    with pytest.raises(HiNetError, match=r"no calibrated threshold; call calibrate\(X, y, risk=...\) first"):
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
@pytest.mark.parametrize("rows", [100, 400])
def test_calibration_leaves_the_answers_as_they_are(engine: Any, rows: int) -> None:
    """With many labels and few rows each, a scale that makes all answers wrong would look well calibrated."""
    texts_of, paths = many_labels(1_200)
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


def test_a_dag_of_too_many_traces_to_list_gives_probabilities_and_is_calibrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 layers of 4 nodes have 4 ** 20 traces; texts are labelled with the nodes of the second layer."""
    edges = [(None, f"1.{node}") for node in range(4)]
    edges += [(f"{layer}.{a}", f"{layer + 1}.{b}") for layer in range(1, 20) for a in range(4) for b in range(4)]
    named = {"bread": "2.0", "milk": "2.1", "toy": "2.2"}
    rows, labels = noisy(180, 0)
    nodes = [named[label] for label in labels]
    classifier = small(taxonomy=Taxonomy.from_edges(edges), flat=False).fit(rows[:80], nodes[:80])
    assert classifier.fitted_.codec.layers.count_traces() > 4**19
    np.testing.assert_allclose(classifier.predict_proba(rows).sum(1), 1, rtol=1e-5)
    monkeypatch.setattr("hinet.classifier.calibration.MAX_PATH_CELLS", 200)  # so that some rows must do
    assert 0.1 < classifier.calibrate(rows[80:], nodes[80:]).temperature < 10
    probability = classifier.predict_proba(rows)
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-5)
    best = [label.label for row in classifier.predict_labels(rows) for label in row]
    assert best == classifier.classes_[probability.argmax(1)].tolist()


def test_a_tree_that_is_too_wide_is_calibrated_by_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = small(taxonomy=taxonomy()).fit(*noisy(100, 0))
    scored: list[int] = []
    along = type(classifier.fitted_.predictor).logits_along

    def counting(search: Any, rows: Any, goals: Any) -> Any:
        scored.append(rows.shape[0])
        return along(search, rows, goals)

    monkeypatch.setattr(type(classifier.fitted_.predictor), "logits_along", counting)
    monkeypatch.setattr("hinet.classifier.calibration.MAX_PATH_CELLS", 100)
    assert classifier.calibrate(*noisy(200, 1)).rows == 200
    assert 1 < max(scored) < 50


def test_a_failed_calibration_leaves_the_classifier_as_it_was() -> None:
    classifier = small(taxonomy=taxonomy()).fit(*texts())
    rows, labels = texts(20, seed=3)
    before = classifier.predict_proba(rows)
    with pytest.raises(HiNetError, match=r"no threshold guarantees a risk of 0\.001"):
        classifier.calibrate(rows, labels, risk=0.001)
    np.testing.assert_array_equal(classifier.predict_proba(rows), before)
    with pytest.raises(HiNetError, match="20 held-out rows are too few to calibrate; give at least 100"):
        classifier.calibrate(rows, labels)
    np.testing.assert_array_equal(classifier.predict_proba(rows), before)
    assert not hasattr(classifier, "calibration_")


def with_single_labels(rows: int, seed: int, share: float) -> tuple[list[str], list[str]]:
    """Return texts of which a share has labels that no other row has, and that no word tells."""
    found, labels = texts(rows, seed)
    single = np.random.default_rng(seed).random(rows) < share
    return found, [f"single {seed} {row}" if single[row] else label for row, label in enumerate(labels)]


def test_labels_with_one_row_count_for_the_promise() -> None:
    """A quarter of all rows, held-out ones as new ones, have labels that nobody can know."""
    classifier = small(validation_fraction=0.5).fit(*with_single_labels(600, 0, 0.25))
    assert 0.15 < 1 - classifier.metrics_["validation"]["accuracy"] < 0.4
    with pytest.raises(HiNetError, match=r"no threshold guarantees a risk of 0\.1"):
        classifier.calibrate(risk=0.1)
    found = classifier.calibrate(risk=0.4)
    assert found.promise is not None
    assert found.promise.risk == 0.4
    rows, labels = with_single_labels(1_000, 1, 0.25)
    answers = classifier.predict(rows, min_confidence="calibrated")
    wrong = [answer != label for answer, label in zip(answers, labels, strict=True) if answer is not None]
    assert len(wrong) > 500
    assert 0.2 < np.mean(wrong) < 0.4


@pytest.fixture(scope="module")
def trained() -> HiNetClassifier:
    """A classifier to calibrate copies of."""
    return small(taxonomy=taxonomy()).fit(*texts(200))


def test_the_order_of_held_out_rows_does_not_matter(trained: HiNetClassifier) -> None:
    """Every other row is labelled at random: a half of the rows that is all easy would promise too much."""
    held, labels = texts(1_000, seed=1)
    at_random = np.random.default_rng(0).choice(["bread", "milk", "toy"], 500)
    for first in (0, 1):
        labels[first::2] = at_random
        with pytest.raises(HiNetError, match=r"no threshold guarantees a risk of 0\.1"):
            copy.deepcopy(trained).calibrate(held, labels, risk=0.1)
        held, labels = texts(1_000, seed=1)


def test_a_calibration_without_a_risk_takes_the_threshold_back(trained: HiNetClassifier) -> None:
    classifier = copy.deepcopy(trained)
    classifier.calibrate(*noisy(400, 1), risk=0.4)
    assert hasattr(classifier, "min_confidence_")
    classifier.calibrate(*noisy(400, 1))
    assert not hasattr(classifier, "min_confidence_")
    with pytest.raises(HiNetError, match="no calibrated threshold"):
        classifier.predict(["rye"], min_confidence="calibrated")


def foods_mixed_up(rows: int, seed: int) -> tuple[list[str], list[str]]:
    """Return texts of toys and foods, foods often under the label of another food."""
    found, labels = texts(rows, seed)
    swapped = np.random.default_rng(seed).random(rows) < 0.4
    other = {"bread": "milk", "milk": "bread", "toy": "toy"}
    return found, [other[label] if bad else label for label, bad in zip(labels, swapped, strict=True)]


def test_a_risk_bound_reports_risk_coverage_and_depth() -> None:
    classifier = small(taxonomy=taxonomy()).fit(*foods_mixed_up(300, 0))
    held, labels = foods_mixed_up(600, 1)
    promise = classifier.calibrate(held, labels, risk=0.15).promise
    assert promise is not None
    half = np.random.default_rng(0).permutation(600)[1::2]
    answers = classifier.predict([held[row] for row in half], min_confidence="calibrated")
    assert promise.rows == 300
    assert promise.coverage == np.mean([answer is not None for answer in answers])
    assert promise.full_depth == np.mean([answer in {"bread", "milk", "toy"} for answer in answers])
    assert 0 < promise.full_depth < promise.coverage
    for told in ("at most 15% of the answers are wrong", f"{100 * promise.full_depth:.1f}% to full depth"):
        assert told in str(promise)
    assert "risk=0.15" in repr(classifier.calibration_)
    assert restored_calibration(asdict(classifier.calibration_)) == classifier.calibration_


def test_validation_rows_calibrate_without_being_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    train, held = texts(100), noisy(300, 1)
    given = small(taxonomy=taxonomy()).fit(*train, valid=held)
    forgetful = small(taxonomy=taxonomy(), keep_examples=False).fit(*train, valid=held)
    without_any = small().fit(*train)
    expected = copy.deepcopy(given).calibrate(*held, risk=0.4)
    monkeypatch.setattr(TextFeatures, "transform", None)
    assert given.calibrate(risk=0.4) == expected
    with pytest.raises(HiNetError, match="only one of X and y"):
        given.calibrate(held[0])
    for without in (forgetful, without_any):
        with pytest.raises(HiNetError, match="no validation rows to calibrate with"):
            copy.deepcopy(without).calibrate()


def test_saved_validation_rows_calibrate_as_all_of_them_do(tmp_path: Path) -> None:
    train, held = noisy(200, 0), noisy(300, 1)
    classifier = small(taxonomy=taxonomy()).fit(*train, valid=held)
    classifier.save(tmp_path / "model")
    expected, found = classifier.calibrate(), load(tmp_path / "model").calibrate()
    assert (found.rows, found.scaled) == (300, expected.scaled)
    assert found.error_before == pytest.approx(expected.error_before, abs=5e-3)  # rows in half precision, without trust


@pytest.mark.parametrize("seed", range(3))
def test_a_scale_that_does_not_help_other_rows_is_not_used(seed: int) -> None:
    """A classifier that is calibrated already stays as it is, unless halves of the rows improve each other."""
    classifier = small(taxonomy=taxonomy(), epochs=30, dropout=0.0).fit(*noisy(300, 0))
    classifier.calibrate(*noisy(3_000, 1))
    rows, labels = noisy(2_000, 7)
    before, error = classifier.predict_proba(rows), loss_of(classifier, rows, labels)
    found = classifier.calibrate(*noisy(100, 10 + seed))
    if found.scaled:
        assert found.error_after <= found.error_before
        assert loss_of(classifier, rows, labels) < error + 0.02
    else:
        assert found.error_after == found.error_before
        np.testing.assert_array_equal(classifier.predict_proba(rows), before)


def loss_of(classifier: HiNetClassifier, rows: list[str], labels: list[str]) -> float:
    columns = {label: column for column, label in enumerate(classifier.classes_.tolist())}
    return log_loss(classifier.predict_proba(rows)[np.arange(len(rows)), [columns[label] for label in labels]])


def test_few_rows_bound_a_risk_and_scale_nothing() -> None:
    classifier = small(taxonomy=taxonomy(), epochs=30, dropout=0.0).fit(*noisy(300, 0))
    rows = noisy(150, 1)
    before = classifier.predict_proba(rows[0])
    found = classifier.calibrate(*rows, risk=0.4)
    assert found.promise is not None
    assert (found.promise.rows, found.scaled, found.temperature) == (150, False, 1.0)
    np.testing.assert_array_equal(classifier.predict_proba(rows[0]), before)


def test_dense_rows_are_calibrated_too() -> None:
    rows, labels = numbers(400)
    classifier = small(epochs=20).fit(rows[:200], labels[:200])
    assert classifier.calibrate(rows[200:], labels[200:]).error_after < 0.1


def sloped_classifier(slope: float) -> tuple[Any, Any, list[str]]:
    """Return a classifier as it was trained, the same with a slope, and rows."""
    rows, paths = many_labels(500)
    before = small(width=32, flat=True).fit(rows[:400], paths[:400])
    after = small(width=32, flat=True).fit(rows[:400], paths[:400])
    before.fitted_ = before.fitted_.with_trust(None)
    after.fitted_ = after.fitted_.with_trust(None).scaled(1.0, slope)
    return before, after, rows[400:]


@pytest.mark.parametrize("slope", [0.3, 0.8])
def test_a_slope_leans_one_distribution_and_keeps_the_ranks(slope: float, tmp_path: Any) -> None:
    before, after, rows = sloped_classifier(slope)
    plain, found = before.predict_proba(rows), after.predict_proba(rows)
    best, every = plain.argmax(1), np.arange(len(rows))
    was, now = plain[every, best], found[every, best]
    np.testing.assert_allclose(now, 1 / (1 + ((1 - was) / was) ** slope), rtol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found.argmax(1), best)
    others = np.arange(plain.shape[1]) != best[:, None]
    np.testing.assert_allclose(
        found[others] * np.repeat((1 - was) / (1 - now), others.sum(1)), plain[others], rtol=1e-4
    )

    of_node: dict[str, Any] = {}
    for column, path in enumerate(after.classes_.tolist()):
        for node in after.node_ids([path[:depth] for depth in range(1, len(path) + 1)]):
            of_node[node[0]] = of_node.get(node[0], 0) + found[:, column]
    traces = after.predict_traces(rows, k=5)
    assert [[t.label for t in row] for row in traces] == [
        [t.label for t in row] for row in before.predict_traces(rows, 5)
    ]
    for at, row in enumerate(traces):
        for trace in row:
            np.testing.assert_allclose(trace.probabilities, [of_node[step][at] for step in trace.steps], rtol=1e-4)
            assert list(trace.probabilities) == sorted(trace.probabilities, reverse=True)
            assert trace.probability <= trace.probabilities[-1] * (1 + 1e-6)
    for least in (0.02, 0.2, 0.45, 0.6, 0.9):
        sure = after.fitted_.predictor.deepest_confident(after.features_of(rows), least)
        for at, (node, p) in enumerate(zip(sure.nodes.tolist(), sure.probability.tolist(), strict=True)):
            assert p == pytest.approx(of_node[after.taxonomy_.ids[node]][at], rel=1e-4)
            depth = max((after.taxonomy_.depth[after.taxonomy_.position(name)] for name, mass in of_node.items()
                         if mass[at] >= least * (1 + 1e-6)), default=1)  # fmt: skip
            assert after.taxonomy_.depth[node] >= depth

    gains = {
        node: sum(of_node[" > ".join(node.split(" > ")[:depth])] - 0.4 for depth in range(1, node.count(" > ") + 2))
        for node in of_node
    }
    expected = after.fitted_.predictor.expected_f1(after.features_of(rows), 0.8).nodes
    for at, node in enumerate(expected.tolist()):
        assert gains[after.taxonomy_.ids[node]][at] == pytest.approx(max(gain[at] for gain in gains.values()), abs=1e-4)

    trace = traces[0][0]
    told = after.explain(rows[0]).trace
    np.testing.assert_allclose(told.probabilities, trace.probabilities, rtol=1e-4)
    assert told.probability == pytest.approx(trace.probability, rel=1e-4)
    rival = traces[0][1]
    path = tuple(step.split(" > ")[-1] for step in rival.steps)
    assert after.explain(rows[0], path).trace.probability == pytest.approx(rival.probability, rel=1e-4)
    after.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(rows), found)


def test_answers_that_are_too_sure_and_too_modest_are_mended_by_a_slope() -> None:
    """A confidence that is noisy around the truth is too high where it is high and too low where it is low."""
    random = np.random.default_rng(0)
    truth = random.uniform(-3, 5, 4_000)
    right = random.random(len(truth)) < 1 / (1 + np.exp(-truth))
    confidence = 1 / (1 + np.exp(-truth / 0.6))
    mended = rescale(confidence, 0.6)
    assert expected_calibration_error(confidence, right) > 0.05
    assert expected_calibration_error(mended, right) < 0.02
    assert rescale(np.array([0.0, 1e-300, 0.5, 1.0]), 0.6) == pytest.approx([0, 0, 0.5, 1])
    np.testing.assert_array_equal(np.argsort(mended), np.argsort(confidence))
