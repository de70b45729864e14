"""Rows that are more than a text: frames of texts, numbers, categories and vectors."""

from __future__ import annotations

import json
import math
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hinet import FileError, HiNetClassifier, HiNetError, Taxonomy, TextVectorizer, load
from hinet.classifier.columns import (
    KNOTS,
    MAX_DEVIATIONS,
    MIN_RANK,
    Categories,
    ColumnKinds,
    Numbers,
    Ranks,
    VectorColumn,
    recognise,
    texts_of,
)
from hinet.classifier.inputs import FrameInput
from hinet.classifier.model_folder import digest_of, sealed
from hinet.classifier.saved_model import load_model
from hinet.data.matrices import MixedRows
from hinet.encoders.meaning import LENGTH
from hinet.encoders.token_vectors import TokenVectors
from hinet.files import read_arrays, write_arrays
from tests.classifier.data import WORDS, small

WIDTH = 6
EDGES = [(None, food) for food in WORDS] + [
    (food, f"{food} {kind}") for food in WORDS for kind in ("cheap Acme", "dear Acme", "Bolt")
]


def products(rows: int = 240, seed: int = 0, *, missing: bool = True) -> tuple[pd.DataFrame, list[str]]:
    """Return products whose label depends on the title or the vector, the brand and the price."""
    random = np.random.default_rng(seed)
    foods, brands = random.choice(list(WORDS), rows), random.choice(["Acme", "Bolt"], rows)
    prices = random.lognormal(1, 0.8, rows)
    price_names = np.where(prices > math.e, "dear", "cheap")
    labels = [
        f"{food} {price} {brand}" if brand == "Acme" else f"{food} {brand}"
        for food, price, brand in zip(foods, price_names, brands, strict=True)
    ]
    places = np.random.default_rng(9).normal(size=(len(WORDS), WIDTH))
    frame = pd.DataFrame(
        {
            "title": [" ".join([*random.choice(WORDS[food].split(), 2), f"no{row}"]) for row, food in enumerate(foods)],
            "price": prices,
            "brand": brands,
            "embedding": [places[list(WORDS).index(food)] + 0.3 * random.normal(size=WIDTH) for food in foods],
        }
    )
    if missing:
        frame.loc[frame.index % 11 == 5, "price"] = np.nan
        frame.loc[frame.index % 13 == 5, ["brand", "title"]] = None
        frame.loc[frame.index % 17 == 5, "embedding"] = None
    return frame, labels


FRAME, LABELS = products()
NEW, NEW_LABELS = products(80, seed=1, missing=False)


@pytest.fixture(scope="module")
def model() -> HiNetClassifier:
    return small(epochs=20).fit(FRAME, LABELS)


def to_arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def to_batch(frame: pd.DataFrame) -> pa.RecordBatch:
    table = to_arrow(frame).combine_chunks()
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], table.column_names)


def with_fixed_lists(frame: pd.DataFrame) -> pa.Table:
    table = to_arrow(frame)
    vectors = table["embedding"].cast(pa.list_(pa.float32(), WIDTH))
    return table.set_column(table.column_names.index("embedding"), "embedding", vectors)


@pytest.mark.parametrize(
    "convert",
    [lambda frame: frame, lambda frame: pl.from_arrow(to_arrow(frame)), to_arrow, to_batch, with_fixed_lists],
    ids=["pandas", "polars", "Arrow", "batch", "fixed lists"],
)  # fmt: skip
def test_columns_are_recognised_in_every_frame(model: HiNetClassifier, convert: Callable[[Any], Any]) -> None:
    found = small(epochs=20).fit(convert(FRAME), LABELS)
    assert found.fitted_.features.columns == ColumnKinds(("title",), ("price",), ("brand",), ("embedding",))
    np.testing.assert_allclose(found.predict_proba(convert(NEW)), model.predict_proba(NEW), atol=1e-4)
    assert found.score(convert(NEW), NEW_LABELS) > 0.8
    assert found.n_features_in_ == 4
    assert found.feature_names_in_.tolist() == ["title", "price", "brand", "embedding"]
    assert len(found.predict(convert(NEW.iloc[:0]))) == 0


