"""Measure the size of saved models, and the cost of making them small.

    HINET_DATA=folder python benchmarks/model_size.py [case ...]

Every case trains the default model and one of full width in single precision without merged features, on the same rows
with the same seeds in the same process. Times are CPU times, so that a busy machine matters little.
Results: ``benchmarks/results/model_size.json``.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from engine import SEEDS, TEXTS, hits, warm_up
from engine_data import EngineData, long_texts, lshtc
from measure import Case, run_cases

from hinet.classifier.fitted import EXAMPLES, Examples, bytes_to_keep
from hinet.data.text import TextFeatures
from hinet.engine import EngineSettings, FusedModel, Search, fit
from hinet.engine.model.experts import DeepExpert
from hinet.engine.settings import MANY_ROWS
from hinet.engine.training.rows import ColumnDigests
from hinet.files import map_arrays, write_arrays

REPEATS = 5
NAMES = (*TEXTS, "lshtc", "long texts")


def load(name: str) -> tuple[EngineData, TextFeatures | None]:
    if name == "lshtc":
        return lshtc(), None
    return (long_texts if name == "long texts" else TEXTS[name])().vectorised()


@contextmanager
def in_full() -> Iterator[None]:
    """Train models at full size: in single precision, without merging columns."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(DeepExpert, "quantised", lambda expert: expert))
        alone = patch.object(ColumnDigests, "merged", lambda columns: np.arange(len(columns.digests), dtype=np.int32))
        stack.enter_context(alone)
        yield


def full_settings(data: EngineData, seed: int) -> EngineSettings:
    many = data.train.rows.shape[0] >= MANY_ROWS
    return EngineSettings(seed=seed, width=256 if many else 192, flat_width=128)


def compared(name: str) -> dict[str, Any]:
    data, features = load(name)
    warm_up()
    with in_full():
        warm_up()
    runs: dict[str, list[tuple[float, ...]]] = {"small": [], "full": []}
    saved: dict[str, dict[str, Any]] = {}
    for seed in SEEDS:
        small, seconds = trained(data, EngineSettings(seed=seed))
        with in_full():
            full, full_seconds = trained(data, full_settings(data, seed))
        predict = predict_seconds(data, {"small": small, "full": full})
        for kind, model, cost in (("small", small, seconds), ("full", full, full_seconds)):
            runs[kind].append((*hits(data, Search(model).traces(data.test.rows).traces.decode()), cost, predict[kind]))
            if seed == SEEDS[0]:
                saved[kind] = on_disk(data, features, model)
        del small, full, model
    (accuracy, f1, *_), whole = (np.mean(runs[kind], axis=0) for kind in ("small", "full"))
    (*_, train, predict_least), quickest = (np.min(runs[kind], axis=0) for kind in ("small", "full"))
    return {
        "rows": data.train.rows.shape[0],
        "features": data.train.rows.shape[1],
        **saved["small"],
        "megabytes_in_full": saved["full"]["megabytes"],
        "size_ratio": round(saved["small"]["megabytes"] / saved["full"]["megabytes"], 3),
        "load_seconds_in_full": saved["full"]["load_seconds"],
        "accuracy": round(accuracy, 4),
        "accuracy_gain": round(100 * (accuracy - whole[0]), 2),
        "hierarchical_f1": round(f1, 4),
        "hierarchical_f1_gain": round(100 * (f1 - whole[1]), 2),
        "train_cpu_seconds": round(train, 2),
        "train_time_ratio": round(train / quickest[2], 2),
        "predict_speed_ratio": round(quickest[3] / predict_least, 2),
    }


def trained(data: EngineData, settings: EngineSettings) -> tuple[FusedModel, float]:
    start = time.process_time()
    model = fit(data.train.rows, data.traces(data.train), settings, valid=data.validation)
    return model, time.process_time() - start


def predict_seconds(data: EngineData, models: dict[str, FusedModel]) -> dict[str, float]:
    """Return the lowest single-core seconds of each model for the test rows, measured alternately."""
    found: dict[str, list[float]] = {kind: [] for kind in models}
    for _ in range(REPEATS):
        for kind, model in models.items():
            start = time.process_time()
            Search(model, threads=1).traces(data.test.rows)
            found[kind].append(time.process_time() - start)
    return {kind: min(times) for kind, times in found.items()}


def on_disk(data: EngineData, features: TextFeatures | None, model: FusedModel) -> dict[str, Any]:
    """Return the megabytes of a saved model, in total and by part, and the seconds to load its weights."""
    traces = data.traces(data.train)
    nodes = traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64)
    kept = Examples.of_nodes(data.train.rows, nodes, np.ones(len(nodes), np.int64)).chosen(
        bytes_to_keep(model.nbytes), 0
    )
    arrays = model.to_arrays() | kept.to_arrays(EXAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_arrays(path, arrays)
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            with path.open("rb") as stream:
                FusedModel.from_arrays(data.layers, map_arrays(path, stream)[0])
            times.append(time.process_time() - start)
        write_arrays(Path(folder) / "features.safetensors", features.to_arrays() if features else {})
        data.layers.taxonomy.write(Path(folder) / "taxonomy.tsv")
        sizes = {file.stem: file.stat().st_size for file in Path(folder).iterdir()}
    parts: Counter[str] = Counter()
    for name, array in arrays.items():
        part = name.partition(".")[0]
        parts["deep" if part in ("features", "head") else part] += array.nbytes
    by_part = {"text features": sizes["features"], "taxonomy": sizes["taxonomy"], **parts}
    return {
        "megabytes": round(sum(sizes.values()) / 1e6, 2),
        "megabytes_by_part": {name: round(size / 1e6, 2) for name, size in by_part.items() if size >= 5_000},
        "examples": len(kept),
        "load_seconds": round(min(times), 3),
    }


CASES: dict[str, Case] = {name: partial(compared, name) for name in NAMES}


if __name__ == "__main__":
    run_cases(__file__, "model_size", CASES)
