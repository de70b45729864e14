"""The schedule of a search: asynchronous successive halving, which depends only on the finished trials.

With many rows, changes are first tried on few of them, then on all rows of one split, then on further splits. The best
third of each stage is promoted. Rows are the resource because all costs of a fit grow with them, and because fewer
epochs would favour fast learners. Further splits are needed because one split can tell small differences from chance
only if there are many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hinet.tuning.space import Changes, Space, key_of
from hinet.tuning.splits import Splits
from hinet.tuning.trials import Gain, Refusal, Step, Trial, by_step, candidates_of, gain_of, is_refused

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
        if (step := self._default_step()) is not None:
            return step
        return self._promotion(exploring=self.spent < EXPLORING * self.seconds) or self._new_step()

    @cached_property
    def spent(self) -> float:
        """Seconds that the trials took, including refused ones."""
        return sum(trial.seconds for trial in self.trials) + sum(refusal.seconds for refusal in self.refused)

    @cached_property
    def _done(self) -> dict[tuple[object, ...], Trial]:
        return by_step(self.trials)

    @cached_property
    def _challengers(self) -> list[Changes]:
        return [changes for changes in candidates_of(self.trials, self.refused) if changes]

    def _default_step(self) -> Step | None:
        """Return the first missing step of the defaults up to all rows of one split; changes are compared with them."""
        for stage in self.stages:
            step = Step({}, stage.share, stage.splits[0])
            if step.key not in self._done:
                return step
            if stage.share == 1:
                return None
        return None

    def _missing(self, changes: Changes, stage: Stage) -> Step | None:
        """Return the first unfinished step of a stage, the defaults before the changes."""
        for split in stage.splits:
            for each in ({}, changes):
                step = Step(dict(each), stage.share, split)
                if step.key not in self._done:
                    return step
        return None

    def _is_complete(self, changes: Changes, stage: Stage) -> bool:
        return all(Step(dict(changes), stage.share, split).key in self._done for split in stage.splits)

    def _ranked(self, stage: Stage) -> list[Gain]:
        """Return the gains of changes that finished a stage, largest first."""
        gains = [
            gain
            for changes in self._challengers
            if self._is_complete(changes, stage) and (gain := gain_of(changes, self.trials, stage.share)) is not None
        ]
        return sorted(gains, key=lambda gain: -gain.value)

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
        changes = self._proposal()
        if changes is None:
            return None
        step = Step(dict(changes), self.stages[0].share, self.stages[0].splits[0])
        return step if self._fits(step) else None

    def _proposal(self) -> Changes | None:
        """Return changes that were not tried yet: one parameter at a time, later also combinations of the best."""
        known = {key_of(changes) for changes in self._challengers}

        def is_new(changes: Changes) -> bool:
            return key_of(changes) not in known and not is_refused(changes, self.refused)

        singles = [changes for changes in self.space.singles if is_new(changes)]
        number = len(known) + len(self.refused)
        if singles and (number < COMBINE_FROM or number % COMBINE_EVERY):
            return singles[0]
        combined = self.space.combined(self._best(), is_new, np.random.default_rng([self.seed, number]))
        return combined if combined is not None or not singles else singles[0]

    def _best(self) -> list[Changes]:
        """Return the changes that gain, those of later stages first."""
        ranked = [gain for stage in reversed(self.stages) for gain in self._ranked(stage) if gain.value > 0]
        return list({key_of(gain.changes): gain.changes for gain in ranked}.values())

    def _fits(self, step: Step) -> bool:
        """Return whether a step is expected to end in time."""
        return self.spent + self._expected(step) <= self.seconds

    def _expected(self, step: Step) -> float:
        """Return the expected seconds of a step: those of the defaults times the slowdown of these changes so far."""
        defaults = [trial for trial in self.trials if not trial.changes]
        seconds = np.mean([trial.seconds for trial in defaults if trial.share == step.share])
        own = [trial for trial in self.trials if key_of(trial.changes) == key_of(step.changes)]
        ratios = [
            trial.seconds / max(default.seconds, 1e-9)
            for trial in own
            for default in defaults
            if (default.share, default.split) == (trial.share, trial.split)
        ]
        return float(seconds * (np.mean(ratios) if ratios else 1.0))
