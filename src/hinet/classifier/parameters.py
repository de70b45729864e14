"""Parameters of the estimator: their rules, their form in a manifest, and settings files, which hold them as JSON."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args

import numpy as np

from hinet.choices import ThresholdsBy
from hinet.classifier.columns import KINDS
from hinet.classifier.predicted_sets import Objective
from hinet.data.text import TextSettings
from hinet.encoders.meaning import EncoderVectors, Meaning, TunedInput, is_auto
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine.search.predictor import DECODING, PROBABILITY, Engine
from hinet.engine.settings import RULES as ENGINE_RULES
from hinet.engine.settings import EngineSettings
from hinet.engine.training.checkpoints import CHECKPOINT_EVERY
from hinet.errors import FileError, HiNetError, did_you_mean, format_value
from hinet.extras import require
from hinet.files import check_plain
from hinet.files.atomic import write_text
from hinet.files.streams import read_text
from hinet.parameters import (
    FLAG,
    INVALID,
    NONE,
    PATH,
    SEED,
    SHARE,
    SOURCE,
    THREADS,
    Rule,
    Rules,
    instance,
    one_of,
    real,
    validate_parameters,
    whole,
)
from hinet.taxonomy import Taxonomy


def _read_class_weight(value: Any) -> Any:
    weight = real(0)
    fits = isinstance(value, Mapping) and all(weight.read(each) is not INVALID for each in value.values())
    return {label: float(each) for label, each in value.items()} if fits else INVALID


def _read_text(value: Any) -> Any:
    return str(value) if isinstance(value, str) and value else INVALID


def _read_columns(value: Any) -> Any:
    if not isinstance(value, Mapping) or not value or {*value} - {*KINDS}:
        return INVALID
    listed = {kind: [names] if isinstance(names, str) else names for kind, names in value.items()}
    for names in listed.values():
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            return INVALID
    return {kind: [str(name) for name in names] for kind, names in listed.items()}


def _read_network(value: Any) -> Any:
    require("torch", "`network`")
    from hinet.networks import is_network

    return value if is_network(value) else INVALID


def _read_device(value: Any) -> Any:
    if isinstance(value, str) and value == "cpu":
        return value
    require("torch", f"`device={format_value(value)}`")
    from hinet.networks import device_name

    return device_name(value) or INVALID


def _read_encoder(value: Any) -> Any:
    from hinet.encoders import Encoder

    return value if isinstance(value, Encoder | EncoderVectors) else INVALID


def _read_notes(value: Any) -> Any:
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return INVALID


def _read_pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple | list) and len(value) == 2 else INVALID


def _read_classes(value: Any) -> Any:
    return value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else INVALID


OBJECTIVE = one_of(*get_args(Objective)) | PROBABILITY
# Settings of the engine that the estimator does not have, or has under another name.
_ENGINE_ONLY = {
    "deep_rate", "deep_accumulator", "deep_epochs", "wide_rate", "wide_accumulator", "wide_epochs", "wide_prune",
    "wide_buckets", "flat_width", "flat_upper", "two_layers", "whiten", "seed", "threads",
}  # fmt: skip
ENGINE_SETTINGS = tuple(name for name in ENGINE_RULES if name not in _ENGINE_ONLY)
TAXONOMY = instance(Taxonomy, "a Taxonomy") | PATH
RULES: Rules = {
    "taxonomy": TAXONOMY | NONE,
    "engine": one_of("auto", "fused", "torch"),
    "text": instance(TextSettings, "a TextSettings") | NONE,
    "vectors": NONE | SOURCE | instance(TokenVectors, "TokenVectors"),
    "encoder": NONE | SOURCE | Rule("an Encoder", _read_encoder),
    "titles": FLAG | NONE,
    "columns": Rule(f"a mapping of {', '.join(map(repr, KINDS))} to names of columns", _read_columns) | NONE,
    "decoding": DECODING,
    "multilabel": one_of("auto") | FLAG,
    "objective": OBJECTIVE,
    "thresholds_by": one_of(*get_args(ThresholdsBy)),
    "path_sep": Rule("'auto', the separator of the steps of a path", _read_text) | NONE,
    "class_weight": one_of("balanced")
    | Rule("a mapping of labels to numbers of at least 0", _read_class_weight)
    | NONE,
    "validation_fraction": SHARE | NONE,
    "epochs": ENGINE_RULES["deep_epochs"],
    **{name: ENGINE_RULES[name] for name in ENGINE_SETTINGS},
    "network": NONE | Rule("a torch.nn.Module", _read_network),
    "device": NONE | Rule("a device that torch finds here, such as 'cpu'", _read_device),
    "keep_examples": FLAG,
    "warm_start": FLAG,
    "checkpoint": PATH | NONE,
    "checkpoint_every": CHECKPOINT_EVERY,
    "random_state": SEED | instance(np.random.RandomState, "a RandomState") | NONE,
    "n_jobs": THREADS,
    "verbose": FLAG | whole(0),
}

MIN_PROBABILITY = PROBABILITY | NONE
ARGUMENTS: Rules = {
    "allow_missing": FLAG,
    "certainty": SHARE,
    "classes": Rule("a list of labels", _read_classes) | NONE,
    "min_confidence": PROBABILITY | one_of("calibrated") | NONE,
    "min_probability": MIN_PROBABILITY,
    "most": whole(0),
    "notes": Rule("a mapping of texts to values that JSON can hold", _read_notes) | NONE,
    "path": PATH,
    "risk": SHARE | NONE,
    "taxonomy": TAXONOMY,
    "valid": Rule("a pair of rows and labels", _read_pair) | NONE,
}


def argument(name: str, value: Any) -> Any:
    """Return the argument of a method as a plain value; raise HiNetError if it is invalid."""
    return ARGUMENTS[name].validate(name, value)


def read_taxonomy(taxonomy: Taxonomy | Path) -> Taxonomy:
    """Return a taxonomy, read from its file if it is a path."""
    return Taxonomy.from_file(taxonomy) if isinstance(taxonomy, Path) else taxonomy


def seed_of(random_state: Any) -> int:
    """Return the seed for a ``random_state`` of any kind that scikit-learn allows."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(copy.deepcopy(random_state).randint(1 << 31))  # a copy, so that every call returns the same
    return int(random_state)


