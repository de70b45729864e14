"""Settings files: parameters of the estimator as JSON, such as those that ``hinet tune`` finds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from hinet.classifier.parameters import RULES
from hinet.data.text import TextSettings
from hinet.errors import FileError, HiNetError, did_you_mean
from hinet.files import check_plain
from hinet.files.atomic import write_text
from hinet.files.text import read_text

FORMAT = "hinet settings"
VERSION = 1

# What goes with one run or one machine is no setting.
NOT_SETTINGS = ("taxonomy", "network", "device", "warm_start", "checkpoint", "checkpoint_every", "n_jobs", "verbose")
_JSON = {"None": "null", "True": "true", "False": "false"}  # what a file has for values that messages name
_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PYTHON = re.compile(rf"{_QUOTED}|\b(?:{'|'.join(_JSON)})\b")  # what is in quotes is text, and stays
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
    """Return the parameters that gave these plain values, or raise HiNetError that names the invalid one.

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
        return ", which goes with one run; give it to the classifier instead"
    return f"; choose from {', '.join(SETTINGS)}"


def write_settings(path: str | Path, parameters: Mapping[str, Any], search: Mapping[str, Any] | None = None) -> None:
    """Write parameters to a settings file, with how they were found."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "parameters": plain_settings(parameters)}
    if search is not None:
        content["search"] = dict(search)
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_settings(path: str | Path) -> dict[str, Any]:
    """Return the parameters of a settings file.

    Raises
    ------
    FileError
        If it cannot be read, is not JSON, or holds anything but valid parameters; names the entry.
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
            raise HiNetError(f"version is {content['version']}, and this hinet reads {VERSION}; write the file anew")
        return restored_settings(content["parameters"])
    except HiNetError as error:
        raise FileError(path, _PYTHON.sub(lambda word: _JSON.get(word[0], word[0]), str(error))) from None
