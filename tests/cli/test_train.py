"""``hinet train``: labels of every kind, validation, and interrupted runs."""

from __future__ import annotations

import json
import random
import re
import signal
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from hinet import HiNetClassifier, load
from hinet.cli import main
from hinet.data.datasets import holdout_mask
from hinet.data.text import TextFeatures
from hinet.files import read_arrays
from tests.cli.conftest import HINET, TRAIN_EXAMPLE, files_of, products, run_hinet, run_inside
from tests.processes import killed_before, started, wait_until

COLUMNS = ["--text", "title", "--label", "category"]


def test_a_run_shows_progress_validation_and_what_it_saved(shop: Path) -> None:
    done = run_hinet(*TRAIN_EXAMPLE.replace("--out model", "--out other").split(), "--plot", "curve.svg", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for wanted in (
        "training rows with 4 labels",
        "validation rows",
        "deep 1  epoch 1/",
        "  valid accuracy ",
        "nodes of a tree of 6 nodes",
        "30 validation rows are too few to calibrate; probabilities stay as trained. Hold out at least 100 rows",
        "saved to other",
    ):
        assert wanted in done.stderr
    assert files_of(shop / "other") == files_of(shop / "model")
    assert (shop / "curve.svg").exists()
    manifest = json.loads((shop / "other" / "manifest.json").read_text())
    assert manifest["metrics"]["validation"]["accuracy"] > 0.9
    assert manifest["calibration"] is None
    assert not (shop / "other.checkpoint").exists()


def test_labels_may_be_paths_columns_or_several(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    rows = products(200)
    parents = {"tv": "electronics", "radio": "electronics", "rye": "food", "milk": "food"}
    Path("paths.csv").write_text("title,path\n" + "".join(f"{title},{parents[c]} > {c}\n" for _, title, c in rows))
    Path("levels.csv").write_text("title,top,leaf\n" + "".join(f"{title},{parents[c]},{c}\n" for _, title, c in rows))
    Path("several.csv").write_text("title,tags\n" + "".join(f"{title},{c};{c}\n" for _, title, c in rows))
    assert run_inside("train", "paths.csv", "--text", "title", "--label", "path", "--out", "a", "-q") == 0
    levels = ["--label", "top", "--label", "leaf"]
    assert run_inside("train", "levels.csv", "--text", "title", *levels, "--out", "b", "-q") == 0
    several = ["--label", "tags", "--label-sep", ";", "--taxonomy", "categories.csv"]
    assert run_inside("train", "several.csv", "--text", "title", *several, "--out", "c", "-q") == 0
    assert load("a").predict(["dark bread"])[0] == "food > rye"
    assert load("b").predict(["dark bread"])[0] == ("food", "rye")
    assert load("c").predict(["dark bread"])[0] == "rye"
    for model, data in (("a", "paths.csv"), ("b", "levels.csv"), ("c", "several.csv")):  # columns as in training
        done = run_hinet("evaluate", model, data, "--json", cwd=shop)
        assert json.loads(done.stdout)["accuracy"] > 0.95, done.stderr
    done = run_hinet("predict", "a", "paths.csv", "-q", cwd=shop)
    assert {line.split(",")[0] for line in done.stdout.splitlines()[1:]} <= {f"{p} > {c}" for c, p in parents.items()}
    assert {line.split(",")[1] for line in done.stdout.splitlines()[1:]} <= {f"{p} > {c}" for c, p in parents.items()}


def test_validation_rows_come_from_a_file_a_column_or_a_share(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    train = [f"{title},{c},train" for _, title, c in products(200)]
    valid = [f"{title},{c},valid" for _, title, c in products(60, 5)]
    Path("split.csv").write_text("\n".join(["title,category,split", *train, *valid]) + "\n")
    Path("train.csv").write_text("\n".join(["title,category,split", *train]) + "\n")
    Path("valid.csv").write_text("\n".join(["title,category,split", *valid]) + "\n")
    common = [*COLUMNS, "--taxonomy", "categories.csv", "-q"]
    for out, data in (
        ("a", ["split.csv", "--valid-where", "split=valid"]),
        ("b", ["train.csv", "--valid", "valid.csv"]),
        ("c", ["split.csv", "--where", "split=train", "--valid-where", "split=valid", "--risk", "0.2"]),
    ):
        assert run_inside("train", *data, *common, "--out", out) == 0
    manifests = [json.loads(Path(out, "manifest.json").read_text()) for out in "abc"]
    assert all(manifest["metrics"]["validation"]["rows"] == 60 for manifest in manifests)
    assert manifests[0]["files"] == manifests[1]["files"]
    assert 0 < manifests[2]["calibration"]["promise"]["threshold"] <= 1
    done = run_hinet("predict", "c", "valid.csv", "--min-confidence", "calibrated", "-q", cwd=shop)
    assert done.returncode == 0, done.stderr


def test_wishes_that_cannot_be_met_are_told_before_training(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    (shop / "other").mkdir()
    (shop / "other" / "precious.txt").write_text("precious")
    (shop / "taken.checkpoint").mkdir()
    (shop / "taken.checkpoint" / "notes.txt").write_text("precious")
    start = ["train", "products.csv", *COLUMNS, "--taxonomy", "categories.csv"]
    for more, message in (
        (["--out", "other"], "other: holds other files ('precious.txt')"),
        (["--out", "products.csv"], "products.csv: is a file; name a folder"),
        (["--out", "new", "--plot", "x.gif"], "a plot is written as .png, .svg or .pdf"),
        (["--out", "new", "--plot", "none/x.png"], "the folder does not exist"),
        (["--out", "new", "--patience", "2"], "--patience needs validation rows"),
        (["--out", "new", "--risk", "0.1"], "--risk needs validation rows"),
        (["--out", "new", "--valid-share", "2"], "--valid-share: expected a number above 0 and below 1"),
        (["--out", "new", "--valid", "none.csv"], "none.csv: cannot be read"),
        (["--out", "new", "--where", "split"], "a condition is COLUMN=VALUE"),
        (["--out", "new", "--where", "id=none"], "there are no training or validation rows"),
        (
            ["--out", "new", "--risk", "7", "--valid-share", "0.1"],
            "risk: expected a number above 0 and below 1",
        ),
        (["--out", "products.csv/model"], "products.csv is not a writable folder"),
        (["--out", "taken"], "taken.checkpoint: contains other files than checkpoints ('notes.txt')"),
        (["--out", "taken", "--resume"], "taken.checkpoint: contains other files than checkpoints ('notes.txt')"),
        (["--out", "new", "--valid", "test.csv", "--valid-share", "0.1"], "all define the validation rows"),
        (["--out", "new", "--memory-limit", "0.0001"], "memory"),
        (["--out", "new", "--memory-limit", "0", "--valid", "none.csv"], "--memory-limit: expected a number above 0"),
        (["--out", "new", "--memory-limit", "nan"], "--memory-limit: expected a number above 0 or None, got nan"),
        (["--out", "new", "--checkpoint-every", "nan"], "--checkpoint-every: expected a number of at least 0, got nan"),
        (["--out", "new", "--width", "100000000"], "GB of memory available; lower --width"),
        (["--out", "new", "--seed", str(1 << 64)], "0<=x<=9223372036854775807"),
        (["--out", "new", "--label-sep", ""], "--label-sep is empty"),
    ):
        assert run_inside(*start, *more, "-q") == 2, more
        said = capsys.readouterr().err
        assert message in said, more
        assert "Traceback" not in said
        assert not (shop / "new").exists()


def test_a_promise_that_cannot_be_kept_costs_no_model(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    start = ["train", "products.csv", *COLUMNS, "--taxonomy", "categories.csv", "--valid-share", "0.1", "-q"]
    assert run_inside(*start, "--out", "slash/", "--risk", "0.0001", "--checkpoint-every", "0") == 2
    assert "error: the model is saved, but without a threshold for --risk" in capsys.readouterr().err
    assert json.loads(Path("slash", "manifest.json").read_text())["calibration"] is None
    assert not Path("slash.checkpoint").exists()
    assert run_inside(*start, "--out", "one", "--risk", "0.5", "--valid-share", "0.001", "--epochs", "1") == 2
    assert "without a threshold for --risk: 1 held-out row is too few" in capsys.readouterr().err


def test_a_promise_is_told_wherever_it_is_used(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels with one row are held out as others are, by the same hold-out as in Python."""
    monkeypatch.chdir(shop)
    monkeypatch.setenv("COLUMNS", "200")
    chance = random.Random(0)
    rows = [(title, f"only {n}" if chance.random() < 0.1 else f"{c} > x") for n, title, c in products(500)]
    Path("rows.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    train = ["train", "rows.csv", "--valid-share", "0.5", "--seed", "3", "--epochs", "4", "--width", "16"]
    with monkeypatch.context() as counted:
        read: list[int] = []
        whole = TextFeatures.transform_with_unknown
        counted.setattr(
            TextFeatures, "transform_with_unknown", lambda *given: read.append(len(given[1])) or whole(*given)
        )
        assert run_inside(*train, "--risk", "0.3", "--out", "risky") == 0
    assert read.count(250) <= 2  # validation rows become features once, and once made foreign
    said = capsys.readouterr().err
    paths = [tuple(label.split(" > ")) for _, label in rows]
    chosen = holdout_mask(500, 0.5, 3)
    single = sum(path[0].startswith("only") for path, out in zip(paths, chosen, strict=True) if out)
    assert f"{single} labels occur only in validation rows" in said
    assert "validation rows repeat a training text" in said
    mine = HiNetClassifier(validation_fraction=0.5, random_state=3, epochs=4, width=16)
    promise = mine.fit([text for text, _ in rows], [label for _, label in rows]).calibrate(risk=0.3).promise
    assert load("risky").calibration_ == mine.calibration_
    told = f"--min-confidence calibrated: {promise}"
    assert "at most 30% of the answers are wrong" in told
    assert told in said
    for command in (
        ["inspect", "risky"],
        ["evaluate", "risky", "rows.csv"],
        ["predict", "risky", "rows.csv", "--min-confidence", "calibrated", "--out", "answers.csv"],
    ):
        assert run_inside(*command) == 0
        said = "".join(capsys.readouterr())
        assert told in said
        if command[0] == "evaluate":
            table = said
    written = mine.predict([text for text, _ in rows], min_confidence="calibrated")
    answers = [() if answer is None else tuple(answer.split(" > ")) for answer in written]
    given = np.array([len(answer) for answer in answers])
    best = mine.predict([text for text, _ in rows])
    full = [
        bool(answer) and (len(answer) == 2 or " > ".join(answer) == whole)
        for answer, whole in zip(answers, best, strict=True)
    ]
    wrong = [path[: len(answer)] != answer for answer, path in zip(answers, paths, strict=True) if answer]
    assert (
        f"{(given > 0).mean():.1%} of the rows answered, {np.mean(full):.1%} to full depth; "
        f"{np.mean(wrong):.1%} of the answers wrong"
    ) in table
    assert run_inside("evaluate", "risky", "rows.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)["min_confidence_calibrated"]
    assert found["promise"]["risk"] == 0.3
    assert found["error"] == pytest.approx(np.mean(wrong))


def test_rows_for_validation_are_chosen_among_those_that_are_read(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    rows = [
        f"{title},{c},{'valid' if int(n) % 5 == 0 else 'train'},{'en' if int(n) % 2 else 'de'}"
        for n, title, c in products(200)
    ]
    Path("split.csv").write_text("\n".join(["title,category,split,lang", *rows]) + "\n")
    asked = ["--where", "lang=en", "--valid-where", "split=valid", "-q", "--out", "model2"]
    assert run_inside("train", "split.csv", *COLUMNS, *asked) == 0
    manifest = json.loads(Path("model2", "manifest.json").read_text())
    assert manifest["metrics"]["validation"]["rows"] == 20
    assert manifest["training_data"]["rows"] == 80


def test_paths_with_an_empty_step_are_told(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    Path("paths.csv").write_text("text,label\nrye,food > rye\nmilk,food > \n")
    assert run_inside("train", "paths.csv", "--out", "new") == 2
    assert "paths.csv:3: a step of the path 'food > ' is empty" in capsys.readouterr().err


LONG = [*COLUMNS, "--taxonomy", "categories.csv", "--epochs", "120", "--threads", "1", "--checkpoint-every", "0"]


def epochs_kept(folder: Path) -> dict[str, int]:
    """Return how many epochs every finished checkpoint holds; all of them can be read."""
    return {path.name: len(json.loads(read_arrays(path)[1]["records"])) for path in folder.glob("[!.]*.safetensors")}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # later Pythons warn if there are threads
def test_runs_that_are_killed_lose_no_finished_checkpoint_and_go_on_to_the_same_model(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    command = ["train", "products.csv", *LONG, "--epochs", "30", "--out"]
    assert run_inside(*command, "whole", "-q") == 0
    kept: dict[str, int] = {}
    for step in (1, 2, 3, 4, 5, 9, 14, 20, 31):
        assert killed_before(step, lambda: main([*command, "killed", "-q", "--resume"]))
        found = epochs_kept(Path("killed.checkpoint"))
        assert all(found[name] >= epochs for name, epochs in kept.items())
        kept = found
    assert max(kept.values()) > 10
    refused = run_hinet(*command, "killed", cwd=shop)
    assert refused.returncode == 2
    assert "killed.checkpoint: has checkpoints of an interrupted run; add --resume to continue it" in refused.stderr
    assert run_inside(*command, "killed", "-q", "--resume") == 0
    assert files_of(Path("killed")) == files_of(Path("whole"))
    assert not Path("killed.checkpoint").exists()
    history = [
        sorted((r["part"], r["epoch"], r["cost"]) for r in json.loads(Path(m, "manifest.json").read_text())["history"])
        for m in ("killed", "whole")
    ]
    assert history[0] == history[1]


def ignore_control_c() -> None:
    """Start a process as nohup and the background of a shell do; it hears Ctrl-C all the same."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_control_c_says_how_to_go_on(shop: Path) -> None:
    command = [HINET, "train", "products.csv", *LONG, "--out", "stopped"]
    with started(command, cwd=shop, stderr=PIPE, preexec_fn=ignore_control_c) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "epoch 5/" in line:
                run.send_signal(signal.SIGINT)
                break
        said = run.stderr.read()
    assert run.returncode == 130
    assert "the checkpoints are in stopped.checkpoint: add --resume" in said
    assert "Traceback" not in said
    assert not (shop / "stopped").exists()
    other = run_hinet("train", "test.csv", *LONG, "--out", "stopped", "--resume", "-q", cwd=shop)
    assert other.returncode == 2
    assert "from other rows or settings" in other.stderr
    done = run_hinet(*command[1:], "--resume", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "resumes after epoch" in done.stderr


def test_control_c_leaves_no_half_of_a_table(shop: Path) -> None:
    lines = "dark bread\n" * 100
    before = sorted(path.name for path in shop.iterdir())
    command = [HINET, "predict", "model", "--out", "out.tsv", "--format", "text"]
    with started(command, cwd=shop, stdin=PIPE, stderr=PIPE, preexec_fn=ignore_control_c) as run:
        assert run.stdin is not None
        run.stdin.write(lines * 200)  # more than a block: the table has been begun
        run.stdin.flush()
        wait_until(lambda: list(shop.glob(".out.tsv.*")))
        run.send_signal(signal.SIGINT)
        said = run.stderr.read() if run.stderr else ""
    assert run.returncode == 130
    assert re.search(r"interrupted after [\d,]+ rows; out.tsv was not written", said), said
    assert "Traceback" not in said
    assert sorted(path.name for path in shop.iterdir()) == before


def test_the_seed_decides_and_threads_do_not(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    start = ["train", "products.csv", *COLUMNS, "--taxonomy", "categories.csv", "-q"]
    for out, more in (("a", ["--threads", "1"]), ("b", ["--threads", "2"]), ("c", ["--seed", "1"])):
        assert run_inside(*start, "--out", out, *more) == 0
    assert files_of(Path("a")) == files_of(Path("b"))
    assert files_of(Path("a"))["model"] != files_of(Path("c"))["model"]
    texts = [title for _, title, _ in products(40, 9)]
    assert np.mean(load("a").predict(texts) == load("c").predict(texts)) > 0.9
