"""Columns of numbers, categories and vectors in the shell: trained on, remembered, and read again from any table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hinet import load
from tests.classifier.data import small
from tests.classifier.test_columns import products
from tests.cli.conftest import run_inside

ROWS, TEST_ROWS = 200, 80
COLUMNS = ["--text", "title", "--number", "price", "--category", "brand", "--vector", "embedding"]


def table(rows: int, seed: int, *, missing: bool = False) -> pd.DataFrame:
    frame, labels = products(rows, seed, missing=missing)
    return frame.assign(label=labels)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables in all formats, vectors in them and next to them, and a model."""
    folder = tmp_path_factory.mktemp("columns")
    train, test = table(ROWS, 0, missing=True), table(TEST_ROWS, 1)
    train.drop(columns="embedding").to_csv(folder / "train.csv", index=False)
    vectors = np.stack([np.zeros(6) if vector is None else vector for vector in train.embedding])
    np.save(folder / "train.embedding.npy", vectors.astype(np.float32))
    test.to_parquet(folder / "test.parquet", index=False)
    test.to_json(folder / "test.jsonl", orient="records", lines=True, double_precision=15)
    as_text = test.assign(embedding=[json.dumps(vector.tolist()) for vector in test.embedding])
    as_text.to_csv(folder / "test.csv", index=False)
    other = test.rename(columns={"title": "name", "price": "cost", "embedding": "vectors"})
    other.drop(columns="vectors").to_csv(folder / "other.csv.gz", index=False)
    np.save(folder / "other.vectors.npy", np.stack(test.embedding.tolist()))
    main_ok("train", folder / "train.csv", *COLUMNS, "--valid-share", "0.2", "--out", folder / "model", "--threads", 1)
    return folder


def main_ok(*arguments: object) -> None:
    assert run_inside(*arguments) == 0


def main_error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run_inside(*arguments) == 2
    return capsys.readouterr().err


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    main_ok("evaluate", *arguments, "--json", "-q")
    return json.loads(capsys.readouterr().out)


def test_the_model_remembers_its_columns(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((shop / "model" / "manifest.json").read_text())
    assert manifest["features"]["kind"] == "frame"
    noted = manifest["notes"]["columns"]
    assert [noted[kind] for kind in ("text", "number", "category", "vector")] == [
        ["title"], ["price"], ["brand"], ["embedding"],
    ]  # fmt: skip
    main_ok("inspect", shop / "model")
    printed = capsys.readouterr().out
    assert "columns of a table: 1 text, 1 number, 1 category, 1 vector" in printed
    assert "text title; number price; category brand; vector embedding; label label" in printed
    assert printed.count("embedding") == 1


def test_inspect_names_the_first_columns_of_a_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({f"n{number}": [number % 3, 1.5] * 6 for number in range(30)} | {"title": ["rye", "milk"] * 6})
    small().fit(frame, [0, 1] * 6).save(tmp_path / "model")
    main_ok("inspect", tmp_path / "model")
    printed = capsys.readouterr().out
    assert "columns of a table: 30 number, 1 category" in printed
    assert "columns     number n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11 and 18 more; category title" in printed
    assert printed.count("n7") == 1


def test_a_column_of_text_is_suggested_where_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"SKU-{n},{n % 4}.50,Acme,{food},{food}" for n, food in enumerate(["rye bread", "whole milk"] * 8)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["sku,price,brand,title,label", *lines]))
    for command in ("train", "tune"):
        message = main_error(capsys, command, path, "--out", tmp_path / "model")
        assert (
            "rows.csv: no column 'text' among 'sku', 'price', 'brand', 'title', 'label'; set --text: 'title' looks"
            in message
        )
    message = main_error(capsys, "train", path, "--label", "title", "--out", tmp_path / "model")
    assert "set --text: 'label' looks like text" in message


