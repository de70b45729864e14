"""Measure an installation: seconds of ``pip install`` and megabytes, for the wheel alone and with torch.

    python benchmarks/install.py [case ...]

Every case installs the wheel, with the tested versions, into fresh environments. From the second time on, packages come
from pip's cache, so that the lowest time excludes the network. torch is the build that pip finds; on Linux, PyPI's
build includes CUDA and is far larger. Results: ``benchmarks/results/install.json``.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

from measure import LONGEST, Case, Stopwatch, run_cases

ROOT = Path(__file__).parents[1]
REPEATS = 2


def pip(python: Path, *arguments: str | Path) -> None:
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run([*map(str, command)], check=True, timeout=LONGEST)


def megabytes(folder: Path) -> float:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6)


def installed(extra: str, package: str | None = None) -> dict[str, Any]:
    """Measure the installation of the wheel with an extra, and the version of a package that it installs."""
    seconds = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            venv.create(folder / "venv", with_pip=True)
            python = folder / "venv" / "bin" / "python"
            (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
            pip(python, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
            (wheel,) = folder.glob("hinet-*.whl")
            before, watch = megabytes(packages), Stopwatch()
            pip(python, "install", "--constraint", ROOT / "constraints.txt", f"{wheel}{extra}")
            seconds.append(watch.seconds)
            found: dict[str, Any] = {"seconds": min(seconds), "megabytes": megabytes(packages) - before}
            if package is not None:
                code = f"from importlib.metadata import version; print(version({package!r}))"
                version = subprocess.check_output([python, "-c", code], text=True, timeout=LONGEST)
                found[package] = version.strip()
    return found


CASES: dict[str, Case] = {
    "without torch": lambda: installed(""),
    "with torch": lambda: installed("[torch]", "torch"),
}


if __name__ == "__main__":
    run_cases(__file__, "install", CASES)
