"""``tune``: the search for parameters that score better than the defaults, under a time budget, and its results.

The schedule is asynchronous successive halving, which depends only on the finished trials. With many rows, changes are
first tried on few of them, then on all rows of one split, then on further splits. The best third of each stage is
promoted. Rows are the resource because all costs of a fit grow with them, and because fewer epochs would favour fast
learners. Further splits are needed because one split can tell small differences from chance only with many rows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hinet.classifier import HiNetClassifier
from hinet.classifier.columns import ColumnKinds, recognise, texts_of
from hinet.classifier.inputs import count_of, kind_of
from hinet.classifier.labels import checked_labels, has_sets, read_labels
from hinet.classifier.parameters import RULES, SETTINGS, torch_parameter, write_settings
from hinet.data.text import TextSettings
from hinet.data.text.features import resolve_auto
from hinet.data.text.text_input import as_arrow
from hinet.encoders.meaning import vector_source
from hinet.errors import HiNetError, counted, did_you_mean
from hinet.files.atomic import write_text
from hinet.metrics import SCORES, SET_SCORES
from hinet.parameters import NONE, SEED, SHARE, real, validate_parameters
from hinet.progress import Progress, SilentProgress
from hinet.taxonomy import Taxonomy
from hinet.tuning.space import Changes, Problem, Space, key_of, parameters_of, settings_of, short_text, text_of
from hinet.tuning.trials import (
    Gain,
    Refusal,
    Splits,
    Step,
    Trial,
    TrialFolder,
    TrialRunner,
    TuningRows,
    best_of,
    candidates_of,
    gain_of,
    is_refused,
)

REDUCTION = 3  # one of this many changes is promoted
SHARES = (1 / 9, 1 / 3)  # shares of the rows that are tried before all rows
MIN_ROWS = 4_000  # minimum rows of a share; with fewer, the best settings are not those for all rows
EXPLORING = 0.7  # share of the time after which all changes that gain are promoted
COMBINE_FROM = 6  # number of changes after which combinations are tried
COMBINE_EVERY = 2


@dataclass(frozen=True)
class Stage:
    """A share of the rows, and the splits that changes are tried on."""

    share: float
    splits: tuple[int, ...]


def stages_of(splits: Splits) -> list[Stage]:
    """Return the stages of a search, in order."""
    first = [Stage(share, (0,)) for share in SHARES if splits.rows_of(share) >= MIN_ROWS]
    counts = sorted({1, 2, splits.count})
    return [*first, *(Stage(1.0, tuple(range(count))) for count in counts)]


@dataclass(frozen=True)
class Schedule:
    """The finished trials of a search, and the choice of the next step."""

    space: Space
    stages: Sequence[Stage]
    seconds: float  # total time
    seed: int
    trials: Sequence[Trial]
    refused: Sequence[Refusal] = ()

    def next_step(self) -> Step | None:
        """Return the next step; None if the time is over or nothing is left to try."""
        until_all_rows = next(number for number, stage in enumerate(self.stages, 1) if stage.share == 1)
        for stage in self.stages[:until_all_rows]:  # changes are compared with the defaults
            if (step := self._missing({}, stage)) is not None:
                return step
        return self._promotion(exploring=self.spent < EXPLORING * self.seconds) or self._new_step()

    @cached_property
    def spent(self) -> float:
        """Seconds that the trials took, including refused ones."""
        return sum(trial.seconds for trial in self.trials) + sum(refusal.seconds for refusal in self.refused)

    @cached_property
    def _done(self) -> set[tuple[object, ...]]:
        return {trial.key for trial in self.trials}

    @cached_property
    def _challengers(self) -> list[Changes]:
        return [changes for changes in candidates_of(self.trials, self.refused) if changes]

    def _missing(self, changes: Changes, stage: Stage) -> Step | None:
        """Return the first unfinished step of a stage, the defaults before the changes."""
        for split in stage.splits:
            for each in ({}, changes):
                step = Step(dict(each), stage.share, split)
                if step.key not in self._done:
                    return step
        return None

    def _ranked(self, stage: Stage) -> list[Gain]:
        """Return the gains of changes that finished a stage, largest first."""
        complete = [changes for changes in self._challengers if self._missing(changes, stage) is None]
        gains = [gain_of(changes, self.trials, stage.share) for changes in complete]
        return sorted((gain for gain in gains if gain is not None), key=lambda gain: -gain.value)

    def _promotion(self, *, exploring: bool) -> Step | None:
        """Return a step that promotes changes to the next stage; later stages come first."""
        for number in reversed(range(len(self.stages) - 1)):
            stage, following = self.stages[number], self.stages[number + 1]
            ranked = self._ranked(stage)
            best = ranked[: len(ranked) // REDUCTION] if exploring else ranked
            for gain in best:
                is_better = gain.value > 0 or (exploring and stage.share < 1)
                step = self._missing(gain.changes, following) if is_better else None
                if step is not None and self._fits(step):
                    return step
        return None

    def _new_step(self) -> Step | None:
        """Return changes that were not tried yet: one parameter at a time, later also combinations of the best."""
        known = {key_of(changes) for changes in self._challengers}

        def is_new(changes: Changes) -> bool:
            return key_of(changes) not in known and not is_refused(changes, self.refused)

        singles = [changes for changes in self.space.singles if is_new(changes)]
        number = len(known) + len(self.refused)
        changes = singles[0] if singles else None
        if changes is None or (number >= COMBINE_FROM and number % COMBINE_EVERY == 0):
            gains = [gain for stage in reversed(self.stages) for gain in self._ranked(stage) if gain.value > 0]
            best = list({key_of(gain.changes): gain.changes for gain in gains}.values())  # later stages first
            changes = self.space.combined(best, is_new, np.random.default_rng([self.seed, number])) or changes
        if changes is None:
            return None
        step = Step(dict(changes), self.stages[0].share, self.stages[0].splits[0])
        return step if self._fits(step) else None

    def _fits(self, step: Step) -> bool:
        """Return whether a step should end in time, if it is as much slower than the defaults as earlier ones were."""
        defaults = [trial for trial in self.trials if not trial.changes]
        seconds = np.mean([trial.seconds for trial in defaults if trial.share == step.share])
        own = [trial for trial in self.trials if key_of(trial.changes) == key_of(step.changes)]
        ratios = [
            trial.seconds / max(default.seconds, 1e-9)
            for trial in own
            for default in defaults
            if (default.share, default.split) == (trial.share, trial.split)
        ]
        return bool(self.spent + seconds * (np.mean(ratios) if ratios else 1.0) <= self.seconds)


MINUTES = real(above=0)
SETTINGS_FILE, TABLE_FILE = "settings.json", "trials.csv"
RUN_PARAMETERS = ("columns", "path_sep", "random_state", "keep_examples", "memory_limit", "validation_fraction")
SET_NAMES = {"micro_f1": "set_f1", "macro_f1": "set_f1_macro"}  # names of the parameter `objective` -> scorers
LABEL_NAMES = {"micro_f1": "label_f1", "macro_f1": "label_f1_macro"}


@dataclass(frozen=True)
class Tuning:
    """The result of a search."""

    trials: Sequence[Trial]
    space: Space
    base: Mapping[str, Any]
    metric: str
    refused: Sequence[Refusal] = ()

    @cached_property
    def best(self) -> Gain:
        """The best changes on all rows, or the defaults if no changes beat them by more than chance."""
        best = best_of(candidates_of(self.trials, self.refused), self.trials)
        assert best is not None, "the defaults are always tried"
        return best

    @property
    def parameters(self) -> dict[str, Any]:
        """The best parameters of the estimator."""
        return parameters_of(self.best.changes, self.base)

    @property
    def settings(self) -> dict[str, Any]:
        """The best parameters as plain values for a settings file, without those of a run or of its rows."""
        kept = {
            name: value
            for name, value in self.base.items()
            if name in SETTINGS and name not in RUN_PARAMETERS
            if name not in ("vectors", "encoder") or isinstance(value, str | Path)
        }
        return settings_of(self.best.changes, kept, self.space)

    @property
    def ranking(self) -> list[Gain]:
        """All changes that were tried on all rows, best first."""
        gains = [gain_of(changes, self.trials) for changes in candidates_of(self.trials, self.refused)]
        known = [gain for gain in gains if gain is not None]
        return sorted(known, key=lambda gain: (-gain.splits, -gain.value))

    @property
    def seconds(self) -> float:
        """Seconds that the trials took."""
        return sum(trial.seconds for trial in self.trials)


def tune(
    classifier: HiNetClassifier,
    X: Any,
    y: Any,
    *,
    folder: str | Path,
    valid: tuple[Any, Any] | None = None,
    valid_share: float | None = None,
    metric: str | None = None,
    minutes: float = 5.0,
    seed: int = 0,
    resume: bool = False,
    progress: Progress | None = None,
) -> Tuning:
    """Search for parameters of a classifier that score better than its own.

    Parameters that differ from their defaults do not change. The search depends only on the seed and the finished
    trials; the time limits the number of trials.

    Parameters
    ----------
    classifier : HiNetClassifier
        The classifier to tune; it does not change.
    X, y : rows and labels
        The training rows, as for :meth:`HiNetClassifier.fit`.
    folder : str or Path
        Folder for finished trials.
    valid : pair of rows and labels, default=None
        Validation rows to score on. None holds parts of ``X`` out in turn.
    valid_share : float, default=None
        The share of ``X`` that the classifier will be trained with as validation rows. None trains without.
    metric : str, default=None
        A scorer of :mod:`hinet.metrics`. None is ``"accuracy"``, or ``"set_f1"`` (micro-F1) for several labels per row.
    minutes : float, default=5
        Time for all trials, including those of earlier runs.
    seed : int, default=0
        The random seed of splits, trials and proposals.
    resume : bool, default=False
        Whether to continue the search in ``folder``.
    progress : Progress, default=None
        Receives one line per trial, and the seconds spent.

    Raises
    ------
    HiNetError
        If rows, labels or arguments are invalid, or ``folder`` has another search.
    """
    seconds = 60 * MINUTES.validate("minutes", minutes)
    TrialFolder(Path(folder)).check(resume=resume)
    validate_parameters(classifier, RULES)
    given = _given_parameters(classifier)
    runner, space = _prepare(classifier, given, TuningRows.of(X, y), valid, valid_share, metric, seed)
    trials = TrialFolder(Path(folder), _identity(runner, space, given))
    finished, refused = trials.start(resume=resume), trials.refusals()
    _run(runner, space, trials, seconds, progress or SilentProgress(), finished, refused)
    return Tuning(finished, space, given, runner.metric, refused)


def _prepare(
    classifier: HiNetClassifier,
    given: Mapping[str, Any],
    rows: TuningRows,
    valid: tuple[Any, Any] | None,
    valid_share: float | None,
    metric: str | None,
    seed: int,
) -> tuple[TrialRunner, Space]:
    """Return the runner of trials and the space of changes; raise HiNetError for invalid rows, labels or arguments."""
    seed, valid_share = SEED.validate("seed", seed), (SHARE | NONE).validate("valid_share", valid_share)
    if torch := torch_parameter(classifier.get_params(deep=False)):
        raise HiNetError(f"a search trains with the fused engine; leave {torch} out")
    splits = Splits(rows, None if valid is None else TuningRows.of(*valid), valid_share, seed)
    several = has_sets(rows.labels) if classifier.multilabel == "auto" else bool(classifier.multilabel)
    metric = validate_metric(metric, several=several)
    taxonomy = classifier.taxonomy
    if taxonomy is not None and not isinstance(taxonomy, Taxonomy):
        taxonomy = Taxonomy.from_file(taxonomy)
    # errors of labels name rows of y
    codec, _ = read_labels(checked_labels(rows.labels, count_of(rows.rows)), taxonomy, classifier.path_sep)
    shared = {**given, "taxonomy": taxonomy}
    if (source := vector_source(given.get("vectors"), None)) is not None:
        shared["vectors"] = source  # once for all trials
    runner = TrialRunner(splits, shared, metric, seed)
    return runner, Space.of(_problem(runner, classifier.columns, int(codec.layers.ends.sum()), several=several), given)


def _run(
    runner: TrialRunner,
    space: Space,
    trials: TrialFolder,
    seconds: float,
    progress: Progress,
    finished: list[Trial],
    refused: list[Refusal],
) -> None:
    """Run trials until the schedule has no further one; add them, and the changes that could not be trained."""
    progress.started(1, round(seconds))
    shown = 0
    try:
        while True:
            schedule = Schedule(space, stages_of(runner.splits), seconds, runner.seed, finished, refused)
            progress.advanced(round(schedule.spent) - shown)
            shown = round(schedule.spent)
            step = schedule.next_step()
            if step is None:
                return
            start = time.perf_counter()
            try:
                trial = runner.run(step, len(finished) + 1)
            except HiNetError as error:
                if not step.changes:
                    raise
                refused.append(Refusal(step.changes, str(error), round(time.perf_counter() - start, 3)))
                trials.refuse(step, refused[-1])
                progress.message(f"{step}: left out: {error}")
                continue
            trials.add(trial)
            finished.append(trial)
            progress.message(describe_trial(trial, finished, runner.metric, refused))
    finally:
        progress.finished()


def _identity(runner: TrialRunner, space: Space, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that are the same for all trials of a search."""
    splits, taxonomy = runner.splits, runner.base["taxonomy"]
    left_out = ("taxonomy", "n_jobs", "memory_limit")
    return {
        "rows": splits.train.digest(),
        "validation rows": None if splits.valid is None else splits.valid.digest(),
        "taxonomy": None if taxonomy is None else _digest(taxonomy),
        "valid_share": splits.valid_share,
        "metric": runner.metric,
        "seed": splits.seed,
        "parameters": {name: _stable_repr(value) for name, value in given.items() if name not in left_out},
        "space": [*space.values],
    }


