"""Comparison of flat and hierarchical networks with the same rows, feature network, seed and budget."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hinet.data import LabelledRows, Traces, split_by_hash
from hinet.data.datasets import read_lshtc, tfidf_counts, tfidf_texts
from hinet.data.tables import Columns, FailFast, RowQuery, TableOptions, labelled_blocks, taxonomy_check
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.metrics import accuracy, hierarchical_f1, level_accuracy
from hinet.taxonomy import Layers, Taxonomy, as_id, path_id, split_path

FLATTEN = "flatten"
MODELS = (FLATTEN, "paper", "default")


@dataclass(frozen=True)
class ComparisonData:
    """Training and test rows."""

    name: str
    layers: Layers
    train_rows: Any  # CSR, (n, f)
    train: Traces
    test_rows: Any
    test: Traces


@dataclass(frozen=True)
class Outcome:
    """The result of one model with one seed."""

    model: str
    seed: int
    accuracy: float
    hierarchical_f1: float
    level_accuracy: list[float]
    output_parameters: int
    seconds_per_epoch: float
    peak_gb: float
    costs: list[float] = field(default_factory=list)


def head_settings(model: str) -> Any:
    """Return the settings of a named model, or of choices such as ``skip-level-squared-masked``."""
    from hinet.networks import HeadSettings, default, paper

    named = {
        "paper": paper(),
        "paper-masked": paper("masked"),
        "default": default(),
        "default-tied": replace(default(), tied=True),
    }
    if model in named:
        return named[model]
    choices = model.split("-")
    allowed = (("chain", "skip"), ("level", "parent"), ("squared", "cross_entropy"), ("dense", "masked"))
    if len(choices) != 4 or any(choice not in values for choice, values in zip(choices, allowed, strict=True)):
        raise HiNetError(
            f"unknown model {model!r}; use {', '.join([FLATTEN, *named])} or wiring-normalisation-cost-mask"
        )
    return HeadSettings(*choices)  # type: ignore[arg-type]


def compare(
    data: ComparisonData,
    models: Sequence[str] = MODELS,
    *,
    seeds: Sequence[int] = (0,),
    width: int | None = None,
    training: dict[str, Any] | None = None,
    threads: int | None = None,
    quiet: bool = False,
) -> list[Outcome]:
    """Train and evaluate every model with every seed, each in its own process, to measure its peak memory.

    Raises HiNetError before any training if the dense weights of a model do not fit. ``quiet`` hides progress.
    """
    require("torch", "a comparison of networks")
    from hinet.networks.heads import refuse_dense_weights

    for model in models:
        if model != FLATTEN:
            refuse_dense_weights(data.layers, head_settings(model))
    settings = (width, training or {}, quiet)
    return [_run_in_process(threads, data, model, seed, *settings) for model in models for seed in seeds]


def summarise_outcomes(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Return the mean and the standard deviation ("spread") over the seeds of each model."""
    summary = {}
    for model in dict.fromkeys(outcome.model for outcome in outcomes):
        chosen = [outcome for outcome in outcomes if outcome.model == model]
        summary[model] = {
            f"{name}_{what}": round(float(value), 5)
            for name in ("accuracy", "hierarchical_f1", "seconds_per_epoch", "peak_gb")
            for what, value in (
                ("mean", statistics.fmean(getattr(o, name) for o in chosen)),
                ("spread", statistics.stdev(getattr(o, name) for o in chosen) if len(chosen) > 1 else 0.0),
            )
        }
        summary[model]["output_parameters"] = chosen[0].output_parameters
    return summary


def run_model(
    data: ComparisonData, model: str, seed: int, width: int | None, training: dict[str, Any], quiet: bool = False
) -> Outcome:
    """Train one model and evaluate it on the test rows."""
    import torch

    from hinet.networks import FlattenNetwork, HiNet, SparseBag, Targets, TrainingSettings, predict_traces, train
    from hinet.networks.models import WIDTH, count_output_parameters
    from hinet.progress import progress_for_terminal

    torch.manual_seed(seed)
    width = width or WIDTH
    targets = Targets(data.train)
    bag = SparseBag(data.train_rows.shape[1], width)
    network = (
        FlattenNetwork.for_targets(bag, width, targets)
        if model == FLATTEN
        else HiNet(bag, data.layers, width, head_settings(model))
    )
    settings = TrainingSettings(**{**training, "seed": seed})
    progress = progress_for_terminal(f"{model} seed {seed}", quiet=quiet)
    history = train(network, data.train_rows, targets, settings, progress=progress)
    predicted = predict_traces(network, data.test_rows)
    return Outcome(
        model,
        seed,
        accuracy(data.test, predicted),
        hierarchical_f1(data.test, predicted),
        level_accuracy(data.test, predicted),
        count_output_parameters(network),
        statistics.median(record.seconds for record in history),
        peak_gb(),
        [record.cost for record in history],
    )


