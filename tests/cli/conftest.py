"""Small files of products, and a model trained on them by the real program."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hinet.cli import main
from tests.cli.program import CAN_FORK, Program, started_program
from tests.processes import run

HINET = Path(sys.executable).with_name("hinet")
Run = Callable[..., subprocess.CompletedProcess[str]]

CATEGORIES = {
    "tv": ("electronics", "screen television inches colour"),
    "radio": ("electronics", "sound antenna stations tuner"),
    "rye": ("food", "dark bread loaf crust"),
    "milk": ("food", "white cow litre fresh"),
}


def run_hinet(
    *arguments: object, cwd: Path, stdin: str | bytes | None = None, new_process: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the real program, in a new interpreter if ``new_process``, else in a fork of one that has imported it."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    wide = {**os.environ, "COLUMNS": "200"}
    words = [*map(str, arguments)]
    if CAN_FORK and not new_process:
        done = _program().run(words, cwd, wide, given)
    else:
        done = run([HINET, *words], cwd=cwd, input=given, text=False, env=wide)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_inside(*arguments: object) -> int:
    """Run the program in this process and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@cache
def _program() -> Program:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(started_program())


def files_of(model: Path) -> Any:
    """Return the files of a saved model with their digests."""
    return json.loads((model / "manifest.json").read_text())["files"]


def products(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Return ``count`` ids, titles and categories."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        label = chance.choice(list(CATEGORIES))
        words = [*chance.sample(CATEGORIES[label][1].split(), 2), f"item{chance.randrange(50)}"]
        rows.append((str(number), " ".join(words), label))
    return rows


def write_products(path: Path, count: int, seed: int = 0) -> None:
    lines = ["id,title,category", *(",".join(row) for row in products(count, seed))]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the examples name, and a model trained by the example of train."""
    folder = tmp_path_factory.mktemp("shop")
    lines = ["node,parent,title", "electronics,,Electronics", "food,,Food and drink"]
    lines += [f"{label},{parent},The {label} itself" for label, (parent, _) in CATEGORIES.items()]
    (folder / "categories.csv").write_text("\n".join(lines) + "\n")
    (folder / "cat_hier.txt").write_text("1 2 3\n1 2 4\n1 5\n")
    lines = ["node,parent,title", "electronics,,Electronics", "food,,Food and drink", "bakery,food,Bakery"]
    lines += ["television,electronics,", "radio,food,", "rye,bakery,", "milk,food,", "cheese,food,"]
    (folder / "new_categories.csv").write_text("\n".join(lines) + "\n")
    (folder / "more.csv").write_text("id,title,category\n" + "1,yellow goat slice,cheese\n2,goat holes,cheese\n" * 12)
    write_products(folder / "products.csv", 300)
    write_products(folder / "test.csv", 80, seed=1)
    write_products(folder / "new_products.csv", 20, seed=2)
    done = run_hinet(*TRAIN_EXAMPLE.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


TRAIN_EXAMPLE = (
    "train products.csv --text title --label category --taxonomy categories.csv --valid-share 0.1 --out model"
)


@pytest.fixture
def shop(trained: Path, tmp_path: Path) -> Path:
    """A copy of the folder to work in."""
    return shutil.copytree(trained, tmp_path / "shop")
