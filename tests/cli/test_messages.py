"""Messages of the library, as the shell prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import hinet
from hinet.classifier.parameters import RULES, SETTINGS
from hinet.cli.main import OPTIONS, with_options
from tests.cli.test_help import COMMANDS

PACKAGE = Path(hinet.__file__).parent
NOT_OF_THE_LIBRARY = ("cli", "serving", "exporting/export.py", "classifier/model_card.py")
ONLY_IN_PYTHON = {
    "device",
    "ends",
    "hash_bits",
    "labels",
    "level_weights",
    "min_df",
    "network",
    "runner",
    "sample_weight",
    "start",
    "tied",
    "two_layers",
    "warm_start",
}
OF_SHELL = {option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts}


@cache
def messages() -> tuple[str, ...]:
    """Return all texts in the library but docstrings; {} is what is formatted."""
    return tuple(_messages())


def _messages() -> Iterator[str]:
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).as_posix().startswith(NOT_OF_THE_LIBRARY):
            continue
        tree = ast.parse(path.read_text())
        other = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        other |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in other:
                yield node.value


def test_every_option_that_messages_name_exists() -> None:
    assert {*OPTIONS.values()} <= OF_SHELL


def test_every_parameter_in_a_message_is_an_option_an_entry_of_settings_or_only_in_python() -> None:
    named = {name for message in messages() for name in re.findall(r"`(\w+)(?:=[^`]+)?`", message)}
    assert len(named) > 40
    assert named - {*OPTIONS} - {*SETTINGS} - {"keep_names", "neg_"} <= ONLY_IN_PYTHON


def test_no_message_assigns_to_a_parameter_outside_of_backticks() -> None:
    assignment = re.compile(rf"\b(?:{'|'.join(RULES)})=(?:True|False|None|[\d'{{])")
    outside = [
        message for message in messages() if assignment.search(re.sub("`[^`]*`", "", message)) and " " in message
    ]
    assert outside == []


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("lower `width` or `members`", 'lower --width or "members" of --settings'),
        ("leave it out with `wide=False`", 'leave it out with "wide": false of --settings'),
        ("set `multilabel=False`", "set --single-label"),
        ("more than `memory_limit=0.5`", "more than --memory-limit 0.5"),
        ("`engine='torch'` needs torch", "--fine-tune needs torch"),
        ("`top` must be 1 with `decoding='expected_f1'`", "--top must be 1 with --decoding expected_f1"),
        ("takes no `sample_weight`", "takes no sample_weight"),
    ],
)
def test_the_shell_names_its_own_options(message: str, shown: str) -> None:
    assert with_options(message) == shown
