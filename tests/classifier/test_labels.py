"""Labels come back as the user wrote them: random sets of paths in every form and container."""

from __future__ import annotations

import itertools
import warnings
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from hinet import HiNetClassifier, HiNetError, LabelError, Taxonomy, load, paths_as_text
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.inputs import take_rows
from hinet.classifier.labels import LabelCodec, checked_labels, read_labels, read_with_classes, widen_codec
from hinet.classifier.prediction_table import PredictionTable
from hinet.classifier.saved_model import describe_codec, restore_codec
from hinet.metrics import scorer
from hinet.taxonomy import split_path
from tests.classifier.data import small
from tests.strategies import awkward_names

TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk"] * 5
FOOD: list[Any] = ([("Food", "Bread")] * 2 + [("Food", "Milk")] * 2) * 5

few_names = st.sampled_from(["Food", "Bread", "Milk", "a > b", "x\\", "\\>", "7"])
paths = st.lists(st.one_of(few_names, awkward_names), min_size=1, max_size=4).map(tuple)
path_sets = st.lists(paths, min_size=1, max_size=6)


@st.composite
def one_top(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """Paths that all start with the same name."""
    top = draw(few_names)
    return [(top, *path) for path in draw(path_sets)] + draw(st.sampled_from([[], [(top,)]]))


def objects(y: list[Any]) -> np.ndarray:
    array = np.empty(len(y), object)
    array[:] = y
    return array


def padded(y: list[Any]) -> np.ndarray:
    width = max(map(len, y))
    return np.array([[*path, *[""] * (width - len(path))] for path in y], object)


def read_back(form: LabelCodec, y: Any) -> Any:
    """Return what encoding and decoding gives: by trace, by node, and from a form that was saved."""
    traces = form.encode(y)
    by_trace = form.decode_traces(traces)
    nodes = traces.end_nodes.astype(np.int64)
    assert np.array_equal(form.decode(nodes), by_trace)
    taxonomy = form.taxonomy
    saved = restore_codec(taxonomy, describe_codec(form), form.label_nodes)
    assert np.array_equal(saved.decode(nodes), by_trace)
    assert saved.decode(form.label_nodes).tolist() == form.decode(form.label_nodes).tolist()
    assert all(form.truth(by_trace).ids())
    assert form.truth(by_trace).exact.all()
    assert form.truth(by_trace).ids() == form.truth(y).ids()
    return by_trace


@settings(max_examples=40)
@given(st.one_of(path_sets, one_top()))
@example([("Food", "Bread"), ("Food", "Milk"), ("Food",)])
def test_paths_come_back_as_they_were_written(y: list[tuple[str, ...]]) -> None:
    for written in (y, objects(y), pd.Series(y), [list(path) for path in y]):
        form, _ = read_labels(written, None)
        assert read_back(form, written).tolist() == y
        assert sorted(form.decode(form.label_nodes).tolist()) == sorted(set(y))
    table = padded(y)
    if table.shape[1] > 1:
        assert read_back(read_labels(table, None)[0], table).tolist() == table.tolist()
        frame = pd.DataFrame(table).replace("", None)
        assert read_back(read_labels(frame, None)[0], frame).tolist() == table.tolist()
    texts = paths_as_text([tuple(step.strip() for step in path) for path in y])
    form, _ = read_labels(texts, None, ">")
    assert read_back(form, texts).tolist() == texts
    assert form.decode(form.label_nodes).tolist() == sorted(set(texts))  # scikit-learn expects sorted classes_


@settings(max_examples=40)
@given(st.one_of(path_sets, one_top()), st.one_of(path_sets, one_top()))
def test_paths_that_come_later_leave_earlier_ones_as_they_were(
    first: list[tuple[str, ...]], then: list[tuple[str, ...]]
) -> None:
    form = widen_codec(read_labels(first, None)[0], then)
    assert read_back(form, [*first, *then]).tolist() == [*first, *then]
    before, after = (paths_as_text([tuple(map(str.strip, path)) for path in part]) for part in (first, then))
    form = widen_codec(read_labels(before, None, ">")[0], after)
    assert read_back(form, [*before, *after]).tolist() == [*before, *after]


texts_or_numbers = st.one_of(  # values with different texts
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.sampled_from(["Food", "a > b", "x\\"]),
)
mixed_paths = st.lists(st.lists(texts_or_numbers, min_size=1, max_size=4).map(tuple), min_size=1, max_size=6)


def kinds(label: Any) -> Any:
    """Return a label with the kinds of its steps: 1, 1.0 and True are the same key, as 1 and "1" are the same text."""
    steps = label if isinstance(label, (tuple, list)) else [label]
    return [(type(step), step) for step in (int(s) if type(s) is float and s.is_integer() else s for s in steps)]


@settings(max_examples=40)
@given(mixed_paths, mixed_paths)
@example([("Food", 1), ("Food", 2), ("Food", 1.5)], [("Food", 3), (1, "Food")])
@example([(1,), (2,)], [(3,)])
def test_steps_of_any_type_come_back(first: list[tuple[Any, ...]], then: list[tuple[Any, ...]]) -> None:
    def all_kinds(answers: Any) -> Any:
        return [kinds(tuple(step for step in row if step != "")) for row in answers.tolist()]

    form, _ = read_labels(first, None)
    assert all_kinds(read_back(form, first)) == list(map(kinds, first))
    table = padded(first)
    assert table.shape[1] == 1 or all_kinds(read_back(read_labels(table, None)[0], table)) == list(map(kinds, first))
    if not form.number:  # else whole numbers may follow, nothing else
        both = [*first, *then]
        assert all_kinds(read_back(widen_codec(form, then), both)) == list(map(kinds, both))


@settings(max_examples=40)
@given(st.lists(texts_or_numbers, min_size=1, max_size=6))
@example(["a", 1])
@example([2**63, -1])
@example([2**63, 1, 2**70])
@example([2**60 + 1, 0.5])
def test_plain_labels_of_any_type_come_back(y: list[Any]) -> None:
    taxonomy = Taxonomy.from_edges([(None, str(int(v) if type(v) is float and v.is_integer() else v)) for v in y])
    for given_taxonomy in (None, taxonomy):
        form, _ = read_labels(y, given_taxonomy, None)
        back = read_back(form, y)
        assert [back.item(row) for row in range(len(y))] == y
        assert back.dtype != object or list(map(kinds, back)) == list(map(kinds, y))


def test_steps_of_one_text_and_two_types_are_told() -> None:
    for y in ([("Food", 1), ("Food", 2), ("Food", "1")], ["a", 1, "1"]):
        with pytest.raises(
            LabelError, match="row 2: '1' and the 1 of an earlier row are different labels with the same"
        ):
            read_labels(y, None)
    frame = pd.DataFrame({"chapter": ["1", "2"], "code": [1, 2]})  # other nodes
    assert read_back(read_labels(frame, None)[0], frame).tolist() == [["1", 1], ["2", 2]]
    mixed = Taxonomy.from_edges([(None, "1"), (None, "2"), (None, "other")])
    ids, _ = read_labels([1, 2], mixed)
    assert ids.decode(np.array([0, 1])).dtype == np.int64
    assert ids.decode(ids.label_nodes).tolist() == [1, 2, "other"]


def test_what_steps_were_is_saved_and_checked() -> None:
    form, _ = read_labels([("Food", 1), ("Food", 1.5)], None)
    told = describe_codec(form)
    assert told["typed"] == {"Food > 1": 1, "Food > 1.5": 1.5}
    for node, value in (("Food > 1", 2), ("Food > 1", "1"), ("Toys", 1), ("Food > 1", [1])):
        with pytest.raises(ValueError, match="cannot be written as"):
            restore_codec(form.taxonomy, {**told, "typed": {node: value}}, form.label_nodes)


@settings(max_examples=100)
@given(st.lists(st.text("ab>\\ ", min_size=1, max_size=8).filter(lambda text: all(split_path(text))), min_size=1))
@example(["x>y", r"a\ >b", r"a\>b"])
def test_text_with_marks_and_backslashes_comes_back(texts: list[str]) -> None:
    first = {split_path(text): text for text in reversed(texts)}
    form, _ = read_labels(texts, None, ">")
    assert read_back(form, texts).tolist() == [first[split_path(text)] for text in texts]
    inner = form.decode(np.arange(len(form.taxonomy)))
    assert [form.taxonomy.position(form.id_of(0, text)) for text in inner] == list(range(len(form.taxonomy)))


def test_the_first_spelling_stays() -> None:
    form, _ = read_labels(["a > b", "a>b"], None)
    assert form.decode(form.label_nodes).tolist() == ["a > b"]
    later = widen_codec(form, ["a  >  b", "a", "c>d"])
    assert later.decode(later.label_nodes).tolist() == ["a", "a > b", "c>d"]


def test_classes_widen_the_form_of_labels() -> None:
    table = padded([("Food", "Bread"), ("Toys",)])
    form = read_with_classes(table, pd.DataFrame([["Food", "Milk", "Whole"], ["Toys", "", ""]]), None)
    assert form.decode(form.label_nodes).tolist() == [
        ["Food", "Bread", ""], ["Toys", "", ""], ["Food", "Milk", "Whole"],
    ]  # fmt: skip
    text = read_with_classes(["Food", "Toys"], ["Food > Bread", "Toys"], None)
    assert text.decode(text.label_nodes).tolist() == ["Food", "Food > Bread", "Toys"]
    for y, classes, message in (
        (["a", None], ["a", "b"], "row 1: the label is missing"),
        (["a", "b"], ["a", None], "classes: row 1: the label is missing"),
        ([("a",)], ["a > b"], "classes: row 0: 'a > b' and earlier rows mix paths with single labels"),
        (["a"], "ab", "classes: expected a list of labels, got the text 'ab'"),
    ):
        with pytest.raises(LabelError, match=f"^{message}"):
            read_with_classes(y, classes, None)
    found = small(epochs=1).partial_fit(TEXTS, padded(RAGGED), classes=padded(RAGGED))
    assert found.predict(TEXTS).shape == (20, 2)


def test_rows_without_an_answer_have_no_ids(one_topped: HiNetClassifier) -> None:
    for y, missing in (
        (FOOD, ()), (["a", "b"], None), (["a > b", "c"], None), (padded(FOOD), np.array(["", None], object)),
    ):  # fmt: skip
        form, _ = read_labels(y, None)
        answers = form.decode(np.array([-1, form.label_nodes[0]]))
        assert list(map(bool, form.truth(answers, allow_missing=True).ids())) == [False, True]
        for rows in (answers, [missing]):
            with pytest.raises(LabelError, match=r"row 0: the (label is missing|path is empty)"):
                form.truth(rows)
    along, _ = read_labels([("B", "x", "q"), ("A", "y")], DAG)
    assert along.truth([(), ("B", "x")], allow_missing=True).ids() == [(), ("x",)]
    assert one_topped.node_ids(one_topped.predict(TEXTS[:2], min_confidence=1.0)) == [("Food",)] * 2
    assert one_topped.node_ids([(), ("Food",), ("",)]) == [(), ("Food",), ()]
    for refused in (one_topped.score, one_topped.calibrate, partial(scorer("accuracy"), one_topped)):
        with pytest.raises(LabelError, match="row 1: the path is empty"):
            refused(TEXTS[:2], [("Food",), ()])


def test_flat_labels_have_no_nodes_above_them() -> None:
    form, _ = read_labels(["a", "b"], None)
    assert form.truth(["a > x", "b"]).ids() == [(), ("b",)]


def test_what_is_no_label_is_told_with_its_row() -> None:
    taxonomy = Taxonomy.from_edges([(None, "a"), (None, "inf")])
    for y in (["a", pd.NA], [1, pd.NA], pd.Series([1, pd.NA], dtype="Int64"), pd.Series(["a", pd.NA], dtype="string")):
        with pytest.raises(LabelError, match="row 1: the label is missing"):
            read_labels(checked_labels(y, 2), None)
    with pytest.raises(LabelError, match="Unknown label type"):
        checked_labels(np.array([0.5, 1.5]), 2)
    assert read_labels(["a", float("inf")], taxonomy)[0].decode(np.array([0, 1])).tolist() == ["a", float("inf")]
    assert read_labels([("a", float("inf"))], None)[0].decode(np.array([1])).tolist() == [("a", float("inf"))]
    numbers, _ = read_labels([(1, 2), (1, 3)], None)
    with pytest.raises(LabelError, match="row 0: '5' and earlier rows mix paths with single labels"):
        widen_codec(numbers, [5])
    with pytest.raises(LabelError, match="row 1: labels are text or numbers; got Decimal '1': write them as text"):
        read_labels(["a", Decimal(1)], None)


def test_arrow_tables_are_level_columns() -> None:
    table = pa.table({"top": ["Food", "Food", "Toys"], "code": [1, 2, None]})
    form, _ = read_labels(checked_labels(table, 3), None)
    assert read_back(form, table).tolist() == [["Food", 1], ["Food", 2], ["Toys", ""]]
    one = pa.table({"label": ["a", "b"]})
    assert read_labels(checked_labels(one, 2), None)[0].decode(np.array([0, 1])).tolist() == ["a", "b"]
    assert take_rows(table, np.array([0, 2])).to_pylist()[1]["top"] == "Toys"


EDGES = [("all", "food"), ("food", "bread"), ("food", "milk"), ("all", "toy"), ("toy", "car")]
GIVEN = [("food", "bread"), ("food",), ("toy", "car"), ("food", "milk")]


@pytest.mark.parametrize("dag", [False, True], ids=["tree", "DAG"])
@pytest.mark.parametrize("rooted", [False, True], ids=["below the root", "from the root"])
def test_paths_of_a_given_taxonomy_may_start_at_its_root(rooted: bool, dag: bool) -> None:
    taxonomy = Taxonomy.from_edges([*EDGES, *([("toy", "milk")] if dag else [])])
    y: list[Any] = [("all", *path) if rooted else path for path in GIVEN] + [("all",)]
    for written in (y, padded(y), paths_as_text(y)):
        form, _ = read_labels(written, taxonomy, "auto" if isinstance(written[0], tuple) else ">")
        assert form.from_root == rooted
        expected = written if isinstance(written, list) else written.tolist()
        assert read_back(form, written).tolist() == expected
    if rooted:
        with pytest.raises(LabelError, match="row 5: the path 'toy > car' starts below the root, where others start"):
            read_labels([*y, ("toy", "car")], taxonomy)
    ids, _ = read_labels(["bread", "all"], taxonomy)
    assert read_back(ids, ["bread", "all"]).tolist() == ["bread", "all"]


@pytest.fixture(scope="module")
def one_topped() -> HiNetClassifier:
    return small().fit(TEXTS, FOOD)


def test_a_shared_top_is_part_of_every_answer(one_topped: HiNetClassifier, tmp_path: Path) -> None:
    one_topped.save(tmp_path / "model")
    for found in (one_topped, load(tmp_path / "model")):
        assert found.predict(TEXTS).tolist() == FOOD
        assert found.predict(TEXTS, min_confidence=0.999999).tolist() == [("Food",)] * len(TEXTS)
        assert found.classes_.tolist() == [("Food", "Bread"), ("Food", "Milk")]
        assert found.score(TEXTS, FOOD) == 1
        assert found.node_ids(found.predict(TEXTS[:1])) == [("Food > Bread",)]
        assert scorer("hierarchical_f1")(found, TEXTS, FOOD) == 1
        trace = found.predict_traces(TEXTS[:1])[0][0]
        assert (trace.label, trace.steps) == (("Food", "Bread"), ("Food", "Food > Bread"))
        assert found.explain(TEXTS[0]).trace.label == ("Food", "Bread")
        columns = PredictionTable(found.fitted_, PredictionOptions(levels=True)).columns(TEXTS[:1])
        assert columns["label"] == ["Food > Bread"]
        assert columns["trace"] == [["Food", "Bread"]]
        assert (columns["level_1"], columns["level_2"]) == (["Food"], ["Bread"])


def test_a_label_at_the_shared_top_is_no_missing_answer() -> None:
    y: list[Any] = ([("Food", "Bread")] * 2 + [("Food",)] * 2) * 5
    found = small().fit(TEXTS, y, valid=(TEXTS, y))
    assert found.predict(TEXTS).tolist() == y
    assert found.metrics_["validation"] == {"rows": 20, "accuracy": 1.0, "hierarchical_f1": 1.0}
    root = small(taxonomy=Taxonomy.from_edges([("Food", "Bread")])).fit(TEXTS, y)
    assert root.predict(TEXTS).tolist() == y
    columns = PredictionTable(root.fitted_, PredictionOptions(levels=True)).columns(TEXTS)
    assert columns["trace"] == [list(path) for path in y]
    assert columns["level_1"] == ["Food"] * 20
    assert columns["level_2"][1:3] == ["Bread", None]


@pytest.mark.filterwarnings("ignore:the model knows")
def test_a_second_top_leaves_the_first_alone() -> None:
    found = small().fit(TEXTS, FOOD).partial_fit(["toy car", "red car"] * 3, [("Toys", "Car")] * 6)
    assert found.predict(TEXTS).tolist() == FOOD
    assert found.classes_.tolist() == [("Food", "Bread"), ("Food", "Milk"), ("Toys", "Car")]


RAGGED: list[Any] = [("Food", "Bread"), ("Food",), ("Toys",), ("Food", "Milk")] * 5
SETS: list[Any] = [{"bread", "milk"}, {"bread"}, "toy", {"milk"}] * 5
LEVELS = pd.DataFrame(
    [("Food", "Bread"), ("Food", None), ("Toys", None), ("Food", "Milk")] * 5, columns=["top", "leaf"]
)


@pytest.mark.parametrize(
    ("container", "y"),
    [
        (objects, RAGGED),
        (pd.Series, RAGGED),
        (lambda y: pl.Series([list(path) for path in y]), RAGGED),
        (objects, SETS),
        (pd.Series, SETS),
        (pd.Series, ["a", "b", "c", "d"] * 5),
        (lambda y: pd.Series(y, dtype="category"), ["a", "b", "c", "d"] * 5),
        (pl.Series, [3, 1, 2, 7] * 5),
    ],
    ids=["object array", "Series", "polars", "array of sets", "Series of sets", "text", "category", "numbers"],
)
def test_labels_come_in_containers_of_every_library(container: Any, y: list[Any]) -> None:
    labels = container(y)
    found = small(epochs=4).fit(pd.Series(TEXTS), labels)
    assert found.score(pd.Series(TEXTS), labels) == 1
    if y is not SETS:
        assert found.predict(TEXTS).tolist() == y
        again = found.predict(TEXTS)
        assert found.score(TEXTS, again) == found.partial_fit(TEXTS, again).score(TEXTS, again) == 1
    held = small(epochs=2, validation_fraction=0.3).fit(TEXTS, labels)
    assert held.metrics_["validation"]["rows"] == 6


def fold_scores(y: Any, cv: Any = 2, **asked: Any) -> Any:
    return cross_val_score(small(epochs=4), TEXTS, y, cv=cv, error_score="raise", **asked).tolist()


def test_model_selection_takes_labels_as_users_have_them() -> None:
    assert fold_scores(pd.Series(RAGGED), KFold(2)) == fold_scores(pd.Series(SETS)) == [1, 1]
    assert fold_scores(objects(RAGGED), KFold(2), scoring=scorer("accuracy")) == [1, 1]
    assert fold_scores(LEVELS.fillna("")) == [1, 1]
    grid = GridSearchCV(small(epochs=4), {"width": [4, 8]}, cv=KFold(2), error_score="raise")
    assert grid.fit(TEXTS, pd.Series(RAGGED)).best_score_ == 1


def test_as_text_scikit_learn_can_do_all_with_paths() -> None:
    for y in (
        RAGGED,
        pd.Series(RAGGED),
        LEVELS,
        LEVELS.to_numpy(),
        pl.DataFrame([(*path, None)[:2] for path in RAGGED], orient="row"),
        objects(RAGGED),
    ):
        assert paths_as_text(y) == ["Food > Bread", "Food", "Toys", "Food > Milk"] * 5
    texts = paths_as_text(LEVELS)
    assert paths_as_text(texts) == texts
    assert fold_scores(texts, 3, scoring="accuracy") == fold_scores(texts, 3) == [1, 1, 1]
    grid = GridSearchCV(small(epochs=4), {"width": [4, 8]}, cv=2, scoring="accuracy", error_score="raise")
    assert grid.fit(TEXTS, texts).best_score_ == 1
    assert grid.best_estimator_.taxonomy_.height == 2
    with pytest.raises(LabelError, match="row 0: several labels cannot be one text"):
        paths_as_text([{"a", "b"}])
    with pytest.raises(LabelError, match="row 1: the path is empty"):
        paths_as_text([("a",), ()])


@pytest.mark.filterwarnings("ignore:the model knows")
def test_paths_as_text_are_understood_and_come_back_as_text(tmp_path: Path) -> None:
    y = ["Food>Bread", "Food", "Toys ", "Food > Milk"] * 5
    found = small().fit(TEXTS, y)
    assert found.taxonomy_.ids == ("Food", "Food > Milk", "Food > Bread", "Toys")
    assert found.predict(TEXTS).tolist() == y
    assert found.classes_.tolist() == sorted(set(y))
    assert accuracy_score(y, found.predict(TEXTS)) == found.score(TEXTS, y) == 1
    assert found.score(TEXTS, [tuple(step.strip() for step in path.split(">")) for path in y]) == 1
    assert found.predict(TEXTS, min_confidence=1.0).tolist() == [None] * 20
    assert found.predict_traces(TEXTS[:1])[0][0].label == "Food>Bread"
    found.save(tmp_path / "model")
    more = load(tmp_path / "model").partial_fit(["toy car"] * 3, ["Toys>Cars"] * 3)
    assert more.predict(TEXTS).tolist() == y
    assert more.classes_.tolist() == sorted({*y, "Toys>Cars"})


def test_held_out_rows_are_written_as_all_rows_are() -> None:
    y = ["Food", "Toys", "Cars", "Food>Milk"]
    for part in ([0, 1, 2], [3, 0]):
        some = [y[row] for row in part]
        form, _ = read_labels(some, None, "auto", read_labels(y, None)[0])
        assert form.kind == "text"
        assert form.style is not None
        assert form.style.between == ">"
        assert read_back(form, some).tolist() == some
    table, _ = read_labels(padded(RAGGED)[1:3], None, "auto", read_labels(padded(RAGGED), None)[0])
    assert table.decode(table.label_nodes).tolist() == [["Food", ""], ["Toys", ""]]


def test_how_text_is_taken_can_be_said() -> None:
    y = ["Food > Bread", "Food", "Toys", "Food > Milk"] * 5
    assert small(path_sep=None).fit(TEXTS, y).taxonomy_.height == 1
    slashes = [label.replace(" > ", "/") for label in y]
    assert small().fit(TEXTS, slashes).taxonomy_.height == 1
    cut = small(path_sep="/").fit(TEXTS, slashes)
    assert cut.taxonomy_.height == 2
    assert cut.predict(TEXTS).tolist() == slashes
    amounts = ["<=50K", ">50K"] * 10
    assert read_labels(amounts, None)[0].kind == "plain"
    with pytest.raises(
        LabelError, match="row 1: a step of the path '>50K' is empty; name every step, or set `path_sep=None`"
    ):
        read_labels([*amounts, "a > b"], None)
    taxonomy = small(epochs=1).fit(TEXTS, y).taxonomy_  # whose ids are such texts
    assert read_labels(y, taxonomy)[0].kind == "ids"
    several, _ = read_labels([{"Food > Bread", "Toys"}, "Food"], None)
    assert several.truth([{"Food > Bread", "Toys"}]).ids() == [("Food > Bread", "Toys")]
    for wrong in ("", 7):
        with pytest.raises(HiNetError, match="path_sep: expected 'auto', the separator of the steps"):
            small(path_sep=wrong).fit(TEXTS, y)


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame, pl.DataFrame, pa.table, lambda cells: np.array(cells["text"], object)[:, None]],
    ids=["pandas", "polars", "Arrow", "array"],
)
def test_a_frame_of_one_column_of_text_is_texts(frame: Any) -> None:
    rows = frame({"text": TEXTS})
    found = small(epochs=4).fit(rows, FOOD, valid=(rows, FOOD))
    assert found.predict(rows).tolist() == FOOD
    assert found.score(rows, FOOD) == 1
    assert len(found.fitted_.held_out) == 20
    with pytest.raises(HiNetError, match="20 held-out rows are too few to calibrate"):
        found.calibrate(rows, FOOD)


