"""Successive halving as a function of the finished trials, without training anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hinet import HiNetError
from hinet.tuning.search import Schedule, Stage, stages_of
from hinet.tuning.space import Problem, Size, Space, key_of, parameters_of, settings_of
from hinet.tuning.trials import Refusal, Splits, Step, Trial, TuningRows, best_of, candidates_of, gain_of

SPACE = Space({"a": (1, 2), "b": (1,), "c": (1,), "d": (1,), "e": (1, 2)})
STAGES = [Stage(1 / 3, (0,)), Stage(1.0, (0,)), Stage(1.0, (0, 1, 2))]
GROUPS, ROWS = 20, 1_000

Quality = Callable[[dict[str, Any]], float]


def finished(step: Step, number: int, quality: Quality, rows: int = ROWS, seconds: float = 1.0) -> Trial:
    """Return a trial whose rows are right by chance, with the same difficulty of each row for all changes."""
    difficulty = np.random.default_rng([step.split, 7]).random(rows)
    own = np.random.default_rng([step.split, *repr(step.key).encode()]).normal(0, 0.02, rows)
    right = (difficulty + own < quality(step.changes)).astype(float)
    return Trial(step.changes, step.share, step.split, number, rows, *_scored(right), seconds * step.share)


def run(quality: Quality, seconds: float, trials: list[Trial] | None = None, **options: Any) -> list[Trial]:
    trials = list(trials or [])
    while (step := Schedule(SPACE, STAGES, seconds, 0, trials).next_step()) is not None:
        trials.append(finished(step, len(trials) + 1, quality, **options))
    return trials


def better_by_b_and_d(changes: dict[str, Any]) -> float:
    return 0.6 + 0.08 * ("b" in changes) + 0.08 * ("d" in changes) - 0.1 * ("a" in changes)


def test_it_finds_what_is_better_within_the_time_and_repeats_nothing() -> None:
    trials = run(better_by_b_and_d, 60)
    best = best_of(candidates_of(trials), trials)
    assert best is not None
    assert {"b", "d"} <= best.changes.keys()
    assert "a" not in best.changes
    assert best.splits == 3
    assert sum(trial.seconds for trial in trials) <= 60
    assert len({trial.key for trial in trials}) == len(trials)
    assert trials[0].changes == trials[1].changes == {}


def test_refused_changes_are_not_tried_again_nor_with_others() -> None:
    trials, refused = [], []
    while (step := Schedule(SPACE, STAGES, 60, 0, trials, refused).next_step()) is not None:
        if "b" in step.changes:
            refused.append(Refusal(step.changes, "too wide", 1.0))
        else:
            trials.append(finished(step, len(trials) + 1, better_by_b_and_d))
    assert [refusal.changes for refusal in refused] == [{"b": 1}]
    assert sum(trial.seconds for trial in trials) <= 59
    late = [Refusal({"d": 1}, "too wide on all rows", 1.0)]
    assert "d" in best_of(candidates_of(trials), trials).changes  # type: ignore[union-attr]
    assert not any("d" in changes for changes in candidates_of(trials, late))
    following = Schedule(SPACE, STAGES, 600, 0, trials[:12], late).next_step()
    assert following is not None
    assert "d" not in following.changes


def test_validation_rows_must_be_enough_for_the_error_of_a_gain() -> None:
    rows, few = (TuningRows(np.zeros((n, 1)), list(range(n))) for n in (100, 39))
    with pytest.raises(HiNetError, match="got 39 validation rows, and a search needs at least 40"):
        Splits(rows, few, None, seed=0)
    with pytest.raises(HiNetError, match="got 39 rows, and a search needs at least 100"):
        Splits(few, None, None, seed=0)


def test_only_some_go_on_to_all_rows() -> None:
    trials = run(better_by_b_and_d, 40)
    some, all_rows = ({key_of(trial.changes) for trial in trials if trial.share == share} for share in (1 / 3, 1.0))
    assert all_rows < some
    assert len(all_rows) < len(some) * 0.7


@pytest.mark.parametrize("kept", [0, 1, 5, 17])
def test_a_resumed_search_goes_on_to_the_same_trials(kept: int) -> None:
    whole = run(better_by_b_and_d, 30)
    assert run(better_by_b_and_d, 30, whole[:kept]) == whole


def test_more_time_continues_the_same_search() -> None:
    short, long = run(better_by_b_and_d, 20), run(better_by_b_and_d, 40)
    spent = np.cumsum([trial.seconds for trial in short])
    first = short[: int(np.sum(spent < 0.5 * 20))]
    assert len(first) > 10
    assert long[: len(first)] == first


def test_chance_alone_seldom_replaces_the_defaults() -> None:
    """The largest gain of ten changes that differ only by chance is seldom chosen."""
    gains, chosen = 0, 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        right = random.random(ROWS) < 0.7
        trials = []
        for number in range(11):
            own = np.where(random.random(ROWS) < 0.08, random.random(ROWS) < 0.7, right).astype(float)
            trials.append(Trial({"a": number} if number else {}, 1.0, 0, number, ROWS, *_scored(own), 1.0))
        best = best_of(candidates_of(trials), trials)
        assert best is not None
        chosen += bool(best.changes)
        gains += max(trial.score for trial in trials[1:]) > trials[0].score
    assert gains > 80
    assert chosen <= 15  # 10 are expected at most


def _scored(right: Any) -> tuple[float, list[float]]:
    groups = np.arange(len(right)) % GROUPS
    return float(right.mean()), [float(right[groups != group].mean()) for group in range(GROUPS)]


def test_the_error_of_a_gain_is_that_of_paired_rows() -> None:
    random = np.random.default_rng(0)
    values = random.random((2, ROWS)) < [[0.7], [0.75]]
    trials = [
        Trial(changes, 1.0, 0, number, ROWS, *_scored(own), 1.0)
        for number, (changes, own) in enumerate(zip(({}, {"a": 1}), values, strict=True))
    ]
    gain = gain_of({"a": 1}, trials)
    assert gain is not None
    assert gain.value == pytest.approx(values[1].mean() - values[0].mean())
    difference = values[1].astype(float) - values[0]
    assert gain.error == pytest.approx(difference.std() / np.sqrt(ROWS), rel=0.35)  # 20 groups are not many
    again = [replace(trial, split=1) for trial in trials]
    assert gain_of({"a": 1}, [*trials, *again]).error == pytest.approx(gain.error / np.sqrt(2))  # type: ignore[union-attr]


def test_the_defaults_are_tried_even_without_time_for_it() -> None:
    trials = run(better_by_b_and_d, 0.001)
    assert [trial.changes for trial in trials] == [{}, {}]
    best = best_of(candidates_of(trials), trials)
    assert best is not None
    assert best.changes == {}


def test_the_space_fits_the_rows() -> None:
    text = Problem(
        rows=20_000, labels=500, default_size=Size(2, 192, 10), has_text=True, has_short_texts=True, has_titles=True
    )
    names = Space.of(text, {}).values
    assert {"text.min_df", "text.char_ngrams", "titles", "flat", "prior_strength"} <= names.keys()
    assert names["flat"] == (False,)  # the flat expert is trained by default with 40 rows per label
    assert "epochs" not in Space.of(text, {"epochs": 3}).values
    assert not any(name.startswith("text.") for name in Space.of(text, {"text": object()}).values)
    assert "vectors" in Space.of(text, {"vectors": "folder"}).values
    numbers = replace(
        text,
        default_size=Size(6, 256, 20),
        has_text=False,
        is_dense=True,
        several=True,
        has_thresholds=True,
        has_titles=False,
    )
    names = Space.of(numbers, {}).values
    assert {"thresholds_by", "objective"} <= names.keys()
    assert (names["members"], names["width"], names["epochs"]) == ((12,), (512, 128), (30, 40, 12))
    assert not names.keys() & {"flat", "wide", "prior_strength", "titles", "text.min_df"}
    assert "decoding" in Space.of(replace(text, hierarchical=True), {}).values
    assert "flat" not in Space.of(replace(text, is_tree=False), {}).values


def test_changes_become_parameters_and_plain_settings() -> None:
    space = Space({"epochs": (5,), "text.min_df": (1,), "wide": (False,)})
    parameters = parameters_of({"text.min_df": 1, "text.char_ngrams": [2, 4]}, {"members": 3})
    assert parameters["text"].char_ngrams == (2, 4)
    assert parameters["members"] == 3
    settings = settings_of({"text.min_df": 1}, {}, space)
    assert settings["text"]["min_df"] == 1
    assert settings["epochs"] is None
    assert settings["wide"] is True


def test_splits_hold_every_row_out_once_and_shares_are_nested() -> None:
    rows = TuningRows(np.arange(103)[:, None], list(range(103)))
    splits = Splits(rows, None, 0.1, seed=3)
    scored = [label for number in range(splits.count) for label in splits.split(number).scored.labels]
    assert sorted(scored) == rows.labels
    part = splits.split(1)
    assert part.valid is not None
    assert sorted([*part.train.labels, *part.valid.labels, *part.scored.labels]) == rows.labels
    assert part.train.rows[:, 0].tolist() == part.train.labels
    some, more = (set(splits.split(1, share).train.labels) for share in (1 / 9, 1 / 3))
    assert some < more < set(part.train.labels)
    assert splits.split(1, 1 / 3).scored.labels == part.scored.labels


def test_given_validation_rows_are_scored_in_halves() -> None:
    rows = TuningRows(np.arange(30)[:, None], list(range(30)))
    valid = TuningRows(np.arange(100, 141)[:, None], list(range(100, 141)))
    splits = Splits(rows, valid, None, seed=0)
    first, second = splits.split(0), splits.split(1)
    assert first.train.labels == rows.labels
    assert first.valid is not None
    assert second.valid is not None
    assert sorted([*first.scored.labels, *second.scored.labels]) == valid.labels
    assert not {*first.valid.labels} & {*first.scored.labels}


def test_many_rows_are_tried_on_few_first() -> None:
    few, many = (Splits(TuningRows(np.zeros((n, 1)), np.zeros(n)), None, None, 0) for n in (3_000, 100_000))
    assert [stage.share for stage in stages_of(few)] == [1, 1, 1]
    assert [stage.share for stage in stages_of(many)][:2] == [pytest.approx(1 / 9), pytest.approx(1 / 3)]
    assert stages_of(many)[-1].splits == (0, 1, 2, 3, 4)
