"""Messages of the library as command-line users know them: with options instead of parameters."""

from __future__ import annotations

import re

_PARAMETER = re.compile(r"`(\w+)(?:=([^`]+))?`")
_NAMES = """
allowed_host bundle_encoder category cluster decoding encoder encoding format keep label label_sep language levels
memory_limit metric min_confidence min_df min_probability minutes number objective parent_sep path_sep patience port
prefix resume risk root scheme sep split taxonomy test text threads titles top valid valid_where vector vectors where
width workers
"""
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMES.split()} | {
    "checkpoint": "--out",  # checkpoints are next to the model
    "node_column": "--node-col",
    "parent_column": "--parent-col",
    "texts": "--rows",
    "validation_fraction": "--valid-share",
}
_ASSIGNMENTS = {
    "engine='torch'": "--fine-tune",
    "keep_names=True": '"keep_names": true in the "text" of --settings',
    "multilabel=False": "--single-label",
    "multilabel=True": "--multilabel",
    "path_sep=None": "--path-sep none",
    "titles=False": "--no-titles",
    "titles=True": "--titles",
}
QUOTE = "'"
_JSON = {"None": "null", "True": "true", "False": "false"}


def with_options(message: str) -> str:
    """Return a message with the parameters in backticks replaced by options, or by entries of a settings file.

    >>> with_options("set `label_sep` to the separator, or raise `members`")
    'set --label-sep to the separator, or raise "members" of --settings'
    >>> with_options("leave it out with `wide=False`, or set `decoding='label'` and `multilabel=False`")
    'leave it out with "wide": false of --settings, or set --decoding label and --single-label'
    """
    return _PARAMETER.sub(lambda match: _ASSIGNMENTS.get(match[0][1:-1]) or _option(match[1], match[2]), message)


def _option(name: str, value: str | None) -> str:
    if name in OPTIONS:
        return OPTIONS[name] if value is None else f"{OPTIONS[name]} {value.strip(QUOTE)}"
    from hinet.classifier.parameters import SETTINGS

    if name in SETTINGS:
        return f'"{name}"{"" if value is None else f": {_JSON.get(value, value)}"} of --settings'
    return name if value is None else f"{name}={value}"