def test_a_frame_of_one_column_of_labels_is_labels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        found = small(epochs=4).fit(TEXTS, pd.DataFrame({"label": paths_as_text(RAGGED)}))
    assert found.predict(TEXTS).tolist() == paths_as_text(RAGGED)


DAG = Taxonomy.from_edges([(None, "A"), (None, "B"), ("A", "x"), ("B", "x"), ("A", "y"), ("B", "z"), ("x", "q")])


def test_nodes_of_a_dag_are_written_by_one_rule() -> None:
    y: list[Any] = ([("B", "x", "q")] * 2 + [("A", "y"), ("B", "z")]) * 5
    found = small(taxonomy=DAG).fit(TEXTS, y)
    sure = {"min_confidence": 0.1}
    assert found.predict(TEXTS).tolist() == found.predict(TEXTS, **sure).tolist() == y
    by = {
        "map": PredictionOptions(),
        "sure": PredictionOptions(min_confidence=0.1),
        "label": PredictionOptions(decoding="label"),
    }
    for asked in by.values():
        columns = PredictionTable(found.fitted_, asked).columns(TEXTS)
        assert columns["label"] == [" > ".join(path) for path in y]
        assert columns["trace"] == [list(path) for path in y]
    for decoding in ("label", "expected_f1"):
        assert found.set_params(decoding=decoding).predict(TEXTS).tolist() == y
    assert set(found.classes_) == set(y)
    assert [row[0].label for row in found.predict_traces(TEXTS)] == y