def engine_for(parameters: Mapping[str, Any]) -> Engine:
    """Return which engine trains: the fused one, unless torch, a feature network or a GPU is given."""
    parameter = torch_parameter(parameters)
    if parameter is None:
        return "fused"
    if parameters["engine"] == "fused":
        raise HiNetError(f"the fused engine trains on a CPU and makes its own network; leave {parameter} out")
    require("torch", parameter)
    return "torch"


def torch_parameter(parameters: Mapping[str, Any]) -> str | None:
    """Return the parameter that requires torch, as messages name it, or None."""
    if parameters["network"] is not None:
        return "`network`"
    if parameters["device"] not in (None, "cpu"):
        return f"`device={parameters['device']!r}`"
    return "`engine='torch'`" if parameters["engine"] == "torch" else None


def engine_settings(parameters: Mapping[str, Any]) -> EngineSettings:
    """Return the engine settings that the parameters of a classifier give."""
    return EngineSettings(
        **{name: parameters[name] for name in ENGINE_SETTINGS},
        deep_epochs=parameters["epochs"],
        seed=seed_of(parameters["random_state"]),
        threads=parameters["n_jobs"],
    )


def plain_parameters(estimator: Any) -> dict[str, Any]:
    """Return parameters as plain values for JSON, without the taxonomy, which has its own file, and ``network``."""
    excluded = ("network", "device")  # a device need not exist on this machine
    plain = validate_parameters(estimator, {name: rule for name, rule in RULES.items() if name not in excluded})
    device = estimator.device
    plain["device"] = None if device is None else str(device)
    plain["taxonomy"] = None if plain["taxonomy"] is None else "taxonomy"
    plain["text"] = None if plain["text"] is None else plain["text"].to_dict()
    plain["checkpoint"] = None
    for name in ("vectors", "encoder"):  # saved with the features
        plain[name] = plain[name] if plain[name] is None or is_auto(plain[name]) else name
    if isinstance(plain["class_weight"], dict):  # keys need not be text
        labels = [label.item() if isinstance(label, np.generic) else label for label in plain["class_weight"]]
        plain["class_weight"] = [[*pair] for pair in zip(labels, plain["class_weight"].values(), strict=True)]
    plain["random_state"] = seed_of(plain["random_state"])
    return plain


