"""Measure how training and prediction scale with rows and labels, and what streaming costs in accuracy and memory.

python benchmarks/scale.py [CASE…]    (HINET_DATA names the folder with wikitaxa)

Unless named after a data set, data is synthetic: labels are the leaves of a balanced tree with Zipf sizes, and a text
has words of its label, of its ancestors, and random ones. ``TENTH=1`` runs every case at a tenth of its size.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from engine_data import icd_texts, wikitaxa_texts
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier, Layers, Taxonomy, Traces
from hinet.data import spill
from hinet.engine import EngineSettings, Search, fit
from hinet.engine.training import rows as training_rows
from hinet.progress import LineProgress

TENTH = 10 if os.environ.get("TENTH") else 1
TEXTS = {"icd": icd_texts, "wikitaxa": wikitaxa_texts}
CHUNK = 8_192
WORDS_OF_ROW = 8
OWN_WORDS, ALL_WORDS = 6, 60_000  # words per label, and words in all texts
PREDICTED = 20_000
LIMIT = 2.2  # GB, memory limit of a stream, so that the process with its libraries stays below 3
DMOZ = {"rows": 383_408, "features": 348_548, "labels": 11_947}
FLAT_GB = 12.0  # maximum size of the flat network's weights


def processor() -> float:
    """Return the CPU seconds of this process and its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def compared(name: str, blocks: int = 1, sample: float = 1.0) -> dict[str, Any]:
    """Return accuracies on a data set: in memory, and from a stream of small blocks with some rows held in memory."""
    data = TEXTS[name]()
    train, valid, test = ((part[0], [label for (label,) in part[1]]) for part in (data.train, data.valid, data.test))
    result: dict[str, Any] = {"rows": len(train[0]), "blocks": blocks}
    start = processor()
    held = HiNetClassifier(data.taxonomy, vectors=None, random_state=0).fit(*train, valid=valid)
    result |= {
        "in_memory_processor_seconds": round(processor() - start, 1),
        **_accuracies("in_memory", held, valid, test),
    }
    values = held.features_of(train[0][:2_000]).nnz / 2_000 * len(train[0])
    start = processor()
    rows = -(-len(train[0]) // blocks)
    with (
        patch.object(spill, "BLOCK_ROWS", rows),
        patch.object(spill, "BLOCK_VALUES", 1 << 40),
        patch.object(training_rows, "sample_values", lambda limit: int(sample * values)),
    ):
        streamed = HiNetClassifier(data.taxonomy, vectors=None, random_state=0).fit_stream(_chunks(*train), valid=valid)
    result |= {"sample": sample, "stream_processor_seconds": round(processor() - start, 1)}
    return result | _accuracies("stream", streamed, valid, test)


def _accuracies(name: str, classifier: HiNetClassifier, *parts: tuple[Sequence[str], list[str]]) -> dict[str, float]:
    right = [float(np.mean(classifier.predict(texts) == np.array(labels))) for texts, labels in parts]
    return {
        f"{name}_{kind}_accuracy": round(100 * each, 2) for kind, each in zip(("valid", "test"), right, strict=True)
    }


def _chunks(texts: Sequence[str], labels: list[str]) -> list[tuple[Sequence[str], list[str]]]:
    return [
        (texts[start_row : start_row + CHUNK], labels[start_row : start_row + CHUNK])
        for start_row in range(0, len(texts), CHUNK)
    ]


class Tree(NamedTuple):
    """A balanced tree, and the cumulative probabilities of its leaves."""

    taxonomy: Taxonomy
    leaves: list[str]
    above: list[Any]  # per level, the ancestor of each leaf
    share: Any  # cumulative sums


def zipf_tree(labels: int, depth: int) -> Tree:
    """Return a tree with ``leaves`` leaves at one depth, with Zipf sizes."""
    fan = max(2, round(labels ** (1 / depth)))
    edges, above, number = [], [], np.arange(labels)
    for level in range(depth):
        parent = number // fan if level < depth - 1 else np.zeros_like(number)
        distinct = np.unique(number)
        up = distinct // fan if level < depth - 1 else np.zeros_like(distinct)
        names = [f"n{level}.{each}" for each in distinct.tolist()]
        parents = [f"n{level + 1}.{each}" if level < depth - 1 else None for each in up.tolist()]
        edges += list(zip(parents, names, strict=True))
        above.append(parent)
        number = parent
    size = 1 / np.arange(1, labels + 1) ** 0.8
    size = np.random.default_rng(0).permutation(size)
    return Tree(
        Taxonomy.from_edges(edges), [f"n0.{leaf}" for leaf in range(labels)], above, np.cumsum(size) / size.sum()
    )


def drawn(tree: Tree, rows: int, seed: int) -> tuple[Any, Any]:
    """Return leaves, and the words of rows as numbers: of the leaf, of two ancestors, and random ones."""
    random = np.random.default_rng([seed, rows])
    leaf = np.searchsorted(tree.share, random.random(rows))
    words = np.empty((rows, WORDS_OF_ROW), np.int64)
    for place in range(WORDS_OF_ROW):
        node = leaf if place < 3 else tree.above[min(place - 3, len(tree.above) - 1)][leaf] + (place << 22)
        own = (node * OWN_WORDS + random.integers(0, OWN_WORDS, rows)) * 2_654_435_761 % ALL_WORDS
        any_word = (ALL_WORDS * random.random(rows) ** 3).astype(np.int64)
        words[:, place] = np.where(random.random(rows) < 0.75, own, any_word)
    return leaf, words


class Texts:
    """Synthetic texts of a tree in chunks; every pass yields the same texts."""

    def __init__(self, tree: Tree, rows: int) -> None:
        self.tree, self.rows = tree, rows
        names = np.array([f"{_syllables(word)} " for word in range(ALL_WORDS)])
        self._word = pa.array(names, pa.string())
        self._label = pa.array(tree.leaves, pa.string())

    def __iter__(self) -> Iterator[tuple[Any, list[str]]]:
        for number, start in enumerate(range(0, self.rows, 4 * CHUNK)):
            yield self.chunk(number, min(4 * CHUNK, self.rows - start))

    def chunk(self, number: int, count: int) -> tuple[Any, list[str]]:
        """Return the texts and labels of a chunk."""
        leaf, words = drawn(self.tree, count, number)
        flat = self._word.take(pa.array(words.ravel())).cast(pa.large_string())
        sizes = np.diff(np.frombuffer(flat.buffers()[1], np.int64)[: flat.offset + len(flat) + 1]).reshape(words.shape)
        offsets = np.concatenate([[0], np.cumsum(sizes.sum(1))])
        texts = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), flat.buffers()[2])
        return texts, self._label.take(pa.array(leaf)).to_pylist()