def test_every_kind_of_column_tells_something(model: HiNetClassifier) -> None:
    frame, labels = products(400, seed=2, missing=False)
    whole = model.score(frame, labels)
    for column in ("price", "brand"):
        assert model.score(frame.assign(**{column: None}), labels) < whole - 0.08
    blind = model.score(frame.assign(title="", embedding=None), labels)
    assert blind < whole - 0.3
    for column in ("title", "embedding"):
        assert model.score(frame.assign(**{column: None}), labels) > blind + 0.2


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([f"a text of its own, number {n}" for n in range(30)]), "text"),
        (pa.array(["red", "green", None] * 10), "category"),
        (pa.array(["red and green " * 9, "green"] * 15), "text"),
        (pa.array(["red", "green"] * 15).dictionary_encode(), "category"),
        (pa.array([f"v{n}" for n in range(30)]).dictionary_encode(), "category"),
        (pa.array([True, False] * 15), "category"),
        (pa.array(range(30)), "number"),
        (pa.array([1.5] * 30), "number"),
        (pa.array([[1, 2]] * 30), "vector"),
        (pa.array([[1.0, 2.0]] * 30, pa.list_(pa.float32(), 2)), "vector"),
        (pa.array(["red", "green"] * 15, pa.string_view()), "category"),
        (pa.array(["rye bread", "white bread", "toy car"] * 10), "text"),
        (pa.array(list("abcdefghijklmnopqrstuvwxyz")), "text"),
        (pa.array([f"{n}.5" for n in range(30)]), "text"),
        (pa.array([f"A-{n:04}" for n in range(9)]), "text"),
    ],
)
def test_the_kind_of_a_column(column: pa.Array, kind: str) -> None:
    found = recognise(pa.table({"x": column}))
    assert getattr(found.kinds, kind) == ("x",)
    assert found.ignored == ()


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("sku", pa.array([f"SKU-{n:05}" for n in range(30)])),
        ("ean", pa.array([f"{4_006_381_333_931 + n}" for n in range(30)], pa.string_view())),
        ("x", pa.array([str(uuid.UUID(int=n**20)) for n in range(30)])),
        ("product_id", pa.array([7 * n % 31 for n in range(30)])),
        ("productId", pa.array(range(30))),
    ],
)
def test_ids_are_ignored(name: str, column: pa.Array) -> None:
    found = recognise(pa.table({"title": ["rye bread"] * 30, name: column}))
    assert found.ignored == (name,)
    assert found.kinds == ColumnKinds(text=("title",))
    with pytest.raises(HiNetError, match=f"all columns look like ids \\('{name}'\\); name the columns to read"):
        recognise(pa.table({name: column}))


def test_numbers_are_ids_by_their_name_too() -> None:
    assert recognise(pa.table({"paid": pa.array(range(30))})).kinds.number == ("paid",)
    assert recognise(pa.table({"id": pa.array([1, 2, 3] * 10)})).kinds.number == ("id",)


def test_frequent_values_of_several_words_are_categories_if_there_is_a_text() -> None:
    towns = pa.array(["New York", "Los Angeles"] * 30)
    titles = pa.array([f"a title of its own {n}" for n in range(60)])
    assert recognise(pa.table({"town": towns})).kinds == ColumnKinds(text=("town",))
    kinds = recognise(pa.table({"town": towns, "title": titles})).kinds
    assert kinds == ColumnKinds(text=("title",), category=("town",))


def test_repeated_titles_are_text_and_ignored_columns_are_reported(tmp_path: Path) -> None:
    titles = [f"{one} {two}" for one in ("rye", "white", "toy") for two in ("bread", "milk", "car")]
    frame = pd.DataFrame({"title": titles * 4, "sku": [f"SKU-{n:03}" for n in range(36)]})
    with pytest.warns(UserWarning, match="ignored as ids, with a different code in every row: 'sku'; name the columns"):
        found = small().fit(frame, [title.split()[1] for title in frame.title])
    assert found.columns_ == {"text": ["title"], "number": [], "category": [], "vector": []}
    assert found.predict(pd.DataFrame({"title": ["brown bread"]})).tolist() == ["bread"]
    found.save(tmp_path / "model")
    assert load(tmp_path / "model").columns_ == found.columns_
    assert not hasattr(found.set_params(columns=None).fit(["rye bread", "toy car"] * 3, [0, 1] * 3), "columns_")


