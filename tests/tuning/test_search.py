"""Whole searches on small data: every kind of rows, resuming, and what is kept."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
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
from hinet.tuning.search import _stable_repr, table_of, write_results
from hinet.tuning.trials import FeatureMemory, Splits, Step, Trial, TrialFolder, TrialRunner, TuningRows, scores_of

WORDS = {
    "tv": "screen television inches",
    "radio": "sound antenna tuner",
    "rye": "dark bread loaf",
    "milk": "cow litre",
}
TOPS = {"tv": "electronics", "radio": "electronics", "rye": "food", "milk": "food"}
COUNT = 100
ENOUGH = 0.02  # minutes, for a few trials


def rows_and_labels(seed: int = 0, count: int = COUNT) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)
    labels = [chance.choice(list(WORDS)) for _ in range(count)]
    return [f"{chance.choice(WORDS[label].split())} item{chance.randrange(9)}" for label in labels], labels


TEXTS, LABELS = rows_and_labels()
TAXONOMY = Taxonomy.from_edges([(top, label) for label, top in TOPS.items()])


@pytest.fixture
def quarter_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every trial take a quarter of a second by its own account, whatever the machine does meanwhile."""
    run = TrialRunner.run
    monkeypatch.setattr(TrialRunner, "run", lambda *arguments: replace(run(*arguments), seconds=0.25))


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
    "list of lists": (dense().tolist(), LABELS, {}),
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
    splits = Splits(TuningRows(TEXTS, LABELS), None, 0.2, seed=0)
    steps = [Step(changes, 1.0, split) for split in (0, 1) for changes in ({}, {"text.min_df": 1}, {"members": 1}, {})]
    base = {"taxonomy": TAXONOMY, "n_jobs": 1}
    shared = TrialRunner(splits, base, "accuracy", 0)
    small = TrialRunner(splits, base, "accuracy", 0, FeatureMemory(max_bytes=1))
    for number, step in enumerate(steps):
        trials = [runner.run(step, number) for runner in (shared, small)]
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