def _syllables(number: int) -> str:
    parts, sounds = [], "bdfgklmnprstvz"
    for _ in range(4):
        number, part = divmod(number, len(sounds) * 5)
        parts.append(sounds[part // 5] + "aeiou"[part % 5])
    return "".join(parts)


def streamed_rows(rows: int, labels: int) -> dict[str, Any]:
    """Return time and figures of training from a stream of ``rows`` synthetic rows, and of prediction."""
    rows //= TENTH
    source = Texts(zipf_tree(labels, 4), rows)
    classifier = HiNetClassifier(source.tree.taxonomy, vectors=None, memory_limit=LIMIT)
    classifier._progress = partial(LineProgress, f"{rows:,} rows")  # type: ignore[method-assign]
    watch, start = Stopwatch(), processor()
    with tempfile.TemporaryDirectory() as folder:
        classifier.checkpoint, classifier.checkpoint_every = Path(folder), 60.0
        spilled: dict[str, Any] = {}
        finish = spill.SpillWriter.finish

        def measured(writer: spill.SpillWriter, notes: Any) -> spill.Spill:
            done = finish(writer, notes)
            spilled["spill_bytes_a_row"] = round(sum(block.bytes for block in done.blocks) / done.row_count, 1)
            spilled["values_a_row"] = round(done.value_count / done.row_count, 1)
            spilled["reading_seconds"] = watch.seconds
            return done

        with patch.object(spill.SpillWriter, "finish", measured):
            classifier.fit_stream(source)
    result = {"rows": rows, "labels": labels, "features": classifier.fitted_.search.model.features, **spilled}
    result |= {"seconds": watch.seconds, "processor_seconds": round(processor() - start, 1)}
    texts, truth = source.chunk(1 << 20, PREDICTED)
    watch = Stopwatch()
    right = float(np.mean(classifier.predict(texts) == np.array(truth)))
    return result | {"accuracy": round(100 * right, 2), "predict_us_a_row": round(1e6 * watch.seconds / PREDICTED, 1)}


def matrix_rows(tree: Tree, rows: int, features: int, seed: int = 0) -> tuple[Any, Any]:
    """Return synthetic CSR rows with their leaves."""
    leaf, words = drawn(tree, rows, seed)
    column = np.sort((words * 40_503 + (leaf % 7)[:, None] * 104_729) % features, axis=1)
    data = np.full(column.size, 1 / WORDS_OF_ROW**0.5, np.float32)
    matrix = sp.csr_array(
        (data, column.ravel().astype(np.int32), np.arange(0, column.size + 1, WORDS_OF_ROW)), (rows, features)
    )
    matrix.sum_duplicates()
    return matrix, leaf


def grown(rows: int, labels: int, features: int, depth: int, **settings: Any) -> dict[str, Any]:
    """Return time and figures of training the engine on synthetic CSR rows in memory, and of prediction."""
    rows, labels = rows // TENTH, max(labels // TENTH, 100)
    tree = zipf_tree(labels, depth)
    layers = Layers.of(tree.taxonomy)
    matrix, leaf = matrix_rows(tree, rows, features)
    position = layers.taxonomy.positions(tree.leaves)
    traces = Traces.of_nodes(layers, position[leaf])
    watch, start = Stopwatch(), processor()
    model = fit(matrix, traces, EngineSettings(**settings), progress=LineProgress(f"{labels:,} labels"))
    result: dict[str, Any] = {"rows": rows, "labels": labels, "features": features, "depth": depth}
    result |= {"train_seconds": watch.seconds, "train_us_a_row": round(1e6 * (processor() - start) / rows, 1)}
    test, truth = matrix_rows(tree, PREDICTED, features, seed=1)
    search = Search(model, 1)
    search.traces(test[:100])
    begin = time.process_time()
    found = search.traces(test)
    seconds = time.process_time() - begin
    right = float(np.mean(found.traces.end_nodes == position[truth]))
    result |= {"accuracy": round(100 * right, 2), "predict_us_a_row": round(1e6 * seconds / PREDICTED, 1)}
    return result | {"outputs_a_row": round(float(found.touched.mean()), 1), "model_gb": round(search.nbytes / 1e9, 3)}


def flat_network(rows: int, labels: int, features: int, width: int = 128) -> dict[str, Any]:
    """Return the time of one softmax over all labels for comparison: the flat expert alone, on a few thousand rows."""
    labels = max(labels // TENTH, 100)
    needed = 4 * (labels + features) * width * 2.25 / 1e9
    if needed > FLAT_GB:
        return {"labels": labels, "gigabytes": round(needed, 1), "built": False}
    tree = zipf_tree(labels, 2)
    layers = Layers.of(tree.taxonomy)
    few = min(rows // TENTH, max(2_000, 40_000_000 // labels))
    matrix, leaf = matrix_rows(tree, few, features)
    traces = Traces.of_nodes(layers, layers.taxonomy.positions(tree.leaves)[leaf])
    settings = EngineSettings(flat=True, wide=False, flat_width=width, width=8, members=1, deep_epochs=1, threads=1)
    start = processor()
    fit(matrix, traces, settings)
    each = 1e6 * (processor() - start) / few
    return {"labels": labels, "rows": few, "train_us_a_row_and_epoch": round(each, 1), "built": True}


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    found: dict[str, Case] = {}
    for name in TEXTS:
        found[f"stream {name}"] = partial(compared, name, 16, 1.1)  # the wide expert sees all rows
        found[f"stream {name}, wide on a quarter"] = partial(compared, name, 16, 0.25)
    found["stream 20 million"] = partial(streamed_rows, 20_000_000, 3_000)
    for rows in (100_000, 1_000_000, 5_000_000):
        found[f"stream {rows:,} rows"] = partial(streamed_rows, rows, 3_000)
    found["DMOZ-2012's shape, synthetic"] = partial(grown, depth=5, **DMOZ)
    for depth, labels in enumerate((1_000, 10_000, 100_000), start=3):  # each node has ten children
        found[f"{labels:,} labels"] = partial(grown, 500_000, labels, 300_000, depth)
        found[f"{labels:,} labels, flat"] = partial(flat_network, 500_000, labels, 300_000)
    found["1,000,000 labels"] = partial(grown, 5_000_000, 1_000_000, 300_000, 6)
    found["1,000,000 labels, flat"] = partial(flat_network, 5_000_000, 1_000_000, 300_000)
    return found


if __name__ == "__main__":
    run_cases(__file__, "scale", cases())