def test_a_column_of_no_kind_is_refused() -> None:
    days = pd.date_range("2026-01-01", periods=len(FRAME))
    for frame, told in ((FRAME.assign(day=days), "values of type timestamp"), (FRAME.assign(day=None), "no value")):
        with pytest.raises(HiNetError, match=f"column 'day' has {told}.*name the columns to read in `columns`"):
            small().fit(frame, LABELS)
    mixed = FRAME.assign(brand=[3, *FRAME.brand[1:]])
    with pytest.raises(HiNetError, match=r"row 1: column 'brand' has '\w+' and other rows 3; give .* one type"):
        small().fit(mixed, LABELS)
    twice = pd.concat([FRAME, FRAME[["brand"]]], axis=1)
    with pytest.raises(HiNetError, match="two columns have the name 'brand'"):
        small().fit(twice, LABELS)


def test_columns_can_be_told() -> None:
    told = {"text": ["title", "brand"], "number": "price"}
    found = small(columns=told).fit(FRAME.assign(day=pd.Timestamp("2026-01-01")), LABELS)
    features = found.fitted_.features
    assert features.columns == ColumnKinds(("title", "brand"), ("price",))
    assert features.texts(NEW).to_pylist()[0] == f"{NEW.title[0]} {NEW.brand[0]}"
    assert features.texts(NEW.assign(title="", brand=None)).to_pylist()[0] == ""
    assert clone(found).columns == told
    for kinds, rows in (
        ({"vector": ["embedding"]}, FRAME),
        ({"category": "brand"}, FRAME),
        ({"number": ["price"]}, FRAME),
    ):
        assert small(columns=kinds).fit(rows, LABELS).predict(NEW).shape == (len(NEW),)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"texts": ["title"]}, "columns: expected a mapping of 'text', 'number', 'category', 'vector' to names"),
        ({"text": [3]}, "columns: expected a mapping"),
        ("title", "columns: expected a mapping"),
        ({"text": []}, "columns names no column"),
        ({"text": ["title"], "category": ["title"]}, "columns names 'title' twice"),
        ({"text": ["name"]}, "the rows have no column 'name', they have 'title', 'price'"),
        ({"number": ["title"]}, "column 'title' has 'cow.*expected a number"),
        ({"vector": ["price"]}, "row 0: column 'price' has .* expected a list of numbers"),
    ],
)
def test_columns_that_cannot_be(columns: Any, message: str) -> None:
    frame = FRAME.assign(title="cow cream")
    with pytest.raises(HiNetError, match=message):
        small(columns=columns).fit(frame, LABELS)