def validate_metric(metric: str | None, *, several: bool | None = None) -> str:
    """Return the name of a scorer for the labels, any scorer if ``several`` is None; or raise HiNetError.

    >>> validate_metric(None, several=False), validate_metric("micro_f1", several=True)
    ('accuracy', 'set_f1')
    """
    if metric is None:
        return "set_f1" if several else "accuracy"
    names = [*(SCORES if several is not True else ()), *(SET_SCORES if several is not False else ())]
    name = (SET_NAMES if several else LABEL_NAMES).get(metric, metric)
    if name in names:
        return name
    kind = {True: "rows with several labels", False: "one label per row", None: "labels"}[several]
    choices = did_you_mean(metric, names) or f"; choose one of {', '.join(names)}"
    raise HiNetError(f"`metric` is {metric!r}, which is not a scorer for {kind}{choices}")


def describe_trial(trial: Trial, finished: Sequence[Trial], metric: str, refused: Sequence[Refusal] = ()) -> str:
    """Return one line about a finished trial and the best changes so far."""
    line = f"{trial.number}: {trial}: {metric} {100 * trial.score:.2f}"
    if trial.changes and (gain := _gain_over_defaults(trial, finished)) is not None:
        line += f" ({100 * gain:+.2f})"
    best = best_of(candidates_of(finished, refused), finished)
    if best is None:
        return f"{line}, {trial.seconds:.1f} s"
    best_gain = f" ({100 * best.value:+.2f} ± {100 * best.error:.2f})" if best.changes else ""
    return f"{line}, {trial.seconds:.1f} s; best so far: {text_of(best.changes)}{best_gain}"


