"""Trials: classifiers with changes, fitted to the rows of a split and scored on others; their gain over the defaults.

Parts of the rows are scored in turn, or given validation rows. A folder keeps finished trials so that a search can be
resumed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from hinet.classifier import HiNetClassifier
from hinet.classifier.estimator import fit_by, training_of
from hinet.classifier.inputs import check_container, kind_of, take_rows
from hinet.classifier.training import Training
from hinet.data.datasets import holdout_mask
from hinet.data.frames import as_table, is_frame
from hinet.data.matrices import MixedRows, is_sparse
from hinet.data.text.text_input import as_arrow
from hinet.errors import FileError, HiNetError
from hinet.files import check_plain, check_writable
from hinet.files.atomic import write_text
from hinet.files.streams import read_text
from hinet.metrics import SCORES, SET_SCORES
from hinet.ragged import Ints
from hinet.tuning.space import Changes, Size, key_of, parameters_of, text_of

PARTS = 5  # parts of the rows, held out in turn
MAX_SCORED = 10_000  # maximum number of rows that a trial is scored on
MIN_SCORED = 20  # minimum number, for the jackknife error of a difference


@dataclass(frozen=True)
class TuningRows:
    """Rows in a container that can be indexed, with their labels."""

    rows: Any
    labels: Any

    @classmethod
    def of(cls, X: Any, y: Any) -> TuningRows:
        """Return rows of any container; frames become Arrow tables, lists of numbers become arrays."""
        check_container(X)
        if is_frame(X):
            X = as_table(X)
        elif kind_of(X) == "dense" and getattr(getattr(X, "dtype", None), "kind", "O") not in "biuf":
            try:
                X = np.asarray(X, np.float64)
            except (TypeError, ValueError) as error:
                raise HiNetError(f"X: expected texts, or rows of numbers of one length: {error}") from None
        return cls(_indexable(X), _indexable(y))

    def __len__(self) -> int:
        return int(self.labels.shape[0]) if hasattr(self.labels, "shape") else len(self.labels)

    def take(self, rows: Ints) -> TuningRows:
        """Return the rows of these numbers."""
        return TuningRows(take_rows(self.rows, rows), take_rows(self.labels, rows))

    def digest(self) -> str:
        """Return a digest of the rows and labels in their order."""
        digest = hashlib.blake2b(digest_size=16)
        add_rows(digest.update, self.rows)
        for label in self.labels.to_pylist() if hasattr(self.labels, "to_pylist") else self.labels:
            several = isinstance(label, set | frozenset)
            digest.update(repr(sorted(map(repr, label)) if several else label).encode())
        return digest.hexdigest()


def _indexable(values: Any) -> Any:
    return values.to_numpy() if hasattr(values, "iloc") else values  # pandas


def add_rows(update: Callable[[Any], None], rows: Any) -> None:
    """Add the bytes of rows to a digest, however they are chunked."""
    if is_sparse(rows):
        csr = rows.tocsr()
        arrays = [csr.indptr, csr.indices, csr.data]
    elif isinstance(rows, np.ndarray) and rows.dtype != object:
        arrays = [rows]
    else:
        table = rows if isinstance(rows, pa.Table) else pa.table({"text": as_arrow(rows)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        return update(sink.getvalue())
    for array in arrays:
        update(np.ascontiguousarray(array).view(np.uint8).data)
    return None


@dataclass(frozen=True)
class Split:
    """Rows to train on, validation rows that weight the experts, if any, and rows to score."""

    train: TuningRows
    valid: TuningRows | None
    scored: TuningRows


@dataclass(frozen=True)
class Splits:
    """Numbered splits of the rows; a share of the training rows is the same for every trial.

    Given validation rows are scored in two halves: one weights the experts while the other is scored. Without them, the
    rows are cut into parts that are scored in turn; ``valid_share`` of the others weights the experts, as it will when
    the final model is trained.
    """

    train: TuningRows
    valid: TuningRows | None
    valid_share: float | None
    seed: int

    def __post_init__(self) -> None:
        scored, needed = (self.train if self.valid is None else self.valid), self.count * MIN_SCORED
        if len(scored) < needed:
            kind = "rows" if self.valid is None else "validation rows"
            raise HiNetError(f"got {len(scored)} {kind}, and a search needs at least {needed}; give more")

    @property
    def count(self) -> int:
        """The number of splits."""
        return PARTS if self.valid is None else 2

    def rows_of(self, share: float) -> int:
        """Return the approximate number of training rows of a trial."""
        rows = len(self.train)
        if self.valid is None:
            rows = round(rows * (1 - 1 / PARTS) * (1 - (self.valid_share or 0.0)))
        return max(1, round(share * rows))

    def split(self, number: int, share: float = 1.0) -> Split:
        """Return a split with a share of its training rows."""
        if self.valid is not None:
            parts = _parts(len(self.valid), 2, self.seed)
            train, valid = np.arange(len(self.train)), self.valid.take(parts[1 - number])
            scored = self.valid.take(parts[number][:MAX_SCORED])
        else:
            parts, valid = _parts(len(self.train), PARTS, self.seed), None
            train = np.sort(np.concatenate([part for other, part in enumerate(parts) if other != number]))
            if self.valid_share is not None:
                mask = holdout_mask(len(train), self.valid_share, self.seed + number)
                valid, train = self.train.take(train[mask]), train[~mask]
            scored = self.train.take(parts[number][:MAX_SCORED])
        order = np.random.default_rng([self.seed, number, 1 << 22]).permutation(len(train))
        some = np.sort(order[: max(1, round(share * len(train)))])  # smaller shares are subsets of larger ones
        return Split(self.train.take(train[some]), valid, scored)


def _parts(count: int, parts: int, seed: int) -> list[Ints]:
    order = np.random.default_rng([seed, 1 << 23]).permutation(count)
    return [order[part::parts] for part in range(parts)]


SEARCH = "search.json"  # identity of the search
TRIALS = "trials"
REFUSED = "refused"
FORMAT = 1
RESTART, REPEATED = "remove the folder to start again", "remove it, and the trial is repeated"
ERROR = 0.1  # probability that changes are chosen though none is better
MIN_SPLITS = 3  # minimum number of splits to estimate the spread between splits
Value = TypeVar("Value")
GROUPS = MIN_SCORED  # groups of scored rows, left out in turn for the jackknife error of a difference
MIN_KNOWN = GROUPS // 2  # minimum number of scored rows whose labels can be predicted
MAX_BYTES = 1 << 29  # maximum size of the features in memory


@dataclass(frozen=True)
class Step:
    """Changes to train with, on a share of the rows of a split."""

    changes: dict[str, Any]
    share: float
    split: int

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that equal steps share."""
        return key_of(self.changes), self.share, self.split

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{hashlib.blake2b(repr(self.key).encode(), digest_size=8).hexdigest()}.json"

    def __str__(self) -> str:
        rows = "all rows" if self.share == 1 else f"1/{round(1 / self.share)} of the rows"
        return f"{text_of(self.changes)}, {rows}, split {self.split + 1}"