def test_columns_need_a_frame() -> None:
    with pytest.raises(HiNetError, match="`columns` names columns, and the rows are list"):
        small(columns={"text": ["title"]}).fit(["rye"] * 3, ["a", "b", "a"])
    with pytest.raises(HiNetError, match="`titles=True` needs rows of text alone"):
        small(titles=True).fit(FRAME, LABELS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="price"), "no column 'price', they have 'title', 'brand', 'embedding'; give"),
        (lambda frame: frame.assign(price="cheap"), "row 0: column 'price' has 'cheap', expected a number; give"),
        (lambda frame: frame.assign(price=[*[1.0] * 79, math.inf]), "row 79: column 'price' has inf, expected a fin"),
        (lambda frame: frame.assign(title=7), "row 0: column 'title' has 7, expected text; give the column as text"),
        (lambda frame: frame.assign(brand=[[1]] * 80), r"row 0: column 'brand' has \[1\], expected a category; give"),
        (lambda frame: frame.assign(embedding=1.0), "row 0: column 'embedding' has 1.0, expected a list of numbers"),
        (lambda frame: frame.assign(embedding=[["a"]] * 80), r"'embedding' has \['a'\], expected a list of numbers"),
        (lambda frame: frame.assign(embedding=[[1.0] * WIDTH] * 79 + [[1.0]]), "row 79: .* has 1 numbers, expected 6"),
        (lambda frame: frame.assign(embedding=[None, *[[math.nan] * WIDTH] * 79]), "row 1: column 'embedding' has nan"),
        (lambda frame: frame.title.tolist(), "trained on a frame with named columns, got list; give a pandas"),
        (lambda frame: np.zeros((3, 4)), "trained on a frame with named columns, got ndarray; give a pandas"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused(model: HiNetClassifier, change: Any, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        model.predict(change(NEW))


def test_rows_that_fit_in_another_way(model: HiNetClassifier) -> None:
    expected = model.predict_proba(NEW)
    other = NEW[["embedding", "brand", "price", "title"]].assign(more=1)
    np.testing.assert_array_equal(model.predict_proba(other), expected)
    other = NEW.assign(brand=NEW.brand.astype("category"), embedding=[vector.tolist() for vector in NEW.embedding])
    np.testing.assert_array_equal(model.predict_proba(other), expected)
    unknown = model.predict_proba(NEW.assign(brand="Cord"))
    np.testing.assert_array_equal(unknown, model.predict_proba(NEW.assign(brand=None)))
    far, further = (model.predict_proba(NEW.assign(price=price)) for price in (1e9, 1e30))
    np.testing.assert_array_equal(far, further)


def test_what_others_are_trained_on_takes_no_such_frame() -> None:
    texts = small().fit(FRAME.title.fillna("").tolist(), LABELS)
    with pytest.raises(HiNetError, match="trained on texts, got DataFrame"):
        texts.predict(NEW)
    numbers = small().fit(FRAME[["price"]].fillna(0), LABELS)
    assert numbers.fitted_.features.kind == "dense"
    assert numbers.feature_names_in_.tolist() == ["price"]
    with pytest.raises(HiNetError, match="trained on rows of numbers, got DataFrame"):
        numbers.predict(NEW)


def kinds(**named: tuple[str, ...]) -> ColumnKinds:
    return ColumnKinds(**named)


def test_numbers_are_scaled_and_missing_ones_marked() -> None:
    columns = kinds(number=("a", "same", "none"))
    table = pa.table({"a": [1.0, None, 3.0, math.nan], "same": [0.1] * 4, "none": pa.array([None] * 4, pa.float64())})
    numbers = Numbers.fit(columns, table)
    assert numbers.marked == ["a", "none"]
    values = numbers.values(table, columns)
    np.testing.assert_allclose(numbers.scaled(values, 2.0), [[-2, 0, 0], [0, 0, 0], [2, 0, 0], [0, 0, 0]])
    other = pa.table({"a": [1e30], "same": [7.0], "none": [1.0]})
    scaled = numbers.scaled(numbers.values(other, columns), 1.0)
    np.testing.assert_allclose(scaled, [[MAX_DEVIATIONS, 0, 0]])


def test_categories_are_text() -> None:
    columns = kinds(category=("x",))
    for values, expected in (
        ([7.0, None, 8.0, math.nan], ("7", "8")),
        ([True, False, None], ("false", "true")),
        (["a", "", None, "b"], ("a", "b")),
    ):
        table = pa.table({"x": values})
        found = Categories.fit(columns, table)
        assert found.values == (expected,)
        texts = [None if value is None or value != value else str(value) for value in values]
        assert ((found.codes(table, columns)[:, 0] >= 0) == [bool(text) for text in texts]).all()
    numbers = Categories.fit(columns, pa.table({"x": [7, 8]}))
    np.testing.assert_array_equal(numbers.codes(pa.table({"x": ["8", "9", "7"]}), columns), [[1], [-1], [0]])


def test_vectors_are_brought_to_the_length_of_others() -> None:
    columns = kinds(vector=("v",))
    random = np.random.default_rng(0)
    table = pa.table({"v": [*(100 * random.normal(size=(50, 8)) + 30).tolist(), None, [0.0] * 8]})
    column = VectorColumn.fit(columns, table, "v")
    found = column.columns(table, columns)
    assert np.sqrt(np.square(found[:50]).sum(1).mean()) == pytest.approx(LENGTH, rel=1e-5)
    np.testing.assert_allclose(found[:50].mean(0), 0, atol=1e-5)
    assert not found[50:].any()


def test_the_rows_have_sparse_and_dense_columns(model: HiNetClassifier) -> None:
    features = model.fitted_.features
    assert isinstance(features, FrameInput)
    rows = model.features_of(NEW)
    assert isinstance(rows, MixedRows)
    assert rows.dense.shape == (len(NEW), 1 + WIDTH)
    names = features.names(np.arange(rows.shape[1]))
    assert names[-WIDTH - 4 :] == ["brand = Acme", "brand = Bolt", "price is missing", "price", *["embedding"] * WIDTH]
    marked = model.features_of(NEW.assign(price=None, brand=None, title=None, embedding=None))
    assert set(marked.sparse.indices) == {names.index("price is missing")}
    assert not marked.dense.any()
    plain = small(columns={"text": ["title"], "category": ["brand"]}).fit(FRAME, LABELS)
    assert not isinstance(plain.features_of(NEW), MixedRows)


def test_reasons_are_named_by_column(model: HiNetClassifier) -> None:
    row = {"title": "rye quux", "price": 9.0, "brand": "Acme", "embedding": NEW.embedding[0].tolist()}
    explanation = model.explain(row, most=1000)
    assert explanation.unknown_words == ("quux",)
    for step in explanation.steps:
        names = [reason.feature for reason in step.reasons]
        assert len({*names}) == len(names)
        assert {"price", "brand = Acme", "embedding", "rye"} <= {*names}
        assert sum(push for _, push in step.pushes()) == pytest.approx(step.difference, abs=1e-4)
    dear = next(step for step in explanation.steps if "dear" in step.chosen)
    assert "price" in {reason.feature for reason in dear.reasons[:4]}
    pd.testing.assert_frame_equal(model.explain(NEW[:1]).to_frame(), model.explain(NEW.iloc[0]).to_frame())
    with pytest.raises(HiNetError, match=r"row 0: column 'price' has <object .*; give text, a number or a list"):
        model.explain({**row, "price": object()})
    missing = model.explain({**row, "price": None, "embedding": None}, most=1000)
    assert "price is missing" in {reason.feature for step in missing.steps for reason in step.reasons}


def test_texts_of_a_frame_are_understood_by_vectors(tmp_path: Path) -> None:
    words = sorted({word for text in WORDS.values() for word in text.split()} | {"sourdough"})
    group = [next((n for n, text in enumerate(WORDS.values()) if word in text.split()), 0) for word in words]
    vectors = np.random.default_rng(0).normal(size=(3, 8))[group].astype(np.float32)
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in zip(words, vectors, strict=True)]
    (tmp_path / "words.txt").write_text(f"{len(words)} 8\n" + "\n".join(lines) + "\n")
    found = small(epochs=20, vectors=tmp_path / "words.txt").fit(FRAME.drop(columns="embedding"), LABELS)
    asked = {"title": "sourdough", "price": 1.0, "brand": "Bolt"}
    assert found.predict(pd.DataFrame([asked]))[0] == "bread Bolt"
    reasons = {reason.feature for step in found.explain(asked).steps for reason in step.reasons}
    assert "sourdough (meaning)" in reasons
    found.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert isinstance(again.vectors, TokenVectors)
    np.testing.assert_array_equal(again.predict_proba(NEW), found.predict_proba(NEW))
    with pytest.raises(HiNetError, match="`encoder` need texts, and the rows have no text column"):
        small(vectors=tmp_path / "words.txt", columns={"number": "price"}).fit(FRAME, LABELS)


def test_a_saved_model_answers_alike(model: HiNetClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(NEW), model.predict_proba(NEW))
    assert again.feature_names_in_.tolist() == model.feature_names_in_.tolist()
    assert again.n_features_in_ == 4
    with pytest.raises(HiNetError, match="no column 'price'"):
        again.predict(NEW.drop(columns="price"))
    columns = load_model(tmp_path / "model", 1).columns
    assert (columns.text, columns.number, columns.category) == (("title",), ("price",), ("brand",))


def test_more_rows_another_taxonomy_and_calibration(tmp_path: Path) -> None:
    found = small(taxonomy=Taxonomy.from_edges(EDGES), epochs=20, validation_fraction=0.2).fit(FRAME, LABELS)
    assert found.metrics_["validation"]["rows"] == 48
    found.calibrate(NEW, NEW_LABELS, risk=0.5)
    found.save(tmp_path / "model")
    found = load(tmp_path / "model")
    found.partial_fit(NEW, NEW_LABELS)
    assert found.score(NEW, NEW_LABELS) > 0.7
    moved = [(parent, node) for parent, node in EDGES if node != "milk Bolt"] + [("bread", "milk Bolt")]
    found.update_taxonomy(Taxonomy.from_edges(moved), X=NEW)
    assert found.score(NEW, NEW_LABELS) > 0.6
    found.update_taxonomy(Taxonomy.from_edges(EDGES), X=NEW, y=NEW_LABELS)
    assert found.score(NEW, NEW_LABELS) > 0.6
    found.set_params(warm_start=True).fit(FRAME, LABELS, valid=(NEW, NEW_LABELS))
    assert found.score(NEW, NEW_LABELS) > 0.7
    with pytest.raises(HiNetError, match="trained on a frame"):
        found.fit(FRAME.title.tolist(), LABELS)


def test_checkpoints_go_on(tmp_path: Path) -> None:
    whole = small(epochs=6).fit(FRAME, LABELS)
    first = small(epochs=6, checkpoint=tmp_path / "run").fit(FRAME, LABELS)
    again = small(epochs=6, checkpoint=tmp_path / "run").fit(FRAME, LABELS)
    for found in (first, again):
        np.testing.assert_array_equal(found.predict_proba(NEW), whole.predict_proba(NEW))
    assert list((tmp_path / "run").iterdir())


def test_a_model_of_a_frame_is_exported(model: HiNetClassifier, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    report = model.export_onnx(tmp_path / "graph", NEW, NEW_LABELS)
    assert "expert" in str(report)


def test_unknown_words_cause_a_warning(model: HiNetClassifier) -> None:
    found = small().fit(FRAME, LABELS)
    old = "the update made old rows worse"  # new rows get their labels from other columns
    with pytest.warns(UserWarning, match=f"the model knows 0% of the words|{old}") as warned:
        found.partial_fit(NEW.assign(title="quux quuz"), NEW_LABELS)
    assert "the model knows 0% of the words" in str(warned[0].message)


def test_torch_reads_frames(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = HiNetClassifier(engine="torch", width=16, epochs=30, n_jobs=1).fit(FRAME, LABELS)
    assert found.score(NEW, NEW_LABELS) > 0.6
    names = {reason.feature for step in found.explain(NEW[:1], most=1000).steps for reason in step.reasons}
    assert {"price", "embedding"} <= names
    found.save(tmp_path / "model")
    np.testing.assert_allclose(load(tmp_path / "model").predict_proba(NEW), found.predict_proba(NEW), atol=1e-6)


def test_scikit_learn_takes_frames() -> None:
    scores = cross_val_score(small(epochs=20), FRAME, LABELS, cv=3)
    assert scores.mean() > 0.6
    search = GridSearchCV(small(epochs=4), {"columns": [None, {"number": ["price"]}]}, cv=2).fit(FRAME, LABELS)
    assert search.best_params_ == {"columns": None}


# Forged models


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    for told in manifest["files"].values():
        with (folder / told["file"]).open("rb") as stream:
            told.update(bytes=(folder / told["file"]).stat().st_size, blake2b=digest_of(stream))
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))


@pytest.fixture(scope="module")
def saved(model: HiNetClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frames") / "model"
    model.save(folder)
    return folder


@pytest.mark.parametrize(
    ("array", "change", "message"),
    [
        ("columns.number_mean", lambda array: array * np.nan, "holds nan at index 0"),
        ("columns.number_mean", lambda array: array[:0], r"has the shape \(0,\)"),
        ("columns.number_scale", lambda array: array - 1e9, "expected numbers from 0"),
        ("columns.number_missing", lambda array: array + 7, "expected 0 to 1"),
        ("columns.number_missing", lambda array: array * 0, "reads .* features, and rows have"),
        ("columns.vector_width", lambda array: array * 0, "expected 1 to"),
        ("columns.vector_width", lambda array: array + 1, "vectors of 7 numbers in all, and means of 6"),
        ("columns.vector_width", lambda array: np.concatenate([array, array]), r"has the shape \(2,\)"),
        ("columns.vector_mean", lambda array: array.astype(np.int32), "is of int32"),
        ("columns.vector_mean", lambda array: array[None], "has the shape"),
        ("columns.vector_scale", lambda array: array * np.inf, "holds inf"),
        ("columns.lengths", lambda array: array[:1], "has the shape"),
        ("words.idf", lambda array: array[:, None], "has the shape"),
    ],
)
def test_a_forged_array_is_refused(saved: Path, tmp_path: Path, array: str, change: Any, message: str) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / manifest["files"]["features"]["file"]
    arrays, _ = read_arrays(path)
    arrays[array] = np.ascontiguousarray(change(arrays[array].copy()))
    write_arrays(path, arrays)
    sign(folder, manifest)
    with pytest.raises(FileError, match=message):
        load(folder)


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda features: features["columns"].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("number", ["price", "cost"]), "has the shape"),
        (put("number", "price"), "expected a list"),
        (put("number", [3]), "expected text"),
        (put("text", []), "contradict each other"),
        (put("vector", []), "has the shape"),
        (put("category", ["brand", "title"]), "belong to other columns|twice"),
        (put("category", ["kind"]), "belong to other columns"),
        (lambda features: features["columns"].pop("text"), "damaged"),
        (lambda features: features["columns"].update(more=["x"]), "damaged"),
        (lambda features: features["categories"].update(brand=["Acme", "Acme"]), "has a category twice"),
        (lambda features: features["categories"].update(brand=["Acme"]), "reads .* features, and rows have"),
        (lambda features: features["categories"].update(brand=7), "expected a list"),
        (lambda features: features.update(text=None), "contradict each other"),
        (lambda features: features["text"].update(settings=7), "expected a mapping"),
        (lambda features: features.update(kind="text"), "damaged"),
    ],
)
def test_a_forged_description_is_refused(saved: Path, tmp_path: Path, change: Any, message: str) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest["features"])
    sign(folder, manifest)
    with pytest.raises(FileError, match=message):
        load(folder)


