"""Training rows with their labels and weights; titles, synonyms and definitions of labels as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.columns import ColumnKinds
from hinet.classifier.inputs import Kind, TrainingTexts, count_of, joined_texts, take_rows
from hinet.classifier.labels import (
    LabelCodec,
    Truth,
    checked_labels,
    codec_of_sets,
    has_sets,
    naming,
    read_labels,
    read_with_classes,
)
from hinet.classifier.parameters import seed_of, torch_parameter
from hinet.classifier.predicted_sets import ancestors_given, form_from
from hinet.data import Traces
from hinet.data.datasets import holdout_mask
from hinet.data.matrices import MixedRows, validate_weights
from hinet.data.text.text_input import as_arrow
from hinet.engine.training.rows import TitleColumns
from hinet.errors import HiNetError, counted
from hinet.progress import Progress
from hinet.ragged import group_by, offsets_of
from hinet.taxonomy import Layers, Taxonomy
from hinet.taxonomy.draft import DEFINITION, SYNONYMS, split_terms
from hinet.taxonomy.taxonomy import TITLE_ATTRIBUTES

if TYPE_CHECKING:
    from hinet.classifier.stream import CountedTexts, StreamInfo

Parameters: TypeAlias = Mapping[str, Any]
Pair: TypeAlias = tuple[Any, Any]

NO_VALID_ROWS = "valid: expected rows and their labels, got none; leave valid out, or give some"
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
class LabelledRows:
    """Training rows with their labels, and validation rows; of a large stream a random sample."""

    rows: Any
    kind: Kind
    codec: LabelCodec
    traces: Traces
    weights: NDArray[np.float64] | None = None
    valid: tuple[Any, Truth] | None = None
    texts: TrainingTexts | CountedTexts | None = None
    kinds: ColumnKinds | None = None  # columns of a frame; None recognises them
    column_names: tuple[str, ...] = ()  # names of the columns of a matrix
    stream: StreamInfo | None = None  # None if all rows are here
    titles: TitleRows | None = None  # texts of the taxonomy that are the last rows

    @property
    def row_count(self) -> int:
        """Number of training rows, those of the stream that are not here included."""
        return len(self.traces) if self.stream is None else self.stream.row_count

    @property
    def nodes_with_rows(self) -> NDArray[np.int64]:
        """Nodes that are labels of training rows."""
        if self.stream is None:
            return np.unique(self.traces.end_nodes)
        return np.flatnonzero(self.stream.class_counts)

    def with_titles(self, titles: TitleRows | None) -> LabelledRows:
        """Return the rows with titles appended."""
        if titles is None:
            return self
        layers, weights = self.codec.layers, titles.weights_after(self.weights, self.traces)
        traces = Traces.joined(layers, [self.traces, titles.traces(layers)])
        return replace(self, rows=titles.after(self.rows), traces=traces, weights=weights)


@dataclass(frozen=True)
class RowsInMemory:
    """Checked input with its labels and weights: one chunk."""

    X: Any
    kind: Kind
    y: Any
    sample_weight: Any = None
    valid: Pair | None = None  # checked rows and labels
    classes: Any = None  # all labels, if the rows do not have them all
    kinds: ColumnKinds | None = None
    column_names: tuple[str, ...] = ()

    def read(
        self, parameters: Parameters, taxonomy: Taxonomy | None, progress: Progress, *, several: bool | None = None
    ) -> LabelledRows:
        """Return the rows with their labels; ``several`` says if rows have sets of labels, None decides by ``y``."""
        y, path_sep = checked_labels(self.y, count_of(self.X)), parameters["path_sep"]
        known = None if self.classes is None else read_with_classes(y, self.classes, taxonomy, path_sep)
        if several is None:
            several = wants_sets(parameters, has_several=has_sets(y))

        def read(labels: Any, like: LabelCodec | None = None) -> tuple[LabelCodec, Traces]:
            codec, traces = known, None
            if codec is None:
                codec, traces = read_labels(labels, taxonomy, path_sep, like)
            if several:
                codec = codec_of_sets(codec, "any")
                traces = codec.encode(labels)
                return replace(codec, sets=form_from(*ancestors_given(traces))), traces
            return codec, codec.encode(labels) if traces is None else traces

        codec, traces = read(y)
        codec.check_class_weight(parameters["class_weight"])
        X, weight, valid = self.X, self.sample_weight, self.valid
        if valid is not None:
            valid = _checked_valid(valid)
        elif parameters["validation_fraction"] is not None:
            chosen = holdout_mask(len(traces), parameters["validation_fraction"], seed_of(parameters["random_state"]))
            held_out, kept = np.flatnonzero(chosen), np.flatnonzero(~chosen)
            valid, X = (take_rows(X, held_out), take_rows(y, held_out)), take_rows(X, kept)
            codec, traces = read(take_rows(y, kept), codec)  # held-out rows do not make labels known
            if weight is not None:
                weight = validate_weights(weight, len(chosen))[~chosen]
        return LabelledRows(
            X, self.kind, codec, traces, row_weights(parameters, weight, codec, traces),
            None if valid is None else (valid[0], codec.truth(valid[1])),
            TrainingTexts(X, parameters["text"], parameters["n_jobs"]) if self.kind == "text" else None,
            self.kinds, self.column_names,
        )  # fmt: skip


def row_weights(
    parameters: Parameters, sample_weight: Any, codec: LabelCodec, traces: Traces
) -> NDArray[np.float64] | None:
    """Return the weight of every row, the product of its own weight and that of its labels; None if all are 1."""
    weights = None if sample_weight is None else validate_weights(sample_weight, len(traces))
    if parameters["class_weight"] is None:
        return weights
    by_class = codec.weights_of(parameters["class_weight"], traces)
    return validate_weights(by_class if weights is None else weights * by_class, len(traces))


def wants_sets(parameters: Parameters, *, has_several: bool) -> bool:
    """Return whether labels are sets; raise HiNetError if other parameters do not allow that."""
    several = has_several if parameters["multilabel"] == "auto" else bool(parameters["multilabel"])
    if several and parameters["decoding"] != "map":
        raise HiNetError(
            f"`decoding={parameters['decoding']!r}` answers with one label, and rows have several; leave it out, or "
            "set `multilabel=False`"
        )
    if several and (torch := torch_parameter(parameters)):
        raise HiNetError(f"{torch} is for one label per row; leave it out, or set `multilabel=False`")
    return several


def _checked_valid(valid: Pair) -> Pair:
    labels = checked_labels(valid[1], count_of(valid[0]))
    if not len(labels):
        raise HiNetError(NO_VALID_ROWS)
    return valid[0], labels


@dataclass(frozen=True)
class TaxonomyTexts:
    """Titles, synonyms and definitions of a taxonomy as rows of its nodes, perhaps after the first rows of a user."""

    classes: Any = None  # labels in the form of predictions; None and leaves that are not named: ids of leaves
    rows: RowsInMemory | None = None  # rows in memory, with their own classes and validation rows
    valid: Pair | None = None  # checked rows and labels

    def read(self, parameters: Parameters, taxonomy: Taxonomy | None, progress: Progress) -> LabelledRows:
        """Return the texts with the labels of their nodes; raise HiNetError if no label has a text."""
        _check_taxonomy_alone(parameters, taxonomy)
        assert taxonomy is not None
        several = wants_sets(parameters, has_several=False)
        if self.rows is None:
            codec = self._codec(taxonomy, parameters["path_sep"])
            codec = codec_of_sets(codec, "deepest") if several else codec
            codec.check_class_weight(parameters["class_weight"])
            titles = TitleRows.of_taxonomy(codec)
            traces = titles.traces(codec.layers)
            weights = row_weights(parameters, None, codec, traces)
            valid = None if self.valid is None else _checked_valid(self.valid)
            truth = None if valid is None else (valid[0], codec.truth(valid[1]))
            labelled = LabelledRows(as_arrow(titles.texts), "text", codec, traces, weights, truth)
        else:
            labelled = self.rows.read(parameters, taxonomy, progress, several=several)
            titles = TitleRows.of_taxonomy(labelled.codec)
            labelled = labelled.with_titles(titles)
        texts = TrainingTexts(labelled.rows, parameters["text"], parameters["n_jobs"])
        return replace(labelled, texts=texts, titles=titles)

    def _codec(self, taxonomy: Taxonomy, path_sep: str | None) -> LabelCodec:
        leaves = [taxonomy.ids[node] for node in np.flatnonzero(taxonomy.leaves & (taxonomy.depth >= 0)).tolist()]
        if self.classes is None:
            return read_labels(leaves, taxonomy, None)[0]
        with naming("classes: "):
            return read_labels(self.classes, taxonomy, path_sep)[0]


def _check_taxonomy_alone(parameters: Parameters, taxonomy: Taxonomy | None) -> None:
    """Raise HiNetError for parameters that the texts of a taxonomy cannot satisfy."""
    if taxonomy is None:
        raise HiNetError("training without rows needs a taxonomy with titles; give `taxonomy`, or train on rows")
    if parameters["titles"] is False:
        raise HiNetError("`titles=False`, but without rows there are only titles to train on; leave it out")
    if parameters["columns"] is not None:
        raise HiNetError("`columns` names columns of rows, and there are no rows, only texts; leave it out")
    if parameters["validation_fraction"] is not None:
        raise HiNetError("`validation_fraction` holds out rows, and there are no rows; give `valid`, or leave it out")


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
    covers_few = len(nodes_with_rows) < COVERED * len(codec.label_nodes)
    few = codec.sets is None and (rows < MIN_ROWS or (rows < MAX_FEW_ROWS and covers_few))
    choices = TitleRows.choices(codec, (codec.label_nodes if titles or few else nodes_with_rows).astype(np.int64))
    if not len(choices[0]):
        if titles:
            raise HiNetError("`titles=True`, but no label has a title in the taxonomy; leave it out")
        return None
    if titles or few:
        return choices[0]
    return learn(choices) if rows >= MIN_ROWS else None


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
