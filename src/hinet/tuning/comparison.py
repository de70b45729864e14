"""Whether changes beat the defaults by more than chance: paired, on the same splits and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from hinet.tuning.space import Changes, key_of
from hinet.tuning.trials import Trial

ERROR = 0.1  # the chance that any of the changes is chosen though none is better
SPLITS_TO_COMPARE = 3  # from which on the spread between splits is looked at too


@dataclass(frozen=True)
class Gain:
    """How much better changes score than the defaults, over the splits that both were trained on."""

    changes: Changes
    score: float
    default_score: float
    error: float  # standard error of the difference
    splits: int
    freedom: int  # degrees of freedom of the error, as Student's t counts them

    @property
    def value(self) -> float:
        """The difference."""
        return self.score - self.default_score

    def least(self, challengers: int) -> float:
        """Return what the difference is at least, nearly surely, if it is the largest of so many (Bonferroni)."""
        return self.value - float(stdtrit(self.freedom, 1 - ERROR / max(challengers, 1))) * self.error


def gain_of(changes: Changes, trials: Sequence[Trial], share: float = 1.0) -> Gain | None:
    """Return the gain of changes over the defaults at a share of the rows; None if no split has both."""
    own = {trial.split: trial for trial in trials if trial.share == share and key_of(trial.changes) == key_of(changes)}
    usual = {trial.split: trial for trial in trials if trial.share == share and not trial.changes}
    common = sorted(own.keys() & usual.keys())
    if not common:
        return None
    scores, defaults = ([part[split].score for split in common] for part in (own, usual))
    variances = [_variance(own[split], usual[split]) for split in common]
    error = float(np.sqrt(np.sum(variances)) / len(common))
    if len(common) >= SPLITS_TO_COMPARE and changes:  # the start of training differs between splits too
        differences = np.subtract(scores, defaults)
        error = max(error, float(np.std(differences, ddof=1) / np.sqrt(len(common))))
    freedom = sum(len(own[split].without) - 1 for split in common)
    return Gain(changes, float(np.mean(scores)), float(np.mean(defaults)), error, len(common), freedom)


def _variance(own: Trial, usual: Trial) -> float:
    """Return the jackknife variance of the difference of two scores, from the scores without each group of rows."""
    differences = np.subtract(own.without, usual.without)
    groups = len(differences)
    return float((groups - 1) / groups * np.sum((differences - differences.mean()) ** 2))


def best_of(candidates: Sequence[Changes], trials: Sequence[Trial]) -> Gain | None:
    """Return the changes that surely gain most on all rows; the defaults if none surely gains; None without trials."""
    gains = [gain for changes in candidates if changes and (gain := gain_of(changes, trials)) is not None]
    usual = gain_of({}, trials)
    best = max(gains, key=lambda gain: gain.least(len(gains)), default=None)
    return best if best is not None and best.least(len(gains)) > 0 else usual