# Texts for other estimators


def test_the_vectorizer_joins_pipelines() -> None:
    frame = FRAME.fillna({"title": "", "price": 0.0})
    titles = TextVectorizer(char_ngrams=None, n_jobs=1)
    columns = ColumnTransformer([("title", titles, "title"), ("price", StandardScaler(), ["price"])])
    pipeline = make_pipeline(clone(columns), LogisticRegression(max_iter=500)).fit(frame, LABELS)
    assert pipeline.score(frame, LABELS) > 0.4
    names = pipeline[0].get_feature_names_out().tolist()
    assert {"title__rye", "title__whole cream", "price__price"} <= {*names}
    search = GridSearchCV(
        make_pipeline(TextVectorizer(n_jobs=1), LogisticRegression()), {"textvectorizer__min_df": [1, 3]}, cv=2
    )
    assert search.fit(frame.title.tolist(), LABELS).best_params_["textvectorizer__min_df"] in (1, 3)


def test_the_vectorizer_gives_the_rows_of_the_classifier() -> None:
    texts = FRAME.title.dropna().tolist()
    vectorizer = TextVectorizer(n_jobs=1)
    rows = vectorizer.fit_transform(texts)
    assert (rows != vectorizer.fit(texts).transform(texts)).nnz == 0
    assert (rows != vectorizer.fit(pd.DataFrame({"title": texts})).transform(pl.Series(texts))).nnz == 0
    assert len(vectorizer.get_feature_names_out()) == rows.shape[1]
    hashed = TextVectorizer(hash_bits=4).fit(texts)
    assert hashed.get_feature_names_out()[0] == "feature 0"
    with pytest.raises(HiNetError, match="min_df: expected"):
        TextVectorizer(min_df=0).fit(texts)
    with pytest.raises(HiNetError, match="one column of text, got 4"):
        TextVectorizer().fit(FRAME)
    with pytest.raises(HiNetError, match="got one text"):
        TextVectorizer().fit("rye")