@dataclass(frozen=True)
class Trial(Step):
    """A finished step: its score, the scores without each group of rows, and the seconds that it took."""

    number: int
    rows: int  # training rows
    score: float
    without: list[float]  # (groups,)
    seconds: float


@dataclass(frozen=True)
class Refusal:
    """Changes that could not be trained, the reason, and the seconds until the error."""

    changes: dict[str, Any]
    reason: str
    seconds: float


@dataclass(frozen=True)
class TrialFolder:
    """A folder with the identity of a search, its finished trials, and the changes that were refused."""

    path: Path
    identity: Mapping[str, Any] = field(default_factory=dict)  # values that are the same for all trials of a search

    @property
    def has_search(self) -> bool:
        """Whether the folder has a search."""
        return (self.path / SEARCH).exists()

    def check(self, *, resume: bool) -> None:
        """Raise FileError if the folder cannot be written to, or has a search and ``resume`` is False."""
        check_writable(self.path)
        if not self.has_search and self._files(TRIALS):
            raise FileError(self.path, f"has trials of an unknown search; {RESTART}")
        if self.has_search and not resume:
            raise FileError(self.path, f"has the trials of a search; set `resume` to continue it, or {RESTART}")

    def start(self, *, resume: bool) -> list[Trial]:
        """Return the finished trials of this search; nothing is written before the first one.

        Raises
        ------
        FileError
            If there is a search and ``resume`` is False, or it is another search, or a file is damaged.
        """
        self.check(resume=resume)
        if not self.has_search:
            return []
        path, content = self.path / SEARCH, {"format": FORMAT, **self.identity}
        before = _read(path, dict[str, Any], RESTART)
        differing = [name for name in content if before.get(name) != json.loads(json.dumps(content[name]))]
        if differing:
            raise FileError(
                path, f"is of a search with other {' and '.join(differing)}; repeat its options, or remove the folder"
            )
        return self.trials()

    def trials(self) -> list[Trial]:
        """Return the finished trials in their order."""
        trials = []
        for path in self._files(TRIALS):
            trial = Trial(**_read(path, Trial, REPEATED))
            is_finite = np.isfinite([trial.score, trial.seconds, *trial.without]).all()
            if not is_finite or trial.seconds < 0 or len(trial.without) < 2:
                raise FileError(path, f"has invalid numbers; {REPEATED}")
            if trial.name != path.name:
                raise FileError(path, f"does not match its name; {REPEATED}")
            trials.append(trial)
        return sorted(trials, key=lambda trial: trial.number)

    def refusals(self) -> list[Refusal]:
        """Return the changes that were refused."""
        return [Refusal(**_read(path, Refusal, REPEATED)) for path in self._files(REFUSED)]

    def _files(self, name: str) -> list[Path]:
        return sorted(path for path in (self.path / name).glob("*.json") if not path.name.startswith("."))

    def add(self, trial: Trial) -> None:
        """Keep a finished trial; the first one also writes the identity of the search."""
        if not self.has_search:
            (self.path / TRIALS).mkdir(parents=True, exist_ok=True)
            write_text(self.path / SEARCH, json.dumps({"format": FORMAT, **self.identity}, indent=2) + "\n")
        write_text(self.path / TRIALS / trial.name, json.dumps(asdict(trial)) + "\n")

    def refuse(self, step: Step, refusal: Refusal) -> None:
        """Keep refused changes, so that a resumed search leaves them out."""
        (self.path / REFUSED).mkdir(parents=True, exist_ok=True)
        write_text(self.path / REFUSED / step.name, json.dumps(asdict(refusal)) + "\n")


