"""Trials: a classifier with changes, fitted to the rows of a split and scored on others."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from hinet.classifier import HiNetClassifier
from hinet.classifier.estimator import fit_by, training_of
from hinet.classifier.training import Training
from hinet.data.matrices import MixedRows, is_sparse
from hinet.errors import HiNetError
from hinet.metrics import SCORES, SET_SCORES
from hinet.tuning.space import Size, parameters_of
from hinet.tuning.splits import MIN_SCORED, Split, Splits, TuningRows, add_rows
from hinet.tuning.trials import Step, Trial

Value = TypeVar("Value")

GROUPS = MIN_SCORED  # groups of scored rows, left out in turn for the jackknife error of a difference
MIN_KNOWN = GROUPS // 2  # minimum number of scored rows whose labels can be predicted
MAX_BYTES = 1 << 29  # maximum size of the features in memory


@dataclass
class FeatureMemory:
    """Keeps features of training rows in memory for further trials; a :class:`FeatureCache`."""

    max_bytes: int = MAX_BYTES
    _kept: OrderedDict[tuple[Any, ...], tuple[Any, int]] = field(default_factory=OrderedDict)

    def get(self, name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return the result for the same name, rows and deciding values, or make it; drop the least recently used."""
        key = (name, _digest(rows), *decided_by)
        if key in self._kept:
            self._kept.move_to_end(key)
            kept: Value = self._kept[key][0]
            return kept
        value = make()
        self._kept[key] = value, _bytes_of(value)
        while sum(size for _, size in self._kept.values()) > self.max_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._kept)


def _bytes_of(value: Any) -> int:
    """Return the approximate size of rows and texts in memory."""
    if isinstance(value, tuple | list):
        return sum(map(_bytes_of, value))
    if isinstance(value, MixedRows):
        return _bytes_of(value.sparse) + value.dense.nbytes
    if is_sparse(value):
        return int(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    return int(getattr(value, "nbytes", 0))


def _digest(rows: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    add_rows(digest.update, rows)
    return digest.digest()


@dataclass
class TrialRunner:
    """Runs the trials of a search."""

    splits: Splits
    base: Mapping[str, Any]  # given parameters of the estimator
    metric: str
    seed: int
    memory: FeatureMemory = field(default_factory=FeatureMemory)
    _last: tuple[tuple[int, float], Split] | None = None

    def run(self, step: Step, number: int) -> Trial:
        """Return a finished trial."""
        start = time.perf_counter()
        split = self._split(step)
        classifier = self.fitted(step)
        score, without = scores_of(classifier, split.scored, self.metric)
        seconds = round(time.perf_counter() - start, 3)
        return Trial(number, step.changes, step.share, step.split, len(split.train), score, without, seconds)

    def default_size(self, share: float, labels: int) -> Size:
        """Return the size of the defaults on all rows; the features are those of the share that is tried first."""
        training = self._training(self._classifier(Step({}, share, 0)), Step({}, share, 0))
        labelled = training.read_labels()
        titles = training.choose_titles(labelled)
        with training.encode_rows(labelled, titles, *training.fit_features(labelled, titles)) as prepared:
            shape = prepared.shape._replace(rows=round(prepared.shape.rows / share))
            settings = training.plan(prepared, shape)
            has_dense = isinstance(prepared.rows, MixedRows)
        members = settings.members_for(shape.rows, shape.features, dense=has_dense)
        return Size(members, settings.width_for(members, labels), shape.epochs(settings))

    def fitted(self, step: Step) -> HiNetClassifier:
        """Return the classifier of a step, fitted to the rows of its split."""
        classifier = self._classifier(step)
        return fit_by(classifier, self._training(classifier, step))

    def _training(self, classifier: HiNetClassifier, step: Step) -> Training:
        split = self._split(step)
        return training_of(classifier, split.train.rows, split.train.labels, valid=split.valid_pair, cache=self.memory)

    def _classifier(self, step: Step) -> HiNetClassifier:
        parameters = parameters_of(step.changes, self.base)
        return HiNetClassifier(**{**parameters, "keep_examples": False, "random_state": self.seed + step.split})

    def _split(self, step: Step) -> Split:
        key = step.split, step.share
        if self._last is None or self._last[0] != key:
            self._last = key, self.splits.split(*key)
        return self._last[1]


def scores_of(classifier: HiNetClassifier, scored: TuningRows, metric: str) -> tuple[float, list[float]]:
    """Return the metric on scored rows, and the metric without each group of them.

    Rows with labels that an inferred taxonomy does not have are left out, because no changes could predict them.
    """
    truth = classifier.fitted_.codec.truth(scored.labels)
    known = np.bincount(truth.owner[~truth.exact], minlength=len(truth)) == 0
    if np.count_nonzero(known) < MIN_KNOWN:
        raise HiNetError(
            f"only {np.count_nonzero(known)} of {len(known)} held-out rows have labels that training rows have too, "
            f"and a search needs {MIN_KNOWN}; give more rows of each label, or a taxonomy"
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
