"""Titles, synonyms and definitions of labels as training rows, with a weight that is learned on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from hinet.ragged import group_by, offsets_of
from hinet.taxonomy import Layers, Taxonomy
from hinet.taxonomy.draft import DEFINITION, SYNONYMS, split_terms
from hinet.taxonomy.taxonomy import TITLE_ATTRIBUTES

DEFAULT_WEIGHT = 3.0  # weight of a title, in rows
WEIGHTS = (1.0, 3.0)  # weights that are tried
FOLDS = 4
MAX_SCORED_ROWS = 8_000  # maximum number of held-out rows that are scored
MIN_ROWS = 1_000  # minimum number of rows to learn a weight from
MAX_FEW_ROWS, COVERED = 5_000, 0.9  # rows are few up to the first, if fewer than this share of labels have any
MIN_GAIN = 0.002  # minimum gain in accuracy on held-out rows
BLOCK_ROWS = 256  # rows scored at a time
MAX_LABELS_BELOW = 200  # maximum number of labels that share the title of a branch
NO_TITLES = (
    "the taxonomy has no titles to learn from; give it a column 'title', 'synonyms' or 'definition' (repeat the ids as "
    "titles if they are words), or train on rows"
)


@dataclass(frozen=True)
class TitleRows:
    """Titles of nodes, perhaps with their synonyms and definitions, each with the weight of ``weight`` rows.

    The text of a node that is not a label is a row of the labels below it.
    """

    texts: list[str]
    nodes: NDArray[np.int64]
    weight: float = DEFAULT_WEIGHT

    @classmethod
    def of(cls, codec: LabelCodec, nodes: NDArray[np.int64], *, described: bool = False) -> TitleRows:
        """Return the titles of nodes that differ from the id; if ``described``, also synonyms and definitions."""
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
        """Return titles with synonyms and definitions, and titles alone if these are fewer."""
        described, titles = cls.of(codec, nodes, described=True), cls.of(codec, nodes)
        return [described, titles] if 0 < len(titles) < len(described) else [described]

    @classmethod
    def of_taxonomy(cls, codec: LabelCodec) -> TitleRows:
        """Return the texts of all nodes; for sets of labels only those of labels.

        With sets, the title of a branch would be a row that has all labels below it at once.

        Raises
        ------
        HiNetError
            If no label has a text.
        """
        taxonomy, labels = codec.taxonomy, codec.label_nodes
        nodes = labels if codec.sets is not None else np.union1d(np.flatnonzero(taxonomy.depth > 0), labels)
        rows = [
            (text, node)
            for node in nodes.tolist()
            for text in dict.fromkeys(_own_texts(taxonomy, node))
            if text.strip()
        ]
        texts, positions = [text for text, _ in rows], np.array([node for _, node in rows], np.int64)
        if not np.isin(positions, labels).any():
            raise HiNetError(NO_TITLES)
        return cls(texts, positions, 1.0)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def note(self) -> str:
        """A message that titles are trained on."""
        return f"{counted(len(self), 'title')} of labels {'is' if len(self) == 1 else 'are'} trained on like rows"

    def in_context(self, taxonomy: Taxonomy) -> list[list[str]]:
        """Return the texts alone, each followed by the title of its parent, and by that of the top node above it."""
        if not self.texts:
            return []
        above, offsets = taxonomy.ancestor_lists(self.nodes)
        contexts: list[list[str]] = [self.texts, [], []]
        for text, node, own in zip(self.texts, self.nodes.tolist(), np.split(above, offsets[1:-1]), strict=True):
            uppers = sorted(
                (upper for upper in own.tolist() if upper != node), key=lambda upper: -taxonomy.depth[upper]
            )
            titles = [title for upper in uppers if (title := taxonomy.titles[upper]) not in ("", text)]
            for context, titled in zip(contexts[1:], (titles[:1], titles[-1:]), strict=True):
                context.append(", ".join([text, *titled]))
        return contexts

    def after(self, texts: Any) -> pa.ChunkedArray:
        """Return texts with the titles appended."""
        return joined_texts(texts, self.texts)

    def traces_after(self, traces: Traces) -> Traces:
        """Return labels with those of the titles appended."""
        return Traces.joined(traces.layers, [traces, self.traces(traces.layers)])

    def traces(self, layers: Layers) -> Traces:
        """Return the labels of the titles."""
        return Traces.of_node_lists(layers, *_labels_of(layers, self.nodes))

    def columns_of(self, rows: Any) -> TitleColumns:
        """Return the dense columns of the titles, which are the last of ``rows``."""
        dense = rows.dense[-len(self) :] if isinstance(rows, MixedRows) else np.zeros((len(self), 0), np.float32)
        return TitleColumns(dense, self.nodes)

    def weights_after(self, weights: NDArray[np.float64] | None, traces: Traces) -> NDArray[np.float64]:
        """Return the weights of rows with those of the titles appended."""
        own = self.weights_with(np.unique(traces.end_nodes), len(traces))
        return np.append(np.ones(len(traces)) if weights is None else weights, own)

    def weights_with(self, nodes_with_rows: NDArray[Any], rows: int) -> NDArray[np.float64]:
        """Return the weights of the titles if ``nodes_with_rows`` have ``rows`` rows together.

        The texts of a label without rows weigh as much as the rows of an average label. As a single row the label would
        be learned as very rare.
        """
        _, text_of, texts = np.unique(self.nodes, return_inverse=True, return_counts=True)
        average = rows / max(len(nodes_with_rows), 1) / texts[text_of]
        has_rows = np.isin(self.nodes, nodes_with_rows)
        own: NDArray[np.float64] = np.where(has_rows, self.weight, np.maximum(average, self.weight))
        return own


def _texts(taxonomy: Taxonomy, node: int, described: bool) -> Iterator[str]:
    yield taxonomy.titles[node]
    if described:
        if SYNONYMS in taxonomy.attributes:
            yield from split_terms(taxonomy.attributes[SYNONYMS][node])
        if DEFINITION in taxonomy.attributes:
            yield taxonomy.attributes[DEFINITION][node]


def _own_texts(taxonomy: Taxonomy, node: int) -> Iterator[str]:
    """Yield the title of a node, unless it is the id for want of titles, its synonyms and its definition."""
    texts = _texts(taxonomy, node, described=True)
    title = next(texts)
    if any(name in taxonomy.attributes for name in TITLE_ATTRIBUTES):
        yield title
    yield from texts


def _labels_of(layers: Layers, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels that share the text of each node, as a ragged array: a label itself, or labels below a node."""
    taxonomy = layers.taxonomy
    labels = np.unique(layers.node[layers.ends]).astype(np.int64)
    is_label = np.isin(nodes, labels)
    if is_label.all():
        return nodes, np.arange(len(nodes) + 1)
    above, ends = taxonomy.ancestor_lists(labels)
    order, starts = group_by(above, len(taxonomy))
    below = np.repeat(labels, np.diff(ends))[order]  # labels by the node above them
    counts = np.diff(starts)[nodes]
    shared = np.where(is_label, 1, np.minimum(counts, MAX_LABELS_BELOW))  # (texts,)
    offsets = offsets_of(shared)
    text = np.repeat(np.arange(len(nodes)), shared)
    rank = np.arange(len(text)) - offsets[text]
    evenly = np.minimum(starts[nodes[text]] + rank * counts[text] // shared[text], len(below) - 1)
    return np.where(is_label[text], nodes[text], below[evenly]), offsets


class LearnedWeight(NamedTuple):
    """Weight of a title in rows, 0 if titles do not help, and the gain in accuracy on held-out rows."""

    weight: float
    gain: float


def choose_titles(
    titles: bool | None,
    kind: str,
    codec: LabelCodec,
    nodes_with_rows: NDArray[Any],
    rows: int,
    learn: Callable[[list[TitleRows]], TitleRows | None],
) -> TitleRows | None:
    """Return the titles of labels to train on, if any.

    ``titles`` is the parameter of the classifier. If it is None, few rows with one label are joined by the titles of
    all labels, those without rows included; with more rows ``learn`` returns the best of several choices, or None if
    none of them helps.
    """
    if kind == "frame" and titles:
        raise HiNetError("`titles=True` needs rows of text alone, as titles have no other columns; leave it out")
    if kind != "text" or titles is False:
        return None
    few = codec.sets is None and _are_few(rows, len(nodes_with_rows), len(codec.label_nodes))
    choices = TitleRows.choices(codec, (codec.label_nodes if titles or few else nodes_with_rows).astype(np.int64))
    if not len(choices[0]):
        if titles:
            raise HiNetError("`titles=True`, but no label has a title in the taxonomy; leave it out")
        return None
    if titles or few:
        return choices[0]
    return learn(choices) if rows >= MIN_ROWS else None


def _are_few(rows: int, labels_with_rows: int, labels: int) -> bool:
    """Return whether rows are too few to learn all labels from, or to learn what titles are worth."""
    return rows < MIN_ROWS or (rows < MAX_FEW_ROWS and labels_with_rows < COVERED * labels)


def best_titles(
    rows: Any, traces: Traces, choices: Sequence[TitleRows], title_rows: Sequence[Any], seed: int
) -> TitleRows | None:
    """Return the titles with the largest gain on held-out rows, with their best weight; None if none helps."""
    pairs = zip(choices, title_rows, strict=True)
    learned = [learned_weight(rows, traces, features, titles, seed) for titles, features in pairs]
    best = max(range(len(choices)), key=lambda number: learned[number].gain)
    return replace(choices[best], weight=learned[best].weight) if learned[best].weight else None


def learned_weight(rows: Any, traces: Traces, title_rows: Any, titles: TitleRows, seed: int) -> LearnedWeight:
    """Return the best weight of a title by cross-validation of a nearest-mean classifier, 0 if titles do not help."""
    node = traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64)
    labels, label = np.unique(np.concatenate([node, titles.nodes]), return_inverse=True)
    row_label, title_label = label[: len(node)], label[len(node) :]
    all_sums, title_sums = _sums(rows, row_label, len(labels)), _sums(title_rows, title_label, len(labels))
    order = np.random.default_rng([seed, 1 << 21]).permutation(len(node))
    parts = []
    for fold in range(FOLDS):
        held = order[fold::FOLDS]
        sums = sp.csr_array(all_sums - _sums(rows[held], row_label[held], len(labels)))
        scored = held[: MAX_SCORED_ROWS // FOLDS]
        parts.append(_right(rows[scored], row_label[scored], sums, title_sums))
    right = np.concatenate(parts, axis=1).mean(1)  # (1 + weights,)
    best = int(right.argmax())
    gain = float(right[best] - right[0])
    return LearnedWeight((0.0, *WEIGHTS)[best], gain) if gain > MIN_GAIN else LearnedWeight(0.0, 0.0)


def _sums(rows: Any, label: NDArray[np.int64], labels: int) -> sp.csr_array:
    """Return the sum of the rows of each label."""
    members = sp.csr_array((np.ones(len(label), np.float32), (label, np.arange(len(label)))), (labels, len(label)))
    return sp.csr_array(members @ rows)


def _right(rows: Any, label: NDArray[np.int64], sums: sp.csr_array, titles: sp.csr_array) -> NDArray[np.bool_]:
    """(1 + weights, n) Return whether the mean nearest to a row is that of its label, without titles and by weight."""
    weights = np.array([0.0, *WEIGHTS])[:, None]
    squares = _dots(sums, sums) + 2 * weights * _dots(sums, titles) + weights**2 * _dots(titles, titles)
    lengths = np.sqrt(np.maximum(squares, 1e-12)).astype(np.float32)  # (1 + weights, labels)
    right = np.empty((len(weights), len(label)), bool)
    sums, titles = sums.T.tocsr(), titles.T.tocsr()
    for start in range(0, len(label), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        by_rows, by_title = (block @ sums).toarray(), (block @ titles).toarray()
        for number, weight in enumerate(weights.ravel().tolist()):
            nearest = ((by_rows + weight * by_title) / lengths[number]).argmax(1)
            right[number, start : start + BLOCK_ROWS] = nearest == label[start : start + BLOCK_ROWS]
    return right


def _dots(left: sp.csr_array, right: sp.csr_array) -> NDArray[np.float64]:
    """(n,) Return the dot products of the rows of two matrices."""
    return np.asarray(left.multiply(right).sum(1), np.float64).ravel()