def _read(path: Path, kind: Any, remedy: str) -> Any:
    """Return the content of a JSON file, or raise FileError with a remedy if it is not a ``kind``."""
    try:
        content = json.loads(read_text(path))
        check_plain(content, kind, path.stem)
    except (json.JSONDecodeError, RecursionError, HiNetError) as error:
        reason = f": {error}" if isinstance(error, HiNetError) and not isinstance(error, FileError) else ""
        raise FileError(path, f"is damaged{reason}; {remedy}") from None
    return content


def is_refused(changes: Changes, refused: Sequence[Refusal]) -> bool:
    """Return whether changes, or a part of them, were refused."""
    return any({*key_of(refusal.changes)} <= {*key_of(changes)} for refusal in refused)


def candidates_of(trials: Sequence[Trial], refused: Sequence[Refusal] = ()) -> list[Changes]:
    """Return the distinct changes of trials that were not refused later, earliest first."""
    distinct = {key_of(trial.changes): trial.changes for trial in trials}
    return [changes for changes in distinct.values() if not is_refused(changes, refused)]


@dataclass(frozen=True)
class Gain:
    """Difference between the score of changes and of the defaults, over the splits that both were trained on."""

    changes: Changes
    score: float
    default_score: float
    error: float  # standard error of the difference
    splits: int
    freedom: int  # degrees of freedom of the error

    @property
    def value(self) -> float:
        """The difference."""
        return self.score - self.default_score

    def lower_bound(self, challengers: int) -> float:
        """Return a lower bound of the difference if it is the largest of ``challengers`` ones (Bonferroni)."""
        return self.value - float(stdtrit(self.freedom, 1 - ERROR / max(challengers, 1))) * self.error