def _gain_over_defaults(trial: Trial, trials: Sequence[Trial]) -> float | None:
    """Return the gain of a trial over the defaults on the same rows; None if these were not tried there."""
    for other in trials:
        if not other.changes and (other.share, other.split) == (trial.share, trial.split):
            return trial.score - other.score
    return None


def _given_parameters(classifier: HiNetClassifier) -> dict[str, Any]:
    """Return the parameters that differ from their defaults and that a trial depends on."""
    defaults = HiNetClassifier().get_params(deep=False)
    left_out = ("verbose", "checkpoint", "checkpoint_every", "warm_start", "validation_fraction")
    return {
        name: value
        for name, value in classifier.get_params(deep=False).items()
        if name not in left_out and value != defaults[name]
    }


def _problem(runner: TrialRunner, columns: Mapping[str, Any] | None, labels: int, *, several: bool) -> Problem:
    rows, taxonomy = runner.splits.train.rows, runner.base["taxonomy"]
    kind = "frame" if columns is not None else kind_of(rows)
    has_text = kind == "text" or (kind == "frame" and (not columns or bool(columns.get("text"))))
    texts = rows
    if kind == "frame" and has_text:
        kinds = ColumnKinds.of(RULES["columns"].validate("columns", columns)) if columns else recognise(rows).kinds
        texts = texts_of(rows, kinds)
    has_short_texts = has_text and resolve_auto(iter([as_arrow(texts)]), TextSettings())[1].char_ngrams is not None
    return Problem(
        rows=runner.splits.rows_of(1.0),
        labels=labels,
        default_size=runner.default_size(stages_of(runner.splits)[0].share, labels),
        has_text=has_text,
        has_short_texts=has_short_texts,
        is_frame=kind == "frame",
        is_dense=kind == "dense" or (kind == "frame" and not has_text),
        several=several,
        is_tree=taxonomy is None or taxonomy.is_tree,
        has_titles=taxonomy is not None and taxonomy.titles != taxonomy.ids,
        has_thresholds=runner.splits.valid is not None or runner.splits.valid_share is not None,
        hierarchical=runner.metric.startswith(("hierarchical", "lca", "neg_tree", "depth")),
    )


