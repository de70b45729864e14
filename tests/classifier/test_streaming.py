"""Training from a stream: the same model as in memory if all rows make one block, and a similar one with many."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hinet.data.spill as spill
from hinet import HiNetClassifier, HiNetError, LabelError, Taxonomy, load
from hinet.classifier import chunks, stream
from hinet.classifier.chunks import Chunk, RowSample
from hinet.data.text import TextFeatures, TextSettings
from hinet.data.text.features import BoundedCounts, Counts
from hinet.data.text.streamed_features import NamingFeatures, features_from, named, without
from hinet.data.text.text_input import arrow_chunks
from hinet.engine.training import rows as training_rows
from tests.classifier.data import EDGES, WORDS, small, taxonomy, texts


def in_chunks(given: Any, y: Any, size: int = 70) -> list[tuple[Any, ...]]:
    take = given.slice if isinstance(given, pa.Table) else lambda start, count: given[start : start + count]
    return [(take(start, size), y[start : start + size]) for start in range(0, len(y), size)]


def arrays_in(part: Any) -> Iterator[Any]:
    if not isinstance(part, tuple):
        yield np.asarray(part)
        return
    for each in part:
        yield from arrays_in(each)


def arrays_of(classifier: HiNetClassifier) -> list[Any]:
    return [*arrays_in(classifier.fitted_.predictor.model.experts)]


def same(one: HiNetClassifier, other: HiNetClassifier) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(arrays_of(one), arrays_of(other), strict=True))


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the rows of small streams to disk as well."""
    monkeypatch.setattr(stream, "MAX_ROWS_IN_MEMORY", 0)


@pytest.mark.parametrize("settings", [{"flat": False}, {"validation_fraction": 0.2}, {"class_weight": "balanced"}])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_small_stream_trains_the_model_of_rows_in_memory(weighted: bool, settings: dict[str, Any]) -> None:
    """With weights, the held-out rows and the second training for the mix; whatever the size of its chunks."""
    given, y = texts(600)
    weight = np.random.default_rng(0).uniform(0.1, 2, len(y)) if weighted else None
    held = small(taxonomy=taxonomy(), **settings).fit(given, y, weight)
    rows = in_chunks(given, y)
    if weight is not None:
        rows = [(*chunk, weight[70 * number : 70 * (number + 1)]) for number, chunk in enumerate(rows)]
    streamed = small(taxonomy=taxonomy(), **settings).fit_stream(rows)
    assert same(held, streamed)
    assert held.fitted_.fingerprint == streamed.fitted_.fingerprint
    assert held.metrics_ == streamed.metrics_
    np.testing.assert_array_equal(held.predict_proba(given), streamed.predict_proba(given))


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("form", ["ids", "paths", "sets", "frame", "titles", "weights"])
def test_one_block_on_disk_gives_the_model_of_all_rows_in_memory(form: str) -> None:
    given, y = texts(400)
    valid_rows, valid_y = texts(60, seed=1)
    settings: dict[str, Any] = {"flat": False} if form == "sets" else {}
    rows, labels, valid = given, y, (valid_rows, valid_y)
    if form == "ids":
        settings["taxonomy"] = taxonomy()
    if form == "titles":
        settings |= {"taxonomy": Taxonomy.from_edges(EDGES, attributes={"title": WORDS}), "titles": True}
    if form == "sets":
        labels = [frozenset({a, b}) for a, b in zip(y, y[1:] + y[:1], strict=True)]
        valid = valid_rows, [frozenset({label}) for label in valid_y]
    if form == "paths":
        labels, valid = [f"all > {label}" for label in y], (valid_rows, [f"all > {label}" for label in valid_y])
    if form == "frame":
        random = np.random.default_rng(0)
        rows = pa.table({"text": given, "size": random.normal(size=len(given)), "kind": [label[0] for label in y]})
        valid = pa.table({"text": valid_rows, "size": np.zeros(60), "kind": [label[0] for label in valid_y]}), valid_y
        settings["columns"] = {"text": "text", "number": "size", "category": "kind"}
    weight = np.linspace(0.5, 1.5, len(labels)) if form == "weights" else None
    held = small(**settings).fit(rows, labels, weight, valid=valid)
    chunks = in_chunks(rows, labels)
    if weight is not None:
        chunks = [(*chunk, weight[70 * number : 70 * (number + 1)]) for number, chunk in enumerate(chunks)]
    streamed = small(**settings).fit_stream(chunks, valid=valid)
    assert same(held, streamed)
    assert held.metrics_ == streamed.metrics_
    assert held.classes_.tolist() == streamed.classes_.tolist()
    names = np.arange(held.fitted_.features.count)
    assert held.fitted_.features.names(names) == streamed.fitted_.features.names(names)


