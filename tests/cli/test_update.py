"""``hinet update``: a model goes over to a changed taxonomy, and learns more rows."""

from __future__ import annotations

import csv
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hinet import HiNetClassifier, HiNetError, load
from hinet.classifier.model_folder import read_manifest, trainings_of
from tests.cli.conftest import products, run_hinet, run_inside, write_products
from tests.cli.test_help import EXAMPLES

RENAMED = ["--taxonomy", "new_categories.csv", "--rename", "tv=television"]


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def score(model: Path, rows: list[tuple[str, str, str]], **renamed: str) -> float:
    answers = load(model).predict([text for _, text, _ in rows])
    return sum(answers == [renamed.get(label, label) for *_, label in rows]) / len(rows)


def refused(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails in this process and return its message."""
    assert run_inside(*arguments) == 2
    return capsys.readouterr().err


def test_a_changed_taxonomy_with_more_rows(shop: Path) -> None:
    rows = products(80, seed=1)
    done = run_hinet(*EXAMPLES["update"].split(), cwd=shop)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 added: 'bakery', 'cheese'",
        "2 moved: 'radio' from 'electronics' to 'food', 'rye' from 'food' to 'bakery'",
        "1 renamed: 'tv' to 'television'",
    ]
    for wanted in (
        "24 training rows with 1 label\n",
        "deep 1  epoch 1/",
        "accuracy 100.0% before and ",
        "saved to model",
    ):
        assert wanted in done.stderr
    assert score(shop / "model", rows, tv="television") > 0.95
    model = load(shop / "model")
    assert model.predict(["yellow goat holes"])[0] == "cheese"
    assert model.predict_traces(["dark bread loaf"])[0][0].steps == ("food", "bakery", "rye")
    assert manifest_of(shop / "model")["notes"]["columns"]["text"] == ["title"]
    again = run_hinet("predict", "model", "test.csv", cwd=shop)
    assert again.returncode == 0, again.stderr


def test_without_rows_to_another_folder_and_calibrated_again(shop: Path) -> None:
    before = manifest_of(shop / "model")
    (shop / "valid.csv").write_text((shop / "test.csv").read_text().replace(",tv", ",television"))
    asked = ["update", "model", *RENAMED, "--out", "new", "--valid", "valid.csv", "--risk", 0.3, "--quiet"]
    done = run_hinet(*asked, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "saved to" not in done.stderr
    assert "2 moved" in done.stdout
    assert manifest_of(shop / "model") == before
    after = manifest_of(shop / "new")
    assert after["calibration"]["promise"]["threshold"] < 1
    assert after["metrics"]["validation"]["accuracy"] > 0.95
    assert score(shop / "new", products(80, seed=2), tv="television") > 0.95


def test_more_rows_alone(shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(shop)
    with (shop / "paths.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        writer.writerows(
            [text, "food > " + label if label in ("rye", "milk") else label] for _, text, label in products(90)
        )
    (shop / "later.csv").write_text("text,label\n" + "yellow goat,food > cheese\ngoat holes slice,food > cheese\n" * 15)
    main_ok("train", "paths.csv", "--out", "named", "--width", 8, "--epochs", 6, "--quiet")
    later = ["--rows", "later.csv", "--rows", "paths.csv", "--valid-share", 0.2, "--quiet"]
    capsys.readouterr()
    main_ok("update", "named", *later)
    assert capsys.readouterr().out == "new nodes: food > cheese\n"
    main_ok("inspect", "named")
    lines = capsys.readouterr().out.splitlines()
    assert "  trained on  90 rows and 2 titles with 4 labels" in lines
    assert "  updated     once, with 96 rows of 5 labels" in lines
    main_ok("update", "named", *later)
    assert capsys.readouterr().out == ""
    main_ok("inspect", "named", "--card")
    card = capsys.readouterr().out
    assert "| rows | 90 |" in card
    assert "| updated | 2 times, with 192 rows in all |" in card
    assert "its 282 training rows" in card
    assert load("named").predict(["goat holes"])[0] == load("named").predict(["yellow goat slice"])[0]
    assert "food > cheese" in manifest_text(shop / "named")
    main_ok("update", "model", "--rows", "test.csv", "--quiet")
    assert score(shop / "model", products(80, seed=3)) > 0.95


def test_columns_and_a_replacement_are_reported(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    (shop / "other.csv").write_text((shop / "test.csv").read_text().replace("title,category", "name,kind"))
    main_ok("update", "model", "--rows", "other.csv", "--text", "name", "--label", "kind")
    told = capsys.readouterr().err
    assert "the model now reads name by default instead of title; --text names other columns\n" in told
    assert "the model now reads kind by default instead of category; --label names other columns\n" in told
    main_ok("update", "model", "--rows", "other.csv", "--out", "twice")
    assert "by default instead of" not in capsys.readouterr().err
    options = ["--text", "title", "--label", "category", "--width", 8, "--epochs", 1]
    main_ok("train", "products.csv", *options, "--out", "model")
    warning = "warning: model will be replaced; it was updated once, with 80 rows of 4 labels. The new model"
    assert warning in capsys.readouterr().err
    main_ok("train", "products.csv", *options, "--out", "model")
    assert "will be replaced" not in capsys.readouterr().err


def main_ok(*arguments: object) -> None:
    assert run_inside(*arguments) == 0


def manifest_text(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("taxonomy-*.tsv"))


def test_new_nodes_are_listed_up_to_a_number(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    (shop / "paths.csv").write_text("text,label\n" + "rye bread,a > b\ntoy car,c\n" * 8)
    (shop / "later.csv").write_text("text,label\n" + "".join(f"rye car,a > {number}\n" for number in range(13)))
    main_ok("train", "paths.csv", "--out", "named", "--width", 8, "--epochs", 2, "--quiet")
    capsys.readouterr()
    update = ["update", "named", "--rows", "later.csv", "--quiet"]

    def fail(*_: object, **__: object) -> None:
        raise HiNetError("no room")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(HiNetClassifier, "save", fail)
        assert run_inside(*update) == 2
    assert capsys.readouterr().out == ""
    main_ok(*update)
    listed = ", ".join(f"a > {number}" for number in range(10))
    assert capsys.readouterr().out == f"new nodes: {listed} (and 3 more)\n"


def test_what_cannot_be_updated_is_said(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    before = manifest_of(shop / "model")
    shutil.copy("more.csv", "in.csv")
    for options, message in (
        ([], "there is nothing to update; give --taxonomy, --rows or both"),
        (["--taxonomy", "categories.csv"], "the taxonomy is that of the model; there is nothing to update"),
        (["--rows", "more.csv", "--rename", "tv=x"], "--rename needs --taxonomy"),
        ([*RENAMED, "--rename", "radio"], "--rename is OLD=NEW, such as tv=television; got 'radio'"),
        ([*RENAMED, "--rename", "radios=radio"], "the model's taxonomy has no node 'radios'; did you mean 'radio'?"),
        ([*RENAMED, "--rename", "radio=wireless"], "--rename radio=wireless: the new taxonomy has no node 'wireless'"),
        ([*RENAMED, "--rename", "tv=cheese"], "--rename names 'tv' twice"),
        ([*RENAMED, "--rename", "radio=television"], "'tv' and 'radio' are both renamed to 'television'"),
        ([*RENAMED, "--risk", 0.1], "--risk needs validation rows"),
        ([*RENAMED, "--valid-share", 0.1], "--valid-share selects from --rows"),
        ([*RENAMED, "--rows", "products.csv"], "label 'tv' is not in the taxonomy"),
        ([*RENAMED, "--rows", "none.csv"], "none.csv"),
        ([*RENAMED, "--rows", "in.csv", "--rejects", "in.csv", "--on-error", "skip"], "in.csv"),
        ([*RENAMED, "--rows", "in.csv", "--out", "in.csv"], "in.csv"),
    ):
        assert message in refused("update", "model", *options, capsys=capsys)
    assert "no such folder" in refused("update", "nowhere", "--rows", "more.csv", capsys=capsys)
    (shop / "photos").mkdir()
    (shop / "photos" / "cat.png").write_text("")
    for options in ([], ["--rows", "more.csv"]):
        message = refused("update", "photos", *options, capsys=capsys)
        assert (
            "photos: cannot be loaded: it has no manifest.json, so it is not a saved model; name the folder" in message
        )
    assert manifest_of(shop / "model") == before


def test_two_updates_at_once_are_both_kept(shop: Path) -> None:
    with ThreadPoolExecutor(2) as both:
        ends = [
            both.submit(run_hinet, "update", "model", "--rows", "test.csv", cwd=shop, new_process=True)
            for _ in range(2)
        ]
        assert [end.result().returncode for end in ends] == [0, 0], [end.result().stderr for end in ends]
    assert [each["rows"] for each in trainings_of(read_manifest(shop / "model"))] == [270, 80, 80]
    assert sum("waiting for another process that writes to model" in end.result().stderr for end in ends) <= 1
    assert not (shop / "model" / ".lock").exists()


def test_a_model_that_was_replaced_meanwhile_is_not_overwritten(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As can happen where the file system has no locks."""
    monkeypatch.chdir(shop)
    other = HiNetClassifier(width=8, members=1, epochs=1, n_jobs=1).fit(["rye bread", "toy car"] * 4, ["a", "b"] * 4)
    learn = HiNetClassifier.update_taxonomy

    def replaced(classifier: HiNetClassifier, *given: Any) -> HiNetClassifier:
        other.save("model")
        return learn(classifier, *given)

    monkeypatch.setattr(HiNetClassifier, "update_taxonomy", replaced)
    message = refused("update", "model", "--rows", "test.csv", "--quiet", capsys=capsys)
    assert "error: model: was replaced by another process in the meantime; nothing was saved: run this again" in message
    assert load("model").classes_.tolist() == ["a", "b"]


def test_few_validation_rows_do_not_calibrate(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in training nor in an update; enough of them do, and what the model keeps counts."""
    monkeypatch.chdir(shop)
    before = manifest_of(shop / "model")
    assert before["calibration"] is None  # 30 rows are too few
    assert before["metrics"]["validation"]["rows"] == 30
    assert len(load("model").fitted_.held_out) == 30
    main_ok("update", "model", "--rows", "test.csv", "--valid-share", 0.1, "--out", "few")
    told = capsys.readouterr().err
    assert "38 validation rows are too few to calibrate; probabilities stay as trained. Hold out at least 100" in told
    assert manifest_of(shop / "few")["calibration"] is None
    assert len(load("few").fitted_.held_out) == 38
    write_products(shop / "valid.csv", 65, seed=5)
    main_ok("update", "few", "--rows", "new_products.csv", "--valid", "valid.csv", "--out", "enough")
    assert manifest_of(shop / "enough")["calibration"]["rows"] == 103
    main_ok("update", "enough", "--rows", "new_products.csv")  # renews the calibration by what the model keeps
    assert manifest_of(shop / "enough")["calibration"]["rows"] == 103
    main_ok("inspect", "enough")
    assert "  calibrated  on 103 rows: " in capsys.readouterr().out
    write_products(shop / "valid.csv", 120, seed=5)
    options = ["--text", "title", "--label", "category", "--width", 8, "--epochs", 2, "--valid", "valid.csv"]
    main_ok("train", "products.csv", *options, "--no-keep-examples", "--out", "private", "--quiet")
    assert manifest_of(shop / "private")["calibration"]["rows"] == 120
    main_ok("update", "private", "--rows", "new_products.csv")
    told = capsys.readouterr().err
    assert "the model is no longer calibrated; give --valid with at least 100 rows to calibrate it" in told
    private = load("private").fitted_
    assert (private.examples, private.held_out) == (None, None)


def test_what_an_update_costs_is_told(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    main_ok("update", "model", "--rows", "test.csv", "--out", "good", "--json", "--quiet")
    report = json.loads(capsys.readouterr().out)
    assert (report["model"], report["change"], report["new_nodes"], report["warnings"]) == ("good", None, [], [])
    check = report["update_check"]
    assert check == {"metric": "accuracy", "before": 1.0, "after": 1.0, "rows": 30, "held_out": True}
    wrong = [(number, title, "tv" if label == "milk" else label) for number, title, label in products(300)]
    lines = ["id,title,category", *(",".join(row) for row in wrong)]
    (shop / "wrong.csv").write_text("\n".join(lines) + "\n")
    main_ok("update", "model", "--rows", "wrong.csv", "--json", "--quiet")
    told = capsys.readouterr()
    report = json.loads(told.out)
    after = report["update_check"]["after"]
    assert after < 0.9
    message = (
        f"the update made old rows worse: accuracy 100.0% before and {100 * after:.1f}% after, on 30 kept validation"
    )
    assert told.err.startswith(f"warning: {message} rows; train again with all rows")
    assert report["warnings"][0].startswith(message)
    main_ok("inspect", "model", "--json")
    assert json.loads(capsys.readouterr().out)["update_check"] == report["update_check"]
    main_ok("inspect", "model")
    assert "  last update accuracy 100.0% before and " in capsys.readouterr().out
    assert load("model").update_check_.has_lost
