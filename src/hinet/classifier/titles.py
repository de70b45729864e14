"""Titles of labels as training rows: how much they count is learned on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.labels import LabelCodec
from hinet.data import Traces
from hinet.data.text.text_input import as_arrow

WEIGHTS = (1.0, 3.0)  # of a title, in rows, that are tried
USUAL_WEIGHT = 3.0
MOST_ROWS = 2_000  # held-out rows that are looked at
HELD_OUT = 0.2
LEAST_ROWS = 200  # held out, to tell anything
LEAST_GAIN = 0.005  # in the share of held-out rows that are right
BLOCK = 256  # rows scored at a time


@dataclass(frozen=True)
class TitleRows:
    """The titles of some labels."""

    texts: list[str]
    nodes: NDArray[np.int64]

    @classmethod
    def of(cls, codec: LabelCodec, nodes: NDArray[np.int64]) -> TitleRows:
        """Return the titles of nodes, those left out that only repeat the id."""
        taxonomy = codec.taxonomy
        titled = [
            node for node in nodes.tolist() if taxonomy.titles[node] and taxonomy.titles[node] != taxonomy.ids[node]
        ]
        return cls([taxonomy.titles[node] for node in titled], np.array(titled, np.int64))

    def may_help(self, rows: int) -> bool:
        """Return whether there are titles, and enough rows to hold some out."""
        return len(self) > 0 and HELD_OUT * rows >= LEAST_ROWS

    def __len__(self) -> int:
        return len(self.texts)

    def after(self, texts: Any) -> pa.ChunkedArray:
        """Return texts with the titles after them."""
        return pa.chunked_array([*as_arrow(texts).chunks, *as_arrow(self.texts).chunks], pa.large_string())

    def traces_after(self, traces: Traces) -> Traces:
        """Return labels with those of the titles after them."""
        return Traces.joined(traces.layers, [traces, Traces.of_nodes(traces.layers, self.nodes)])

    def weights_after(self, weights: NDArray[np.float64] | None, rows: int, weight: float) -> NDArray[np.float64]:
        """Return the weights of rows with that of the titles after them."""
        return np.append(np.ones(rows) if weights is None else weights, np.full(len(self), weight))


def learned_weight(rows: Any, traces: Traces, title_rows: Any, titles: TitleRows, seed: int) -> float:
    """Return how many rows a title counts as, 0 if titles do not help.

    Some of the rows are held out, and answered by the nearest mean of the other rows of each label, with and without
    the title among them.
    """
    node = traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64)
    order = np.random.default_rng([seed, 1 << 21]).permutation(len(node))
    held = order[: min(MOST_ROWS, int(HELD_OUT * len(order)))]
    rest = np.setdiff1d(order, held)
    labels, label = np.unique(np.concatenate([node, titles.nodes]), return_inverse=True)
    of_rows, of_titles = label[: len(node)], label[len(node) :]
    sums = _sums(rows[rest], of_rows[rest], len(labels))
    with_titles = _sums(title_rows, of_titles, len(labels))
    usual, best, chosen = _right(rows[held], sums, of_rows[held]), 0.0, 0.0
    for weight in WEIGHTS:
        gain = _right(rows[held], sums + weight * with_titles, of_rows[held]) - usual
        if gain > max(best, LEAST_GAIN):
            best, chosen = gain, weight
    return chosen


def _sums(rows: Any, label: NDArray[np.int64], labels: int) -> sp.csr_array:
    """Return the sum of the rows of each label."""
    members = sp.csr_array((np.ones(len(label), np.float32), (label, np.arange(len(label)))), (labels, len(label)))
    return sp.csr_array(members @ rows)


def _right(rows: Any, sums: sp.csr_array, label: NDArray[np.int64]) -> float:
    """Return the share of rows whose label has the nearest mean."""
    length = np.sqrt(np.asarray(sums.multiply(sums).sum(1)).ravel())
    means = sp.csc_array(sp.diags_array(1 / np.maximum(length, 1e-9)) @ sums).T.tocsr()
    right = 0
    for start in range(0, rows.shape[0], BLOCK):
        scores = (rows[start : start + BLOCK] @ means).toarray()
        right += int((scores.argmax(1) == label[start : start + BLOCK]).sum())
    return right / max(len(label), 1)
