"""Compare the fused engine with the prototype and the flat network: accuracy, seconds, rows per second, memory.

    HINET_DATA=folder HINET_PROTOTYPE=deep_and_wide.py python benchmarks/engine.py [case ...]

Every case runs alone in a fresh process with compiled kernels; related cases read the same CSR matrix. Without
arguments all cases are run; otherwise the others keep their figures. Results: ``benchmarks/results/engine.json`` and a
plot.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp
from engine_data import EngineData, icd_texts, joined, lshtc, naics_texts, wikitaxa_texts, wordnet_texts
from measure import RESULTS, Case, Stopwatch, run_cases, save

from hinet import Layers, Taxonomy, Traces
from hinet.engine import EngineSettings, Experts, FusedModel, Search, ValidationRows, fit
from hinet.engine.model.experts import DeepExpert, LabelWeights, Memory, Mix, WideExpert
from hinet.engine.model.groups import LabelSpans
from hinet.files import write_arrays
from hinet.metrics import accuracy

SEEDS = (0, 1, 2)
TEXTS = {"naics": naics_texts, "icd": icd_texts, "wikitaxa": wikitaxa_texts}
NAMES = (*TEXTS, "lshtc")
BRANCHES = 10
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def load(name: str) -> EngineData:
    return lshtc() if name == "lshtc" else TEXTS[name]().vectorised()[0]


def warm_up() -> None:
    """Compile the kernels, or load compiled ones, outside of all timers."""
    layers = Layers.of(Taxonomy.from_paths([("a", "x"), ("a", "y"), ("b",)], steps="ids"))
    rows = sp.csr_array(np.eye(20, 5, dtype=np.float32))
    traces = Traces.encode(layers, ["x", "y"] * 10)
    settings = EngineSettings(flat=True, deep_epochs=1, wide_epochs=1)
    model = fit(rows, traces, settings, valid=ValidationRows(rows, traces))
    Search(model).traces(rows)
    Search(model).traces(rows[:1])


def hits(data: EngineData, labels: list[str]) -> tuple[float, float]:
    """Return accuracy and hierarchical F1 of predicted labels of a tree, computed as in the prototype."""
    guessed = [data.path(label) for label in labels]
    true = [data.path(found[0]) for found in data.test.labels]
    common = sum(
        next((depth for depth, (a, b) in enumerate(zip(p, q, strict=False)) if a != b), min(len(p), len(q)))
        for p, q in zip(guessed, true, strict=True)
    )
    exact = float(np.mean([p == q for p, q in zip(guessed, true, strict=True)]))
    return exact, 2 * common / (sum(map(len, guessed)) + sum(map(len, true)))


def ours(name: str) -> dict[str, Any]:
    data = load(name)
    warm_up()
    train, valid = data.traces(data.train), data.validation
    runs = []
    for seed in SEEDS:
        watch = Stopwatch()
        model = fit(data.train.rows, train, EngineSettings(seed=seed), valid=valid)
        seconds = watch.seconds
        watch = Stopwatch()
        found = Search(model).traces(data.test.rows)
        predict = watch.seconds
        exact, f1 = hits(data, found.traces.decode())
        runs.append((exact, f1, seconds, len(found) / predict))
        touched = round(float(found.touched.mean() / model.outputs), 5)
        shape = {"touched_share": touched, "model_mb": model.nbytes // 10**6}
        mix = [round(weight, 3) for weight in model.mix]
        del model, found  # keeps only one model in memory, as a user would
    return {**averaged(runs), **shape, "mix": mix}


def prototype() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prototype", os.environ["HINET_PROTOTYPE"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prototype"] = module
    spec.loader.exec_module(module)
    return module


def yardstick(name: str) -> dict[str, Any]:
    data, module = load(name), prototype()
    part = joined(data.train, data.valid) if name == "lshtc" and data.valid is not None else data.train
    rows, test_rows = sp.csr_matrix(part.rows), sp.csr_matrix(data.test.rows)
    paths = [data.path(labels[0]) for labels in part.labels]
    small = dict.fromkeys(("deep_ep", "wide_ep"), 1)
    module.HiNet(K=8, **small).fit(rows[:99], paths[:99]).predict(test_rows[:9])
    runs = []
    for seed in SEEDS:
        watch = Stopwatch()
        model = module.HiNet(seed=seed).fit(rows, paths)
        seconds = watch.seconds
        watch = Stopwatch()
        found, _ = model.predict(test_rows)
        runs.append((*hits(data, [path[-1] for path in found]), seconds, len(found) / watch.seconds))
    return averaged(runs)


def averaged(runs: Sequence[tuple[float, ...]]) -> dict[str, Any]:
    """Return means over seeds of accuracy, hierarchical F1, seconds and rows per second, and the spread of accuracy."""
    exact, f1, seconds, speed = np.mean(runs, axis=0)
    return {
        "accuracy": round(exact, 4),
        "accuracy_spread": round(float(np.std([run[0] for run in runs])), 4),
        "hierarchical_f1": round(f1, 4),
        "train_seconds": round(seconds, 2),
        "rows_per_second": round(speed),
    }


def end_to_end(name: str) -> dict[str, Any]:
    """Measure from raw texts in memory to a model on disk, including features."""
    texts = TEXTS[name]()
    warm_up()
    type(texts)(texts.taxonomy, (["a b", "a b"], texts.train[1][:2]), (["a"], texts.train[1][:1])).vectorised()
    watch = Stopwatch()
    data, features = texts.vectorised()
    vectorise = watch.seconds
    model = fit(data.train.rows, data.traces(data.train), valid=data.validation)
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder) / "features.safetensors", features.to_arrays())
        write_arrays(Path(folder) / "model.safetensors", model.to_arrays())
        data.layers.taxonomy.write(Path(folder) / "taxonomy.tsv")
        total = watch.seconds
    return {"seconds": total, "vectorise_seconds": vectorise, "vectorise_share": round(vectorise / total, 3)}


def flat_in_torch() -> dict[str, Any]:
    """Measure one epoch of the Flatten Network on ICD-10-CM, and one of our deep expert of the same width."""
    from hinet.evaluation.comparison import ComparisonData, run_model

    data = load("icd")
    warm_up()
    train = data.traces(data.train)
    epochs = 5
    model = fit(data.train.rows, train, EngineSettings(deep_epochs=epochs, wide=False, members=1))
    seconds = sum(record.seconds for record in model.history) / epochs
    rows = ComparisonData("icd", data.layers, data.train.rows, train, data.test.rows, data.traces(data.test))
    flat = run_model(rows, "flatten", 0, None, {"epochs": 1, "batch": 256})
    return {"flatten_seconds_per_epoch": round(flat.seconds_per_epoch, 2), "seconds_per_epoch": round(seconds, 3)}


def lshtc_test() -> dict[str, Any]:
    """Measure on the crawled pages of LSHTC; everything is chosen on training and validation rows."""
    data = lshtc("test.txt")
    runs = []
    for seed in SEEDS:
        model = fit(data.train.rows, data.traces(data.train), EngineSettings(seed=seed), valid=data.validation)
        runs.append(hits(data, Search(model).traces(data.test.rows).traces.decode()))
    exact, f1 = np.mean(runs, axis=0)
    return {"accuracy": round(exact, 4), "hierarchical_f1": round(f1, 4)}


def wordnet() -> dict[str, Any]:
    """Measure on WordNet's nouns, a DAG with several labels per row: the share of rows whose first answer is right."""
    data = wordnet_texts().vectorised()[0]
    warm_up()
    watch = Stopwatch()
    model = fit(data.train.rows, data.traces(data.train))
    seconds = watch.seconds
    truth, search = data.traces(data.test), Search(model)
    by_trace = accuracy(truth, search.traces(data.test.rows).traces)
    by_label = accuracy(truth, Traces.of_nodes(data.layers, search.labels(data.test.rows).nodes))
    return {"top1_map": round(by_trace, 4), "top1_label": round(by_label, 4), "train_seconds": seconds}


