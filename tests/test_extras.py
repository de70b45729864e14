"""The fused engine works without torch, and features that need torch say how to install it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, HiNetError, load
from hinet.cli import main
from tests.classifier.data import numbers, small, texts
from tests.processes import run

REMEDY = r"needs torch; install it with: pip install 'hinet\[torch\]'$"


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch, and modules that imported it, unavailable in this process."""
    for name in list(sys.modules):
        if name == "hinet.networks" or name.startswith("hinet.networks."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"network": object()}, "`network`"),
        ({"device": "cuda"}, "`device='cuda'`"),
        ({"engine": "torch"}, "`engine='torch'`"),
    ],
)
@pytest.mark.usefixtures("without_torch")
def test_parameters_that_need_torch_say_how_to_install_it(given: dict[str, Any], what: str) -> None:
    rows, labels = numbers()
    with pytest.raises(HiNetError, match=f"^{what} {REMEDY}"):
        HiNetClassifier(**given).fit(rows, labels)


def test_loading_a_network_says_how_to_install_torch(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    small(engine="torch", epochs=1).fit(*texts()).save(tmp_path / "model")
    request.getfixturevalue("without_torch")
    with pytest.raises(HiNetError, match=f"^a model of the engine 'torch' {REMEDY}"):
        load(tmp_path / "model")


@pytest.mark.usefixtures("without_torch")
def test_compare_says_how_to_install_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path / "rows.csv")])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: compare needs torch; install it with: pip install 'hinet[torch]'\n"


def test_importing_networks_says_how_to_install_torch() -> None:
    done = run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; import hinet.networks"])
    assert done.stderr.splitlines()[-1].endswith("pip install 'hinet[torch]'")


@pytest.mark.usefixtures("without_torch")
def test_classifier_works_without_torch_for_dense_rows_and_texts(tmp_path: Path) -> None:
    for rows, labels in (numbers(), texts()):
        classifier = small(epochs=None, device="cpu").fit(rows, labels, valid=(rows, labels))
        with pytest.raises(HiNetError, match="too few to calibrate"):
            classifier.calibrate()
        twice = np.concatenate([rows, rows]), np.concatenate([labels, labels])
        classifier.calibrate(*twice)
        classifier.partial_fit(rows[:10], labels[:10])
        assert classifier.explain(rows[0]).steps
        classifier.save(tmp_path / "model")
        assert load(tmp_path / "model").score(rows, labels) > 0.9
