"""Validation of parameters by rules, and limits of the machine: threads and memory.

Errors name the parameter, the expected and the actual value.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, get_type_hints

import numpy as np

from hinet.errors import HiNetError, format_value

INVALID: Final = object()  # returned by a rule for a value that is not allowed
MAX_THREADS = 256  # or the number of cores if larger: more threads are slower, and the system may refuse them
GB = 1e9
CONTAINER_LIMITS = (  # control groups, version 2 and version 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
LARGEST = 2**63 - 1  # kernels use signed 64-bit integers


@dataclass(frozen=True)
class Rule:
    """The allowed values of a parameter; ``|`` joins two rules.

    >>> (whole(1) | NONE).validate("width", 2.5)
    Traceback (most recent call last):
    ...
    hinet.errors.HiNetError: width: expected a whole number of at least 1 or None, got 2.5
    """

    expected: str
    read: Callable[[Any], Any]  # returns a plain Python value, or INVALID
    remedy: str = ""

    def __or__(self, other: Rule) -> Rule:
        def read(value: Any) -> Any:
            result = self.read(value)
            return other.read(value) if result is INVALID else result

        return Rule(f"{self.expected} or {other.expected}", read, self.remedy or other.remedy)

    def with_remedy(self, remedy: str) -> Rule:
        """Return the same rule with a remedy in its error message."""
        return replace(self, remedy=remedy)

    def validate(self, name: str, value: Any) -> Any:
        """Return the value as a plain Python value, or raise HiNetError."""
        result = self.read(value)
        if result is INVALID:
            remedy = f"; {self.remedy}" if self.remedy else ""
            raise HiNetError(f"{name}: expected {self.expected}, got {format_value(value)}{remedy}")
        return result


Rules: TypeAlias = Mapping[str, Rule]


def rules_of(settings: type) -> Rules:
    """Return the rules of a dataclass, of the fields that are ``Annotated[type, rule]``."""
    fields = get_type_hints(settings, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in fields.items() if hasattr(hint, "__metadata__")}


def validate_parameters(owner: object, rules: Rules) -> dict[str, Any]:
    """Return the parameters of an object as plain values; raise HiNetError for the first invalid one."""
    return {name: rule.validate(name, getattr(owner, name)) for name, rule in rules.items()}


def validate_fields(settings: object, rules: Rules) -> None:
    """Validate the fields of a frozen dataclass in its ``__post_init__``, and store them as plain values."""
    for name, value in validate_parameters(settings, rules).items():
        object.__setattr__(settings, name, value)


def whole(low: int, high: int = LARGEST) -> Rule:
    """Allow Python and NumPy integers from ``low`` to ``high``."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            return INVALID
        return int(value) if low <= value <= high else INVALID

    bounds = f"of at least {low}" if high == LARGEST else f"from {low} to {high}"
    return Rule(f"a whole number {bounds}", read)


def real(
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    infinite: bool = False,
) -> Rule:
    """Allow numbers within bounds, which must be finite unless ``infinite``."""

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            return INVALID
        try:
            number = float(value)
        except OverflowError:
            return INVALID
        inside = low <= number <= high and (number > above or above == -math.inf) and (number < below or infinite)
        return number if inside and (infinite or math.isfinite(number)) else INVALID

    bounds = {
        f"at least {low:g}": low,
        f"above {above:g}": above,
        f"at most {high:g}": high,
        f"below {below:g}": below,
    }
    limits = [text for text, bound in bounds.items() if math.isfinite(bound)]
    expected = f"a number {' and '.join(limits)}" if limits else "a finite number"
    return Rule(expected.replace("number at", "number of at"), read)


def one_of(*allowed: str) -> Rule:
    """Allow only these strings."""
    texts = [repr(text) for text in allowed]
    expected = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
    return Rule(expected, lambda value: str(value) if isinstance(value, str) and value in allowed else INVALID)


def instance(kind: type, description: str) -> Rule:
    """Allow instances of a type; errors show its ``description``."""
    return Rule(description, lambda value: value if isinstance(value, kind) else INVALID)


def _read_flag(value: Any) -> Any:
    is_flag = isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1))
    return bool(value) if is_flag else INVALID


def _read_path(value: Any) -> Any:
    try:
        text = os.fsdecode(value)
    except TypeError:
        return INVALID
    return Path(text) if text and "\0" not in text else INVALID


def _read_source(value: Any) -> Any:
    path = _read_path(value)
    return value if isinstance(value, str) and path is not INVALID else path


def _read_threads(value: Any) -> Any:
    count = whole(-LARGEST).read(value)
    return INVALID if count == 0 else count


NONE = Rule("None", lambda value: None if value is None else INVALID)
FLAG = Rule("True or False", _read_flag)
PATH = Rule("a path", _read_path)
SOURCE = Rule("a path or a name", _read_source)  # text is not converted to a path, as it may be a name
SHARE = real(above=0, below=1)
SEED = Rule("a whole number from 0 to 2**63 - 1", whole(0).read)
THREADS = Rule("a whole number other than 0", _read_threads, "-1 or None means one per core") | NONE


def resolve_threads(threads: int | None) -> int:
    """Return the number of threads: one per core for None and -1, one fewer for -2, as in joblib."""
    count: int | None = THREADS.validate("threads", threads)
    cores = os.cpu_count() or 1
    if count is None:
        return cores
    return min(count, max(cores, MAX_THREADS)) if count > 0 else max(1, cores + 1 + count)


def total_memory() -> int:
    """Return the bytes this process may use: the smallest limit of the machine, the container and the process."""
    limits = [sys.maxsize]
    with suppress(AttributeError, ValueError, OSError):  # not every system reports it
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or "max"
            limits.append(int(file.read_text()))
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [limit] if limit != resource.RLIM_INFINITY else []
    return min(number for number in limits if number > 0)


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise HiNetError if ``needed`` bytes exceed the memory of this process."""
    available = total_memory()
    if needed > available:
        raise HiNetError(f"{what}, more than the {available / GB:.2f} GB of memory available; {remedy}")
