"""Finished trials, and the folder that keeps them: a file each, written whole, so that a search can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hinet.errors import FileError, HiNetError
from hinet.files import check_plain, check_writable
from hinet.files.atomic import write_text
from hinet.files.text import read_text
from hinet.tuning.space import Changes, key_of, text_of

SEARCH = "search.json"  # what the trials are of
TRIALS = "trials"
REFUSED = "refused"
FORMAT = 1
ANEW, REPEATED = "remove the folder to start anew", "remove it, and the trial is repeated"


@dataclass(frozen=True)
class Step:
    """What a trial trains: some changes, on a share of the rows of a split."""

    changes: dict[str, Any]
    share: float
    split: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What two equal steps share."""
        return key_of(self.changes), self.share, self.split

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{hashlib.blake2b(repr(self.key).encode(), digest_size=8).hexdigest()}.json"

    def __str__(self) -> str:
        rows = "all rows" if self.share == 1 else f"1/{round(1 / self.share)} of the rows"
        return f"{text_of(self.changes)}, {rows}, split {self.split + 1}"


@dataclass(frozen=True)
class Trial:
    """A finished step: its score, the scores without each group of rows, and the seconds that it took."""

    number: int
    changes: dict[str, Any]
    share: float
    split: int
    rows: int  # that it was trained on
    score: float
    without: list[float]  # (groups,)
    seconds: float

    @property
    def step(self) -> Step:
        """What was trained."""
        return Step(self.changes, self.share, self.split)


@dataclass(frozen=True)
class Refusal:
    """Changes that rows cannot be trained with, the reason, and the seconds until that was known."""

    changes: dict[str, Any]
    reason: str
    seconds: float


@dataclass(frozen=True)
class TrialFolder:
    """A folder with what is searched, the finished trials, and the changes that were refused."""

    path: Path
    identity: Mapping[str, Any] = field(default_factory=dict)  # what trials of the same search share

    @property
    def has_search(self) -> bool:
        """Whether a search was begun here."""
        return (self.path / SEARCH).exists()

    def check(self, *, resume: bool) -> None:
        """Raise FileError if no trial can be kept here, or there is a search and ``resume`` is False."""
        check_writable(self.path)
        if not self.has_search and self._files(TRIALS):
            raise FileError(self.path, f"has trials of an unknown search; {ANEW}")
        if self.has_search and not resume:
            raise FileError(self.path, f"has the trials of a search; set `resume` to continue it, or {ANEW}")

    def start(self, *, resume: bool) -> list[Trial]:
        """Return the finished trials of this search; nothing is written before the first of them.

        Raises
        ------
        FileError
            If there is a search and ``resume`` is False, or it is another search, or a file is damaged.
        """
        self.check(resume=resume)
        if not self.has_search:
            return []
        path, content = self.path / SEARCH, self._content
        before = _read(path, dict[str, Any], ANEW)
        differing = [name for name in content if before.get(name) != json.loads(json.dumps(content[name]))]
        if differing:
            raise FileError(
                path, f"is of a search with other {' and '.join(differing)}; repeat its options, or remove the folder"
            )
        return self.trials()

    @property
    def _content(self) -> dict[str, Any]:
        return {"format": FORMAT, **self.identity}

    def trials(self) -> list[Trial]:
        """Return the finished trials in their order."""
        return sorted(map(_trial_of, self._files(TRIALS)), key=lambda trial: trial.number)

    def refusals(self) -> list[Refusal]:
        """Return the changes that were refused."""
        return [Refusal(**_read(path, Refusal, REPEATED)) for path in self._files(REFUSED)]

    def _files(self, name: str) -> list[Path]:
        return sorted(path for path in (self.path / name).glob("*.json") if not path.name.startswith("."))

    def add(self, trial: Trial) -> None:
        """Keep a finished trial, and before the first of them what is searched."""
        if not self.has_search:
            (self.path / TRIALS).mkdir(parents=True, exist_ok=True)
            write_text(self.path / SEARCH, json.dumps(self._content, indent=2) + "\n")
        write_text(self.path / TRIALS / trial.step.name, json.dumps(asdict(trial)) + "\n")

    def refuse(self, step: Step, refusal: Refusal) -> None:
        """Keep that changes were refused, so that a resumed search leaves them out."""
        (self.path / REFUSED).mkdir(parents=True, exist_ok=True)
        write_text(self.path / REFUSED / step.name, json.dumps(asdict(refusal)) + "\n")


def _read(path: Path, kind: Any, remedy: str) -> Any:
    """Return the content of a JSON file, or raise FileError with a remedy if it is not of some kind."""
    try:
        content = json.loads(read_text(path))
        check_plain(content, kind, path.stem)
    except (json.JSONDecodeError, RecursionError, HiNetError) as error:
        reason = f": {error}" if isinstance(error, HiNetError) and not isinstance(error, FileError) else ""
        raise FileError(path, f"is damaged{reason}; {remedy}") from None
    return content


def _trial_of(path: Path) -> Trial:
    trial = Trial(**_read(path, Trial, REPEATED))
    if (
        not np.isfinite([trial.score, trial.seconds, *trial.without]).all()
        or trial.seconds < 0
        or len(trial.without) < 2
    ):
        raise FileError(path, f"has numbers that no trial has; {REPEATED}")
    if trial.step.name != path.name:
        raise FileError(path, f"is not the trial that its name says; {REPEATED}")
    return trial


def by_step(trials: Sequence[Trial]) -> dict[tuple[Any, ...], Trial]:
    """Return trials by what they trained."""
    return {trial.step.key: trial for trial in trials}


def is_refused(changes: Changes, refused: Sequence[Refusal]) -> bool:
    """Return whether changes were refused, or some of them were."""
    return any({*key_of(refusal.changes)} <= {*key_of(changes)} for refusal in refused)


def candidates_of(trials: Sequence[Trial], refused: Sequence[Refusal] = ()) -> list[Changes]:
    """Return the distinct changes of trials that were not refused at a later one, the earliest first."""
    distinct = {key_of(trial.changes): trial.changes for trial in trials}
    return [changes for changes in distinct.values() if not is_refused(changes, refused)]
