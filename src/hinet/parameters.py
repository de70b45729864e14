"""What a parameter may be: rules that give errors which name the parameter, what was expected and what was got."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from hinet.errors import HiNetError, described

REFUSED: Final = object()  # what a rule reads from a value that it does not allow
MOST_THREADS = 256  # or as many as there are cores: more are slower, and a system may refuse them
LARGEST = 2**63 - 1  # kernels count in 64 bits with a sign


@dataclass(frozen=True)
class Rule:
    """What a parameter may be; rules are joined by ``|``.

    >>> (whole(1) | NONE).checked("width", 2.5)
    Traceback (most recent call last):
    ...
    hinet.errors.HiNetError: width: expected a whole number of at least 1 or None, got 2.5
    """

    expected: str
    read: Callable[[Any], Any]  # gives a plain Python value, or REFUSED
    remedy: str = ""

    def __or__(self, other: Rule) -> Rule:
        def read(value: Any) -> Any:
            found = self.read(value)
            return other.read(value) if found is REFUSED else found

        return Rule(f"{self.expected} or {other.expected}", read, self.remedy or other.remedy)

    def advising(self, remedy: str) -> Rule:
        """Return the same rule with a remedy for its error."""
        return replace(self, remedy=remedy)

    def checked(self, name: str, value: Any) -> Any:
        """Return a value as plain Python, or raise HiNetError."""
        found = self.read(value)
        if found is REFUSED:
            remedy = f"; {self.remedy}" if self.remedy else ""
            raise HiNetError(f"{name}: expected {self.expected}, got {described(value)}{remedy}")
        return found


Rules: TypeAlias = Mapping[str, Rule]


def checked_parameters(owner: object, rules: Rules) -> dict[str, Any]:
    """Return the parameters that an object holds as plain values; the first that is not allowed raises HiNetError."""
    return {name: rule.checked(name, getattr(owner, name)) for name, rule in rules.items()}


def settle(settings: object, rules: Rules) -> None:
    """Check the fields of a frozen dataclass when it is made, and keep them as plain values."""
    for name, value in checked_parameters(settings, rules).items():
        object.__setattr__(settings, name, value)


def whole(least: int, most: int = LARGEST) -> Rule:
    """Allow whole numbers, those of NumPy too."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            return REFUSED
        return int(value) if least <= value <= most else REFUSED

    bounds = f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
    return Rule(f"a whole number {bounds}", read)


def real(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    infinite: bool = False,
) -> Rule:
    """Allow numbers within bounds, finite ones unless ``infinite``."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            return REFUSED
        try:
            found = float(value)
        except OverflowError:
            return REFUSED
        inside = least <= found <= most and (found > above or above == -math.inf) and (found < below or infinite)
        return found if inside and (infinite or math.isfinite(found)) else REFUSED

    bounds = {
        f"at least {least:g}": least,
        f"above {above:g}": above,
        f"at most {most:g}": most,
        f"below {below:g}": below,
    }
    told = [text for text, bound in bounds.items() if math.isfinite(bound)]
    expected = f"a number {' and '.join(told)}" if told else "a finite number"
    return Rule(expected.replace("number at", "number of at"), read)


def one_of(*allowed: str) -> Rule:
    """Allow some texts."""
    texts = [repr(text) for text in allowed]
    expected = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
    return Rule(expected, lambda value: str(value) if isinstance(value, str) and value in allowed else REFUSED)


def instance(kind: type, words: str) -> Rule:
    """Allow values of a type, which an error calls by ``words``."""
    return Rule(words, lambda value: value if isinstance(value, kind) else REFUSED)


def _read_flag(value: Any) -> Any:
    is_flag = isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1))
    return bool(value) if is_flag else REFUSED


def _read_path(value: Any) -> Any:
    try:
        text = os.fsdecode(value)
    except TypeError:
        return REFUSED
    return Path(text) if text and "\0" not in text else REFUSED


def _read_threads(value: Any) -> Any:
    found = whole(-LARGEST).read(value)
    return REFUSED if found == 0 else found


NONE = Rule("None", lambda value: None if value is None else REFUSED)
FLAG = Rule("True or False", _read_flag)
PATH = Rule("a path", _read_path)
SHARE = real(above=0, below=1)
SEED = Rule("a whole number from 0 to 2**63 - 1", whole(0).read)
THREADS = Rule("a whole number other than 0", _read_threads, "-1 or None is a thread for each core") | NONE


def thread_count(threads: int | None) -> int:
    """Return how many threads are meant: None and -1 are one for each core, -2 is one fewer, as joblib has it."""
    asked: int | None = THREADS.checked("threads", threads)
    cores = os.cpu_count() or 1
    if asked is None:
        return cores
    return min(asked, max(cores, MOST_THREADS)) if asked > 0 else max(1, cores + 1 + asked)