def test_the_most_probable_trace_to_a_node_is_written() -> None:
    """A node of a DAG, whatever the best trace of the row, against all of its traces."""
    from hinet.classifier.answers import traces_to_nodes

    y: list[Any] = ([("B", "x", "q"), ("A", "x", "q"), ("A", "y"), ("B", "z")]) * 5
    found = small(taxonomy=DAG, epochs=2).fit(TEXTS, y)
    rows = found.features_of(TEXTS[:4])
    every = found.predict_traces(TEXTS[:4], k=20)
    for node, name in enumerate(DAG.ids):
        led = traces_to_nodes(found.fitted_, rows, np.full(4, node))
        for row, path in enumerate(led.paths()):
            best = next(trace.steps for trace in every[row] if name in trace.steps)
            assert path[0] == best[: best.index(name) + 1]
    assert found.fitted_.codec.decode_traces(traces_to_nodes(found.fitted_, rows, np.full(4, -1))).tolist() == [()] * 4


def test_validation_rows_of_a_dag_are_the_paths_they_are_given_as() -> None:
    width, height = 6, 6  # 7,776 paths to every node of the last level, 46,656 to the end
    levels = [[f"{level}.{place}" for place in range(width)] for level in range(height)]
    edges: list[Any] = [(None, node) for node in levels[0]]
    edges += [(a, b) for above, below in itertools.pairwise(levels) for a in above for b in below]
    dense = Taxonomy.from_edges([*edges, *((node, "end") for node in levels[-1])])
    y: list[Any] = [(*(level[place % width] for level in levels), "end") for place in range(20)]
    found = small(taxonomy=dense, epochs=1, wide=False).fit(TEXTS, y, valid=(TEXTS, y))
    assert found.metrics_["validation"]["rows"] == 20
    form = found.fitted_.codec
    truth = form.truth(y)
    assert form.traces_of(truth.take(np.arange(3, 5))).paths() == [[path] for path in y[3:5]]
    with pytest.raises(LabelError, match=r"row 1: '2\.0' is not a child of '0\.0'"):
        form.truth([y[0], ("0.0", "2.0", "end")])
