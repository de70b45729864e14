"""Rows with several labels: what is detected, learned, answered, saved, and refused."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hinet import FileError, HiNetClassifier, HiNetError, Taxonomy
from hinet.classifier.predicted_sets import NEVER, Answers, SetRule, formed
from hinet.ragged import offsets_of
from tests.classifier.test_forged import sign
from tests.strategies import taxonomies

WORDS = {"bread": "rye bread", "milk": "whole milk", "car": "toy car", "train": "toy train", "toys": "toy"}
SETS = [{"bread"}, {"milk"}, {"car"}, {"train"}, {"bread", "milk"}, {"car", "milk"}, {"toys", "bread"}] * 6
TREE = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train")]
DAG = [*TREE, ("toys", "bread")]


def texts_of(sets: list[set[str]]) -> list[str]:
    return [" and ".join(WORDS[label] for label in sorted(labels)) for labels in sets]


def quick(taxonomy: Any = None, **parameters: Any) -> HiNetClassifier:
    return HiNetClassifier(taxonomy, epochs=3, members=1, width=16, n_jobs=1, **parameters)


@pytest.fixture(scope="module", params=[TREE, DAG], ids=["tree", "dag"])
def fitted(request: pytest.FixtureRequest) -> HiNetClassifier:
    classifier = quick(Taxonomy.from_edges(request.param), validation_fraction=0.3)
    return classifier.fit(texts_of(SETS), SETS)


def test_sets_come_back(fitted: HiNetClassifier) -> None:
    predicted = fitted.predict(texts_of(SETS))
    assert np.mean([one == other for one, other in zip(predicted, SETS, strict=True)]) > 0.8
    assert fitted.score(texts_of(SETS), SETS) > 0.8
    assert fitted.fitted_.set_rule.rows == fitted.metrics_["validation"]["rows"]
    assert 0 < fitted.metrics_["validation"]["micro_f1"] <= 1


def test_probabilities_of_labels_and_nodes(fitted: HiNetClassifier) -> None:
    texts = texts_of(SETS[:7])
    labels, nodes = fitted.predict_proba(texts), fitted.predict_node_proba(texts)
    assert labels.shape == (7, len(fitted.classes_))
    assert labels[4].sum() > 1.5  # two labels, each by itself
    taxonomy = fitted.taxonomy_
    for child in taxonomy:
        for parent in taxonomy.parents(child):
            assert (nodes[:, taxonomy.position(child)] <= nodes[:, taxonomy.position(parent)]).all()
    best = fitted.predict_traces(texts, k=2)[4]
    assert {trace.label for trace in best} == {"bread", "milk"}
    assert best[0].probability >= best[1].probability
    by_label = dict(zip(fitted.classes_, labels[4], strict=True))
    assert all(by_label[trace.label] == pytest.approx(trace.probability, rel=1e-3) for trace in best)
    assert fitted.predict(texts, min_probability=1e-9)[0] >= {"bread", "milk"}


def test_a_saved_model_answers_alike(fitted: HiNetClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    loaded = HiNetClassifier.load(tmp_path / "model")
    texts = texts_of(SETS[:7])
    assert loaded.fitted_.set_rule == fitted.fitted_.set_rule
    assert loaded.predict(texts).tolist() == fitted.predict(texts).tolist()
    np.testing.assert_array_equal(loaded.predict_proba(texts), fitted.predict_proba(texts))
    assert loaded.multilabel == "auto"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["labels"].pop("sets"), "have thresholds, and other models have none|another taxonomy"),
        (lambda m: m.pop("set_rule"), "have thresholds, and other models have none"),
        (lambda m: m["set_rule"].update(thresholds=[]), "thresholds should be numbers"),
        (lambda m: m["set_rule"].update(thresholds=[3.5]), "thresholds should be numbers"),
        (lambda m: m["set_rule"].update(objective=7), "a precision should be"),
        (lambda m: m["set_rule"].update(objective="accuracy"), "set_rule.objective"),
        (lambda m: m["labels"].update(sets="all"), "labels.sets"),
    ],
)
def test_a_forged_rule_is_refused(fitted: HiNetClassifier, tmp_path: Path, change: Any, message: str) -> None:
    fitted.save(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    change(manifest)
    sign(tmp_path / "model", manifest)
    with pytest.raises(FileError, match=message):
        HiNetClassifier.load(tmp_path / "model")


def test_what_turns_sets_on() -> None:
    texts, single = texts_of(SETS), [sorted(labels)[0] for labels in SETS]
    assert quick().fit(texts, SETS).fitted_.codec.sets == "deepest"
    assert quick().fit(texts, single).fitted_.codec.sets is None
    assert quick().fit(texts, [{label} for label in single]).fitted_.codec.sets is None
    forced = quick(multilabel=True).fit(texts, single)
    assert all(isinstance(labels, set) for labels in forced.predict(texts[:3]))
    assert quick(multilabel=False).fit(texts, SETS).predict(texts[:1])[0] in WORDS


@pytest.mark.parametrize(
    "rows", [SETS, [labels | {"food"} if labels & {"bread", "milk"} else labels for labels in SETS]]
)
def test_closed_sets_stay_closed(rows: list[set[str]]) -> None:
    tree = Taxonomy.from_edges([("food", "bread"), ("food", "milk"), (None, "toys"), (None, "car"), (None, "train")])
    classifier = quick(tree).fit(texts_of([labels - {"food"} for labels in rows]), rows)
    closed = any("food" in labels for labels in rows)
    assert classifier.fitted_.codec.sets == ("closed" if closed else "deepest")
    for labels in classifier.predict(texts_of(SETS[:7])):
        assert ("food" in labels) == (closed and bool(labels & {"bread", "milk"}))


@given(taxonomies(), st.data())
@settings(max_examples=40)
def test_the_form_of_sets(taxonomy: Taxonomy, data: st.DataObject) -> None:
    """Closed sets have every ancestor; of the others no label is above one that comes before it, or below."""
    rows = data.draw(st.lists(st.lists(st.sampled_from(range(len(taxonomy))), unique=True, max_size=4), min_size=1))
    root = taxonomy.root
    rows = [[node for node in row if node != root and taxonomy.depth[node] > 0] for row in rows]
    flat = np.array([node for row in rows for node in row], np.int64)
    sets = Answers(flat, offsets_of(np.array([len(row) for row in rows])), np.linspace(0.9, 0.1, len(flat)))

    def above(node: int) -> set[int]:
        parents = {taxonomy.position(parent) for parent in taxonomy.parents(taxonomy.ids[node])} - {root}
        return parents.union(*(above(parent) for parent in parents))

    for form in ("closed", "deepest"):
        found = formed(sets, taxonomy, form)
        for row, nodes in enumerate(rows):
            ancestors = set().union(*(above(node) for node in nodes))
            kept: list[int] = []
            for node in nodes:
                kept += [node] if not above(node) & {*kept} and not any(node in above(other) for other in kept) else []
            expected = {*nodes} | ancestors if form == "closed" else {*kept}
            part = slice(*found.offsets[row : row + 2])
            assert sorted(found.nodes[part].tolist()) == sorted(expected)
            assert (np.diff(found.probability[part]) <= 0).all()


def test_a_lower_threshold_drops_no_label(fitted: HiNetClassifier) -> None:
    texts = ["toy and whole milk", "toy car and toy", "toy train and rye bread", *texts_of(SETS[:7])]
    thresholds = (0.9, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01)
    answers = [fitted.predict(texts, min_probability=threshold) for threshold in thresholds]
    for higher, lower in pairwise(answers):
        assert all(set(one) <= set(other) for one, other in zip(higher, lower, strict=True))


def test_a_label_above_children_of_other_parents_is_not_certain() -> None:
    """Countries have two parents; the one that holds none of them in the layers is a label of its own at times."""
    countries = [f"country{number}" for number in range(6)]
    edges = [("member state", name) for name in countries]
    edges += [(f"region {number % 2}", name) for number, name in enumerate(countries)] + [
        (None, "tax"),
        (None, "trade"),
    ]
    topics = ["tax", "trade"]
    texts, labels = [], []
    for number in range(240):
        country, topic = countries[number % 6], topics[number % 2]
        if number % 30 == 0:
            texts.append(f"member states {topic} law")
            labels.append({"member state", topic})
        else:
            texts.append(f"{country} {topic} law")
            labels.append({country, topic})
    classifier = HiNetClassifier(Taxonomy.from_edges(edges), n_jobs=1).fit(texts, labels)
    asked = [f"{countries[1]} tax law", "member states trade law"]
    probability = classifier.predict_proba(asked)[:, list(classifier.classes_).index("member state")]
    assert probability[0] < 0.1
    assert probability[1] > 0.5
    assert classifier.predict(asked)[0] == {countries[1], "tax"}


@pytest.mark.parametrize("by", ["all", "level"])
@pytest.mark.parametrize("objective", ["micro_f1", "macro_f1", 0.9])
def test_thresholds_are_learned(objective: Any, by: str) -> None:
    classifier = quick(Taxonomy.from_edges(TREE), objective=objective, thresholds_by=by, validation_fraction=0.4)
    classifier.fit(texts_of(SETS), SETS)
    rule = classifier.fitted_.set_rule
    assert rule.objective == objective
    assert len(rule.thresholds) == (1 if by == "all" else 2)
    assert all(0 < threshold <= NEVER for threshold in rule.thresholds)


def test_the_threshold_of_the_best_micro_f1() -> None:
    """No other threshold is better on the rows it was learned from."""
    random = np.random.default_rng(0)
    sets = SETS * 3
    noisy = [labels if random.random() < 0.6 else SETS[random.integers(len(SETS))] for labels in sets]
    classifier = quick().fit(texts_of(sets), noisy)
    classifier.calibrate(texts_of(sets), noisy)
    best = classifier.score(texts_of(sets), noisy)
    for threshold in (0.05, 0.2, 0.4, 0.6, 0.8):
        for always in (False, True):
            fitted = classifier.fitted_
            other = quick()
            other.__dict__.update(vars(classifier))
            other.fitted_ = type(fitted)(**{**vars_of(fitted), "set_rule": SetRule((threshold,), always)})
            assert other.score(texts_of(sets), noisy) <= best + 1e-9


def vars_of(fitted: Any) -> dict[str, Any]:
    return {name: getattr(fitted, name) for name in fitted.__dataclass_fields__}


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_are_enough_where_words_tell_labels_apart(seed: int) -> None:
    """Probabilities of new pairs are far from the threshold, as in the example of the README."""
    words = {
        "bread": ("rye bread", "white bread"),
        "milk": ("whole milk", "skimmed milk"),
        "toys": ("toy car", "toy train"),
    }
    rows = [(text, {label}) for label, texts in words.items() for text in texts]
    rows += [("rye bread, whole milk", {"bread", "milk"}), ("skimmed milk and white bread", {"bread", "milk"})]
    rows += [("toy car, white bread", {"bread", "toys"}), ("whole milk, toy train", {"milk", "toys"})]
    texts, labels = (list(column) for column in zip(*rows, strict=True))
    classifier = HiNetClassifier(random_state=seed).fit(texts, labels)
    for text, expected in {
        "white bread and whole milk": {"bread", "milk"},
        "rye bread and skimmed milk": {"bread", "milk"},
        "toy car and skimmed milk": {"milk", "toys"},
        "toy train": {"toys"},
    }.items():
        for label, p in zip(classifier.classes_, classifier.predict_proba([text])[0], strict=True):
            assert p > 0.7 if label in expected else p < 0.1
        assert classifier.predict([text])[0] == expected


@pytest.mark.parametrize("objective", ["micro_f1", "macro_f1"])
def test_a_few_held_out_rows_do_not_silence_a_model(objective: Any) -> None:
    """Two rows, both wrong, teach no threshold; a hundred do."""
    wrong = [{"car"}, {"train"}]
    few = texts_of(SETS[:2]), wrong
    classifier = quick(objective=objective).fit(texts_of(SETS), SETS, valid=few)
    assert classifier.fitted_.set_rule == SetRule()
    assert all(classifier.predict(texts_of(SETS)))
    with pytest.raises(HiNetError, match="2 held-out rows are too few to calibrate; give at least 100"):
        classifier.calibrate(*few)
    classifier.calibrate(texts_of(SETS[:2]) * 50, wrong * 50)
    assert classifier.fitted_.set_rule.thresholds != SetRule().thresholds


def test_a_model_goes_on() -> None:
    """More rows with new labels, and a changed taxonomy."""
    classifier = quick().fit(texts_of(SETS), SETS)
    classifier.partial_fit(["whole milk and jam"] * 8, [{"milk", "jam"}] * 8)
    assert "jam" in set(classifier.classes_)
    given = quick(Taxonomy.from_edges(TREE)).fit(texts_of(SETS), SETS)
    given.update_taxonomy(Taxonomy.from_edges([*TREE, ("toys", "ball")]))
    assert "ball" in set(given.classes_)
    assert all(isinstance(labels, set) for labels in given.predict(texts_of(SETS[:2])))
    with pytest.raises(HiNetError, match="rows without labels"):
        given.update_taxonomy(Taxonomy.from_edges(TREE), X=texts_of(SETS[:2]))


COMMON = ["the", "of", "with", "small", "large", "new", "red", "blue"]


def sets_of_goods(rows: int, seed: int = 0) -> tuple[list[str], list[set[str]]]:
    """Return texts with words of their labels, one to three of twelve, and words of no label."""
    random = np.random.default_rng(seed)
    labels = [f"goods{number}" for number in range(12)]
    sets = [{*random.choice(labels, random.integers(1, 4), replace=False).tolist()} for _ in range(rows)]
    words = [[f"{label}{end}" for label in sorted(own) for end in random.choice(list("abcd"), 2)] for own in sets]
    return [" ".join([*own, *random.choice(COMMON, 3)]) for own in words], sets


def fruits(rows: int, seed: int = 0) -> list[str]:
    """Return texts of a new word and words that all texts have."""
    random = np.random.default_rng(seed)
    return [" ".join(["papaya", *random.choice(COMMON, 3)]) for _ in range(rows)]


def exact_matches(classifier: HiNetClassifier, texts: list[str], sets: list[set[str]]) -> float:
    return float(np.mean([one == other for one, other in zip(classifier.predict(texts), sets, strict=True)]))


@pytest.fixture(scope="module")
def goods() -> HiNetClassifier:
    return HiNetClassifier(epochs=8, members=1, width=32, n_jobs=1).fit(*sets_of_goods(600))


@pytest.mark.parametrize("rows", [20, 100])
def test_a_new_label_is_learned_and_old_rows_stay_right(goods: HiNetClassifier, rows: int) -> None:
    old, updated = sets_of_goods(200, seed=1), copy.deepcopy(goods)
    before = exact_matches(updated, *old)
    assert before > 0.95
    updated.partial_fit(fruits(rows), [{"fruit"}] * rows)
    assert exact_matches(updated, *old) > before - 0.02
    assert exact_matches(updated, fruits(50, seed=1), [{"fruit"}] * 50) > 0.9
    check = updated.update_check_
    assert (check.metric, check.held_out, check.rows) == ("micro_f1", False, 120)
    assert check.after >= check.before - 0.002


def test_without_kept_rows_a_new_label_needs_rows_that_do_not_have_it() -> None:
    texts, sets = sets_of_goods(200)
    classifier = quick(keep_examples=False).fit(texts, sets)
    with pytest.raises(HiNetError, match="all rows have a new label, and the model keeps no rows without it"):
        classifier.partial_fit(fruits(4), [{"fruit"}] * 4)
    assert "fruit" not in set(classifier.classes_)
    classifier.partial_fit(fruits(4) + texts, [{"fruit"}] * 4 + sets)
    assert not hasattr(classifier, "update_check_")  # there is nothing to check it on


def test_checkpoints_lead_to_the_same_model(tmp_path: Path) -> None:
    whole = quick().fit(texts_of(SETS), SETS)
    resumed = quick(checkpoint=tmp_path / "kept").fit(texts_of(SETS), SETS)
    again = quick(checkpoint=tmp_path / "kept").fit(texts_of(SETS), SETS)
    for other in (resumed, again):
        np.testing.assert_array_equal(other.predict_proba(texts_of(SETS)), whole.predict_proba(texts_of(SETS)))


def test_dense_rows_have_two_layers_and_are_explained() -> None:
    """The parts of a logit add up to it, through both layers of all members."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(60, 6))
    y = [{f"a{int(row[0] > 0)}", f"b{int(row[1] > 0)}"} for row in rows]
    classifier = HiNetClassifier(epochs=5, width=8, members=2, n_jobs=1).fit(rows, y)
    deep = classifier.fitted_.search.model.experts.deep
    assert deep.inner.shape == (16, 8)
    chances = []
    for label, probability in zip(classifier.classes_, classifier.predict_proba(rows[:1])[0], strict=True):
        step = classifier.explain(rows[0], label=label).steps[0]
        pushes = sum(push for _, push in step.pushes())
        assert pushes == pytest.approx(step.difference, abs=1e-4)
        assert step.probability == pytest.approx(probability, abs=1e-3)
        chances.append(1 / (1 + np.exp(-step.difference)))
    some = 1 - np.prod(1 - np.array(chances))  # every row has a label
    assert np.array(chances) / some == pytest.approx(classifier.predict_proba(rows[:1])[0], abs=1e-3)
    classifier.partial_fit(rows[:10], y[:10])
    assert np.isfinite(classifier.predict_proba(rows)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.predict(["x"], min_confidence=0.5), "`min_probability`"),
        (lambda c: c.calibrate(texts_of(SETS), SETS, risk=0.1), "`objective`"),
        (lambda c: c.export_onnx("folder"), "cannot be exported"),
        (lambda c: c.score(texts_of(SETS), SETS, np.ones(len(SETS))), "no `sample_weight`"),
        (lambda c: quick(decoding="label").fit(texts_of(SETS), SETS), "`decoding='label'`"),
        (lambda c: quick(objective=1.5).fit(texts_of(SETS), SETS), "objective"),
        (lambda c: quick(multilabel=False).fit(texts_of(SETS), SETS).predict(["x"], min_probability=0.5), "several"),
        (lambda c: quick(multilabel=False).fit(texts_of(SETS), SETS).predict_node_proba(["x"]), "several labels"),
    ],
)
def test_refusals(fitted: HiNetClassifier, change: Any, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        change(fitted)