def test_every_format_gives_the_same_predictions(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = table(TEST_ROWS, 1)
    expected = load(shop / "model").score(test, test.label.tolist())
    assert expected > 0.7
    for name in ("test.parquet", "test.jsonl", "test.csv"):
        assert figures(capsys, shop / "model", shop / name)["accuracy"] == pytest.approx(expected)
    renamed = ["--text", "name", "--number", "cost", "--vector", "vectors"]
    assert figures(capsys, shop / "model", shop / "other.csv.gz", *renamed)["accuracy"] == pytest.approx(expected)
    where = figures(capsys, shop / "model", shop / "other.csv.gz", *renamed, "--where", "brand=Bolt")
    bolt = test[test.brand == "Bolt"]
    assert where["accuracy"] == pytest.approx(load(shop / "model").score(bolt, bolt.label.tolist()))


def test_predictions_are_those_of_python(shop: Path) -> None:
    out = shop / "predictions.csv"
    main_ok("predict", shop / "model", shop / "test.parquet", "--out", out, "--keep", "price", "--levels", "-q")
    found = pd.read_csv(out)
    test = table(TEST_ROWS, 1)
    assert found.label.tolist() == load(shop / "model").predict(test).tolist()
    np.testing.assert_allclose(found.price, test.price)
    assert found.known_words.between(0, 1).all()


def test_a_row_is_explained_from_json(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"title": "rye loaf", "price": "9.5", "brand": "Acme", "embedding": None}
    main_ok("explain", shop / "model", json.dumps(row), "--json", "--most", 100)
    steps = json.loads(capsys.readouterr().out)["steps"]
    names = {reason["feature"] for step in steps for reason in step["reasons"]}
    assert {"rye", "price", "brand = Acme"} <= names
    for text, message in (
        ("rye loaf", "reads the columns title, price, brand, embedding; give a row as JSON, such as {"),
        ("{}", "no column 'title'"),
        (json.dumps({**row, "price": "dear"}), "column 'price' has 'dear', expected a number"),
        (json.dumps({**row, "embedding": [1, 2]}), "column 'embedding' has 2 numbers, expected 6"),
        (json.dumps({**row, "title": ["rye"]}), "the text is a list or an object"),
    ):
        assert message in main_error(capsys, "explain", shop / "model", text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row | {"price": "9 EUR"}, "rows.jsonl:2: column 'price' has '9 EUR', expected a number; write it"),
        (lambda row: row | {"price": 1e999}, "rows.jsonl:2: column 'price' has inf, expected a number"),
        (lambda row: row | {"brand": ["Acme"]}, "column 'brand' has a list or an object; set --category to a column"),
        (lambda row: row | {"embedding": [1.0]}, "rows.jsonl:2: column 'embedding' has 1 numbers, expected 6 as in"),
        (lambda row: row | {"embedding": "none"}, "column 'embedding' has 'none', expected finite numbers; give"),
        (lambda row: row | {"embedding": [None] * 6}, "expected finite numbers"),
        (lambda row: {key: row[key] for key in ("title", "brand")}, "no column 'price'.*set --number to another"),
    ],
)  # fmt: skip
def test_invalid_cells_are_errors_of_their_row(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    row = {"title": "rye loaf", "price": 9.5, "brand": "Acme", "embedding": [1.0] * 6}
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(each) for each in (row, change(row), row)) + "\n")
    error = main_error(capsys, "predict", shop / "model", rows, "--out", tmp_path / "out.csv")
    assert re.search(message, error), error
    main_ok("predict", shop / "model", rows, "--out", tmp_path / "out.csv", "--on-error", "skip", "-q")
    assert len(pd.read_csv(tmp_path / "out.csv")) == 2


def test_files_of_vectors_must_match_their_table(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = table(TEST_ROWS, 1)
    rows = tmp_path / "rows.csv"
    test.drop(columns="embedding").to_csv(rows, index=False)
    vectors = np.stack(test.embedding.tolist())
    file = tmp_path / "rows.embedding.npy"
    error = main_error(capsys, "evaluate", shop / "model", rows)
    assert "no column 'embedding' among" in error
    assert "set --vector to another column" in error
    for array, message in (
        (vectors[:50], "has 50 rows, and the table has more"),
        (np.concatenate([vectors, vectors]), "has 160 rows, and the table 80"),
        (vectors[:, :4], "column 'embedding' has 4 numbers, expected 6"),
        (vectors[0], r"has the shape (6,)"),
        (vectors.astype(str), "values of type <U"),
    ):
        np.save(file, array)
        assert message in main_error(capsys, "evaluate", shop / "model", rows)
    file.write_text("[1, 2]")
    assert "cannot be read as a NumPy array" in main_error(capsys, "evaluate", shop / "model", rows)
    np.save(file, vectors)
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join([*lines[:3], "too,few", *lines[4:]]) + "\n")
    rejects = tmp_path / "rejects.csv"
    found = figures(capsys, shop / "model", rows, "--on-error", "skip", "--rejects", rejects)
    kept = test.drop(index=2)
    assert found["accuracy"] == pytest.approx(load(shop / "model").score(kept, kept.label.tolist()))


def test_other_columns_than_in_training(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = main_error(capsys, "evaluate", shop / "model", shop / "test.csv", "--number", "a", "--number", "b")
    assert "trained on 1 columns of --number (price), got 2" in error
    main_ok("train", shop / "test.csv", "--text", "title", "--out", shop / "texts", "-q", "--threads", 1)
    error = main_error(capsys, "predict", shop / "texts", shop / "test.csv", "--number", "price")
    assert "reads only texts; leave --number, --category and --vector out" in error


def test_numbers_and_categories_need_no_text(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["--number", "price", "--category", "brand"]
    main_ok("train", shop / "train.csv", *columns, "--out", shop / "plain", "-q", "--threads", 1)
    assert load(shop / "plain").fitted_.features.columns.text == ()
    assert figures(capsys, shop / "plain", shop / "test.parquet")["accuracy"] > 0.2


def test_a_model_of_columns_is_updated(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shop / "updated"
    renamed = ["--text", "name", "--number", "cost", "--vector", "vectors"]
    main_ok(
        "update", shop / "model", "--rows", shop / "other.csv.gz", *renamed, "--valid-share", "0.2", "--out", out,
        "--threads", 1,
    )  # fmt: skip
    test = table(TEST_ROWS, 1)
    assert load(out).score(test, test.label.tolist()) > 0.7
    assert figures(capsys, out, shop / "other.csv.gz")["accuracy"] > 0.7
