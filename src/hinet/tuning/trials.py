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
FORMAT = 1


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
class TrialFolder:
    """A folder with what is searched, and the finished trials."""

    path: Path
    identity: Mapping[str, Any] = field(default_factory=dict)  # what trials of the same search share

    @property
    def has_search(self) -> bool:
        """Whether a search was begun here."""
        return (self.path / SEARCH).exists()

    def start(self, *, resume: bool) -> list[Trial]:
        """Return the finished trials of this search; nothing is written before the first of them.

        Raises
        ------
        FileError
            If there is a search and ``resume`` is False, or it is another search, or a file is damaged.
        """
        check_writable(self.path)
        if not self.has_search:
            return []
        if not resume:
            raise FileError(
                self.path, "has the trials of a search; set `resume` to continue it, or remove the folder to start anew"
            )
        path, content = self.path / SEARCH, self._content
        before = _json_of(path)
        check_plain(before, dict[str, Any], "search")
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
        return sorted(
            (_trial_of(path) for path in sorted((self.path / TRIALS).glob("*.json")) if not path.name.startswith(".")),
            key=lambda trial: trial.number,
        )

    def add(self, trial: Trial) -> None:
        """Keep a finished trial, and before the first of them what is searched."""
        if not self.has_search:
            (self.path / TRIALS).mkdir(parents=True, exist_ok=True)
            write_text(self.path / SEARCH, json.dumps(self._content, indent=2) + "\n")
        write_text(self.path / TRIALS / trial.step.name, json.dumps(asdict(trial)) + "\n")


def _json_of(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError):
        raise FileError(path, "is damaged; remove it, and the trial is repeated") from None


def _trial_of(path: Path) -> Trial:
    content = _json_of(path)
    try:
        check_plain(content, Trial, "trial")
        numbers = [content["score"], content["seconds"], *content["without"]]
        if not np.isfinite(numbers).all() or content["seconds"] < 0 or len(content["without"]) < 2:
            raise HiNetError("it has numbers that no trial has")
        trial = Trial(**content)
    except HiNetError as error:
        raise FileError(path, f"is not a trial: {error}; remove it, and the trial is repeated") from None
    if trial.step.name != path.name:
        raise FileError(path, "is not the trial that its name says; remove it, and the trial is repeated")
    return trial


def by_step(trials: Sequence[Trial]) -> dict[tuple[Any, ...], Trial]:
    """Return trials by what they trained."""
    return {trial.step.key: trial for trial in trials}


def candidates_of(trials: Sequence[Trial]) -> list[Changes]:
    """Return the distinct changes of trials, the earliest first."""
    return list({key_of(trial.changes): trial.changes for trial in trials}.values())