class CountedTable:
    """An Arrow table that counts how often all its names are listed, which takes as long as there are columns."""

    def __init__(self, table: pa.Table) -> None:
        self._table, self.listed = table, 0

    @property
    def column_names(self) -> list[str]:
        self.listed += 1
        return list(self._table.column_names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def test_names_are_listed_once_however_many_columns_there_are() -> None:
    number = 200
    table = pa.table({f"n{column}": [float(column)] for column in range(number)})
    words = pa.table({f"w{column}": [f"{column}", None] for column in range(number)})
    counted: Any = CountedTable(table)
    kinds = recognise(counted).kinds
    assert Numbers.fit(kinds, counted).values(counted, kinds).tolist() == [list(range(number))]
    counted_words: Any = CountedTable(words)
    joined = texts_of(counted_words, ColumnKinds(text=tuple(words.column_names)))
    assert joined.to_pylist() == [" ".join(map(str, range(number))), ""]
    assert counted.listed + counted_words.listed <= 2


def test_empty_cells_leave_no_space_where_texts_are_joined() -> None:
    table = pa.table(
        {"a": ["x", "", None], "b": ["", "", "y"], "c": ["z", None, ""], "d": [None, "", "u"], "e": list("vwx")}
    )
    names = tuple(table.column_names)
    assert texts_of(table, ColumnKinds(text=names)).to_pylist() == ["x z v", "w", "y u x"]


COLUMNS = {"number": ["first", "second", "flag"]}


def test_scores_are_those_of_a_normal_distribution_at_the_rank() -> None:
    random = np.random.default_rng(0)
    values = np.exp(3 * random.normal(size=(4_001, 1)))
    scores = Ranks.fit(values).scores(values)[:, 0]
    rank = np.empty(len(values))
    rank[np.argsort(values[:, 0])] = np.linspace(0, 1, len(values))
    inner = (rank > 0.02) & (rank < 0.98)
    expected = np.array([NormalDist().inv_cdf(share) for share in rank[inner]])
    np.testing.assert_allclose(scores[inner], expected, atol=0.15)
    assert (np.diff(scores[np.argsort(values[:, 0])]) >= 0).all()
    assert abs(scores).max() <= -NormalDist().inv_cdf(MIN_RANK) + 1e-6


def test_equal_numbers_have_the_middle_of_their_ranks_and_missing_ones_none() -> None:
    column = np.array([0.0] * 50 + [1.0] * 30 + [2.0] * 20)
    ranks = Ranks.fit(np.stack([column, -column, np.r_[column[:60], [np.nan] * 40], column > 0], 1))
    assert ranks.ranked.tolist() == [True, True, False, False]  # two numbers have no rank that says more
    scores = ranks.scores(np.array([[0.0, 0.0, 0, 0], [1, -1, 0, 0], [2, -2, 0, 0], [np.nan] * 4, [99, -99, 0, 0]]))
    np.testing.assert_allclose(scores[:, 0], -scores[:, 1], atol=1e-6)  # the same from both ends
    assert scores[0, 0] < 0 < scores[1, 0] < scores[2, 0]
    assert scores[3].tolist() == [0, 0]
    assert scores[4, 0] >= scores[2, 0]


@pytest.fixture(scope="module")
def skewed() -> tuple[pa.Table, list[set[str]]]:
    random = np.random.default_rng(1)
    numbers = np.exp(2 * random.normal(size=(80, 2)))
    labels = [{f"a{int(row[0] > 1)}", f"b{int(row[1] > 1)}"} for row in numbers]
    return pa.table({"first": numbers[:, 0], "second": numbers[:, 1], "flag": numbers[:, 0] > 3}), labels


def test_a_model_keeps_ranks(skewed: tuple[pa.Table, list[set[str]]], tmp_path: Path) -> None:
    table, labels = skewed
    classifier = HiNetClassifier(columns=COLUMNS, epochs=5, width=8, members=2, n_jobs=1).fit(table, labels)
    features: Any = classifier.fitted_.features
    assert features.ranks.knots.shape == (2, KNOTS)
    assert features.names(np.arange(features.count)).count("first") == 2
    classifier.save(tmp_path / "model")
    loaded = HiNetClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(table), classifier.predict_proba(table))
    told = classifier.explain(table.slice(0, 1)).to_frame()
    assert not told.duplicated(["step", "feature"]).any()  # a number and its rank are one


