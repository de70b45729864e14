"""``hinet tune`` and ``hinet train --settings``: the real program."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from subprocess import PIPE

import pytest

from hinet import HiNetClassifier, load
from tests.cli.conftest import HINET, run_hinet, run_inside
from tests.cli.test_train import ignore_control_c
from tests.processes import started

DATA = [
    "products.csv", "--text", "title", "--label", "category", "--taxonomy", "categories.csv", "--vectors", "none",
    "--threads", "1",
]  # fmt: skip
TUNE = ["tune", *DATA, "--minutes", "0.02"]


def trials_of(folder: Path) -> list[dict[str, object]]:
    return sorted(
        (json.loads(path.read_text()) for path in (folder / "trials").glob("*.json")), key=lambda t: t["number"]
    )


def test_a_search_writes_settings_table_plot_and_a_model_that_train_makes_too(shop: Path) -> None:
    done = run_hinet(*TUNE, "--valid-share", "0.1", "--out", "best", "--plot", "search.svg", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "tune: 1: defaults, all rows, split 1: accuracy" in done.stderr
    assert "best so far: " in done.stderr
    assert "saved to best" in done.stderr
    assert "(chosen)" in done.stdout
    results = shop / "best.tune"
    assert sorted(path.name for path in results.iterdir()) == ["search.json", "settings.json", "trials", "trials.csv"]
    with (results / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["settings"] == "defaults"
    assert len(rows) == len(trials_of(results))
    assert (shop / "search.svg").exists()
    model = load(shop / "best")
    assert model.metrics_["validation"]["rows"] == 30
    again = run_hinet(
        "train", *DATA, "--valid-share", "0.1", "--settings", "best.tune/settings.json", "--out", "same", "-q", cwd=shop
    )
    assert again.returncode == 0, again.stderr
    files = [json.loads((shop / name / "manifest.json").read_text())["files"] for name in ("best", "same")]
    assert files[0] == files[1]
    assert HiNetClassifier.from_settings(results / "settings.json").members == model.members


def test_control_c_keeps_finished_trials_and_resume_goes_on(shop: Path) -> None:
    command = [HINET, "tune", *DATA, "--minutes", "60", "--results", "found"]
    with started(command, cwd=shop, stderr=PIPE, stdout=PIPE, preexec_fn=ignore_control_c) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("tune: 2:"):
                process.send_signal(signal.SIGINT)
                break
        said = process.stderr.read()
    assert process.returncode == 130
    assert "the finished trials are in found: add --resume" in said
    assert "Traceback" not in said
    before = trials_of(shop / "found")
    assert len(before) >= 2
    refused = run_hinet(*TUNE, "--results", "found", "--where", "none=none", cwd=shop)  # before rows are read
    assert refused.returncode == 2
    assert "set --resume to continue it" in refused.stderr
    (shop / "found" / "trials" / ".half.json.0123").write_text("{")  # left by a process that was killed while it wrote
    done = run_hinet(*TUNE, "--results", "found", "--resume", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "tune: 1:" not in done.stderr
    assert trials_of(shop / "found")[: len(before)] == before
    assert not (shop / "found.rejects.csv").exists()


def test_control_c_before_a_trial_ended_names_no_folder(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(shop)
    monkeypatch.setattr("hinet.tuning.trials.TrialRunner.run", interrupted)
    run_inside(*TUNE, "--results", "found", "-q")
    assert "interrupted before a trial ended: none is kept\n" in capsys.readouterr().err
    assert not (shop / "found").exists()


@pytest.mark.parametrize("minutes", ["0", "-1", "nan"])
def test_a_search_of_no_time_is_refused_before_anything_is_read(
    minutes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_inside("tune", "none.csv", "--minutes", minutes, "--results", "found") == 2
    assert "--minutes: expected a number above 0, got" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "give --out for the model, or --results for the settings alone"),
        (["--results", "r", "--metric", "acuracy"], "--metric is 'acuracy'"),
        (["--results", "r", "--metric", "exact_match"], "not a scorer for one label per row"),
        (["--results", "products.csv"], "is an input file"),
        (["--results", "r", "--risk", "0.1"], "--risk needs validation rows"),
        (["--out", "m", "--plot", "m.txt"], "a plot is written as .png, .svg or .pdf"),
    ],
)
def test_wrong_options_are_told_and_leave_nothing(
    more: list[str], said: str, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    before = sorted(path.name for path in shop.iterdir())
    assert run_inside("tune", *DATA, *more) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in shop.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[1]", "is not a settings file"),
        ('{"format": "hinet settings", "version": 1}', "no entry 'parameters'"),
        ('{"format": "hinet settings", "version": 9, "parameters": {}}', "version is 9"),
        ('{"format": "hinet settings", "version": 1, "parameters": {"epoch": 1}}', "did you mean 'epochs'"),
        (
            '{"format": "hinet settings", "version": 1, "parameters": {"epochs": "5"}}',
            "epochs: expected a whole number",
        ),
        (
            '{"format": "hinet settings", "version": 1, "parameters": {"epochs": "None"}}',
            "epochs: expected a whole number of at least 1 or null, got 'None'",
        ),
        (
            '{"format": "hinet settings", "version": 1, "parameters": {"epochs": "is None or True"}}',
            "or null, got 'is None or True'",
        ),
        (
            '{"format": "hinet settings", "version": 1, "parameters": {"wide": null}}',
            "wide: expected true or false, got null",
        ),
        ('{"format": "hinet settings", "version": 1, "parameters": {"text": {"min_df": 0}}}', "text: min_df"),
        ('{"format": "hinet settings", "version": 1, "parameters": {"text": 3}}', "text is 3, expected a mapping"),
        ('{"format": "hinet settings", "version": 1, "parameters": {"network": 3}}', "belongs to one run"),
    ],
)
def test_bad_settings_are_told(
    content: str | None, said: str, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    if content is not None:
        Path("settings.json").write_text(content)
    assert run_inside("train", *DATA, "--settings", "settings.json", "--out", "none") == 2
    error = capsys.readouterr().err
    assert said in error
    assert "settings.json" in error
    assert not Path("none").exists()


def test_options_override_settings_even_if_they_are_the_defaults(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    parameters = {
        "epochs": 3, "width": 24, "text": {"min_df": 1}, "titles": False, "effort": "quick", "random_state": 5,
        "members": 1,
    }  # fmt: skip
    Path("own.json").write_text(json.dumps({"format": "hinet settings", "version": 1, "parameters": parameters}))
    options = ["--settings", "own.json", "--width", "16", "--effort", "default", "--seed", "0", "--out", "own", "-q"]
    assert run_inside("train", *DATA, *options) == 0
    model = load("own")
    assert (model.epochs, model.width, model.titles, model.effort) == (3, 16, False, "default")
    assert (model.random_state, model.members) == (0, 1)
    assert model.text is not None
    assert model.text.min_df == 1
