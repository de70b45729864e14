"""Public names, light imports and a fast --help."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import hinet
from hinet.cli.main import MODULES, PANELS
from tests.processes import run

HINET = Path(sys.executable).with_name("hinet")

_REJECT_IMPORTS = """
import sys
class Reject:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {heavy!r}):
            raise AssertionError(f"imported {{name}}")
sys.meta_path.insert(0, Reject())
"""


def run_without(heavy: list[str], code: str) -> None:
    source = _REJECT_IMPORTS.format(heavy=heavy) + code
    done = run([sys.executable, "-c", source])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["hinet", "hinet.classifier", "hinet.engine"])
def test_public_names_are_exported_at_runtime_and_to_type_checkers(package: str) -> None:
    module = import_module(package)
    typed = re.findall(r"^    from ([\w.]+) import (\w+) as \2$", Path(str(module.__file__)).read_text(), re.MULTILINE)
    assert sorted(name for _, name in typed) == module.__all__
    assert set(module.__all__) <= set(dir(module))
    for home, name in typed:
        assert getattr(module, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_version_is_that_of_the_package() -> None:
    assert hinet.__version__ == version("hinet")
    done = run([HINET, "--version"])
    assert done.stdout == f"hinet {hinet.__version__}\n"


def test_import_hinet_imports_no_heavy_packages() -> None:
    run_without(["torch", "numpy", "scipy", "sklearn", "numba", "pyarrow", "rich", "typer"], "import hinet")


def test_the_client_needs_the_standard_library_alone() -> None:
    heavy = ["numpy", "scipy", "numba", "pyarrow", "rich", "typer", "pydantic", "httpx2", "requests", "hinet.serving"]
    run_without(heavy, "import hinet.client; hinet.client.Client('http://localhost:8000')")


def test_taxonomy_does_not_need_torch() -> None:
    run_without(["torch"], "import hinet; hinet.Layers.of(hinet.Taxonomy.from_edges([('a', 'b')])); hinet.Traces")


def test_saved_text_model_predicts_without_training_packages(tmp_path: Path) -> None:
    texts = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train"]
    paths = [("Food", "Bread")] * 2 + [("Food", "Milk")] * 2 + [("Toys",)] * 2
    hinet.HiNetClassifier(epochs=20).fit(texts, paths).save(tmp_path / "model")
    run_without(
        ["sklearn", "torch", "scipy.optimize", "scipy.stats", "pandas", "pyarrow.compute", "hinet.engine.training"],
        f"""
from hinet.classifier.saved_model import read_model
import hinet.classifier.answers
fitted = read_model({str(tmp_path / "model")!r}).fitted
found = fitted.predictor.traces(fitted.rows(["brown bread"]), 2)
assert fitted.codec.decode_traces(found.traces)[0] == ("Food", "Bread")
assert hinet.classifier.answers.PredictedTraces(found)[0][0].steps == ("Food", "Food > Bread")
""",
    )


def test_help_imports_no_heavy_packages_and_no_commands() -> None:
    heavy = ["torch", "numpy", "scipy", "sklearn", "numba", "pyarrow", "pydantic", "hinet.data", "hinet.taxonomy"]
    commands = [f"hinet.cli.{MODULES.get(name, name)}" for panel in PANELS.values() for name in panel]
    code = "from hinet.cli import main\ntry: main(['--help'])\nexcept SystemExit as e: assert e.code == 0"
    run_without([*heavy, *commands], code)


def test_command_imports_no_other_command() -> None:
    others = ["hinet.cli.train", "hinet.cli.serve", "hinet.cli.taxonomy", "rich"]
    code = (
        "from hinet.cli import main\ntry: main(['predict', 'none', 'none'])\nexcept SystemExit as e: assert e.code == 2"
    )
    run_without(others, code)
