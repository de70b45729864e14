"""Accepted feedback in the memory of a running model, so that the next answer takes it into account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hinet.classifier.saved_model import LoadedModel
from hinet.data import Traces
from hinet.errors import HiNetError


class Correction(NamedTuple):
    """A row of the training table, and the node that is right for it."""

    row: dict[str, Any]
    node: str


def corrected(model: LoadedModel, corrections: Sequence[Correction]) -> tuple[LoadedModel, int]:
    """Return a model that remembers corrections, and how many it could learn.

    A model without a memory learns none. Corrections of rows or nodes that the model does not have, such as those of an
    earlier version with another taxonomy, are left out.
    """
    fitted = model.fitted
    if not fitted.can_correct:
        return model, 0
    taxonomy, labels = fitted.codec.taxonomy, set(fitted.codec.label_nodes.tolist())
    known = [each for each in corrections if each.node in taxonomy and taxonomy.position(each.node) in labels]
    known = [each for each in known if _is_readable(model, each)]
    if not known:
        return model, 0
    inputs = model.inputs_of([each.row for each in known])
    nodes = np.array([taxonomy.position(each.node) for each in known])
    rows = fitted.feature_rows(inputs)
    learned = int(fitted.has_vectors(rows).sum())
    if not learned:
        return model, 0
    traces = Traces.of_nodes(fitted.codec.layers, nodes)
    return replace(model, fitted=fitted.remembering(rows, traces, fitted.texts_to_remember(inputs))), learned


def _is_readable(model: LoadedModel, correction: Correction) -> bool:
    try:
        model.inputs_of([correction.row])
    except HiNetError:
        return False
    return True
