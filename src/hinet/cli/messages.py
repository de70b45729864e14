"""Messages of the library as command-line users know them: with options instead of parameters."""

from __future__ import annotations

import re

_PARAMETER = re.compile(r"`(\w+)`")
_NAMES = """
allowed_host bundle_encoder category cluster decoding encoder encoding format keep label label_sep language levels
metric min_confidence min_df min_probability minutes number objective parent_sep path_sep port prefix resume root scheme
sep split taxonomy test text titles valid_where vector vectors where workers
"""
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMES.split()} | {
    "node_column": "--node-col",
    "parent_column": "--parent-col",
}


def with_options(message: str) -> str:
    """Return a message with the parameters in backticks replaced by their options, where there are any.

    >>> with_options("set `label_sep` to the separator, or raise `members`")
    'set --label-sep to the separator, or raise members'
    """
    return _PARAMETER.sub(lambda match: _OPTIONS.get(match[1], match[1]), message)