def wordnet_in_torch() -> dict[str, Any]:
    """Measure the torch head on the same rows, for as many epochs as a few minutes allow."""
    from hinet.evaluation.comparison import ComparisonData, run_model

    data = wordnet_texts().vectorised()[0]
    rows = ComparisonData(
        "wordnet", data.layers, data.train.rows, data.traces(data.train), data.test.rows, data.traces(data.test)
    )
    outcome = run_model(rows, "default", 0, None, {"epochs": 4})
    return {"top1_map": round(outcome.accuracy, 4), "epochs": 4, "train_seconds": round(4 * outcome.seconds_per_epoch)}


def curve_point(labels: int) -> dict[str, Any]:
    """Measure the exact search in a random, confident model over a tree with a fixed number of children."""
    depth = round(np.log(labels) / np.log(BRANCHES))
    edges: list[tuple[str | None, str]] = [
        (str(node // BRANCHES) if level else None, str(node))
        for level in range(depth)
        for node in range(BRANCHES ** (level + 1), 2 * BRANCHES ** (level + 1))
    ]
    layers = Layers.of(Taxonomy.from_edges(_prefixed(edges)), ends=())
    random = np.random.default_rng(0)
    features, width, rows = 1_000, 64, 4_096
    outputs = int(sum(BRANCHES ** (level + 1) for level in range(depth)))
    deep = DeepExpert.start(features, np.zeros(outputs, np.float32), width, random)
    deep = deep._replace(embedding=deep.embedding * 10, weight=deep.weight * 40)
    nothing = WideExpert.none(features, len(layers.node), outputs)
    mix = np.array(Mix(deep=1), np.float32)
    flat = DeepExpert.none(features, 0)
    no_labels = LabelWeights.none(features)
    experts = Experts(deep, nothing, flat, no_labels, Memory.none(), no_labels, LabelSpans.of(layers), mix)
    matrix = sp.random_array((rows, features), density=0.02, format="csr", dtype=np.float32, rng=random)
    search = Search(FusedModel(layers, experts), threads=1)
    search.traces(matrix)
    watch = Stopwatch()
    found = search.traces(matrix)
    touched = float(found.touched.mean())
    return {
        "depth": depth,
        "microseconds_per_row": round(1e6 * watch.seconds / rows, 1),
        "touched": round(touched, 1),
        "touched_share": round(touched / outputs, 7),
    }


def _prefixed(edges: list[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
    """Prefix nodes with their level, because numbers of two levels overlap."""
    named: list[tuple[str | None, str]] = []
    for parent, node in edges:
        level = len(node)
        named.append((None if parent is None else f"{level - 1}.{parent}", f"{level}.{node}"))
    return named


CASES: dict[str, Case] = {
    **{f"{name}, ours": partial(ours, name) for name in NAMES},
    **{f"{name}, prototype": partial(yardstick, name) for name in NAMES},
    **{f"{name}, end to end": partial(end_to_end, name) for name in ("icd", "wikitaxa")},
    "icd, flatten in torch": flat_in_torch,
    "lshtc test": lshtc_test,
    "wordnet": wordnet,
    "wordnet in torch": wordnet_in_torch,
    **{f"curve, {labels:,} labels": partial(curve_point, labels) for labels in SIZES},
}


def ratios(results: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of each figure to its reference."""
    found: dict[str, Any] = {}
    for name in NAMES:
        mine, theirs = results.get(f"{name}, ours"), results.get(f"{name}, prototype")
        if mine and theirs:
            found[name] = {
                "accuracy_gain": round(100 * (mine["accuracy"] - theirs["accuracy"]), 2),
                "hierarchical_f1_gain": round(100 * (mine["hierarchical_f1"] - theirs["hierarchical_f1"]), 2),
                "train_time_ratio": round(mine["train_seconds"] / theirs["train_seconds"], 2),
                "predict_speed_ratio": round(mine["rows_per_second"] / theirs["rows_per_second"], 2),
            }
    if flat := results.get("icd, flatten in torch"):
        found["flatten_epoch_ratio"] = round(flat["flatten_seconds_per_epoch"] / flat["seconds_per_epoch"], 1)
    return found


def plot_curve(results: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    points = [results[f"curve, {labels:,} labels"]["microseconds_per_row"] for labels in SIZES]
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axes.semilogx(SIZES, points, marker="o")
    axes.set(xlabel="labels, ten below each node", ylabel="microseconds per row", ylim=(0, None))
    figure.savefig(RESULTS / "engine_curve.png", dpi=120)


def main() -> None:
    results = run_cases(__file__, "engine", CASES)
    results["ratios"] = ratios(results)
    for name, row in results["ratios"].items():
        print(name, row)
    if all(f"curve, {labels:,} labels" in results for labels in SIZES):
        plot_curve(results)
    save("engine", results)


if __name__ == "__main__":
    main()
