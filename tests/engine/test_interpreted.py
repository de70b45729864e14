"""Kernels that are interpreted for a few rows against the same kernels compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, Layers, Taxonomy, Traces, compiled
from hinet.data.text import TextFeatures, TextSettings
from hinet.engine import EngineSettings, FusedModel, Search, fit
from hinet.engine.model.experts import Mix
from hinet.engine.model.groups import Targets
from tests import processes

CLOSE: dict[str, float] = {"rtol": 0, "atol": 1e-5}
TREE = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train"), ("milk", "skimmed")]
DAG = [*TREE, ("food", "train"), ("car", "wheel"), ("train", "wheel")]
LABELS = ["bread", "milk", "food", "car", "train", "skimmed", "toys"]
TEXTS = ["rye bread", "whole milk", "any food", "toy car", "toy train", "skimmed milk", "a toy für Kinder"]


@contextmanager
def interpreted() -> Iterator[list[str]]:
    called: list[str] = []
    with compiled.interpreting(lambda kernel, arguments: called.append(kernel.__name__)):
        yield called


def model_of(edges: list[tuple[str, str]], flat: bool) -> tuple[FusedModel, Any, Targets]:
    layers = Layers.of(Taxonomy.from_edges(edges))
    _, rows = TextFeatures.fit_transform(TEXTS * 4, TextSettings(char_ngrams=(3, 4)))
    traces = Traces.encode(layers, LABELS * 4)
    model = fit(rows, traces, EngineSettings(width=12, flat=flat, flat_width=9, threads=1))
    if flat:  # all four experts
        model = FusedModel(layers, model.experts._replace(mix=np.array(Mix(deep=0.6, wide=0.5, flat=0.7), np.float32)))
    return model, rows, Targets.of(traces)


@pytest.fixture(scope="module", params=["tree", "tree with a flat expert", "DAG"])
def asked(request: pytest.FixtureRequest) -> tuple[FusedModel, Any, Targets]:
    return model_of(DAG if request.param == "DAG" else TREE, "flat" in request.param)


def both(asked: tuple[FusedModel, Any, Targets], question: Any) -> tuple[Any, Any]:
    model, rows, targets = asked
    with interpreted() as called:
        plain = question(Search(model, threads=1), rows, targets)
    assert called
    return plain, question(Search(model, threads=1), rows, targets)


def test_traces_agree(asked: tuple[FusedModel, Any, Targets]) -> None:
    for k in (1, 4):
        plain, fast = both(asked, lambda search, rows, targets, k=k: search.traces(rows, k))
        np.testing.assert_array_equal(plain.traces.neurons, fast.traces.neurons)
        np.testing.assert_array_equal(plain.traces.row_offsets, fast.traces.row_offsets)
        np.testing.assert_allclose(plain.traces.log_p, fast.traces.log_p, **CLOSE)
        np.testing.assert_allclose(plain.log_p, fast.log_p, **CLOSE)


def test_labels_and_nodes_agree(asked: tuple[FusedModel, Any, Targets]) -> None:
    for question in (
        lambda search, rows, targets: search.labels(rows),
        lambda search, rows, targets: search.deepest_confident(rows, 0.6),
        lambda search, rows, targets: search.expected_f1(rows, 0.7),
    ):
        plain, fast = both(asked, question)
        np.testing.assert_array_equal(plain.nodes, fast.nodes)
        np.testing.assert_allclose(np.log(plain.probability), np.log(fast.probability), **CLOSE)
    plain, fast = both(asked, lambda search, rows, targets: search.top_labels(rows, 3))
    np.testing.assert_allclose(np.log(plain.probability), np.log(fast.probability), **CLOSE)


def test_probabilities_and_logits_agree(asked: tuple[FusedModel, Any, Targets]) -> None:
    plain, fast = both(asked, lambda search, rows, targets: search.label_probabilities(rows).toarray())
    np.testing.assert_array_equal(plain > 0, fast > 0)
    np.testing.assert_allclose(np.log(plain[plain > 0]), np.log(fast[fast > 0]), **CLOSE)
    plain, fast = both(asked, lambda search, rows, targets: search.logits_along(rows, targets))
    np.testing.assert_allclose(plain, fast, **CLOSE)


@pytest.mark.parametrize("settings", [TextSettings(char_ngrams=(2, 4)), TextSettings(hash_bits=6, keep_names=False)])
def test_features_of_texts_agree(settings: TextSettings) -> None:
    features = TextFeatures.fit(TEXTS * 4, settings)
    texts = [*TEXTS, "", "naïve 日本 text, unseen 🚂 rye bread rye"]
    with interpreted() as called:
        plain = features.transform(texts)
    assert "hash_rows" in called
    fast = features.transform(texts)
    np.testing.assert_array_equal(plain.indices, fast.indices)
    np.testing.assert_allclose(plain.data, fast.data, rtol=1e-6)


def test_explanations_agree() -> None:
    classifier = HiNetClassifier(Taxonomy.from_edges(TREE), random_state=0).fit(TEXTS * 4, LABELS * 4)
    fast = classifier.explain("skimmed rye milk")
    with interpreted() as called:
        plain = classifier.explain("skimmed rye milk")
    assert called
    assert str(plain) == str(fast)


def test_what_trains_on_texts_is_never_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    process = compiled._Process()
    monkeypatch.setattr(compiled, "_process", process)
    assert process.interprets
    TextFeatures.fit(TEXTS)
    assert not process.interprets
    assert process.spent == 0


def test_a_process_interprets_little_and_then_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    process = compiled._Process()
    monkeypatch.setattr(compiled, "_process", process)
    halved = compiled.kernel(steps=lambda x: 1)(lambda x: x / 2)
    assert halved(4.0) == 2.0
    assert process.interprets
    assert process.spent > 0
    huge = compiled.kernel(steps=lambda x: 1e9)(_halved)
    process.spent = compiled.BUDGET_IF_NOT_CACHED
    assert huge(4.0) == 2.0
    assert not process.interprets  # what was loaded once is used
    assert huge.compiled.nopython_signatures


def test_more_is_interpreted_if_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    some = compiled.kernel(steps=lambda x: 2 * compiled.BUDGET_IF_CACHED / compiled.SECONDS_PER_STEP)(_halved)
    process = compiled._Process()
    monkeypatch.setattr(compiled.Kernel, "is_cached", lambda self: True)
    assert not process.can_interpret(some, (1.0,))
    monkeypatch.setattr(compiled.Kernel, "is_cached", lambda self: False)
    assert process.can_interpret(some, (1.0,))


def _halved(x: float) -> float:
    return x / 2


ONE_TEXT = """
import sys
class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise AssertionError("numba is imported")
sys.meta_path.insert(0, Refuser())
from hinet.cli import main
main()
"""


@pytest.mark.parametrize("command", [["predict"], ["explain"], ["predict", "--min-confidence", "0.5"]])
def test_one_text_is_answered_without_numba(tmp_path: Path, command: list[str]) -> None:
    classifier = HiNetClassifier(Taxonomy.from_edges(TREE), random_state=0).fit(TEXTS * 4, LABELS * 4)
    classifier.save(tmp_path / "model")
    name, *options = command
    given = ["skimmed milk"] if name == "explain" else []
    done = processes.run(
        [sys.executable, "-c", ONE_TEXT, name, str(tmp_path / "model"), *given, *options], input="skimmed milk\n"
    )
    assert done.returncode == 0, done.stderr
    assert "milk" in done.stdout
    assert "compiling" not in done.stderr