class CountingMemory(FeatureMemory):
    """Counts what had to be made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()

    def __call__(self, name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        def counted() -> Any:
            self.made[name] += 1
            return make()

        return super().__call__(name, rows, decided_by, counted)


def test_a_second_trial_fits_neither_titles_nor_features_again() -> None:
    titles = {label: f"{words} item" for label, words in WORDS.items()}
    edges = [(top, label) for label, top in TOPS.items()]
    taxonomy = Taxonomy.from_edges(edges, attributes={"title": titles})
    splits = Splits(TuningRows(*rows_and_labels(count=1_600)), None, 0.2, seed=0)
    memory = CountingMemory()
    base = {"taxonomy": taxonomy, "n_jobs": 1, "epochs": 1, "effort": "quick"}
    runner = TrialRunner(splits, base, "accuracy", 0, memory)
    runner.default_size(1.0, len(WORDS))
    assert memory.made == {"titles": 1, "features": 1}
    for number, changes in enumerate([{}, {"members": 1}, {"width": 32}]):
        runner.run(Step(changes, 1.0, 0), number)
    assert memory.made == {"titles": 1, "features": 1}
    runner.run(Step({"text.min_df": 1}, 1.0, 0), 3)
    assert memory.made == {"titles": 2, "features": 2}


@pytest.mark.usefixtures("quarter_seconds")
def test_a_search_is_resumed_and_another_one_refused(tmp_path: Path) -> None:
    classifier = HiNetClassifier(TAXONOMY, n_jobs=1)
    first = tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=ENOUGH)
    with pytest.raises(HiNetError, match="has the trials of a search; set `resume` to continue it"):
        tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=ENOUGH)
    again = tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=2 * ENOUGH, resume=True)
    assert list(again.trials[: len(first.trials)]) == list(first.trials)
    assert (len(first.trials), len(again.trials)) == (4, 9)  # budgets are 1.2 and 2.4 seconds
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
    with pytest.raises(HiNetError, match="not a scorer for one label per row"):
        tune(HiNetClassifier(), TEXTS, LABELS, folder=tmp_path / "b", metric="exact_match")
    with pytest.raises(HiNetError, match="minutes: expected a number above 0"):
        tune(HiNetClassifier(), TEXTS, LABELS, folder=tmp_path / "b", minutes=0)
    with pytest.raises(HiNetError, match="a search needs at least 100"):
        tune(HiNetClassifier(), TEXTS[:5], LABELS[:5], folder=tmp_path / "b")
    with pytest.raises(HiNetError, match="trains with the fused engine"):
        tune(HiNetClassifier(engine="torch"), TEXTS, LABELS, folder=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_rows_that_cannot_be_trained_on_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(HiNetError, match=r"row 3: .*bicycle"):
        tune(HiNetClassifier(TAXONOMY), TEXTS, [*LABELS[:3], "bicycle", *LABELS[4:]], folder=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("quarter_seconds")
def test_changes_that_cannot_be_trained_are_left_out_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[dict[str, Any]] = []
    run = TrialRunner.run

    def fail_for_members(self: TrialRunner, step: Step, number: int) -> Any:
        tried.append(step.changes)
        if "members" in step.changes:
            raise HiNetError("takes too much memory")
        return run(self, step, number)

    monkeypatch.setattr(TrialRunner, "run", fail_for_members)
    progress = Lines()
    classifier = HiNetClassifier(TAXONOMY, n_jobs=1)
    found = tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=3 * ENOUGH, progress=progress)
    assert sum("members" in changes for changes in tried) == 1
    assert not any("members" in trial.changes for trial in found.trials)
    assert "members=4, all rows, split 1: left out: takes too much memory" in progress.lines
    again = tune(classifier, TEXTS, LABELS, folder=tmp_path, minutes=4 * ENOUGH, resume=True)
    assert sum("members" in changes for changes in tried) == 1
    assert list(again.refused) == list(found.refused)
    monkeypatch.setattr(TrialRunner, "run", lambda *_: (_ for _ in ()).throw(HiNetError("no room")))
    with pytest.raises(HiNetError, match="no room"):
        tune(classifier, TEXTS, LABELS, folder=tmp_path / "other", minutes=ENOUGH)


@pytest.mark.parametrize("form", ["texts", "dense", "sets", "sets of dense rows", "table"])
@pytest.mark.parametrize("effort", ["default", "quick"])
def test_the_space_starts_from_what_the_defaults_train(form: str, effort: str) -> None:
    rows, labels, parameters = FORMS[form.removesuffix(" of dense rows")]
    rows = dense() if form == "sets of dense rows" else rows
    base = {**parameters, "n_jobs": 1, "effort": effort, "flat": False if "sets" not in form else None}
    runner = TrialRunner(Splits(TuningRows.of(rows, labels), None, 0.2, seed=0), base, "accuracy", 0)
    step = Step({}, 1.0, 0)
    classifier = runner.fitted(step)
    size = runner.default_size(1.0, int(classifier.fitted_.codec.layers.ends.sum()))
    deep = [record for record in classifier.history_ if record.part.startswith("deep")]
    assert len(deep) == size.members * size.epochs
    assert classifier.fitted_.predictor.model.experts.deep.width == size.members * size.width


def test_trials_of_an_unknown_or_damaged_search_are_not_taken_in(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "found", {"seed": 0})
    folder.add(Trial({}, 1.0, 0, 1, 10, 0.5, [0.5, 0.5], 1.0))
    assert len(folder.start(resume=True)) == 1
    for bad in ("{", "[]"):
        (folder.path / "search.json").write_text(bad)
        with pytest.raises(HiNetError, match=r"search.json: is damaged.*; remove the folder to start again"):
            folder.start(resume=True)
    (folder.path / "search.json").unlink()
    for resume in (True, False):
        with pytest.raises(HiNetError, match="has trials of an unknown search; remove the folder"):
            folder.start(resume=resume)


def test_the_identity_of_a_search_has_no_addresses() -> None:
    assert _stable_repr(object()) == "object"
    assert _stable_repr([object(), 1]) == _stable_repr([object(), 1])
    assert len({_stable_repr(value) for value in ("a", Path("a"), 1, TextSettings(), TextSettings(min_df=1))}) == 5