def restored_parameters(
    metadata: dict[str, Any], taxonomy: Taxonomy, meaning: Meaning | TunedInput | None
) -> dict[str, Any]:
    """Return the parameters of plain values."""
    vectors = metadata["vectors"] if is_auto(metadata["vectors"]) else None
    parameters = {**metadata, "checkpoint": None, "vectors": vectors, "encoder": None}
    if meaning is not None:
        parameters |= meaning.parameter
    if parameters["text"] is not None:
        parameters["text"] = TextSettings.from_dict(parameters["text"])
    if parameters["taxonomy"] is not None:
        parameters["taxonomy"] = taxonomy
    if isinstance(parameters["class_weight"], list):
        pairs = parameters["class_weight"]
        parameters["class_weight"] = {tuple(key) if isinstance(key, list) else key: weight for key, weight in pairs}
    return parameters


FORMAT = "hinet settings"
VERSION = 1

# Parameters of one run or one machine are not settings.
NOT_SETTINGS = ("taxonomy", "network", "device", "warm_start", "checkpoint", "checkpoint_every", "n_jobs", "verbose")
_JSON = {"None": "null", "True": "true", "False": "false"}  # values in messages as JSON
_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PYTHON = re.compile(rf"{_QUOTED}|\b(?:{'|'.join(_JSON)})\b")  # quoted text stays the same
SETTINGS = tuple(name for name in RULES if name not in NOT_SETTINGS)


class _File(TypedDict):
    format: Literal["hinet settings"]
    version: int
    parameters: dict[str, Any]
    search: NotRequired[dict[str, Any]]


def plain_settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of the estimator as plain values for JSON."""
    return {name: _plain(value) for name, value in parameters.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, TextSettings):
        return value.to_dict()
    return str(value) if isinstance(value, Path) else value


def restored_settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of plain values; raise HiNetError for an unknown or invalid one.

    >>> restored_settings({"epochs": 5, "text": {"min_df": 1}})["text"].min_df
    1
    """
    parameters = {}
    for name, value in plain.items():
        if name not in SETTINGS:
            raise HiNetError(f"unknown parameter {name!r}{did_you_mean(name, SETTINGS) or _choices(name)}")
        if name == "text" and value is not None:
            check_plain(value, dict[str, Any], "text")
            try:
                value = TextSettings.from_dict(value)
            except HiNetError as error:
                raise HiNetError(f"text: {error}") from None
        parameters[name] = RULES[name].validate(name, value)
    return parameters


def _choices(name: str) -> str:
    if name in RULES:
        return ", which belongs to one run; give it to the classifier instead"
    return f"; choose from {', '.join(SETTINGS)}"


def write_settings(path: str | Path, parameters: Mapping[str, Any], search: Mapping[str, Any] | None = None) -> None:
    """Write parameters to a settings file, with a record of the search for them."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "parameters": plain_settings(parameters)}
    if search is not None:
        content["search"] = dict(search)
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_settings(path: str | Path) -> dict[str, Any]:
    """Return the parameters of a settings file.

    Raises
    ------
    FileError
        If it cannot be read, is not JSON, or has an invalid entry, which the message names.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(path, f"is not JSON: {error.msg}", line=error.lineno) from None
    except RecursionError:
        raise FileError(path, "is nested too deeply for settings") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileError(path, f'is not a settings file: it has no entry "format": "{FORMAT}"; see `hinet tune`')
    try:
        check_plain(content, _File, "settings")
        if content["version"] != VERSION:
            raise HiNetError(f"version is {content['version']}, and this hinet reads {VERSION}; write the file again")
        return restored_settings(content["parameters"])
    except HiNetError as error:
        raise FileError(path, _PYTHON.sub(lambda word: _JSON.get(word[0], word[0]), str(error))) from None
