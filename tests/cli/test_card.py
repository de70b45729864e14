"""``hinet inspect --card``: a model card with the model, its evaluation and its taxonomy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hinet import HiNetClassifier
from hinet.classifier.model_card import model_card
from hinet.classifier.saved_model import load_classifier
from tests.cli.conftest import products, run_hinet, run_inside

SECTIONS = [
    "How to use it", "Intended use and limits", "Training data", "Taxonomy", "Evaluation", "Calibration", "Settings",
    "Versions and files",
]  # fmt: skip


def parts_of(card: str) -> tuple[dict[str, Any], str]:
    _, metadata, body = card.split("---\n", 2)
    return yaml.safe_load(metadata), body


def test_a_card_has_what_is_kept_with_the_model(shop: Path) -> None:
    before = run_hinet("inspect", "model", "--card", cwd=shop)
    assert before.returncode == 0, before.stderr
    assert "No evaluation is kept" in before.stdout
    assert "model-index" not in parts_of(before.stdout)[0]

    rows = products(120, seed=3)
    classifier, manifest = load_classifier(HiNetClassifier, shop / "model")
    classifier.calibrate([text for _, text, _ in rows], [label for *_, label in rows])
    classifier.save(shop / "model", notes=manifest["notes"])
    evaluated = run_hinet("evaluate", "model", "test.csv", "--keep", cwd=shop)
    assert evaluated.returncode == 0
    assert re.search(r"^80 rows in [\d.]+ s$", evaluated.stderr, re.MULTILINE)  # its only rate is in the table
    assert "speed of predictions, from text" in evaluated.stdout
    done = run_hinet("inspect", "model", "--card", "--out", "card.md", cwd=shop)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    metadata, body = parts_of((shop / "card.md").read_text())
    manifest = json.loads((shop / "model" / "manifest.json").read_text())
    kept = json.loads((shop / "model" / "evaluation.json").read_text())["evaluation"]
    assert re.findall(r"^## (.*)$", body, re.MULTILINE) == SECTIONS
    assert metadata["library_name"] == "hinet"
    assert metadata["pipeline_tag"] == "text-classification"
    (index,) = metadata["model-index"]
    (result,) = index["results"]
    assert {each["type"]: each["value"] for each in result["metrics"]}.items() <= kept["metrics"].items()
    assert f"| accuracy | {100 * kept['metrics']['accuracy']:.1f}% |" in body
    assert f"| rows | {manifest['training_data']['rows']:,} |" in body
    assert manifest["training_data"]["blake2b"] in body
    assert manifest["blake2b"] in body
    assert "tree of 6 nodes in 2 levels" in body
    assert f"On 120 held-out rows: {calibrated(manifest['calibration'])}" in body
    assert all(version in body for version in manifest["versions"].values())


def calibrated(calibration: dict[str, Any]) -> str:
    if not calibration["scaled"]:
        return f"expected calibration error {calibration['error_before']:.3f}; probabilities were not scaled"
    return f"temperature {calibration['temperature']:.3f}, expected calibration error"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "card.md"], "--card"),
        (["--card", "--json"], "--json"),
        (["--card", "--out", "model/card.md"], "is in the folder of a model"),
        (["--card", "--out", "nowhere/card.md"], "cannot be written"),
    ],
)
def test_a_card_that_cannot_be_written(
    shop: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    assert run_inside("inspect", "model", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (shop / "card.md").exists()


def test_settings_that_differ_from_the_defaults_are_shown(shop: Path) -> None:
    manifest = json.loads((shop / "model" / "manifest.json").read_text())
    manifest["parameters"] |= {"wide": False, "prior_strength": 0.0, "dropout": 0.0, "members": None, "titles": None}
    taxonomy = json.loads(run_hinet("inspect", "model", "--json", cwd=shop).stdout)["taxonomy"]
    body = model_card("m", manifest, taxonomy).partition("## Settings")[2]
    assert all(f"| {cell} |" in body for cell in ("wide | `false`", "prior_strength | `0.0`", "dropout | `0.0`"))
    assert not any(f"| {name} |" in body for name in ("members", "titles", "engine_", "effort", "keep_examples"))


def test_hostile_names_cannot_change_a_card(shop: Path) -> None:
    manifest = json.loads((shop / "model" / "manifest.json").read_text())
    hostile = "x\n---\n# Pwned | `a` <script>alert(1)</script>"
    manifest["notes"] = {"columns": {"text": [hostile]}}
    manifest["parameters"]["objective"] = hostile
    manifest["set_rule"] = {"thresholds": [0.5], "objective": hostile, "rows": 10, "best_always": True}
    taxonomy = json.loads(run_hinet("inspect", "model", "--json", cwd=shop).stdout)["taxonomy"]
    evaluation = {"name": hostile, "rows": 3, "evaluated": hostile, "metrics": {"accuracy": 0.5}}
    metadata, body = parts_of(model_card(hostile, manifest, taxonomy, evaluation))
    assert metadata["model-index"][0]["name"] == hostile
    assert "multi-label" in metadata["tags"]
    assert "\n# Pwned" not in body
    assert "<script>" not in re.sub(r"`[^`]*`|\\<", "", body)
    assert {line.count(" | ") for line in body.splitlines() if line.startswith("| ") and "Pwned" not in line} == {1}
