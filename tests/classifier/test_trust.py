"""The fewer words of a text are known, the less sure is its answer, everywhere alike."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hinet import HiNetClassifier, Taxonomy, load
from hinet.classifier.calibration import USUAL, ForeignRows
from hinet.data.text import TextSettings
from hinet.engine.model.fused import Trust
from tests.classifier.data import EDGES, small, taxonomy, texts

KNOWN, STRANGE, FOREIGN = "rye loaf rye", "rye loaf xylophone quartz", "xylophone quartz vex"


@pytest.fixture(scope="module")
def classifier() -> HiNetClassifier:
    return small(taxonomy=taxonomy(), text=TextSettings(min_df=2), validation_fraction=0.3).fit(*texts(400))


def confidences(classifier: HiNetClassifier, rows: Any) -> list[float]:
    return [row[0].probabilities[0] for row in classifier.predict_traces(rows)]


def test_answers_are_less_sure_the_fewer_words_are_known(classifier: HiNetClassifier) -> None:
    known, strange, foreign = confidences(classifier, [KNOWN, STRANGE, FOREIGN])
    assert known > 0.95
    assert known > strange > foreign
    assert foreign < 0.75  # two of three labels are foods
    sure = copy.deepcopy(classifier)
    sure.fitted_ = sure.fitted_.with_trust(None)
    assert confidences(sure, [KNOWN])[0] == pytest.approx(known, abs=0.02)
    np.testing.assert_array_equal(sure.predict([KNOWN, STRANGE]), classifier.predict([KNOWN, STRANGE]))


def test_every_answer_has_the_same_probabilities(classifier: HiNetClassifier) -> None:
    rows = [KNOWN, STRANGE, FOREIGN]
    traces, labels, proba = (
        classifier.predict_traces(rows),
        classifier.predict_labels(rows),
        classifier.predict_proba(rows),
    )
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-6)
    for row, text in enumerate(rows):
        best = traces[row][0]
        place = classifier.classes_.tolist().index(best.label)
        assert best.probability == pytest.approx(proba[row, place], rel=1e-4)
        assert labels[row][0].probability == pytest.approx(best.probability, rel=1e-6)
        explanation = classifier.explain(text)
        explained = explanation.trace
        assert np.prod([step.probability for step in explanation.steps]) == pytest.approx(best.probability, rel=1e-4)
        assert explained.probability == pytest.approx(best.probability, rel=1e-4)
        np.testing.assert_allclose(explained.probabilities, best.probabilities, rtol=1e-4)
        for node, p in zip(best.steps, best.probabilities, strict=True):
            assert classifier.predict([text], min_confidence=p - 1e-3)[0] == best.steps[-1] or node != best.steps[-1]
            if p < 0.999:
                assert classifier.predict([text], min_confidence=p + 1e-3)[0] != node


def test_training_rows_teach_it_where_no_rows_are_held_out(classifier: HiNetClassifier) -> None:
    other = small(taxonomy=taxonomy()).fit(*texts(400))
    trust = other.fitted_.predictor.trust
    assert trust is not None
    assert trust != USUAL
    known, foreign = confidences(other, [KNOWN, FOREIGN])
    assert known > 0.95
    assert foreign < 0.8


def test_calibration_learns_it_again(classifier: HiNetClassifier) -> None:
    calibrated = copy.deepcopy(classifier)
    calibrated.calibrate(*texts(400, seed=9))
    before, after = classifier.fitted_.predictor.trust, calibrated.fitted_.predictor.trust
    assert before is not None
    assert after not in (None, before)
    known, foreign = confidences(calibrated, [KNOWN, FOREIGN])
    assert known - foreign > 0.2
    few = copy.deepcopy(classifier)
    few.calibrate(*texts(200, seed=9), risk=0.3)
    assert few.predict([KNOWN], min_confidence="calibrated")[0] == "bread"
    assert confidences(few, [FOREIGN])[0] < confidences(few, [KNOWN])[0]


def test_it_is_kept_with_a_model_and_by_further_training(classifier: HiNetClassifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.fitted_.predictor.trust == classifier.fitted_.predictor.trust
    rows = [KNOWN, STRANGE, FOREIGN]
    np.testing.assert_array_equal(loaded.predict_proba(rows), classifier.predict_proba(rows))
    loaded.partial_fit(*texts(20))
    assert loaded.fitted_.predictor.trust == classifier.fitted_.predictor.trust
    loaded.update_taxonomy(Taxonomy.from_edges([*EDGES, ("toy", "kite")]))
    assert loaded.fitted_.predictor.trust == classifier.fitted_.predictor.trust
    loaded.update_taxonomy(Taxonomy.from_edges([*EDGES, ("toy", "kite"), ("food", "toy")]))
    assert loaded.fitted_.predictor.trust is None  # a DAG has none


def test_texts_in_columns_are_trusted_by_their_words_too() -> None:
    rows, labels = texts(300)
    frame = pd.DataFrame({"text": rows, "size": np.arange(300) % 7})
    classifier = small(taxonomy=taxonomy()).fit(frame, labels)
    asked = pd.DataFrame({"text": [KNOWN, FOREIGN], "size": [1, 1]})
    known, foreign = confidences(classifier, asked)
    assert known > foreign + 0.2
    np.testing.assert_array_equal(classifier.unknown_share(asked), [0, 1])


def test_streams_learn_it() -> None:
    rows, labels = texts(300)
    classifier = small(taxonomy=taxonomy()).fit_stream([(rows[:150], labels[:150]), (rows[150:], labels[150:])])
    known, foreign = confidences(classifier, [KNOWN, FOREIGN])
    assert known > foreign + 0.2


def test_other_models_have_none() -> None:
    rows, labels = texts()
    dag = small(taxonomy=Taxonomy.from_edges([*EDGES, ("food", "toy")])).fit(rows, labels)
    several = small(multilabel=True).fit(rows, [{label} for label in labels])
    numbers = small().fit(np.random.default_rng(0).normal(size=(60, 3)), labels)
    for model in (dag, several, numbers):
        assert model.fitted_.predictor.trust is None
    assert not numbers.unknown_share(np.zeros((2, 3))).any()


def test_rows_made_foreign_are_known_by_the_rows_they_were_made_of(classifier: HiNetClassifier) -> None:
    rows, _ = texts(50)
    foreign = ForeignRows.of(classifier.fitted_, rows, seed=0)
    assert foreign is not None
    some = foreign.made_of(np.array([7, 3, 40]))
    assert some.index.tolist() == [1, 0, 2]  # rows 3, 7 and 40 are at these places
    np.testing.assert_array_equal(some.rows.unknown, foreign.rows.unknown[[3, 7, 40]])


def test_it_reads_well() -> None:
    assert str(Trust(2.0, 4.0)) == "0.88 with half of the word n-grams unknown, 0.14 with all of them unknown"