def gain_of(changes: Changes, trials: Sequence[Trial], share: float = 1.0) -> Gain | None:
    """Return the gain of changes over the defaults at a share of the rows; None if no split has both."""
    own = {trial.split: trial for trial in trials if trial.share == share and key_of(trial.changes) == key_of(changes)}
    defaults = {trial.split: trial for trial in trials if trial.share == share and not trial.changes}
    common = sorted(own.keys() & defaults.keys())
    if not common:
        return None
    scores, default_scores = ([part[split].score for split in common] for part in (own, defaults))
    variance = 0.0  # jackknife variance of the differences, from the scores without each group of rows
    for split in common:
        without = np.subtract(own[split].without, defaults[split].without)
        variance += (len(without) - 1) / len(without) * np.sum((without - without.mean()) ** 2)
    error = float(np.sqrt(variance) / len(common))
    if len(common) >= MIN_SPLITS and changes:  # the start of training differs between splits too
        differences = np.subtract(scores, default_scores)
        error = max(error, float(np.std(differences, ddof=1) / np.sqrt(len(common))))
    freedom = sum(len(own[split].without) - 1 for split in common)
    return Gain(changes, float(np.mean(scores)), float(np.mean(default_scores)), error, len(common), freedom)


def best_of(candidates: Sequence[Changes], trials: Sequence[Trial]) -> Gain | None:
    """Return the gain with the highest lower bound on all rows, that of the defaults if none is above 0."""
    gains = [gain for changes in candidates if changes and (gain := gain_of(changes, trials)) is not None]
    defaults = gain_of({}, trials)
    best = max(gains, key=lambda gain: gain.lower_bound(len(gains)), default=None)
    return best if best is not None and best.lower_bound(len(gains)) > 0 else defaults


@dataclass
class FeatureMemory:
    """Keeps features of training rows in memory for further trials; a :class:`FeatureCache`."""

    max_bytes: int = MAX_BYTES
    _kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # least recently used first

    def __call__(self, name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return the result for the same name, rows and deciding values, or make it; drop the least recently used."""
        digest = hashlib.blake2b(digest_size=16)
        add_rows(digest.update, rows)
        key = (name, digest.digest(), *decided_by)
        value: Value = self._kept.pop(key) if key in self._kept else make()
        self._kept[key] = value  # the last one
        while len(self._kept) > 1 and _bytes_of([*self._kept.values()]) > self.max_bytes:
            del self._kept[next(iter(self._kept))]
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
        return Trial(step.changes, step.share, step.split, number, len(split.train), score, without, seconds)

    def default_size(self, share: float, labels: int) -> Size:
        """Return the size of the defaults on all rows; the features are those of the share that is tried first."""
        _, training = self._training(Step({}, share, 0))
        labelled = training.read_labels()
        titles = training.choose_titles(labelled)
        with training.encode_rows(labelled, titles, *training.fit_features(labelled, titles)) as prepared:
            shape = prepared.shape._replace(rows=round(prepared.shape.rows / share))
            settings = training.plan(prepared, shape)
            has_dense = isinstance(prepared.rows, MixedRows)
        members = settings.members_for(shape.rows, shape.features, dense=has_dense)
        epochs = shape.epochs(settings, several=labelled.codec.sets is not None)
        return Size(members, settings.width_for(members, labels), epochs)

    def fitted(self, step: Step) -> HiNetClassifier:
        """Return the classifier of a step, fitted to the rows of its split."""
        return fit_by(*self._training(step))

    def _training(self, step: Step) -> tuple[HiNetClassifier, Training]:
        """Return the classifier of a step and its training."""
        parameters = parameters_of(step.changes, self.base)
        parameters |= {"keep_examples": False, "random_state": self.seed + step.split}
        classifier = HiNetClassifier(**parameters)
        train, valid = self._split(step).train, self._split(step).valid
        pair = None if valid is None else (valid.rows, valid.labels)
        return classifier, training_of(classifier, train.rows, train.labels, valid=pair, cache=self.memory)

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
    answers = classifier.node_ids(classifier.predict(scored.rows))
    predicted = [ids for ids, kept in zip(answers, known, strict=True) if kept]
    function, taxonomy = {**SCORES, **SET_SCORES}[metric], classifier.taxonomy_

    def score(rows: Any) -> float:
        return float(function([true[row] for row in rows], [predicted[row] for row in rows], taxonomy=taxonomy))

    rows = np.arange(len(true))
    groups = min(GROUPS, len(true))
    return score(rows), [score(rows[rows % groups != group]) for group in range(groups)]