def test_one_label_a_row_has_no_ranks(skewed: tuple[pa.Table, list[set[str]]]) -> None:
    table, labels = skewed
    classifier = HiNetClassifier(columns=COLUMNS, epochs=2, width=8, members=2, n_jobs=1).fit(
        table, [min(row) for row in labels]
    )
    features: Any = classifier.fitted_.features
    assert not features.ranks.ranked.any()
    assert not features.ranks.to_arrays()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("columns.ranked"), "the arrays have no 'columns.ranked'"),
        (lambda arrays: arrays.update({"columns.knots": arrays["columns.knots"][:, :9]}), "has the shape"),
        (lambda arrays: arrays.update({"columns.knots": arrays["columns.knots"][:1]}), "1 columns have knots, and 2"),
        (
            lambda arrays: arrays.update({"columns.knots": -arrays["columns.knots"]}),
            "knots .* are not ascending",
        ),
        (lambda arrays: arrays.update({"columns.knots": arrays["columns.knots"] * np.nan}), "holds nan"),
    ],
)
def test_forged_ranks_are_refused(change: Any, message: str) -> None:
    arrays = Ranks.fit(np.random.default_rng(0).normal(size=(20, 2))).to_arrays()
    assert Ranks.restored(2, arrays).ranked.all()
    change(arrays)
    with pytest.raises(HiNetError, match=message):
        Ranks.restored(2, arrays)