@pytest.mark.usefixtures("on_disk")
def test_many_blocks_learn_what_one_does_though_the_stream_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BLOCK_ROWS", 50)
    monkeypatch.setattr(spill, "WINDOW_VALUES", 600)
    monkeypatch.setattr(training_rows, "sample_values", lambda limit: 2_000)
    given, y = texts(600)
    test_rows, test_y = texts(200, seed=1)
    order = np.argsort(y, kind="stable").tolist()
    given, y = [given[row] for row in order], [y[row] for row in order]
    streamed = small(validation_fraction=0.1).fit_stream(in_chunks(given, y))
    held = small().fit(given, y)
    accuracy = [float(np.mean(c.predict(test_rows) == np.array(test_y))) for c in (held, streamed)]
    assert accuracy[1] > accuracy[0] - 0.03
    assert streamed.metrics_["validation"]["rows"] == 60
    assert {record.part for record in streamed.history_} >= {"deep 1", "wide 1"}


@pytest.mark.usefixtures("on_disk")
def test_an_interrupted_stream_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BLOCK_ROWS", 50)
    given, y = texts(300)
    alone: dict[str, Any] = {"wide": False, "flat": False}
    usual = small(**alone).fit_stream(in_chunks(given, y))
    for epoch in (0, 3):
        folder = tmp_path / f"after {epoch}"
        child = os.fork()
        if child == 0:
            monkeypatch.setattr("hinet.engine.training.deep.DeepJob.run_epoch", _killed_at(epoch))
            small(checkpoint=folder, **alone).fit_stream(in_chunks(given, y))
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        kept = sorted(path.name for path in folder.iterdir())
        assert spill.MANIFEST in kept
        assert ("deep-1.safetensors" in kept) == (epoch > 0)
        resumed = small(checkpoint=folder, **alone).fit_stream(in_chunks(given, y))
        assert same(usual, resumed)
        assert not any(spill.is_spill(path.name) for path in folder.iterdir())