def _run_in_process(threads: int | None, data: ComparisonData, model: str, *others: Any) -> Outcome:
    """Run a model in its own process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_set_threads, initargs=(threads,)) as pool:
        try:
            return pool.submit(run_model, data, model, *others).result()
        except BrokenProcessPool:
            raise HiNetError(f"training {model} ended early; was memory short?") from None


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def peak_gb() -> float:
    """Return the peak memory of this process so far, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # elsewhere, ru_maxrss of a new process includes the peak of its parent
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return round(int(line.split()[1]) * 1024 / 1e9, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e9, 3)


TEST_SHARE = 0.2  # share of test rows if they are not given

LabelSets = Sequence[tuple[str, ...]]


def lshtc_comparison(folder: str | Path, test: str | None = None) -> ComparisonData:
    """Read a folder of LSHTC files; ``test`` names the file of test rows."""
    data = read_lshtc(folder, test)
    train_rows, test_rows = tfidf_counts(data.train.features, data.test.features)
    name = f"{Path(folder).resolve().name} {test or ''}".strip()
    return _comparison(name, data.taxonomy, train_rows, data.train.labels, test_rows, data.test.labels)


def table_comparison(
    file: str | Path,
    columns: Columns,
    *,
    split: str | None = None,
    hierarchy: str | Path | None = None,
    test: str | Path | None = None,
) -> ComparisonData:
    """Read a table of texts; test rows are those of ``test``, of the split column, or a fifth by hash.

    The labels are those of the first label column. The column ``split`` has ``train`` for training rows. Without a
    ``hierarchy``, labels are paths of names such as ``A > B > C``.
    """
    taxonomy = None if hierarchy is None else Taxonomy.from_file(hierarchy)
    parts = _parts(file, columns, split, test, taxonomy)
    for name, part in parts.items():
        if not len(part):
            raise HiNetError(f"{file}: there are no {name} rows; set `split` or `test`")
    train_rows, test_rows = tfidf_texts(parts["train"].texts, parts["test"].texts)
    train, test_labels = (
        [_labels_of(cell, columns.label_sep) for cell in parts[name].labels] for name in ("train", "test")
    )
    if taxonomy is None:
        paths = [_steps(label) for row in (*train, *test_labels) for label in row]
        taxonomy = Taxonomy.from_paths(paths).under_virtual_root()
        train, test_labels = (
            [tuple(path_id(_steps(label)) for label in row) for row in part] for part in (train, test_labels)
        )
    return _comparison(Path(file).stem, taxonomy, train_rows, train, test_rows, test_labels)


def _parts(
    file: str | Path, columns: Columns, split: str | None, test: str | Path | None, taxonomy: Taxonomy | None
) -> dict[str, LabelledRows]:
    if split is not None and test is not None:
        raise HiNetError("`split` and `test` both define the test rows; give one")
    rows, splits = _rows(file, columns, split, taxonomy)
    if split is not None:
        is_train = np.array([cell == "train" for cell in splits], bool)
        return {"train": rows.take(np.flatnonzero(is_train)), "test": rows.take(np.flatnonzero(~is_train))}
    if test is not None:
        return {"train": rows, "test": _rows(test, columns, split, taxonomy)[0]}
    return split_by_hash(rows, {"test": TEST_SHARE}, rest="train")


def _rows(
    path: str | Path, columns: Columns, split: str | None, taxonomy: Taxonomy | None
) -> tuple[LabelledRows, list[str]]:
    """Return the texts and labels of a table, unparsed, and the cells of the split column."""
    query = RowQuery(columns, keep=() if split is None else (split,), check=taxonomy_check(taxonomy))
    texts: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for block in labelled_blocks([str(path)], query, TableOptions(), FailFast()):
        texts += block.texts
        labels += map(as_id, block.rows.cells[columns.label[0]])
        splits += map(as_id, block.rows.values(split) if split is not None else ())
    return LabelledRows(tuple(texts), tuple(labels)), splits


def _labels_of(cell: str, separator: str | None) -> tuple[str, ...]:
    return (cell,) if separator is None else tuple(part.strip() for part in cell.split(separator) if part.strip())


def _steps(label: str) -> tuple[str, ...]:
    return tuple(step for step in split_path(label) if step)


def _comparison(
    name: str, taxonomy: Taxonomy, train_rows: Any, train: LabelSets, test_rows: Any, test: LabelSets
) -> ComparisonData:
    """Encode the labels; traces may end at the nodes that are labels."""
    for part, labels in (("training", train), ("test", test)):
        empty = next((row for row, row_labels in enumerate(labels) if not row_labels), None)
        if empty is not None:
            raise HiNetError(f"{part} row {empty} has no label; leave it out")
    used = {label for row in (*train, *test) for label in row}
    layers = Layers.of(taxonomy, ends=sorted(used & {*taxonomy}))
    return ComparisonData(
        name, layers, train_rows, Traces.encode_sets(layers, train), test_rows, Traces.encode_sets(layers, test)
    )
