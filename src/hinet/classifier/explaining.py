"""Why a trace: at every step, what pushed to the chosen option against its strongest rival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.answers import Trace, trace_along
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import TextInput
from hinet.data import Traces
from hinet.data.text import unknown_words
from hinet.engine.search.contributions import GroupParts
from hinet.engine.search.odds_scaling import odds_shift
from hinet.taxonomy import STOP

STOPS = "(stops here)"  # the option of ending at the node itself


class Reason(NamedTuple):
    """A feature of the row and what it adds to the logit of the chosen option, less what it adds to the rival's."""

    feature: str
    push: float


@dataclass(frozen=True)
class Step:
    """A choice on the way down.

    The pushes of all ``reasons``, ``others`` (features that are not listed) and ``rest`` (biases) add up to
    ``difference``, by how much the logit of ``chosen`` is above that of ``rival``.
    """

    chosen: str
    probability: float  # among its siblings
    rival: str
    difference: float
    reasons: tuple[Reason, ...]
    others: float
    rest: float


@dataclass(frozen=True)
class Explanation:
    """The steps of a trace at which there was a choice, from the top down; and the words that the model does not know.

    Words that are no features still count by their character n-grams, if these are features.
    """

    trace: Trace
    steps: tuple[Step, ...]
    unknown_words: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{' / '.join(self.trace.steps)}  ({self.trace.probability:.3f})"]
        if self.unknown_words:
            lines.append(f"unknown words: {', '.join(self.unknown_words)}")
        for step in self.steps:
            lines.append(f"{step.chosen}  {step.probability:.3f}, against {step.rival} by {step.difference:+.2f}")
            lines += [f"    {reason.push:+8.3f}  {reason.feature}" for reason in step.reasons]
            lines.append(f"    {step.others:+8.3f}  other features")
            lines.append(f"    {step.rest:+8.3f}  without any feature")
        return "\n".join(lines)


def explained(fitted: Fitted, row: Any, traces: Traces, most: int, text: str | None = None) -> Explanation:
    """Explain the most probable of the given traces for a matrix of one row, made of ``text`` if it was one."""
    parts = fitted.predictor.row_parts(row)
    parts_of = lru_cache(maxsize=None)(parts.of_group)
    options, offsets = traces.options()
    walks = [options[start:end].tolist() for start, end in pairwise(offsets.tolist())]
    along = [[_log_p(fitted, parts_of, option) for option in walk] for walk in walks]
    at = int(np.argmax([sum(log_p) for log_p in along]))
    layers = fitted.form.layers
    steps = []
    for option in walks[at]:
        group = int(layers.option_parent[option])
        low = int(layers.option_offsets[group])
        if layers.option_offsets[group + 1] - low > 1:
            steps.append(_step(fitted, parts_of(group), option - low, low, parts.features, most))
    unknown: tuple[str, ...] = ()
    if text is not None and isinstance(fitted.features, TextInput):
        unknown = unknown_words(fitted.features.features, text)
    return Explanation(_walked(fitted, row, walks[at], along[at]), tuple(steps), unknown)


def _log_p(fitted: Fitted, parts_of: Callable[[int], GroupParts], option: int) -> float:
    """Return the log probability of an option in its group."""
    layers = fitted.form.layers
    group = int(layers.option_parent[option])
    low = int(layers.option_offsets[group])
    if layers.option_offsets[group + 1] - low == 1:
        return 0.0
    logits = parts_of(group).logits
    return float(logits[option - low] - np.logaddexp.reduce(logits))


def _walked(fitted: Fitted, row: Any, walk: list[int], log_p: list[float]) -> Trace:
    """Return the options of a walk, the last of which is to stop, as a trace."""
    layers = fitted.form.layers
    path = layers.node[layers.option_neuron[walk[:-1]]].tolist()
    falling = np.exp(np.cumsum(log_p))
    slope = fitted.predictor.odds_scale
    if slope != 1:
        best = fitted.predictor.scaled(1.0, 1.0).traces(row).traces
        assert best.log_p is not None
        gift = float(odds_shift(np.exp(best.log_p), slope)[0])
        shared = np.isin(walk, best.options()[0])
        falling = (1 - gift) * falling + gift * shared
    return trace_along(fitted.form, path, tuple(falling[:-1].tolist()), float(falling[-1]))


def _step(fitted: Fitted, found: GroupParts, chosen: int, low: int, features: NDArray[np.int64], most: int) -> Step:
    logits = found.logits
    others = np.arange(len(logits)) != chosen
    rival = int(np.flatnonzero(others)[np.argmax(logits[others])])
    (pushes_to, rest), (pushes_away, rest_away) = found.of(chosen), found.of(rival)
    pushes = pushes_to - pushes_away
    order = np.argsort(-np.abs(pushes), kind="stable")[:most]
    order = order[pushes[order] != 0]
    names = fitted.features.names(features[order])
    share = np.exp(logits - logits.max())
    return Step(
        _option_name(fitted, low + chosen),
        float(share[chosen] / share.sum()),
        _option_name(fitted, low + rival),
        float(logits[chosen] - logits[rival]),
        tuple(Reason(name, float(pushes[at])) for name, at in zip(names, order, strict=True)),
        float(pushes.sum() - pushes[order].sum()),
        rest - rest_away,
    )


def _option_name(fitted: Fitted, option: int) -> str:
    layers = fitted.form.layers
    target = int(layers.option_neuron[option])
    return STOPS if target == STOP else layers.taxonomy.ids[layers.node[target]]
