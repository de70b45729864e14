"""What a user meets first: the public names, the weight of an import, the speed of --help."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import hinet

HINET = Path(sys.executable).with_name("hinet")

_REFUSES_HEAVY_IMPORTS = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {heavy!r}:
            raise AssertionError(f"imported {{name}}")
sys.meta_path.insert(0, Refuse())
"""


def run_refusing(heavy: list[str], code: str) -> None:
    source = _REFUSES_HEAVY_IMPORTS.format(heavy=heavy) + code
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_listed_and_found() -> None:
    assert hinet.__all__ == sorted(hinet.__all__)
    assert set(hinet.__all__) == set(hinet._HOMES)
    for name in hinet.__all__:
        assert getattr(hinet, name).__name__ == name


def test_the_version_is_that_of_the_package() -> None:
    assert hinet.__version__ == version("hinet")
    done = subprocess.run([HINET, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hinet {hinet.__version__}\n"


def test_import_hinet_is_light() -> None:
    run_refusing(["torch", "numpy", "scipy", "sklearn", "numba", "pyarrow", "rich", "typer"], "import hinet")


def test_the_taxonomy_needs_no_torch() -> None:
    run_refusing(["torch"], "import hinet; hinet.Layers.of(hinet.Taxonomy.from_edges([('a', 'b')])); hinet.Traces")


def test_help_imports_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "scipy", "sklearn", "numba", "pyarrow"]
    run_refusing(heavy, "from hinet.cli import main\ntry: main(['--help'])\nexcept SystemExit as e: assert e.code == 0")


def test_help_answers_in_half_a_second() -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([HINET, "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5
