"""Every form of rows and labels goes in and comes back; what cannot be used is refused with its row and a remedy."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline

from hinet import HiNetClassifier, HiNetError, LabelError, Taxonomy
from hinet.classifier.inputs import MatrixInput
from hinet.data.datasets import holdout_mask
from hinet.data.text import TextSettings
from tests.classifier.data import PATHS, numbers, small, taxonomy, texts

TEXTS, LABELS = texts()
NEW, TRUE = texts(40, seed=1)


@pytest.mark.parametrize(
    "container",
    [
        list,
        tuple,
        np.array,
        lambda rows: np.array(rows, object),
        pa.array,
        lambda rows: pa.chunked_array([rows]),
        pd.Series,
        pl.Series,
    ],
    ids=["list", "tuple", "array", "objects", "Arrow", "chunked", "pandas", "polars"],
)
def test_texts_come_in_any_container(container: Any) -> None:
    expected = small(taxonomy=taxonomy()).fit(TEXTS, LABELS).predict(NEW)
    found = small(taxonomy=taxonomy()).fit(container(TEXTS), LABELS)
    assert found.predict(container(NEW)).tolist() == expected.tolist()
    assert found.score(container(NEW), TRUE) > 0.9


def test_sparse_and_dense_rows_give_what_texts_give() -> None:
    vectoriser = TfidfVectorizer()
    rows, new = vectoriser.fit_transform(TEXTS), vectoriser.transform(NEW)
    sparse = small(taxonomy=taxonomy()).fit(rows, LABELS)
    assert sparse.score(new, TRUE) > 0.9
    dense = small(taxonomy=taxonomy()).fit(rows.toarray(), LABELS)
    assert (dense.features_of(new.toarray()) != sparse.features_of(new)).nnz == 0  # mostly zero columns are not scaled
    assert dense.score(new.toarray(), TRUE) > 0.9


def padded(labels: list[str]) -> np.ndarray:
    return np.array([(*PATHS[label], "")[:2] for label in labels], object)


@pytest.mark.parametrize("given", [True, False], ids=["taxonomy", "inferred"])
def test_paths_come_back_as_paths(given: bool) -> None:
    paths = [PATHS[label] for label in LABELS]
    found = small(taxonomy=taxonomy() if given else None).fit(TEXTS, paths)
    assert found.predict(TEXTS).tolist() == paths
    assert sorted(found.classes_.tolist()) == sorted(set(paths))
    assert found.score(NEW, [PATHS[label] for label in TRUE]) > 0.9
    table = small(taxonomy=taxonomy() if given else None).fit(TEXTS, padded(LABELS))
    assert table.predict(TEXTS).tolist() == padded(LABELS).tolist()
    lists = small(taxonomy=taxonomy() if given else None).fit(TEXTS, [list(path) for path in paths])
    assert lists.predict(TEXTS).tolist() == paths


def test_a_name_may_stand_under_two_parents() -> None:
    paths = [("food", "other") if label == "bread" else ("toy", "other") for label in LABELS]
    found = small().fit(TEXTS, paths)
    assert found.predict(TEXTS).tolist() == paths
    assert found.taxonomy_.ids == ("food", "food > other", "toy", "toy > other") or len(found.taxonomy_) == 4


def test_paths_of_a_dag_come_back_as_the_best_trace() -> None:
    dag = Taxonomy.from_edges([("r", "f"), ("r", "g"), ("f", "a"), ("f", "b"), ("g", "c"), ("g", "a")])
    paths = [{"bread": ("g", "a"), "milk": ("f", "b"), "toy": ("g", "c")}[label] for label in LABELS]
    found = small(taxonomy=dag).fit(TEXTS, paths)
    assert found.predict(TEXTS).tolist() == paths
    assert [trace[0].steps for trace in found.predict_traces(TEXTS)] == paths
    assert found.explain(TEXTS[LABELS.index("bread")], ("f", "a")).trace.steps == ("f", "a")
    table = small(taxonomy=dag).fit(TEXTS, np.array(paths, object))
    assert table.predict(TEXTS).tolist() == [list(path) for path in paths]


def test_paths_of_numbers_come_back_as_numbers() -> None:
    paths = [{"bread": (1, 2), "milk": (1, 3), "toy": (4,)}[label] for label in LABELS]
    assert small().fit(TEXTS, paths).predict(TEXTS).tolist() == paths
    table = np.array([(*path, np.nan)[:2] for path in paths])
    assert small().fit(TEXTS, table).predict(TEXTS).tolist() == [[*path, ""][:2] for path in paths]
    given = Taxonomy.from_edges([(0, 1), (1, 2), (1, 3), (0, 4)])
    assert small(taxonomy=given).fit(TEXTS, paths).predict(TEXTS).tolist() == paths


def test_labels_come_in_any_container() -> None:
    expected = small(taxonomy=taxonomy()).fit(TEXTS, LABELS).predict(NEW).tolist()
    paths = [PATHS[label] for label in LABELS]
    for labels in (np.array(LABELS), pa.array(LABELS), pa.chunked_array([LABELS]), tuple(LABELS)):
        assert small(taxonomy=taxonomy()).fit(TEXTS, labels).predict(NEW).tolist() == expected
    arrow = small(taxonomy=taxonomy()).fit(TEXTS, pa.array([list(path) for path in paths]))
    assert [path[-1] for path in arrow.predict(NEW)] == expected
    with pytest.raises(LabelError, match="looks like a matrix of zeros and ones; give each row its labels"):
        small().fit(TEXTS, np.eye(3, dtype=int)[np.arange(60) % 3])


def test_labels_an_inferred_taxonomy_does_not_know_count_as_wrong() -> None:
    plain = small().fit(TEXTS, LABELS)
    assert plain.score([*TEXTS[:3], "rye"], [*plain.predict(TEXTS[:3]), "cheese"]) == 0.75
    paths = small().fit(TEXTS, [PATHS[label] for label in LABELS])
    assert paths.score(["rye loaf"], [("food", "cheese")]) == 0
    assert paths.node_ids([("food", "cheese"), ("food", "milk"), ("else",)]) == [("food",), ("food > milk",), ()]
    judged = small().fit(TEXTS, LABELS, valid=([*NEW, "rye"], [*TRUE, "cheese"]))
    assert judged.metrics_["validation"]["rows"] == len(NEW) + 1
    valid = ["rye loaf", "rye loaf"], [("food", "bread", "rye"), ("else",)]
    judged = small().fit(TEXTS, [PATHS[label] for label in LABELS], valid=valid)
    assert judged.predict(valid[0]).tolist() == [("food", "bread")] * 2
    assert judged.metrics_["validation"]["hierarchical_f1"] == 2 * 2 / (4 + 4)


@pytest.mark.parametrize("form", ["ids", "paths", "table", "plain"])
def test_classes_are_weighed_whatever_their_form(form: str) -> None:
    few = [at for at, label in enumerate(LABELS) if label != "toy"] + [LABELS.index("toy")]
    labels = [LABELS[at] for at in few]
    y: Any = {"ids": labels, "plain": labels, "paths": [PATHS[label] for label in labels], "table": padded(labels)}[
        form
    ]
    given = None if form == "plain" else taxonomy()
    heavy = {label if form in ("ids", "plain") else PATHS[label]: 1.0 for label in ("bread", "milk")}
    heavy["toy" if form in ("ids", "plain") else PATHS["toy"]] = 1_000.0
    rows = [TEXTS[at] for at in few]
    found, plain = (small(taxonomy=given, class_weight=weight).fit(rows, y) for weight in (heavy, None))
    toy = [at for at, label in enumerate(found.node_ids(found.classes_)) if label == ("toy",)]
    assert found.predict_proba(NEW)[:, toy].mean() > 1.2 * plain.predict_proba(NEW)[:, toy].mean()
    traces = found.fitted_.codec.encode(y)
    balanced = found.fitted_.codec.weights_of("balanced", traces)
    assert balanced[-1] == pytest.approx(len(rows) / 3)
    assert balanced.sum() == pytest.approx(len(rows))
    with pytest.raises(HiNetError, match="class_weight: expected 'balanced' or a mapping"):
        small(taxonomy=given, class_weight="fair").fit(rows, y)


def test_texts_that_share_no_ngram_are_learned_all_the_same() -> None:
    texts, labels = ["red", "blau", "gelb"], ["a", "b", "c"]
    assert small().fit(texts, labels).predict(texts).tolist() == labels
    with pytest.raises(HiNetError, match="no feature is in at least 2 of the 3 training texts"):
        small(text=TextSettings(min_df=2)).fit(texts, labels)
    with pytest.raises(HiNetError, match="none of the 3 training texts has a word"):
        small().fit(["", " ", "  "], labels)


def test_weights_of_labels_that_there_are_not_are_refused() -> None:
    with pytest.raises(LabelError, match="class_weight: 'bred' is not among the labels; did you mean 'bread'"):
        small(class_weight={"bred": 2}).fit(TEXTS, LABELS)
    with pytest.raises(LabelError, match="class_weight: 'zzz' is not among the labels; weigh labels of y"):
        small(taxonomy=taxonomy(), class_weight={"zzz": 2}).fit(TEXTS, LABELS)
    texts, labels = [*TEXTS, "brie"], [*LABELS, "cheese"]
    held_out = next(seed for seed in range(40) if holdout_mask(len(texts), 0.2, seed)[-1])
    rare = small(class_weight={"cheese": 2}, validation_fraction=0.2, random_state=held_out).fit(texts, labels)
    assert "cheese" not in rare.classes_


def test_scorers_take_paths_and_pipelines() -> None:
    from hinet.metrics import scorer

    f1 = scorer("hierarchical_f1")
    paths = [PATHS[label] for label in LABELS]
    for model, y in ((small(), paths), (small(), padded(LABELS)), (small(taxonomy=taxonomy()), paths)):
        assert cross_val_score(model, TEXTS, y, cv=KFold(2), scoring=f1, error_score="raise").mean() > 0.8
    pipe = make_pipeline(TfidfVectorizer(), small(taxonomy=taxonomy()))
    assert cross_val_score(pipe, TEXTS, LABELS, cv=2, scoring=f1, error_score="raise").mean() > 0.8


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array"])
def test_dense_and_sparse_rows_stand_for_each_other(kind: str) -> None:
    rows, labels = numbers()
    sparse = getattr(sp, kind)(rows)
    dense = small(epochs=20).fit(rows, labels)
    np.testing.assert_allclose(dense.predict_proba(sparse), dense.predict_proba(rows), rtol=1e-5)
    torch_sparse = small(epochs=20, engine="torch").fit(sparse, labels)
    np.testing.assert_allclose(torch_sparse.predict_proba(rows), torch_sparse.predict_proba(sparse), rtol=1e-5)


@pytest.mark.parametrize("kind", [str, int, float, bool], ids=lambda kind: kind.__name__)
def test_plain_labels_keep_their_kind(kind: Any) -> None:
    values = {str: ["x", "y", "z"], int: [7, -1, 30], float: [1.0, 2.0, 3.0], bool: [True, False, True]}[kind]
    labels = [dict(zip(("bread", "milk", "toy"), values, strict=True))[label] for label in LABELS]
    for y in (labels, np.array(labels)):
        found = small().fit(TEXTS, y)
        assert found.predict(TEXTS).tolist() == labels
        assert found.classes_.tolist() == sorted(set(labels))
        assert found.predict_proba(TEXTS).shape == (len(TEXTS), len(set(labels)))


def test_node_ids_may_be_numbers() -> None:
    number = {"all": 1, "food": 2, "bread": 3, "milk": 4, "toy": 5}
    edges = [(1, 2), (2, 3), (2, 4), (1, 5)]
    labels = np.array([number[label] for label in LABELS])
    found = small(taxonomy=Taxonomy.from_edges(edges)).fit(TEXTS, labels)
    assert found.predict(TEXTS).tolist() == labels.tolist()
    assert found.predict(TEXTS).dtype.kind == "i"


def test_labels_may_end_at_inner_nodes_and_be_several() -> None:
    labels: list[Any] = ["food" if label == "milk" else label for label in LABELS]
    found = small(taxonomy=taxonomy()).fit(TEXTS, labels)
    assert found.predict(TEXTS).tolist() == labels
    several = [{"bread", "milk"} if label == "bread" else label for label in LABELS]
    mixed = small(taxonomy=taxonomy(), multilabel=False).fit(TEXTS, several)
    bread = mixed.predict_proba([TEXTS[LABELS.index("bread")]])[0]
    assert bread[mixed.classes_.tolist().index("milk")] == pytest.approx(0.5, abs=0.2)
    assert mixed.score(TEXTS, several) > 0.9
    paths = small(multilabel=False).fit(
        TEXTS, [{PATHS["bread"], PATHS["milk"]} if label == "bread" else PATHS[label] for label in LABELS]
    )
    assert paths.predict([TEXTS[LABELS.index("toy")]]).tolist() == [("toy",)]


def test_nodes_without_rows_are_legal() -> None:
    wide = Taxonomy.from_edges([*((a, b) for a, b in [("all", "food"), ("all", "toy")]), ("food", "bread"),
                                ("food", "milk"), ("food", "eggs"), ("all", "tools"), ("tools", "saw")])  # fmt: skip
    found = small(taxonomy=wide).fit(TEXTS, LABELS)
    assert set(found.classes_) == {"bread", "milk", "eggs", "saw", "toy"}
    assert found.score(NEW, TRUE) > 0.9


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_probabilities_agree_with_each_other(engine: Any) -> None:
    dag = Taxonomy.from_edges(
        [("all", "food"), ("all", "gifts"), ("food", "bread"), ("food", "milk"), ("gifts", "bread"), ("gifts", "toy")]
    )
    found = small(taxonomy=dag, engine=engine).fit(TEXTS, LABELS)
    probability = found.predict_proba(NEW)
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.predict_log_proba(NEW), np.log(probability))
    traces = found.predict_traces(NEW, k=4)
    for row, best in enumerate(traces):
        by_label = dict.fromkeys(found.classes_.tolist(), 0.0)
        for trace in best:
            by_label[trace.label] += trace.probability
            assert list(trace.probabilities) == sorted(trace.probabilities, reverse=True)
            assert trace.probability == pytest.approx(trace.probabilities[-1])
        np.testing.assert_allclose(list(by_label.values()), probability[row], rtol=1e-4, atol=1e-6)
        assert [trace.probability for trace in best] == sorted((t.probability for t in best), reverse=True)
    by_label = clone(found).set_params(decoding="label").fit(TEXTS, LABELS)
    assert (by_label.predict(NEW) == found.classes_[probability.argmax(1)]).all()


def test_large_probabilities_are_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    found = small(taxonomy=taxonomy()).fit(TEXTS, LABELS)
    dense = found.predict_proba(NEW)
    monkeypatch.setattr("hinet.classifier.fitted.MAX_DENSE_CELLS", 10)
    sparse = found.predict_proba(NEW)
    assert isinstance(sparse, sp.csr_array)
    np.testing.assert_allclose(sparse.toarray(), np.where(dense >= 1e-5, dense, 0), atol=1e-6)
    with pytest.raises(HiNetError, match="do not fit densely; ask for fewer rows at a time, or for predict_traces"):
        found.predict_log_proba(NEW)


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_answers_get_shallower_with_the_confidence_asked_for(engine: Any) -> None:
    found = small(taxonomy=taxonomy(), engine=engine, epochs=2).fit(TEXTS, LABELS)
    unsure = [*NEW, "nothing known"]
    depth = {None: 0, "food": 1, "toy": 1, "bread": 2, "milk": 2}
    before = None
    for least in (0.1, 0.6, 0.9, 0.999999):
        answers = found.predict(unsure, min_confidence=least)
        depths = [depth[answer] for answer in answers]
        if before is not None:
            assert all(now <= then for now, then in zip(depths, before, strict=True))
        before = depths
    assert before == [0] * len(unsure)
    empty = small().fit(TEXTS, [PATHS[label] for label in LABELS]).predict(["nothing known"], min_confidence=0.99999)
    assert empty.tolist() == [()]


def test_a_label_at_the_root_is_the_answer_where_no_deeper_node_is_sure() -> None:
    rooted = Taxonomy.from_edges([(None, "all"), ("all", "food"), ("all", "toys")])
    texts, labels = ["rye bread", "toy car", "any thing", "some thing"] * 5, ["food", "toys", "all", "all"] * 5
    found = small(taxonomy=rooted).fit(texts, labels)
    assert found.predict(["some thing"], min_confidence=0.5).tolist() == ["all"]
    assert found.predict(["rye bread"], min_confidence=0.5).tolist() == ["food"]
    unlabelled = small(taxonomy=rooted).fit(texts[:2] * 5, labels[:2] * 5)
    assert unlabelled.predict(["some thing"], min_confidence=0.99).tolist() == [None]


def test_a_user_of_scikit_learn_feels_at_home() -> None:
    scores = cross_val_score(small(taxonomy=taxonomy()), TEXTS, LABELS, cv=3)
    assert scores.mean() > 0.8
    grid = GridSearchCV(small(taxonomy=taxonomy()), {"width": [8, 16], "wide": [True, False]}, cv=2)
    assert grid.fit(TEXTS, LABELS).best_score_ > 0.8
    pipe = make_pipeline(TfidfVectorizer(), small(taxonomy=taxonomy()))
    assert pipe.fit(TEXTS, LABELS).score(NEW, TRUE) > 0.9
    fitted = small(taxonomy=taxonomy()).fit(TEXTS, LABELS)
    assert clone(fitted).get_params()["width"] == 16
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(NEW), fitted.predict_proba(NEW))


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_the_same_seed_gives_the_same_model(engine: Any) -> None:
    first, second = (small(taxonomy=taxonomy(), engine=engine).fit(TEXTS, LABELS) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(NEW), second.predict_proba(NEW))
    other = small(taxonomy=taxonomy(), engine=engine, random_state=1).fit(TEXTS, LABELS)
    assert not np.array_equal(first.predict_proba(NEW), other.predict_proba(NEW))


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_weights_of_rows_and_classes_count(engine: Any) -> None:
    both = [*TEXTS, *TEXTS]
    labels = [*LABELS, *["toy"] * len(TEXTS)]
    light, heavy = np.ones(len(both)), np.ones(len(both))
    light[len(TEXTS) :], heavy[len(TEXTS) :] = 0.01, 100
    rows = small(taxonomy=taxonomy(), engine=engine)
    assert (clone(rows).fit(both, labels, light).predict(TEXTS) == LABELS).mean() > 0.9
    assert (clone(rows).fit(both, labels, heavy).predict(TEXTS) == "toy").mean() > 0.9
    by_class = clone(rows).set_params(class_weight={"toy": 100.0, "bread": 1.0, "milk": 1.0})
    assert (by_class.fit(both, labels).predict(TEXTS) == "toy").mean() > 0.9


def test_validation_rows_are_held_out_or_given() -> None:
    held = small(taxonomy=taxonomy(), validation_fraction=0.3).fit(TEXTS, LABELS)
    assert held.metrics_["validation"]["rows"] == round(0.3 * len(TEXTS))
    given = small(taxonomy=taxonomy()).fit(TEXTS, LABELS, valid=(NEW, TRUE))
    assert given.metrics_["validation"]["accuracy"] == given.score(NEW, TRUE)
    few = small(taxonomy=taxonomy(), validation_fraction=0.5).fit(TEXTS[:12], LABELS[:12])
    assert set(LABELS[:12]) <= set(few.classes_)
    alone = small(validation_fraction=0.5).fit(TEXTS[:8], list("abcdefgh"), np.arange(8.0))
    assert len(alone.classes_) == 4  # labels that no training row is left of are not learned
    assert alone.metrics_["validation"]["accuracy"] == 0
    with pytest.raises(HiNetError, match="row 7: the label is missing"):  # numbered among all rows
        small(validation_fraction=0.5).fit(TEXTS[:8], [*"abcdefg", None])
    with pytest.raises(HiNetError, match="valid: expected rows and their labels, got none"):
        small().fit(TEXTS, LABELS, valid=([], []))


def test_a_fit_that_goes_on_holds_rows_out_too() -> None:
    held = small(taxonomy=taxonomy(), validation_fraction=0.3, warm_start=True).fit(TEXTS, LABELS).fit(TEXTS, LABELS)
    assert held.metrics_["validation"]["rows"] == round(0.3 * len(TEXTS))
    assert held.fitted_.fingerprint["rows"] == len(TEXTS) - round(0.3 * len(TEXTS))
    given = held.fit(TEXTS, LABELS, valid=(NEW, TRUE))
    assert given.metrics_["validation"]["accuracy"] == given.score(NEW, TRUE)


def test_a_network_of_ones_own() -> None:
    import torch

    rows, labels = numbers()
    own = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Tanh())
    found = small(taxonomy=taxonomy(), network=own, epochs=60).fit(rows, labels)
    assert found.score(rows, labels) > 0.9
    assert found.fitted_.predictor.model.features is not own


BAD: list[tuple[str, Any, Any, dict[str, Any], str]] = [
    ("lengths", TEXTS, LABELS[:-1], {}, "60 rows and 59 labels; give one label per row"),
    ("unknown label", TEXTS, [*LABELS[:-1], "breadd"], {}, r"row 59: label 'breadd' is not in .*did you mean 'bread'"),
    ("no texts", [], [], {}, "no rows|empty"),
    ("one text", "bread", ["bread"], {}, "put it into a list"),
    ("a number", [*TEXTS[:3], 4], LABELS[:4], {}, "row 3"),
    ("nothing", [*TEXTS[:3], None], LABELS[:4], {}, "row 3"),
    ("NaN", [*TEXTS[:3], float("nan")], LABELS[:4], {}, "row 3"),
    ("NaN first", [float("nan"), *TEXTS[:3]], LABELS[:4], {}, "row 0"),
    ("no label", TEXTS, [*LABELS[:5], None, *LABELS[6:]], {}, "row 5"),
    ("too deep", TEXTS, [("food", "bread", "rye")] + [PATHS[label] for label in LABELS[1:]], {}, "row 0.*'rye'"),
    ("no child", TEXTS, [("toy", "bread")] + [PATHS[label] for label in LABELS[1:]], {}, "row 0: .*not a child"),
    ("mixed", TEXTS, [("toy",), *LABELS[1:]], {}, "row 1.*mix paths"),
    ("empty path", TEXTS, [()] + [PATHS[label] for label in LABELS[1:]], {}, "row 0: the path is empty"),
    ("engine", TEXTS, LABELS, {"engine": "jax"}, "engine: expected 'auto', 'fused' or 'torch', got 'jax'"),
    ("fraction", TEXTS, LABELS, {"validation_fraction": 1.5}, "validation_fraction: expected .*, got 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "y", "settings", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_what_cannot_be_used_is_named(rows: Any, y: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        small(taxonomy=taxonomy(), **settings).fit(rows, y)


def test_bad_numbers_are_named() -> None:
    rows, labels = numbers()
    rows[7, 2] = np.nan
    with pytest.raises(HiNetError, match="row 7: feature 2 is nan; replace missing"):
        small().fit(rows, labels)
    with pytest.raises(HiNetError, match="row 7: feature 2 is nan"):
        small().fit(sp.csr_array(rows), labels)
    good = small().fit(np.nan_to_num(rows), labels)
    with pytest.raises(ValueError, match="5 features"):
        good.predict(np.zeros((2, 5)))
    with pytest.raises(
        HiNetError, match="row 0: expected a row of numbers, got 'a text'; the classifier was trained on rows"
    ):
        good.predict(["a text"])
    with pytest.raises(HiNetError, match="row 1: sample weight nan"):
        small().fit(np.nan_to_num(rows), labels, sample_weight=[1, np.nan, *[1] * 88])
    fitted = small(taxonomy=taxonomy()).fit(TEXTS, LABELS)
    with pytest.raises(HiNetError, match="trained on texts, got ndarray"):
        fitted.predict(np.zeros((2, 5)))
    with pytest.raises(HiNetError, match="row 1: expected a text, got 2; the classifier was trained on texts"):
        fitted.predict([None, 2])
    with pytest.raises(HiNetError, match=r"got <generator.*put rows into a list"):
        fitted.predict(text for text in TEXTS)
    with pytest.raises(LabelError, match="row 1: label 'cheese' is not in the taxonomy"):
        fitted.score(NEW[:2], ["bread", "cheese"])
    with pytest.raises(HiNetError, match="k: expected a whole number of at least 1, got 0"):
        fitted.predict_traces(NEW, k=0)


def test_text_settings_and_engine_settings_reach_their_rooms() -> None:
    found = small(taxonomy=taxonomy(), text=TextSettings(char_ngrams=None, min_df=1), wide=False).fit(TEXTS, LABELS)
    assert found.fitted_.predictor.model.mix.wide == 0
    assert found.fitted_.features.features.settings.char_ngrams is None
    assert {record.epochs for record in found.history_} == {8}
    with pytest.raises(HiNetError, match="memory_limit"):
        HiNetClassifier(taxonomy(), memory_limit=1e-6).fit(TEXTS, LABELS)


def test_dense_rows_are_scaled_in_blocks_and_lose_their_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows = np.column_stack(
        [random.normal(50, 9, 40), np.full(40, 7.0), np.where(random.random(40) < 0.8, 0, random.normal(size=40))]
    ).astype(np.float32)
    whole = MatrixInput.fit(rows, (), scaled=True)
    monkeypatch.setattr("hinet.classifier.inputs.BLOCK_CELLS", 10)  # three rows at a time
    features = MatrixInput.fit(rows, (), scaled=True)
    np.testing.assert_allclose(features.mean, whole.mean)
    np.testing.assert_allclose(features.scale, whole.scale)
    expected = features.rows(rows, sparse=False)
    np.testing.assert_allclose(expected[:, 0], (rows[:, 0] - rows[:, 0].mean()) / rows[:, 0].std(), rtol=1e-4)
    assert not expected[:, 1].any()  # a constant column
    np.testing.assert_array_equal(expected[:, 2], rows[:, 2])  # one that is mostly zero stays as it is
    for given in (rows, sp.csr_array(rows)):
        found = features.rows(given, sparse=True)
        np.testing.assert_array_equal(found.toarray(), expected)
        assert found.nnz == np.count_nonzero(expected)
    assert features.rows(rows[:0], sparse=True).shape == (0, 3)


def test_few_dense_rows_are_learned_as_a_linear_model_learns_them() -> None:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    rows, labels = load_iris(return_X_y=True)
    folds = KFold(3, shuffle=True, random_state=0)
    linear = cross_val_score(LogisticRegression(max_iter=1000), rows, labels, cv=folds).mean()
    assert cross_val_score(HiNetClassifier(n_jobs=1), rows, labels, cv=folds).mean() > linear - 0.05


def test_columns_of_very_different_size_count_alike() -> None:
    rows, labels = numbers()
    apart = rows * [1e-4, 1, 1e5, 1e9] + [3, -2e4, 0, 1e10]
    scores = [cross_val_score(small(epochs=None), given, labels, cv=3).mean() for given in (rows, apart)]
    assert min(scores) > 0.9


def test_texts_of_unknown_words_are_told_once() -> None:
    found = small(taxonomy=taxonomy()).fit(TEXTS, LABELS)
    for ask in (found.predict, found.predict_proba, found.predict_traces, found.predict_labels):
        with pytest.warns(UserWarning, match="2 rows have no word that the model knows, the first is row 1") as told:
            ask([TEXTS[0], "zzz", "", TEXTS[1]])
        assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.predict(TEXTS)
