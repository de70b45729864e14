"""Titles of labels, synonyms and definitions as training rows: how much they count is learned on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.inputs import joined_texts
from hinet.classifier.labels import LabelCodec
from hinet.data import Traces
from hinet.data.matrices import MixedRows
from hinet.engine.training.title_units import TitleColumns
from hinet.errors import HiNetError, counted
from hinet.taxonomy import Taxonomy
from hinet.taxonomy.draft import DEFINITION, SYNONYMS, split_terms

WEIGHTS = (1.0, 3.0)  # of a title, in rows, that are tried
USUAL_WEIGHT = 3.0
FOLDS = 4  # parts of the rows that are held out in turn
MOST_ROWS = 8_000  # held-out rows that are looked at
LEAST_ROWS = 1_000  # rows, to tell anything
LEAST_GAIN = 0.002  # in the share of held-out rows that are right
BLOCK = 256  # rows scored at a time


@dataclass(frozen=True)
class TitleRows:
    """The titles of some labels, and what else the taxonomy says of them."""

    texts: list[str]
    nodes: NDArray[np.int64]

    @classmethod
    def of(cls, codec: LabelCodec, nodes: NDArray[np.int64], *, described: bool = False) -> TitleRows:
        """Return the titles of nodes, those left out that only repeat the id; if ``described``, synonyms and so on."""
        taxonomy = codec.taxonomy
        rows = [
            (text, node)
            for node in nodes.tolist()
            for text in dict.fromkeys(_texts(taxonomy, node, described))
            if text and text != taxonomy.ids[node]
        ]
        return cls([text for text, _ in rows], np.array([node for _, node in rows], np.int64))

    @classmethod
    def choices(cls, codec: LabelCodec, nodes: NDArray[np.int64]) -> list[TitleRows]:
        """Return titles with all that the taxonomy says of the labels, and titles alone if that is less."""
        described, titles = cls.of(codec, nodes, described=True), cls.of(codec, nodes)
        return [described, titles] if 0 < len(titles) < len(described) else [described]

    def may_help(self, rows: int) -> bool:
        """Return whether there are titles, and enough rows to hold some out."""
        return len(self) > 0 and rows >= LEAST_ROWS

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def note(self) -> str:
        """A message that titles are trained on."""
        return f"{counted(len(self), 'title')} of labels {'is' if len(self) == 1 else 'are'} trained on like rows"

    def after(self, texts: Any) -> pa.ChunkedArray:
        """Return texts with the titles after them."""
        return joined_texts(texts, self.texts)

    def traces_after(self, traces: Traces) -> Traces:
        """Return labels with those of the titles after them."""
        return Traces.joined(traces.layers, [traces, Traces.of_nodes(traces.layers, self.nodes)])

    def columns_of(self, rows: Any) -> TitleColumns | None:
        """Return the dense columns of the titles, which are the last of some rows; None if these have no columns."""
        return TitleColumns(rows.dense[-len(self) :], self.nodes) if isinstance(rows, MixedRows) else None

    def weights_after(self, weights: NDArray[np.float64] | None, traces: Traces, weight: float) -> NDArray[np.float64]:
        """Return the weights of rows with those of the titles after them."""
        own = self.weights_beside(np.unique(traces.end_nodes), len(traces), weight)
        return np.append(np.ones(len(traces)) if weights is None else weights, own)

    def weights_beside(self, with_rows: NDArray[Any], rows: int, weight: float) -> NDArray[np.float64]:
        """Return the weights of the titles beside so many rows, of nodes ``with_rows``.

        What the taxonomy says of a label without rows counts as much as the rows of a usual label: as a single row it
        would be learned as a label that hardly ever occurs.
        """
        _, text_of, texts = np.unique(self.nodes, return_inverse=True, return_counts=True)
        usual = rows / max(len(with_rows), 1) / texts[text_of]
        own: NDArray[np.float64] = np.where(np.isin(self.nodes, with_rows), weight, np.maximum(usual, weight))
        return own


def _texts(taxonomy: Taxonomy, node: int, described: bool) -> Iterator[str]:
    yield taxonomy.titles[node]
    if described:
        if SYNONYMS in taxonomy.attributes:
            yield from split_terms(taxonomy.attributes[SYNONYMS][node])
        if DEFINITION in taxonomy.attributes:
            yield taxonomy.attributes[DEFINITION][node]


class Learned(NamedTuple):
    """How many rows a title counts as, 0 if titles do not help, and how many more held-out rows are then right."""

    weight: float
    gain: float


def chosen_titles(
    wanted: bool | None,
    kind: str | None,
    codec: LabelCodec,
    with_rows: NDArray[Any],
    rows: int,
    learned: Callable[[list[TitleRows]], tuple[TitleRows, float]],
) -> tuple[TitleRows | None, float]:
    """Return the titles of labels that are rows as well, if any, and how many rows each counts as.

    Labels ``with_rows`` have so many rows. Where ``wanted`` leaves it open, ``learned`` returns the best of some
    choices and its weight.
    """
    if kind == "frame" and wanted:
        raise HiNetError("`titles=True` needs rows of text alone, as titles have no other columns; leave it out")
    if kind != "text" or wanted is False:
        return None, 0.0
    choices = TitleRows.choices(codec, (codec.label_nodes if wanted else with_rows).astype(np.int64))
    titles, weight = choices[0], USUAL_WEIGHT if wanted else 0.0
    if wanted and not len(titles):
        raise HiNetError("`titles=True`, but no label has a title in the taxonomy; leave it out")
    if wanted is None and titles.may_help(rows):
        titles, weight = learned(choices)
    return (titles, weight) if weight else (None, 0.0)


def best_titles(
    rows: Any, traces: Traces, choices: Sequence[TitleRows], title_rows: Sequence[Any], seed: int
) -> tuple[TitleRows, float]:
    """Return the choice of titles that held-out rows gain most by, and how many rows each of them counts as."""
    pairs = zip(choices, title_rows, strict=True)
    learned = [learned_weight(rows, traces, features, titles, seed) for titles, features in pairs]
    best = max(range(len(choices)), key=lambda number: learned[number].gain)
    return choices[best], learned[best].weight


def learned_weight(rows: Any, traces: Traces, title_rows: Any, titles: TitleRows, seed: int) -> Learned:
    """Return how many rows a title counts as, 0 if titles do not help.

    Parts of the rows are held out in turn, and answered by the nearest mean of the other rows of each label, with and
    without the title among them.
    """
    node = traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64)
    labels, label = np.unique(np.concatenate([node, titles.nodes]), return_inverse=True)
    of_rows, of_titles = label[: len(node)], label[len(node) :]
    all_sums, title_sums = _sums(rows, of_rows, len(labels)), _sums(title_rows, of_titles, len(labels))
    order = np.random.default_rng([seed, 1 << 21]).permutation(len(node))
    parts = []
    for fold in range(FOLDS):
        held = order[fold::FOLDS]
        sums = sp.csr_array(all_sums - _sums(rows[held], of_rows[held], len(labels)))
        looked_at = held[: MOST_ROWS // FOLDS]
        parts.append(_right(rows[looked_at], of_rows[looked_at], sums, title_sums))
    right = np.concatenate(parts, axis=1).mean(1)  # (1 + weights,)
    best = int(right.argmax())
    gain = float(right[best] - right[0])
    return Learned((0.0, *WEIGHTS)[best], gain) if gain > LEAST_GAIN else Learned(0.0, 0.0)


def _sums(rows: Any, label: NDArray[np.int64], labels: int) -> sp.csr_array:
    """Return the sum of the rows of each label."""
    members = sp.csr_array((np.ones(len(label), np.float32), (label, np.arange(len(label)))), (labels, len(label)))
    return sp.csr_array(members @ rows)


def _right(rows: Any, label: NDArray[np.int64], sums: sp.csr_array, titles: sp.csr_array) -> NDArray[np.bool_]:
    """Return which rows have the nearest mean at their label: without titles, and with them by each weight."""
    weights = np.array([0.0, *WEIGHTS])[:, None]
    squares = _dots(sums, sums) + 2 * weights * _dots(sums, titles) + weights**2 * _dots(titles, titles)
    lengths = np.sqrt(np.maximum(squares, 1e-12)).astype(np.float32)  # (1 + weights, labels)
    right = np.empty((len(weights), len(label)), bool)
    sums, titles = sums.T.tocsr(), titles.T.tocsr()
    for start in range(0, len(label), BLOCK):
        block = rows[start : start + BLOCK]
        by_rows, by_title = (block @ sums).toarray(), (block @ titles).toarray()
        for number, weight in enumerate(weights.ravel().tolist()):
            nearest = ((by_rows + weight * by_title) / lengths[number]).argmax(1)
            right[number, start : start + BLOCK] = nearest == label[start : start + BLOCK]
    return right


def _dots(left: sp.csr_array, right: sp.csr_array) -> NDArray[np.float64]:
    """Return the product of each row of one matrix with that of the other."""
    return np.asarray(left.multiply(right).sum(1), np.float64).ravel()
