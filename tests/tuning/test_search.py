"""Whole searches on small data: every kind of rows, resuming, and what is kept."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from hinet import HiNetClassifier, HiNetError, Taxonomy
from hinet.data.text import TextSettings
from hinet.progress import Progress
from hinet.tuning import tune
from hinet.tuning.fits import FeatureMemory, Trainer, scores_of
from hinet.tuning.report import table_of, write_results
from hinet.tuning.splits import LabelledRows, Splits
from hinet.tuning.trials import Step, TrialFolder

WORDS = {
    "tv": "screen television inches",
    "radio": "sound antenna tuner",
    "rye": "dark bread loaf",
    "milk": "cow litre",
}
TOPS = {"tv": "electronics", "radio": "electronics", "rye": "food", "milk": "food"}
COUNT = 80
ENOUGH = 0.02  # minutes, for a few trials


def rows_and_labels(seed: int = 0, count: int = COUNT) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)
    labels = [chance.choice(list(WORDS)) for _ in range(count)]
    return [f"{chance.choice(WORDS[label].split())} item{chance.randrange(9)}" for label in labels], labels


TEXTS, LABELS = rows_and_labels()
TAXONOMY = Taxonomy.from_edges([(top, label) for label, top in TOPS.items()])


class Lines(Progress):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def dense() -> Any:
    return np.array([[len(text), text.count("e"), text.count("o")] for text in TEXTS], np.float32)


FORMS = {
    "texts": (TEXTS, LABELS, {}),
    "texts and a taxonomy": (TEXTS, LABELS, {"taxonomy": TAXONOMY}),
    "paths": (TEXTS, [(TOPS[label], label) for label in LABELS], {}),
    "paths as text": (TEXTS, [f"{TOPS[label]} > {label}" for label in LABELS], {}),
    "dense": (dense(), LABELS, {}),
    "sparse": (sp.csr_array(dense()), np.array(LABELS), {}),
    "table": (
        pa.table({"text": TEXTS, "size": [len(text) for text in TEXTS], "last": [text[-1] for text in TEXTS]}),
        LABELS,
        {"columns": {"text": "text", "number": "size", "category": "last"}},
    ),
    "sets": (TEXTS, [{label, TOPS[label]} for label in LABELS], {"taxonomy": TAXONOMY}),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_labels_of_every_form_are_searched(form: str, tmp_path: Path) -> None:
    rows, labels, parameters = FORMS[form]
    progress = Lines()
    found = tune(
        HiNetClassifier(**parameters, n_jobs=1), rows, labels, folder=tmp_path / "search", valid_share=0.2,
        minutes=ENOUGH, progress=progress,
    )  # fmt: skip
    assert len(found.trials) == len(progress.lines) > 0
    assert found.trials[0].changes == {}
    assert found.metric == ("set_f1" if form == "sets" else "accuracy")
    assert "best so far" in progress.lines[-1]
    assert 0 < found.best.score <= 1
    classifier = HiNetClassifier(**found.parameters).fit(rows, labels)
    assert len(classifier.predict(rows)) == COUNT
    write_results(found, tmp_path)
    restored = HiNetClassifier.from_settings(tmp_path / "settings.json", **parameters)
    kept = {name: getattr(restored, name) for name in found.space.values if not name.startswith("text.")}
    assert kept == {name: getattr(HiNetClassifier(**found.parameters), name) for name in kept}
    table = table_of(found).splitlines()
    assert len(table) == len(found.trials) + 1
    assert table[1].startswith("1,defaults,1,1,")


def test_trials_are_those_of_a_plain_classifier_whatever_is_kept_in_memory(tmp_path: Path) -> None:
    """Features that are kept, in any order of trials, change no score."""
    splits = Splits(LabelledRows(TEXTS, LABELS), None, 0.2, seed=0)
    steps = [Step(changes, 1.0, split) for split in (0, 1) for changes in ({}, {"text.min_df": 1}, {"members": 1}, {})]
    base = {"taxonomy": TAXONOMY, "n_jobs": 1}
    shared = Trainer(splits, base, "accuracy", 0)
    small = Trainer(splits, base, "accuracy", 0, FeatureMemory(most=1))
    for number, step in enumerate(steps):
        trials = [trainer.run(step, number) for trainer in (shared, small)]
        split = splits.split(step.split)
        text = TextSettings(min_df=1) if "text.min_df" in step.changes else None
        plain = HiNetClassifier(TAXONOMY, text=text, members=step.changes.get("members"), random_state=step.split)
        assert split.valid is not None
        plain.fit(split.train.rows, split.train.labels, valid=(split.valid.rows, split.valid.labels))
        expected = scores_of(plain, split.scored, "accuracy")
        assert expected[0] == pytest.approx(plain.score(split.scored.rows, split.scored.labels))
        for trial in trials:
            assert (trial.score, trial.without) == expected
    assert len(small.memory) == 1 < len(shared.memory)


def test_a_search_is_resumed_and_another_one_refused(tmp_path: Path) -> None:
    classifier = HiNetClassifier(TAXONOMY, n_jobs=1)
    first = tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=ENOUGH)
    with pytest.raises(HiNetError, match="has the trials of a search; set `resume` to continue it"):
        tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=ENOUGH)
    again = tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=2 * ENOUGH, resume=True)
    assert list(again.trials[: len(first.trials)]) == list(first.trials)
    assert len(again.trials) > len(first.trials)
    for options, what in (
        ({"metric": "hierarchical_f1"}, "metric"),
        ({"seed": 1}, "seed"),
        ({"valid_share": 0.1}, "valid_share"),
    ):
        with pytest.raises(HiNetError, match=f"is of a search with other .*{what}"):
            tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=ENOUGH, resume=True, **options)
    with pytest.raises(HiNetError, match="is of a search with other rows"):
        tune(classifier, *rows_and_labels(1), folder=tmp_path, minutes=ENOUGH, resume=True)
    path = next((tmp_path / "trials").iterdir())
    good = path.read_text()
    trial = json.loads(good)
    for bad in (
        "{",
        "[]",
        json.dumps({**trial, "score": "high"}),
        json.dumps({**trial, "split": 3}),
        good.replace("{", '{"x": 1, ', 1),
    ):
        path.write_text(bad)
        with pytest.raises(HiNetError, match=rf"{path.name}: .*remove it, and the trial is repeated"):
            TrialFolder(tmp_path).trials()


def test_given_parameters_stay_and_wrong_ones_are_told(tmp_path: Path) -> None:
    found = tune(HiNetClassifier(epochs=2, n_jobs=1), TEXTS, LABELS, folder=tmp_path / "a", minutes=ENOUGH)
    assert "epochs" not in found.space.values
    assert found.parameters["epochs"] == found.settings["epochs"] == 2
    with pytest.raises(HiNetError, match=r"`metric` is 'acuracy'.*did you mean 'accuracy'"):
        tune(HiNetClassifier(), TEXTS, LABELS, folder=tmp_path / "b", metric="acuracy")
    with pytest.raises(HiNetError, match="no scorer for one label a row"):
        tune(HiNetClassifier(), TEXTS, LABELS, folder=tmp_path / "b", metric="exact_match")
    with pytest.raises(HiNetError, match="minutes: expected a number above 0"):
        tune(HiNetClassifier(), TEXTS, LABELS, folder=tmp_path / "b", minutes=0)
    with pytest.raises(HiNetError, match="a search needs at least 20"):
        tune(HiNetClassifier(), TEXTS[:5], LABELS[:5], folder=tmp_path / "b")
    with pytest.raises(HiNetError, match="for the engine 'fused'"):
        tune(HiNetClassifier(engine="torch"), TEXTS, LABELS, folder=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_rows_that_cannot_be_trained_on_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(HiNetError, match=r"row 3: .*bicycle"):
        tune(HiNetClassifier(TAXONOMY), TEXTS, [*LABELS[:3], "bicycle", *LABELS[4:]], folder=tmp_path / "none")
    assert not (tmp_path / "none").exists()
