"""Tests and benchmarks cannot hang because of a process that they start."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def has_timeout(call: ast.Call) -> bool:
    return any(keyword.arg == "timeout" for keyword in call.keywords)


def unlimited(path: Path) -> list[str]:
    """Return the calls in a file that start a process without a time limit."""
    found = []
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        limits = any(has_timeout(call) or ast.unparse(call.func) == "Timer" for call in calls)
        for call in calls:
            name = ast.unparse(call.func)
            if name.startswith("subprocess.") and not (has_timeout(call) or (name == "subprocess.Popen" and limits)):
                found.append(f"{path.relative_to(ROOT)}:{call.lineno}: {name}")
    return found


def test_every_started_process_has_a_time_limit() -> None:
    files = [file for folder in ("tests", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 50
    without = [call for file in files for call in unlimited(file) if "CompletedProcess" not in call]
    assert not without, "give these a timeout=, or use tests/processes.py"
