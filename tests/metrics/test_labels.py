from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetError, LabelError, Layers, Taxonomy, Traces
from hinet.metrics import accuracy, correct, coverage, label_f1, label_report, level_accuracy, top_k_accuracy
from tests.metrics.oracle import Rows, ancestors, depth, judged

ANIMALS = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d"), ("d", "e")])


@given(judged())
def test_exact_hits_are_what_sets_say(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    hits = [guess in true for true, guess in zip(truth, predicted, strict=True)]
    assert correct(truth, predicted, taxonomy=taxonomy).tolist() == hits
    assert accuracy(truth, predicted, taxonomy=taxonomy) == pytest.approx(np.mean(hits))
    total = sum(map(len, truth)) + len(predicted)
    assert label_f1(truth, predicted, taxonomy=taxonomy) == pytest.approx(2 * sum(hits) / total)


@given(judged())
def test_macro_f1_is_the_mean_over_labels(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    scores = []
    for label in {*predicted, *(label for true in truth for label in true)}:
        said, meant = [guess == label for guess in predicted], [label in true for true in truth]
        scores.append(2 * sum(map(min, said, meant)) / (sum(said) + sum(meant)))
    assert label_f1(truth, predicted, average="macro", taxonomy=taxonomy) == pytest.approx(np.mean(scores))


def test_label_f1_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    truth, predicted = rng.choice(ANIMALS.ids, (2, 200))
    for average in ("micro", "macro"):
        ours = label_f1(truth, predicted, average=average, taxonomy=ANIMALS)  # type: ignore[arg-type]
        assert ours == pytest.approx(f1_score(truth, predicted, average=average))


@given(judged())
def test_level_accuracy_is_what_sets_say(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    found = level_accuracy(truth, predicted, taxonomy=taxonomy)
    assert len(found) == max(depth(taxonomy, label) for true in truth for label in true)
    for level, share in enumerate(found, start=1):
        hits = []
        for true, guess in zip(truth, predicted, strict=True):
            at_level = {n for label in true for n in ancestors(taxonomy, label) if depth(taxonomy, n) == level}
            if at_level:
                hits.append(bool(at_level & ancestors(taxonomy, guess)))
        assert share == pytest.approx(np.mean(hits))


def test_levels_are_judged_one_by_one() -> None:
    truth, predicted = ["c", "d", "e", "b"], ["d", "d", "d", "a"]
    assert level_accuracy(truth, predicted, taxonomy=ANIMALS) == pytest.approx([3 / 4, 2 / 3, 0.0])
    assert level_accuracy(truth, truth, taxonomy=ANIMALS) == [1.0, 1.0, 1.0]
    assert level_accuracy(["c"], ["r"], taxonomy=ANIMALS) == [0.0, 0.0]
    assert level_accuracy(["r"], ["c"], taxonomy=ANIMALS) == []


@given(judged(), st.integers(1, 4), st.data())
def test_top_k_accuracy_is_what_sets_say(rows: Rows, k: int, data: st.DataObject) -> None:
    taxonomy, truth, predicted = rows
    more = st.lists(st.sampled_from(taxonomy.ids), max_size=4)
    candidates = [[guess, *data.draw(more)] for guess in predicted]
    for most in (k, None):
        hits = [bool({*true} & {*row[:most]}) for true, row in zip(truth, candidates, strict=True)]
        assert top_k_accuracy(truth, candidates, most, taxonomy=taxonomy) == pytest.approx(np.mean(hits))
    assert top_k_accuracy(truth, candidates, 1, taxonomy=taxonomy) == accuracy(truth, predicted, taxonomy=taxonomy)


def test_candidates_may_be_traces_or_an_array() -> None:
    layers = Layers.of(ANIMALS)
    candidates = [["c", "d"], ["a", "b"]]
    assert top_k_accuracy(["d", "e"], Traces.encode_sets(layers, candidates), 2) == 0.5
    assert top_k_accuracy(["d", "e"], np.array(candidates), 2, taxonomy=ANIMALS) == 0.5
    assert top_k_accuracy(["d", "e"], ["d", "a"], taxonomy=ANIMALS) == 0.5
    with pytest.raises(HiNetError, match="k: expected a whole number of at least 1, got 0"):
        top_k_accuracy(["d"], [["d"]], 0, taxonomy=ANIMALS)
    assert top_k_accuracy(["d", "e"], [["d"], []], taxonomy=ANIMALS) == 1


def test_an_average_has_a_name() -> None:
    with pytest.raises(HiNetError, match="average: expected 'micro' or 'macro', got 'weighted'"):
        label_f1(["c"], ["c"], average="weighted", taxonomy=ANIMALS)  # type: ignore[arg-type]


@given(judged(), st.data())
def test_rows_without_a_prediction_are_left_out_and_told(rows: Rows, data: st.DataObject) -> None:
    taxonomy, truth, predicted = rows
    nothing = st.sampled_from([None, "", (), float("nan")])
    given_rows = [data.draw(st.just(label) | nothing) for label in predicted]
    kept = [row for row, label in enumerate(given_rows) if isinstance(label, str) and label]
    if not kept:
        with pytest.raises(LabelError, match="no row has a prediction"):
            label_report(truth, given_rows, taxonomy=taxonomy)
        return
    report = label_report(truth, given_rows, taxonomy=taxonomy)
    of_kept = label_report([truth[row] for row in kept], [predicted[row] for row in kept], taxonomy=taxonomy)
    assert report == replace(of_kept, coverage=len(kept) / len(truth))
    assert coverage(given_rows, taxonomy=taxonomy) == report.coverage
    right = correct(truth, given_rows, taxonomy=taxonomy)
    assert right.sum() == round(of_kept.accuracy * len(kept))
    assert not right[[row for row in range(len(truth)) if row not in kept]].any()
    candidates = [() if row not in kept else [predicted[row]] for row in range(len(truth))]
    assert top_k_accuracy(truth, candidates, 1, taxonomy=taxonomy) == pytest.approx(of_kept.accuracy)