def _stable_repr(value: Any) -> str:
    """Return a text that equal values of two runs share; the repr of an object may contain its address."""
    if isinstance(value, list | tuple):
        return repr([_stable_repr(each) for each in value])
    if isinstance(value, Mapping):
        return repr({_stable_repr(key): _stable_repr(each) for key, each in value.items()})
    plain = value is None or isinstance(value, str | int | float | np.generic | Path | TextSettings)
    return repr(value) if plain else type(value).__name__


def _digest(taxonomy: Taxonomy) -> str:
    nodes = [(node, title, taxonomy.parents(node)) for node, title in zip(taxonomy.ids, taxonomy.titles, strict=True)]
    return hashlib.blake2b(repr(nodes).encode(), digest_size=16).hexdigest()


def write_results(tuning: Tuning, folder: str | Path) -> None:
    """Write the best settings and the table of trials to a folder."""
    best = tuning.best
    summary = {
        "metric": tuning.metric,
        "score": round(best.score, 5),
        "default_score": round(best.default_score, 5),
        "error_of_gain": round(best.error, 5),
        "splits": best.splits,
        "trials": len(tuning.trials),
        "seconds": round(tuning.seconds, 1),
    }
    write_settings(Path(folder) / SETTINGS_FILE, tuning.settings, summary)
    write_text(Path(folder) / TABLE_FILE, table_of(tuning))