def _killed_at(epoch: int) -> Any:
    from hinet.engine.training.deep import DeepJob

    run = DeepJob.run_epoch

    def run_epoch(job: DeepJob, number: int, advance: Any) -> float:
        if number == epoch:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(job, number, advance)

    return run_epoch


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("changed", ["order", "title"])
def test_rows_on_disk_for_another_taxonomy_are_written_again(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = in_chunks(*texts(200))
    before = Taxonomy.from_edges(EDGES, attributes={"title": WORDS})
    titles = WORDS | {"milk": WORDS["bread"], "bread": WORDS["milk"]}  # the same features
    edges = {"order": EDGES[::-1], "title": EDGES}[changed]
    after = Taxonomy.from_edges(edges, attributes={"title": WORDS if changed == "order" else titles})
    text = TextSettings(word_ngrams=(1, 1), char_ngrams=None)
    settings: dict[str, Any] = {"titles": True, "text": text, "wide": False, "flat": False}
    with monkeypatch.context() as patch:
        patch.setattr("hinet.engine.training.deep.DeepJob.run_epoch", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            small(taxonomy=before, checkpoint=tmp_path, **settings).fit_stream(rows)
    assert (tmp_path / spill.MANIFEST).exists()
    resumed = small(taxonomy=after, checkpoint=tmp_path, **settings).fit_stream(rows)
    assert same(resumed, small(taxonomy=after, **settings).fit_stream(rows))


def _interrupted(*_: Any) -> float:
    raise KeyboardInterrupt


@pytest.mark.parametrize("share", [None, 0.5])
def test_held_out_rows_leave_some_of_the_sample(share: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "RowSample", partial(RowSample, max_rows=10))
    monkeypatch.setattr(stream, "sample_values", lambda limit: 0)
    monkeypatch.setattr(stream, "HELD_OUT_SHARE", 0.5)
    streamed = small(validation_fraction=share).fit_stream(in_chunks(*texts(200)))
    assert streamed.metrics_["validation"]["rows"] == 5


@pytest.mark.usefixtures("on_disk")
def test_rows_are_held_out_by_default_only_for_a_wide_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "sample_values", lambda limit: 0)
    rows = in_chunks(*texts(200))
    quick = small(effort="quick", flat=True).fit_stream(rows)
    assert not any(record.part.startswith("wide") for record in quick.history_)
    assert "validation" not in quick.metrics_
    assert small(effort="quick", flat=False).fit_stream(rows).metrics_["validation"]["rows"] == 2


@pytest.mark.usefixtures("on_disk")
def test_unknown_labels_of_validation_rows_are_reported_before_the_second_pass() -> None:
    source = Changing()
    with pytest.raises(LabelError, match=r"row 1: .*breed"):
        small(taxonomy=taxonomy()).fit_stream(source, valid=(["rye", "loaf"], ["bread", "breed"]))
    assert source.times == 1


@pytest.mark.usefixtures("on_disk")
def test_a_stream_interrupted_while_rows_were_written_starts_again(tmp_path: Path) -> None:
    (tmp_path / "rows-00000.bin").write_bytes(b"half of a row")
    given, y = texts(100)
    assert same(small().fit_stream(in_chunks(given, y)), small(checkpoint=tmp_path).fit_stream(in_chunks(given, y)))


@pytest.mark.usefixtures("on_disk")
def test_a_saved_model_of_a_stream_explains_with_words(tmp_path: Path) -> None:
    given, y = texts(200)
    small(taxonomy=taxonomy()).fit_stream(in_chunks(given, y)).save(tmp_path / "model")
    model = load(tmp_path / "model")
    assert model.predict(["whole cream"])[0] == "milk"
    assert "cream" in str(model.explain("whole cream"))


class Changing:
    """A source with fewer rows each time."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Iterator[tuple[list[str], list[str]]]:
        self.times += 1
        given, y = texts(200 - 50 * self.times)
        yield given, y


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (iter([(["a"], ["b"])]), {}, "give a function that returns a new iterator"),
        (["rows.csv"], {}, "expected chunks .X, y. or .X, y, sample_weight., got str"),
        ([(np.zeros((2, 2)), ["a", "b"])], {}, "give matrices to fit"),
        ([(["rye", "car"], ["bread"])], {}, "2 rows and 1 label"),
        ([], {}, "no rows in the stream"),
        (Changing(), {}, "had 150 rows when it was first read, now 100"),
        ([(["rye"] * 3, ["bread", "milk", ""])], {"taxonomy": taxonomy()}, "row 2: the label is missing"),
        ([(["rye"] * 2, [{"bread"}] * 2), (["rye"] * 2, [{"bread"}, set()])], {}, "row 3: no label; leave the row out"),
        ([(["rye"] * 3, ["bread"] * 3), (["rye"] * 3, ["bread", "breed", "milk"])], {"taxonomy": taxonomy()}, "row 4"),
        ([(["rye"], ["bread"], [1.0]), (["rye"], ["bread"])], {}, "rows from 1: some chunks have sample weights"),
        ([(["rye"] * 2, ["bread"] * 2, [0.0, 0.0])], {}, "all sample weights are zero"),
        ([(["rye"], ["bread"], [1.0]), (["rye"], ["bread"], [-1.0])], {}, "row 1: sample weight -1.0"),
        ([(["rye"], ["bread"])], {"patience": 1}, "`patience` needs validation rows"),
        ([(["rye"], ["bread"])], {"engine": "torch"}, "a stream trains with the fused engine"),
    ],
)  # fmt: skip
def test_streams_that_cannot_be_trained_on_are_refused(source: Any, settings: Any, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        small(**settings).fit_stream(source)


@pytest.mark.usefixtures("on_disk")
def test_a_disk_without_room_is_refused_before_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(HiNetError, match="put the checkpoints on another disk"):
        small(checkpoint=tmp_path / "kept").fit_stream(in_chunks(*texts(50)))
    assert not any(tmp_path.iterdir())


def test_counts_are_exact_until_they_are_too_many_and_then_the_frequent_stay() -> None:
    given, _ = texts(300)
    settings = TextSettings(char_ngrams=(3, 4))
    exact, bounded = BoundedCounts(settings, 1), BoundedCounts(settings, 1, max_ngrams=60)
    for array in arrow_chunks(given[start : start + 40] for start in range(0, 300, 40)):
        exact.add(array)
        bounded.add(array)
    expected = TextFeatures.fit(given, settings, 1)
    found = features_from(exact.total(), settings, 10**6)
    assert np.array_equal(found.words.lookup.hashes, expected.words.lookup.hashes)
    assert np.array_equal(found.chars.lookup.idf, expected.chars.lookup.idf)
    assert exact.max_error == 0
    total, most = bounded.total(), exact.total()
    assert len(total) <= 60
    for part, whole in ((total.words, most.words), (total.chars, most.chars)):
        true = dict(zip(whole.hashes.tolist(), whole.rows.tolist(), strict=True))
        lost = [true[number] - rows for number, rows in zip(part.hashes.tolist(), part.rows.tolist(), strict=True)]
        assert all(0 <= each <= bounded.max_error for each in lost)
        frequent = {number for number, rows in true.items() if rows > bounded.max_error}
        assert frequent <= {*part.hashes.tolist()}


def test_counts_of_held_out_texts_can_be_taken_away() -> None:
    given, _ = texts(100)
    settings = TextSettings(char_ngrams=(3, 3))

    def counted(some: list[str]) -> Counts:
        counts = BoundedCounts(settings, 1)
        counts.add(next(arrow_chunks([some])))
        return counts.total()

    left, expected = without(counted(given), counted(given[70:])), counted(given[:70])
    assert left.texts == 70
    assert np.array_equal(left.words.hashes, expected.words.hashes)
    assert np.array_equal(left.chars.rows, expected.chars.rows)


def test_names_are_found_where_texts_come_again() -> None:
    given = [*texts(80)[0], "Äpfel und Öl", "Äpfel und Öl"]
    settings = TextSettings(char_ngrams=(3, 5))
    expected = TextFeatures.fit(given, settings, 1)
    counts = BoundedCounts(settings, 1)
    counts.add(next(arrow_chunks([given])))
    naming = NamingFeatures.of(features_from(counts.total(), settings, 10**6))
    for start in range(0, len(given), 7):
        naming.transform(given[start : start + 7], 1)
    found, numbers = named(naming, naming.names_found()), np.arange(expected.count)
    assert found.names(numbers) == expected.names(numbers)


def test_a_sample_depends_on_the_seed_alone_and_is_bounded() -> None:
    def sampled(size: int, seed: int = 0) -> list[str]:
        sample = RowSample(seed, max_rows=50)
        for start in range(0, 1_000, size):
            texts = [str(row) for row in range(start, min(start + size, 1_000))]
            sample.add(
                Chunk(
                    np.arange(start, start + len(texts)), pa.chunked_array([pa.array(texts, pa.large_string())]), texts
                )
            )
        rows = sample.rows()
        assert rows.inputs.to_pylist() == rows.labels == [str(number) for number in rows.numbers.tolist()]
        return rows.labels

    assert len(sampled(100)) == 50
    assert sampled(100) == sampled(37)
    assert sampled(100) != sampled(100, seed=1)
    assert 300 < np.mean([int(label) for label in sampled(100)]) < 700
