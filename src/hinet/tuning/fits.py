"""A trial: a classifier with some changes, fitted to the rows of a split and scored on others."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hinet.classifier import HiNetClassifier
from hinet.classifier.fitting import RowShape, engine_settings, is_dense, settings_for
from hinet.classifier.parameters import RULES
from hinet.data.matrices import MixedRows, is_sparse
from hinet.engine import EngineSettings
from hinet.errors import HiNetError
from hinet.metrics import SCORES, SET_SCORES
from hinet.parameters import validate_parameters
from hinet.tuning.space import Size, parameters_of
from hinet.tuning.splits import LEAST_SCORED, Split, Splits, TuningRows, add_rows
from hinet.tuning.trials import Step, Trial

GROUPS = LEAST_SCORED  # of scored rows, each of which is left out once, for the error of a difference
LEAST_KNOWN = GROUPS // 2  # scored rows whose labels can be predicted
MOST_KEPT = 1 << 29  # bytes of features that further trials may use
FITTED_NAMES = ("n_features_in_", "feature_names_in_")  # attributes that are set as features are fitted


@dataclass
class FeatureMemory:
    """Features of training rows by what decides them, so that trials that share them need not make them again."""

    most: int = MOST_KEPT
    _kept: OrderedDict[tuple[Any, ...], tuple[Any, int]] = field(default_factory=OrderedDict)

    def get(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, or make it; what was not used for longest is dropped."""
        if key not in self._kept:
            value = make()
            self._kept[key] = value, _bytes_of(value)
            while sum(size for _, size in self._kept.values()) > self.most and len(self._kept) > 1:
                self._kept.popitem(last=False)
            return value
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def __len__(self) -> int:
        return len(self._kept)


def _bytes_of(value: Any) -> int:
    """Return about how much memory rows and texts take."""
    if isinstance(value, tuple | list):
        return sum(map(_bytes_of, value))
    if isinstance(value, MixedRows):
        return _bytes_of(value.sparse) + value.dense.nbytes
    if is_sparse(value):
        return int(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    return int(getattr(value, "nbytes", 0))


class TrialClassifier(HiNetClassifier):
    """A classifier that keeps the features of its training rows for further trials."""

    memory: FeatureMemory

    def _fit_features(self, checked: Any, kind: Any, engine: Any, *, several: bool = False) -> Any:
        def make() -> Any:
            made = super(TrialClassifier, self)._fit_features(checked, kind, engine, several=several)
            return *made, {name: getattr(self, name) for name in FITTED_NAMES if hasattr(self, name)}

        if kind not in ("text", "frame"):  # made in no time
            return super()._fit_features(checked, kind, engine, several=several)
        key = ("features", _digest(checked), self.text, id(self.vectors), id(self.encoder), several)
        features, rows, attributes = self.memory.get(key, make)
        for name, value in attributes.items():
            setattr(self, name, value)
        return features, rows

    def _with_titles(self, checked: Any, kind: Any, codec: Any, traces: Any, weights: Any) -> Any:
        def make() -> Any:
            return super(TrialClassifier, self)._with_titles(checked, kind, codec, traces, weights)

        if kind != "text" or self.titles is False:
            return make()
        return self.memory.get(("titles", _digest(checked), self.text, self.titles, self.random_state), make)


@dataclass(eq=False)
class _Planned(Exception):  # noqa: N818 it is no error
    """What a classifier would train with, instead of training."""

    settings: EngineSettings  # that are given
    features: Any
    shape: RowShape
    several: bool
    has_dense: bool


class PlannedClassifier(TrialClassifier):
    """A classifier that makes features as a trial does, and raises what it would train with."""

    def _train(self, training: Any, features: Any, codec: Any, engine: Any) -> Any:
        several = codec.sets is not None
        if several and is_dense(features):
            training = training.as_csr()
        raise _Planned(
            engine_settings(validate_parameters(self, RULES)), features, RowShape.of(training.rows), several,
            isinstance(training.rows, MixedRows),
        )  # fmt: skip


def _digest(rows: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    add_rows(digest.update, rows)
    return digest.digest()


@dataclass
class TrialRunner:
    """Runs steps: all that trials share."""

    splits: Splits
    base: Mapping[str, Any]  # parameters of the estimator that are given
    metric: str
    seed: int
    memory: FeatureMemory = field(default_factory=FeatureMemory)
    _last: tuple[tuple[int, float], Split] | None = None

    def run(self, step: Step, number: int) -> Trial:
        """Return a finished trial."""
        start = time.perf_counter()
        split = self._split(step)
        classifier = self._fitted(TrialClassifier, step)
        score, without = scores_of(classifier, split.scored, self.metric)
        seconds = round(time.perf_counter() - start, 3)
        return Trial(number, step.changes, step.share, step.split, len(split.train), score, without, seconds)

    def usual_size(self, share: float, labels: int) -> Size:
        """Return the size of the defaults on all rows; a share of them, which is tried first, tells their features."""
        try:
            self._fitted(PlannedClassifier, Step({}, share, 0))
        except _Planned as planned:
            shape = planned.shape._replace(rows=round(planned.shape.rows / share))
            settings = settings_for(planned.settings, planned.features, shape, several=planned.several)
            members = settings.members_for(shape.rows, shape.features, dense=planned.has_dense)
            return Size(members, settings.width_for(members, labels), shape.epochs(settings))
        raise AssertionError("a planned classifier never trains")

    def _fitted(self, kind: type[TrialClassifier], step: Step) -> TrialClassifier:
        split = self._split(step)
        classifier = kind(
            **{**parameters_of(step.changes, self.base), "keep_examples": False, "random_state": self.seed + step.split}
        )
        classifier.memory = self.memory
        valid = None if split.valid is None else (split.valid.rows, split.valid.labels)
        classifier.fit(split.train.rows, split.train.labels, valid=valid)
        return classifier

    def _split(self, step: Step) -> Split:
        key = step.split, step.share
        if self._last is None or self._last[0] != key:
            self._last = key, self.splits.split(*key)
        return self._last[1]


def scores_of(classifier: HiNetClassifier, scored: TuningRows, metric: str) -> tuple[float, list[float]]:
    """Return a metric of rows, and the metric without each group of them.

    Rows whose labels an inferred taxonomy does not have are left out: no changes could predict them.
    """
    truth = classifier.fitted_.codec.truth(scored.labels)
    known = np.bincount(truth.owner[~truth.exact], minlength=len(truth)) == 0
    if np.count_nonzero(known) < LEAST_KNOWN:
        raise HiNetError(
            f"only {np.count_nonzero(known)} of {len(known)} held-out rows have labels that training rows have too, "
            f"and a search needs {LEAST_KNOWN}; give more rows of each label, or a taxonomy"
        )
    true = truth.take(known).ids()
    predicted = [
        ids for ids, kept in zip(classifier.node_ids(classifier.predict(scored.rows)), known, strict=True) if kept
    ]
    function, taxonomy = {**SCORES, **SET_SCORES}[metric], classifier.taxonomy_

    def score(rows: Any) -> float:
        return float(function([true[row] for row in rows], [predicted[row] for row in rows], taxonomy=taxonomy))

    rows = np.arange(len(true))
    groups = min(GROUPS, len(true))
    return score(rows), [score(rows[rows % groups != group]) for group in range(groups)]
