"""The parameters and the calibration of an estimator as plain values for a manifest, and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from hinet.classifier.confidence import Calibration
from hinet.data.text import TextSettings
from hinet.evaluation.risk import Promise
from hinet.taxonomy import Taxonomy


def seed_of(random_state: Any) -> int:
    """Return the seed of all that is random, for any ``random_state`` of scikit-learn."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(copy.deepcopy(random_state).randint(1 << 31))  # the same at every look
    return int(random_state)


def plain_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as plain values for JSON; the taxonomy is kept elsewhere, a network of one's own is not."""
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in parameters.items()
        if name != "network"
    }
    plain["taxonomy"] = None if plain["taxonomy"] is None else "taxonomy"
    plain["text"] = None if plain["text"] is None else plain["text"].described()
    plain["checkpoint"] = None
    if isinstance(plain["class_weight"], dict):  # keys need not be text
        plain["class_weight"] = [[label, float(weight)] for label, weight in plain["class_weight"].items()]
    plain["random_state"] = seed_of(plain["random_state"])
    return plain


def restored_parameters(told: dict[str, Any], taxonomy: Taxonomy) -> dict[str, Any]:
    """Return the parameters that gave these plain values."""
    parameters = {**told, "checkpoint": None}
    if parameters["text"] is not None:
        parameters["text"] = TextSettings.from_described(parameters["text"])
    if parameters["taxonomy"] is not None:
        parameters["taxonomy"] = taxonomy
    if isinstance(parameters["class_weight"], list):
        pairs = parameters["class_weight"]
        parameters["class_weight"] = {tuple(key) if isinstance(key, list) else key: weight for key, weight in pairs}
    return parameters


def restored_calibration(told: dict[str, Any]) -> Calibration:
    """Return the calibration that gave these plain values."""
    promise = told["promise"]
    return Calibration(**{**told, "promise": None if promise is None else Promise(**promise)})
