"""Every kernel with the types it is called with, found by training and asking tiny models while calls are listened to.

As a program, ``python -m hinet.engine.every_kernel``, it reads names of kernels, one a line, and writes each again when
it is compiled: a worker of :mod:`hinet.engine.compiling`.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import scipy.sparse as sp

from hinet.compiled import Kernel, interpreting
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.data.text import TextFeatures, TextSettings
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine.model.fused import FusedModel, with_merged
from hinet.engine.model.targets import Targets
from hinet.engine.search.search import Search
from hinet.engine.settings import EngineSettings
from hinet.engine.training.cooccurrence import merged_columns, repeated_share
from hinet.engine.training.fit import fit
from hinet.engine.training.plan import ValidationRows
from hinet.engine.training.taxonomy_transfer import option_targets, taught
from hinet.taxonomy import Layers, Taxonomy

TEXTS = ("rye bread", "white bread", "whole milk", "toy car", "ähre", "rye milk")
EDGES = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train")]
SECOND_PARENT = [("food", "train"), ("car", "wheel"), ("train", "wheel")]
LABELS = ("bread", "milk", "food", "car", "train", "milk")
SMALL = EngineSettings(members=1, width=2, flat_width=2, deep_epochs=1, wide_epochs=1, threads=1)


def calls() -> dict[str, list[tuple[Kernel, tuple[Any, ...]]]]:
    """Return every kernel by name, with the types of the arguments of each way to call it."""
    ways_of: dict[str, dict[tuple[Any, ...], Kernel]] = {}

    def listener(kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        from numba import typeof

        ways_of.setdefault(kernel.__name__, {})[tuple(map(typeof, arguments))] = kernel

    with interpreting(listener):
        rows = _read_texts()
        _train_and_ask(EDGES, rows)
        _train_and_ask(EDGES + SECOND_PARENT, rows)
        _train_and_ask_sets(rows)
    return {name: [(kernel, types) for types, kernel in ways.items()] for name, ways in ways_of.items()}


def _read_texts() -> Any:
    settings = TextSettings(min_df=1, char_ngrams=(3, 4))
    TextFeatures.fit_chunks([TEXTS, TEXTS[:2]], settings, threads=1)
    hashed, _ = TextFeatures.fit_transform(TEXTS, TextSettings(min_df=1, hash_bits=4, keep_names=False), threads=1)
    hashed.transform(TEXTS)
    TokenVectors.of(TEXTS, np.ones((len(TEXTS), 2), np.float32)).sums(TEXTS)
    features, rows = TextFeatures.fit_transform(TEXTS, settings, threads=1)
    features.transform(TEXTS)
    return rows


def _train_and_ask(edges: list[tuple[str, str]], rows: Any) -> None:
    layers = Layers.of(Taxonomy.from_edges(edges))
    traces = Traces.encode(layers, list(LABELS))
    wide = sp.csr_array((rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)), shape=rows.shape)
    model = fit(rows, traces, SMALL, valid=ValidationRows(wide, traces), watch=True)
    if layers.taxonomy.is_tree:
        fit(rows, traces, replace(SMALL, flat=True))
        matrix = SparseMatrix.of(rows)  # of many rows alone fit asks whether features repeat each other
        repeated_share(matrix, rows.shape[1])
        with_merged(matrix, merged_columns(matrix, rows.shape[1]), rows.shape[1])
        _relearn(model, rows)
    search = Search(model, threads=1)
    search.traces(rows, 2, least=0.01)
    search.labels(rows)
    search.top_labels(rows, 2)
    search.label_probabilities(rows)
    search.deepest_confident(rows, 0.5)
    search.expected_f1(rows)
    search.logits_along(rows, Targets.of(traces))


def _train_and_ask_sets(rows: Any) -> None:
    layers = Layers.of(Taxonomy.from_edges(EDGES + SECOND_PARENT), multilabel=True)
    traces = Traces.encode_sets(layers, [{label, "car"} for label in LABELS])
    settings = replace(SMALL, flat=True)
    search = Search(fit(rows, traces, settings, valid=ValidationRows(rows, traces), watch=True), threads=1)
    search.traces(rows, 2, least=0.01)
    search.label_probabilities(rows)
    search.logits_along(rows, Targets.of(traces))


def _relearn(model: FusedModel, rows: Any) -> None:
    layers = model.layers
    targets = option_targets(Search(model).traces(rows).traces, layers, np.arange(len(layers.taxonomy)))
    taught(model, np.ones(model.groups.rows, bool), targets, SparseMatrix.of(rows))


def main() -> None:
    """Compile the kernels that are named on standard input, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the process that started this one, which ends the input
    known, names = calls(), SimpleQueue[str]()
    Thread(target=_read_names, args=(names,), daemon=True).start()
    while True:
        name = names.get()
        for kernel, types in known.get(name, ()):
            kernel.compiled.compile(types)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


def _read_names(names: SimpleQueue[str]) -> None:
    """Read names; end the process when the input ends, even while it compiles, but not while it writes a file."""
    from hinet.machine_code import SAVING

    with open(0, "rb", buffering=0, closefd=False) as stream:  # no lock that an exit would wait for
        for line in stream:
            names.put(line.decode().strip())
    with SAVING:
        os._exit(0)


if __name__ == "__main__":
    main()
