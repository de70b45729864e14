"""The search space: changes of single parameters, in the order in which they are tried, and combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hinet.classifier.parameters import plain_settings
from hinet.data.text import TextSettings
from hinet.data.text.features import MAX_TEXTS_FOR_ALL
from hinet.engine.settings import MAX_FLAT_LABELS, has_flat_by_default

TEXT = "text."  # prefix of the names of text settings
MAX_TRIED_FLAT_LABELS = 2 * MAX_FLAT_LABELS
ATTEMPTS = 50  # attempts to draw a new combination
PARENTS = 6  # number of the best changes that are combined

# Tried first, because they gained most on held-out training rows of NAICS and LSHTC.
FIRST = (
    "members",
    f"{TEXT}min_df",
    "epochs",
    "width",
    f"{TEXT}char_ngrams",
    "wide",
    "prior_strength",
    "feature_dropout",
)

Changes = Mapping[str, Any]  # names with plain values; {} are the defaults


class Size(NamedTuple):
    """Members of the deep expert, their width, and its epochs."""

    members: int
    width: int
    epochs: int


@dataclass(frozen=True)
class Problem:
    """Properties of the rows that decide which parameters are worth a change."""

    rows: int
    labels: int
    default_size: Size  # on all rows
    has_text: bool
    has_short_texts: bool = False  # short texts have character n-grams by default
    is_frame: bool = False
    is_dense: bool = False
    several: bool = False
    is_tree: bool = True
    has_titles: bool = False
    has_thresholds: bool = False  # whether thresholds of sets are learned on validation rows
    hierarchical: bool = False  # whether the metric depends on the hierarchy


@dataclass(frozen=True)
class Space:
    """The values of each parameter other than its default, in the order in which they are tried."""

    values: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, problem: Problem, base: Mapping[str, Any]) -> Space:
        """Return the space for a problem without the given parameters ``base``; vectors may be left out."""
        values: dict[str, tuple[Any, ...]] = dict.fromkeys(FIRST, ()) | _engine_values(problem)
        if problem.has_text and base.get("text") is None:
            values |= _text_values(problem)
        if problem.has_text and not problem.is_frame and problem.has_titles:
            values["titles"] = (True, False)
        if problem.several and problem.has_thresholds:
            values |= {"thresholds_by": ("level",), "objective": ("macro_f1",)}
        if problem.hierarchical and not problem.several:
            values["decoding"] = ("expected_f1",)
        values = {name: options for name, options in values.items() if options and name not in base}
        if base.get("vectors") not in (None, "none"):
            values["vectors"] = (None,)
        return cls(values)

    @cached_property
    def singles(self) -> list[Changes]:
        """Changes of one parameter: the first value of each, then the second, and so on."""
        most = max(map(len, self.values.values()), default=0)
        return [
            {name: options[number]}
            for number in range(most)
            for name, options in self.values.items()
            if number < len(options)
        ]

    def combined(
        self, best: Sequence[Changes], is_new: Callable[[Changes], bool], random: np.random.Generator
    ) -> Changes | None:
        """Return a new combination of two of the best changes, or of one of them with a random change."""
        singles = self.singles
        parents = [changes for changes in best if changes][:PARENTS]
        if not parents:
            return None
        for first in range(len(parents)):  # the best pair before random combinations
            for second in range(first):
                joined = {**parents[first], **parents[second]}
                if is_new(joined):
                    return joined
        for _ in range(ATTEMPTS if singles else 0):
            parent = parents[min(int(random.geometric(0.4)) - 1, len(parents) - 1)]
            changes = {**parent, **singles[int(random.integers(len(singles)))]}
            if is_new(changes):
                return changes
        return None


def _engine_values(problem: Problem) -> dict[str, tuple[Any, ...]]:
    members, width, epochs = problem.default_size
    dense_sets = problem.is_dense and problem.several  # they have more dropout of units by default
    values: dict[str, tuple[Any, ...]] = {
        "members": (2 * members,),
        "epochs": (round(1.5 * epochs), 2 * epochs, max(1, round(0.6 * epochs))),
        "width": (2 * width, max(16, width // 2)),
        "prior_strength": (0.5, 0.1),
        "feature_dropout": (0.3, 0.5) if not dense_sets else (0.0, 0.2),
        "dropout": (0.5, 0.15) if not dense_sets else (0.75, 0.45),
        "wide": (False,),
        "flat": (not has_flat_by_default(problem.labels, problem.rows),),
    }
    left_out = {"prior_strength", "flat"} if problem.several else set()
    if not problem.is_tree or problem.labels > MAX_TRIED_FLAT_LABELS:
        left_out |= {"flat"}
    if problem.is_dense:
        left_out |= {"wide"} if problem.several else {"feature_dropout"}
    return {name: options for name, options in values.items() if name not in left_out}


def _text_values(problem: Problem) -> dict[str, tuple[Any, ...]]:
    values: dict[str, tuple[Any, ...]] = {
        f"{TEXT}min_df": (2, 3) if problem.rows <= MAX_TEXTS_FOR_ALL else (1, 3),
        f"{TEXT}char_ngrams": ([2, 5], [3, 6], None) if problem.has_short_texts else ([3, 5],),
        f"{TEXT}word_ngrams": ([1, 1], [1, 3]),
    }
    return values | ({f"{TEXT}char_weight": (0.5, 2.5)} if problem.has_short_texts else {})


def parameters_of(changes: Changes, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the estimator: those of ``base`` with the changes.

    >>> parameters_of({"epochs": 5, "text.min_df": 1}, {})["text"].min_df
    1
    """
    own = {name: value for name, value in changes.items() if not name.startswith(TEXT)}
    text = {name.removeprefix(TEXT): value for name, value in changes.items() if name.startswith(TEXT)}
    if text:
        own["text"] = replace(base.get("text") or TextSettings(), **text)
    return {**base, **own}


def settings_of(changes: Changes, base: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return all parameters of the space and those that are given, as plain values for a settings file."""
    names = dict.fromkeys("text" if name.startswith(TEXT) else name for name in space.values)
    defaults = {name: _DEFAULTS.get(name) for name in names}
    return plain_settings({**defaults, **parameters_of(changes, base)})


_DEFAULTS = {"wide": True, "decoding": "map", "objective": "micro_f1", "thresholds_by": "all"}


def key_of(changes: Changes) -> tuple[tuple[str, str], ...]:
    """Return a key that equal changes share."""
    return tuple(sorted((name, repr(value)) for name, value in changes.items()))


def text_of(changes: Changes) -> str:
    """Return changes as text for users.

    >>> text_of({"members": 4, "text.char_ngrams": [3, 5]})
    'members=4 char_ngrams=3-5'
    """
    parts = [f"{name.removeprefix(TEXT)}={short_text(value)}" for name, value in changes.items()]
    return " ".join(parts) or "defaults"


def short_text(value: Any) -> str:
    """Return a value as text for users."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