def table_of(tuning: Tuning) -> str:
    """Return all trials as CSV, one row per trial and one column per parameter, empty for its default."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [*tuning.space.values]
    columns = ["trial", "settings", "share", "split", "rows", tuning.metric, "gain", "seconds", "total_seconds"]
    writer.writerow([*columns, *names])
    totals = accumulate(trial.seconds for trial in tuning.trials)
    for trial, total in zip(tuning.trials, totals, strict=True):
        gain = _gain_over_defaults(trial, tuning.trials)
        writer.writerow(
            [
                trial.number,
                text_of(trial.changes),
                f"{trial.share:.4g}",
                trial.split + 1,
                trial.rows,
                f"{trial.score:.5f}",
                "" if gain is None else f"{gain:+.5f}",
                f"{trial.seconds:.2f}",
                f"{total:.2f}",
                *(short_text(trial.changes[name]) if name in trial.changes else "" for name in names),
            ]
        )
    return stream.getvalue()


def plot_trials(tuning: Tuning, path: str | Path) -> None:
    """Plot the gain of all trials against the seconds of the search; needs matplotlib."""
    from hinet.evaluation.plots import import_pyplot, save_plot

    totals = accumulate(trial.seconds for trial in tuning.trials)
    points: dict[float, list[tuple[float, float]]] = {}  # seconds and gains of each share of the rows
    for trial, total in zip(tuning.trials, totals, strict=True):
        gain = _gain_over_defaults(trial, tuning.trials)
        if gain is not None and trial.changes:
            points.setdefault(trial.share, []).append((total, 100 * gain))
    figure, axes = import_pyplot().subplots(figsize=(9, 4.5), constrained_layout=True)
    axes.axhline(0, color="0.5", linewidth=1, label="defaults")
    for share, chosen in sorted(points.items()):
        label = "all rows" if share == 1 else f"1/{round(1 / share)} of the rows"
        axes.plot(*zip(*chosen, strict=True), "o", markersize=4, alpha=0.8, label=label)
    best, error = 100 * tuning.best.value, 100 * tuning.best.error
    axes.axhspan(best - error, best + error, color="tab:green", alpha=0.15)
    axes.axhline(best, color="tab:green", linewidth=1, label=f"chosen: {text_of(tuning.best.changes)}")
    axes.set(xlabel="seconds of the search", ylabel="gain over the defaults on the same rows, points")
    axes.legend()
    save_plot(figure, f"{tuning.metric} of {counted(len(tuning.trials), 'trial')}", path)
