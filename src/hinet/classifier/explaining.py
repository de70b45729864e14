"""Why a trace: at every step, what pushed to the chosen option against its strongest rival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.answers import Trace
from hinet.classifier.fitted import Fitted
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, is_sparse
from hinet.engine import FusedModel
from hinet.engine.contributions import Contributions, contributions
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
    """The steps of a trace at which there was a choice, from the top down."""

    trace: Trace
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"{' / '.join(self.trace.steps)}  ({self.trace.probability:.3f})"]
        for step in self.steps:
            lines.append(f"{step.chosen}  {step.probability:.3f}, against {step.rival} by {step.difference:+.2f}")
            lines += [f"    {reason.push:+8.3f}  {reason.feature}" for reason in step.reasons]
            lines.append(f"    {step.others:+8.3f}  other features")
            lines.append(f"    {step.rest:+8.3f}  without any feature")
        return "\n".join(lines)


def explained(fitted: Fitted, row: Any, trace: Traces, shown: Trace, most: int) -> Explanation:
    """Explain the first trace of ``trace`` for a matrix of one row."""
    parts, features = _parts(fitted, row)
    options, offsets = trace.options()
    layers = trace.layers
    steps = []
    for option in options[offsets[0] : offsets[1]].tolist():
        group = int(layers.option_parent[option])
        low, high = int(layers.option_offsets[group]), int(layers.option_offsets[group + 1])
        if high - low > 1:
            found = parts(group)
            steps.append(_step(fitted, found, option - low, low, features, most))
    return Explanation(shown, tuple(steps))


def _parts(fitted: Fitted, row: Any) -> tuple[Callable[[int], Contributions], NDArray[np.int64]]:
    """Return what gives the parts of a group's logits, and the features these belong to."""
    model = fitted.model
    if isinstance(model, FusedModel):
        matrix = SparseMatrix.of(row)
        return lambda group: contributions(model, matrix, group), matrix.indices.astype(np.int64)
    from hinet.training.contributions import NetworkContributions

    features = row.indices.astype(np.int64) if is_sparse(row) else np.arange(row.shape[1])
    return NetworkContributions(model, row), features


def _step(fitted: Fitted, found: Contributions, chosen: int, low: int, features: NDArray[np.int64], most: int) -> Step:
    logits = found.by_feature.sum(1) + found.rest
    others = np.arange(len(logits)) != chosen
    rival = int(np.flatnonzero(others)[np.argmax(logits[others])])
    pushes = found.by_feature[chosen] - found.by_feature[rival]
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
        float(found.rest[chosen] - found.rest[rival]),
    )


def _option_name(fitted: Fitted, option: int) -> str:
    layers = fitted.form.layers
    target = int(layers.option_neuron[option])
    return STOPS if target == STOP else layers.taxonomy.ids[layers.node[target]]
