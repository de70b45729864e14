"""The state of a fitted classifier: features, label codec, predictor, and the rows that it keeps.

Training and validation rows are kept as features: updates learn from them and are checked on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.inputs import (
    Features,
    FrameInput,
    TextInput,
    private_columns,
    text_column,
    text_part,
    unknown_rows,
)
from hinet.classifier.labels import LabelCodec, Truth
from hinet.classifier.predicted_sets import (
    Answers,
    SetRule,
    answer_sets,
    formed,
    learned_rule,
    micro_f1_of,
    most_probable,
)
from hinet.data import Traces
from hinet.data.matrices import MixedRows, is_sparse, validate_weights
from hinet.data.text.text_input import as_arrow
from hinet.engine import Search
from hinet.engine.model.experts import Memory
from hinet.engine.model.fused import Trust
from hinet.engine.search.predictor import Engine, Predictor
from hinet.errors import HiNetError, counted
from hinet.extras import require
from hinet.files import MappedFile, narrowest
from hinet.files.schema import FINITE, ArraySpec, Schema, check_arrays, floats, indices, offsets
from hinet.progress import EpochRecord
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Layers, Taxonomy

if TYPE_CHECKING:
    from hinet.classifier.model_folder import UpdateCheck
    from hinet.evaluation.risk import Calibration
    from hinet.exporting import Exported

SHARE_OF_MODEL = 0.05  # size of kept rows relative to the model
MIN_BYTES = 1_000_000  # room for kept rows in small models
HELD_OUT_SHARE = 0.5  # maximum share of validation rows in the bytes of kept rows
MAX_EXAMPLES = 50_000
CHECK_EVERY = 5  # every fifth kept training row is checked
EXAMPLES, HELD_OUT = "examples", "held_out"  # names of training rows and validation rows in a file


def bytes_to_keep(bytes_of_model: int) -> int:
    """Return the maximum size of the rows that a model keeps."""
    return int(max(MIN_BYTES, SHARE_OF_MODEL * bytes_of_model))


def _schema(name: str, *, is_dense: bool, has_offsets: bool) -> Schema:
    """Return the schema of the arrays of kept rows; rows with one label each have no offsets."""
    labels = "labels" if has_offsets else "rows"
    dense = {f"{name}.rows": floats("rows", "features", low=-FINITE, high=FINITE)}
    sparse = {
        f"{name}.indptr": offsets("rows", "values"),
        f"{name}.indices": indices("values", below="features"),
        f"{name}.data": floats("values", low=-FINITE, high=FINITE),
    }
    own = {f"{name}.label_offsets": offsets("rows", labels)} if has_offsets else {}
    return {**(dense if is_dense else sparse), f"{name}.nodes": indices(labels, below="nodes"), **own}


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows as the model reads them, CSR or dense, with their labels as positions in the taxonomy.

    A validation row whose labels the model does not know has none.
    """

    rows: Any
    nodes: NDArray[np.int64]  # labels of row i are nodes[offsets[i]:offsets[i + 1]]
    offsets: NDArray[np.int64]  # (n + 1,)

    @classmethod
    def of(cls, rows: Any, traces: Traces) -> Examples:
        """Return rows with the nodes in which their traces end."""
        owner = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        size = np.int64(len(traces.layers.taxonomy))
        ends = np.unique(owner * size + traces.end_nodes)  # traces may end in the same node
        return cls.of_nodes(rows, (ends % size).astype(np.int64), np.bincount(ends // size, minlength=len(traces)))

    @classmethod
    def of_truth(cls, rows: Any, truth: Truth) -> Examples:
        """Return rows with the labels that the model knows."""
        rows = rows.features() if isinstance(rows, MixedRows) else rows
        return cls.of_nodes(rows, truth.nodes[truth.exact], np.bincount(truth.owner[truth.exact], minlength=len(truth)))

    @classmethod
    def of_nodes(cls, rows: Any, nodes: NDArray[np.int64], counts: NDArray[np.int64]) -> Examples:
        """Return rows with ``counts`` labels each."""
        return cls(rows, nodes, offsets_of(counts))

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def owner(self) -> NDArray[np.int64]:
        """The row of every label."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def truth(self, taxonomy: Taxonomy) -> Truth:
        """Return the labels in the taxonomy of the model."""
        return Truth(taxonomy, self.offsets, self.nodes, np.ones(len(self.nodes), bool))

    def traces(self, layers: Layers) -> Traces:
        """Return the labels as traces."""
        return Traces.of_node_lists(layers, self.nodes, self.offsets)

    def chosen(self, room: int, seed: int) -> Examples:
        """Return a sample of the rows that fits into ``room`` bytes, balanced over labels."""
        return self.take(self.choice(room, seed)).as_kept()

    def choice(self, room: int, seed: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that :meth:`chosen` takes, in order; they depend on sizes and labels only."""
        order = np.random.default_rng(seed).permutation(len(self))
        label = self._rarest_labels()
        order = order[np.argsort(label[order], kind="stable")]
        starts = np.flatnonzero(np.diff(label[order], prepend=-2))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        tie = np.random.default_rng([seed, 1]).permutation(len(order))
        return self._fitting(order[np.lexsort((tie, rank))], room)

    def evenly_chosen(self, room: int, seed: int) -> Examples:
        """Return a random sample of the rows that fits into ``room`` bytes, regardless of labels."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self.take(self._fitting(order, room)).as_kept()

    def _fitting(self, order: NDArray[np.int64], room: int) -> NDArray[np.int64]:
        """Return the first rows of an order that fit, sorted."""
        order = order[:MAX_EXAMPLES]
        return np.sort(order[np.cumsum(self._sizes()[order]) <= room])

    def _rarest_labels(self) -> NDArray[np.int64]:
        """(n,) The rarest label of each row; -1 for a row without labels."""
        rows_with = np.bincount(self.nodes)[self.nodes]
        rarest = np.full(len(self), -1)
        order = np.lexsort((-self.nodes, -rows_with))  # the rarest is assigned last
        rarest[self.owner[order]] = self.nodes[order]
        return rarest

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """Return the chosen rows, by number."""
        nodes, counts = gather(self.nodes, self.offsets, rows)
        return Examples.of_nodes(self.rows[rows], nodes.astype(np.int64), counts)

    def as_kept(self) -> Examples:
        """Return the rows as one matrix, in the precision that they have on disk."""
        return replace(self, rows=_as_one(self.rows)).rounded()

    def rounded(self) -> Examples:
        """Return the rows in half precision, as on disk, unless a value is too large."""
        rows = self.rows.copy()
        values = rows.data if is_sparse(rows) else rows
        with np.errstate(over="ignore"):
            values[...] = values.astype(np.float16)
        return replace(self, rows=rows) if np.isfinite(values).all() else self

    def joined(self, more: Examples) -> Examples:
        """Return these rows and more."""
        both = [_as_one(self.rows), _as_one(more.rows)]
        rows = (sp.vstack if is_sparse(both[0]) else np.vstack)(both)
        counts = np.concatenate([np.diff(self.offsets), np.diff(more.offsets)])
        rows = sp.csr_array(rows) if is_sparse(rows) else rows
        return Examples.of_nodes(rows, np.concatenate([self.nodes, more.nodes]), counts)

    def moved(self, new_position: NDArray[np.int64]) -> tuple[Examples, NDArray[np.int64]]:
        """Return the rows that still have labels in a changed taxonomy, or never had any, and their numbers."""
        nodes = new_position[self.nodes]
        counts = np.bincount(self.owner[nodes >= 0], minlength=len(self))
        kept = np.flatnonzero((counts > 0) | (np.diff(self.offsets) == 0))
        return Examples.of_nodes(self.rows[kept], nodes[nodes >= 0], counts[kept]), kept

    def with_labels(self, allowed: NDArray[np.bool_]) -> Examples:
        """Return the rows all of whose labels are ``allowed``, (nodes,)."""
        other = np.bincount(self.owner[~allowed[self.nodes]], minlength=len(self))
        return self.take(np.flatnonzero(other == 0))

    def rehearsed(self, *, has_held_out: bool) -> Examples:
        """Return the training rows to train on again: all, or all but the :meth:`checked` ones."""
        return self if has_held_out else self.take(np.flatnonzero(np.arange(len(self)) % CHECK_EVERY > 0))

    def checked(self) -> Examples:
        """Return the training rows that an update is checked on if there are no validation rows."""
        return self.take(np.arange(0, len(self), CHECK_EVERY))

    def _sizes(self) -> NDArray[np.int64]:
        """(n,) Return the approximate size of each row on disk, in half precision."""
        if isinstance(self.rows, MixedRows):
            of_value = 2 + np.min_scalar_type(self.rows.shape[1]).itemsize
            values = np.diff(self.rows.sparse.indptr).astype(np.int64) + self.rows.dense.shape[1]
            return np.asarray(values * of_value + 8)
        if is_sparse(self.rows):
            of_value = 2 + np.min_scalar_type(max(self.rows.shape[1] - 1, 0)).itemsize
            return np.asarray(np.diff(self.rows.indptr).astype(np.int64) * of_value + 8)
        return np.full(len(self), self.rows.shape[1] * 2 + 4, np.int64)

    @property
    def nbytes(self) -> int:
        """Approximate size of the rows on disk."""
        return int(self._sizes().sum())

    def to_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays to save under a name, with the smallest data types that hold the numbers."""
        rows = self.rows
        parts = [(rows.indptr, np.int64), (rows.indices, np.int32), (rows.data, np.float32)] if is_sparse(rows) else []
        parts = [*(parts or [(rows, np.float32)]), (self.nodes, np.int64)]
        has_offsets = bool((np.diff(self.offsets) != 1).any())
        if has_offsets:
            parts.append((self.offsets, np.int64))
        names = _schema(name, is_dense=not is_sparse(rows), has_offsets=has_offsets)
        return {
            name: _halved(narrowest(np.ascontiguousarray(array, kind)))
            for name, (array, kind) in zip(names, parts, strict=True)
        }

    @classmethod
    def restored(cls, saved: Mapping[str, NDArray[Any]], name: str, *, features: int, nodes: int) -> Examples | None:
        """Return the rows of the arrays saved under a name, if there are any.

        Raises
        ------
        HiNetError
            If they contradict each other, or do not have ``features`` columns, or labels among ``nodes`` nodes; names
            the array.
        """
        if not saved:
            return None
        has_offsets = f"{name}.label_offsets" in saved
        schema = _schema(name, is_dense=f"{name}.rows" in saved, has_offsets=has_offsets)
        if unknown := saved.keys() - schema.keys():
            raise HiNetError(f"the arrays have the unknown {min(unknown)!r}")
        sizes = check_arrays(saved, schema, {"features": features, "nodes": nodes})
        labels = np.array(saved[f"{name}.nodes"]).astype(np.int64)
        starts = np.array(saved.get(f"{name}.label_offsets", np.arange(sizes["rows"] + 1))).astype(np.int64)
        if f"{name}.rows" in saved:
            return cls(np.array(saved[f"{name}.rows"]).astype(np.float32), labels, starts)
        kinds = {"data": np.float32, "indices": np.int32, "indptr": np.int64}
        parts = tuple(np.array(saved[f"{name}.{part}"]).astype(kind) for part, kind in kinds.items())
        return cls(sp.csr_array(parts, shape=(sizes["rows"], features)), labels, starts)


def _as_one(rows: Any) -> Any:
    """Return rows as one matrix; mixed rows become CSR, which models read in the same way."""
    return rows.tocsr() if isinstance(rows, MixedRows) else rows


def _halved(array: NDArray[Any]) -> NDArray[Any]:
    """Return floats in half precision if that is exact, and other numbers unchanged."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.array_equal(half, array) else array


Origin: TypeAlias = Literal["row", "title", "correction"]
ORIGINS: tuple[Origin, ...] = get_args(Origin)
TEXTS = "remembered"  # prefix of the arrays in a file
MAX_CHARACTERS = 300  # longer texts are cut
_SCHEMA: Schema = {
    f"{TEXTS}.number": ArraySpec(("texts",), "iu", 0, rising=True),
    f"{TEXTS}.origin": ArraySpec(("texts",), "iu", 0, len(ORIGINS) - 1),
    f"{TEXTS}.offsets": offsets("texts", "bytes"),
    f"{TEXTS}.text": ArraySpec(("bytes",), "u", bits=8),
}


class Neighbour(NamedTuple):
    """A known text that a text is compared with."""

    text: str | None  # None if the model does not keep texts
    label: Any
    node: int  # position of the label in the taxonomy
    similarity: float  # cosine of the vectors of both texts
    origin: Origin
    row: int | None  # number of the training row

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return {**self._asdict(), "label": str(self.label)}

    def __str__(self) -> str:
        place = f"row {self.row:,}" if self.origin == "row" and self.row is not None else self.origin
        return place if self.text is None else f"'{self.text}' ({place})"


@dataclass(frozen=True, eq=False)
class RememberedTexts:
    """Texts by the number that an entry of the memory has."""

    number: NDArray[np.int64]  # (n,) ascending
    origin: NDArray[np.uint8]  # (n,) index into ORIGINS
    texts: tuple[str, ...]

    @classmethod
    def of(cls, memory: Memory, rows: Sequence[str], titles: Sequence[str], title_rows: int = 0) -> RememberedTexts:
        """Return the texts of a new memory, whose numbers are those of training rows, followed by those of titles.

        The last ``title_rows`` training rows are titles, too.
        """
        number = np.unique(memory.row).astype(np.int64)
        origin = (number >= len(rows) - title_rows).astype(np.uint8)
        texts = (rows[each] if each < len(rows) else titles[each - len(rows)] for each in number.tolist())
        return cls(number, origin, tuple(text[:MAX_CHARACTERS] for text in texts))

    def with_corrections(self, memory: Memory, first: int, texts: Sequence[str]) -> RememberedTexts:
        """Return the texts of a memory to which those of corrections were added, numbered from ``first``."""
        number = np.append(self.number, first + np.arange(len(texts)))
        origin = np.append(self.origin, np.full(len(texts), ORIGINS.index("correction"), np.uint8))
        all_texts = [*self.texts, *(text[:MAX_CHARACTERS] for text in texts)]
        kept = np.flatnonzero(np.isin(number, memory.row))
        return RememberedTexts(number[kept], origin[kept], tuple(all_texts[each] for each in kept.tolist()))

    def find(self, number: int) -> tuple[str, Origin] | None:
        """Return the text with a number and where it comes from, if it is known."""
        position = int(np.searchsorted(self.number, number))
        if position == len(self.number) or self.number[position] != number:
            return None
        return self.texts[position], ORIGINS[self.origin[position]]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        encoded = [text.encode(errors="replace") for text in self.texts]
        arrays: dict[str, NDArray[Any]] = {
            "number": self.number,
            "origin": self.origin,
            "offsets": offsets_of(np.array([len(text) for text in encoded], np.int64)),
            "text": np.frombuffer(b"".join(encoded), np.uint8),
        }
        return {f"{TEXTS}.{name}": narrowest(array) for name, array in arrays.items()}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> RememberedTexts | None:
        """Return the texts of saved arrays, if there are any; raise HiNetError if they are invalid."""
        if not arrays:
            return None
        check_arrays(arrays, _SCHEMA, {})
        number, origin, bounds, data = (arrays[name] for name in _SCHEMA)
        whole, ends = data.tobytes(), bounds.tolist()
        try:
            texts = tuple(whole[start:end].decode() for start, end in pairwise(ends))
        except UnicodeDecodeError as error:
            raise HiNetError(f"the array '{TEXTS}.text' is not UTF-8: {error}") from None
        return cls(number.astype(np.int64), origin.astype(np.uint8), texts)


MIN_KNOWN_WORDS = 0.5  # minimum share of known words in further texts without a warning
MAX_DENSE_CELLS = 50_000_000  # maximum cells of dense probabilities: 400 MB; more are returned as CSR
MIN_SPARSE_PROBABILITY = 1e-5  # smaller probabilities are left out of CSR
MAX_BLOCK_CELLS = 5_000_000  # maximum cells of dense probabilities computed at a time
MIN_BLOCK_ROWS = 256  # minimum rows per block, enough for several threads


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model, with the features of rows and the codec of labels."""

    features: Features
    codec: LabelCodec
    predictor: Predictor  # its number of threads is that of all answers, from text to label
    history: tuple[EpochRecord, ...] = ()
    fingerprint: dict[str, Any] = field(default_factory=dict)  # identifies the training data
    examples: Examples | None = None  # training rows; None if none are kept
    held_out: Examples | None = None  # validation rows
    file: MappedFile | None = None  # mapped file of the weights of a loaded model
    set_rule: SetRule | None = None  # thresholds of sets; None for one label per row
    remembered: RememberedTexts | None = None  # texts of the neighbours; None if none are kept
    calibration: Calibration | None = None
    update_check: UpdateCheck | None = None  # of the last update

    def trained_on_titles(self, titles: Sized | None) -> Fitted:
        """Return the same, with titles of labels counted separately from the training rows."""
        counts = {"rows": self.fingerprint["rows"] - len(titles), "titles": len(titles)} if titles else {}
        return replace(self, fingerprint=self.fingerprint | counts)

    @property
    def has_no_rows(self) -> bool:
        """Whether the model was trained on the texts of its taxonomy alone."""
        return self.fingerprint.get("rows") == 0 and "before" not in self.fingerprint

    def rows(self, X: Any) -> Any:
        """Return checked input as rows to predict; those of texts have the share of their n-grams that are unknown."""
        self.check_file()
        return rows_to_predict(self.features, self.predictor.engine, X, self.predictor.threads)

    def feature_rows(self, X: Any) -> Any:
        """Return checked input in the form of the training rows."""
        self.check_file()
        return self.features.rows(X, self.predictor.threads, sparse=self.predictor.engine == "fused")

    def unknown_words_message(self, X: Any) -> str | None:
        """Return a warning if few words of further training texts are features, which stay those of the first fit.

        A model with a memory remembers these texts by their vectors.
        """
        share = self.features.known_share(X) if isinstance(self.features, TextInput | FrameInput) else 1.0
        if share >= MIN_KNOWN_WORDS or self.predictor.can_remember:
            return None
        return (
            f"the model knows {share:.0%} of the words of these texts; new words stay unknown, as the features are "
            "those of the first fit. Fit on all rows to learn them"
        )

    def unknown_rows_message(self, rows: Any) -> str | None:
        """Return a warning if rows to predict have a text but no feature that the model knows."""
        unknown = unknown_rows(self.features, rows)
        if not len(unknown):
            return None
        return (
            f"{counted(len(unknown), 'row has/rows have')} no word that the model knows, the first is row "
            f"{unknown[0]:,}; the prediction does not depend on the text"
        )

    def score(self, rows: Any, truth: Truth, decoding: Decoding, sample_weight: Any = None) -> float:
        """Return the accuracy on rows, or the micro-F1 of predicted sets if rows have several labels."""
        if self.codec.sets is not None:
            if sample_weight is not None:
                raise HiNetError("the score of sets of labels takes no `sample_weight`; leave it out")
            return micro_f1_of(self.label_sets(rows), truth)
        right = truth.are_right(self.predictor.decode(rows, decoding).nodes)
        weights = None if sample_weight is None else validate_weights(sample_weight, len(right))
        return float(np.average(right, weights=weights)) if len(right) else 0.0

    def export_onnx(self, folder: str | Path, rows: Any, truth: Truth | None) -> Exported:
        """Write the scores as an ONNX graph to a folder, compared with the model on rows if there are any."""
        from hinet.exporting import export_onnx

        if self.codec.sets is not None:
            raise HiNetError("models of rows with several labels cannot be exported; train with `multilabel=False`")
        if truth is None:
            return export_onnx(self.predictor.model, folder)
        rows = rows.tocsr() if isinstance(rows, MixedRows) else rows  # a graph reads one matrix
        predictable = np.flatnonzero(self.codec.predictable(truth))
        traces = self.codec.traces_of(truth.take(predictable))
        return export_onnx(self.predictor.model, folder, rows[predictable], traces, self.predictor.threads)

    def check_file(self) -> None:
        """Raise FileError if the file of the weights was truncated."""
        if self.file is not None:
            self.file.check()

    @cached_property
    def classes(self) -> NDArray[Any]:
        """The labels that can be predicted, as the user writes them."""
        return self.codec.decode(self.codec.label_nodes)

    def with_threads(self, threads: int | None) -> Fitted:
        """Return the same with another number of threads; see :func:`hinet.parameters.resolve_threads`."""
        if threads == self.predictor.threads:
            return self
        return replace(self, predictor=self.predictor.with_threads(threads))

    def restricted(self, within: Any = None, exclude: Any = None) -> Fitted:
        """Return the same for answers at or below nodes ``within``, and not at or below those of ``exclude``.

        Either may be one node or a list. Probabilities are conditional: those of all allowed labels sum to 1.

        Raises
        ------
        HiNetError
            If a node is unknown, no label is left, or the model is one of torch.
        """
        if within is None and exclude is None:
            return self
        if not isinstance(self.predictor, Search):
            raise HiNetError("`within` and `exclude` need the engine 'fused'; train with `engine='fused'`")
        from hinet.engine.search.restricted import RestrictedSearch

        allowed = np.ones(len(self.codec.taxonomy), bool) if within is None else self.codec.branch(within)
        if exclude is not None:
            allowed &= ~self.codec.branch(exclude)
        return replace(self, predictor=RestrictedSearch.of(self.predictor, allowed))

    def label_sets(self, rows: Any, *, top: int | None = None, min_probability: float | None = None) -> Answers:
        """Return the predicted sets of labels, by the learned thresholds unless other limits are given."""
        codec = self.codec
        assert codec.sets is not None
        assert self.set_rule is not None
        if top is None and min_probability is None:
            return answer_sets(self.search, rows, self.set_rule, codec.sets)
        likely = most_probable(self.search, rows, top, min_probability or 0.0)
        return likely if top is not None else formed(likely, codec.taxonomy, codec.sets)

    def with_thresholds(self, rows: Any, truth: Truth, parameters: Mapping[str, Any]) -> Fitted:
        """Return the same with thresholds of sets learned on held-out rows, by the parameters of a classifier."""
        by_level = parameters["thresholds_by"] == "level"
        rule = learned_rule(self.search, rows, truth, parameters["objective"], by_level=by_level)
        return replace(self, set_rule=rule)

    def label_probabilities(self, rows: Any) -> Any:
        """Return the probability of every label, (n, labels): an ndarray, or a CSR array if that would be too large."""
        nodes = self.codec.label_nodes
        if rows.shape[0] * len(nodes) > MAX_DENSE_CELLS:
            return sp.csr_array(self.predictor.label_probabilities(rows, MIN_SPARSE_PROBABILITY)[:, nodes])
        probabilities = np.empty((rows.shape[0], len(nodes)))
        size = max(MIN_BLOCK_ROWS, MAX_BLOCK_CELLS // len(nodes))
        for start in range(0, len(probabilities), size):
            part = slice(start, start + size)
            probabilities[part] = self.predictor.label_probabilities(rows[part])[:, nodes].toarray()
        if self.codec.sets is None:  # sums are in single precision, and scikit-learn checks them in double
            probabilities /= probabilities.sum(1, keepdims=True)
        return probabilities

    def node_probabilities(self, rows: Any) -> Any:
        """Return the probability of every node of the taxonomy, (n, nodes), for rows that may have several labels."""
        if rows.shape[0] * len(self.codec.taxonomy) > MAX_DENSE_CELLS:
            return self.search.node_probabilities(rows, MIN_SPARSE_PROBABILITY)
        return self.search.node_probabilities(rows).toarray()

    @property
    def search(self) -> Search:
        """The predictor of rows that may have several labels: only the fused engine has one."""
        assert isinstance(self.predictor, Search)
        return self.predictor

    def naming_neighbours(self, X: Any, titles: Sequence[str], title_rows: int = 0) -> Fitted:
        """Return the same with the texts of its neighbours: those of the training rows ``X``, and titles.

        The last ``title_rows`` training rows are titles, too.
        """
        texts = text_part(self.features, X)
        if not self.predictor.can_remember or texts is None:
            return self
        memory = self.search.model.experts.neighbours
        return replace(self, remembered=RememberedTexts.of(memory, as_arrow(texts[1]).to_pylist(), titles, title_rows))

    def texts_to_remember(self, X: Any) -> list[str] | None:
        """Return the texts of checked input, if the model keeps those of its neighbours."""
        texts = text_part(self.features, X) if self.remembered is not None else None
        return None if texts is None else as_arrow(text_column(texts[1])).to_pylist()

    def remembering(self, rows: Any, traces: Traces, texts: Sequence[str] | None, limit: int | None = None) -> Fitted:
        """Return the same with rows added to its memory; raise HiNetError if it has none.

        The rows are corrections. With ``limit``, they count like training rows, at most that many of each label.
        """
        if not self.predictor.can_remember:
            raise HiNetError(
                "the model has no memory of texts; train it with `vectors` or `encoder`, and one label per row"
            )
        remembered = self.remembered
        numbers = [self.search.model.experts.neighbours.row, np.zeros(0) if remembered is None else remembered.number]
        first = 1 + int(max(number.max(initial=-1) for number in numbers))
        search = self.search.remembering(rows, traces, first, limit)
        if remembered is not None and texts is not None:
            remembered = remembered.with_corrections(search.model.experts.neighbours, first, texts)
        return replace(self, predictor=search, remembered=remembered)

    def corrections(self) -> list[tuple[str | None, int]]:
        """Return the text and the node of each correction in the memory; the text is None if it is not kept."""
        if not self.predictor.can_remember:
            return []
        experts = self.search.model.experts
        own = experts.neighbours.take(np.flatnonzero(experts.neighbours.boost))
        nodes = experts.spans.paths.node[own.label]
        known = [None if self.remembered is None else self.remembered.find(number) for number in own.row.tolist()]
        return [(found and found[0], node) for found, node in zip(known, nodes.tolist(), strict=True)]

    @property
    def can_correct(self) -> bool:
        """Whether a correction of a text can count for similar texts: rows have no columns but texts."""
        columns = self.features.columns if isinstance(self.features, FrameInput) else None
        return self.predictor.can_remember and (columns is None or set(columns.names) == set(columns.text))

    def has_vectors(self, rows: Any) -> NDArray[np.bool_]:
        """Return whether rows have a vector to be remembered by: their texts have a known word."""
        return np.asarray(self.search.text_vectors(rows).any(1))

    def keeping(self, rows: Any, traces: Traces, seed: int) -> Fitted:
        """Return the same with some of these training rows kept, in addition to those it has."""
        examples = Examples.of(self._to_keep(rows), traces)
        if self.examples is not None:
            examples = self.examples.joined(examples)
        return replace(self, examples=examples.chosen(self._bytes_left(self.held_out), seed))

    def holding(self, held_out: Examples, seed: int) -> Fitted:
        """Return the same with some of these validation rows kept, in addition to those it has.

        Training rows are dropped if they no longer fit.
        """
        held_out = replace(held_out, rows=self._to_keep(held_out.rows))
        if self.held_out is not None:
            held_out = self.held_out.joined(held_out)
        kept = held_out.evenly_chosen(int(HELD_OUT_SHARE * self._bytes_left()), seed)
        examples = self.examples
        if examples is not None:
            examples = examples.chosen(self._bytes_left(kept), seed)
        return replace(self, held_out=kept, examples=examples)

    def _to_keep(self, rows: Any) -> Any:
        """Return rows without the values of columns that are only compared: these would take most of the room."""
        private = private_columns(self.features)
        if not private or not isinstance(rows, MixedRows):
            return rows
        kept = rows.without_last(private).tocsr()
        return sp.csr_array((kept.data, kept.indices, kept.indptr), rows.shape)

    def _bytes_left(self, kept: Examples | None = None) -> int:
        """Return the number of bytes left for kept rows, if ``kept`` rows are kept already."""
        return bytes_to_keep(self.predictor.nbytes) - (0 if kept is None else kept.nbytes)

    def scaled(self, factor: float, slope: float | None = None, offset: float = 0.0) -> Fitted:
        """Return the same with all logits multiplied by ``factor``, and another slope and offset if given."""
        return replace(self, predictor=self.predictor.scaled(factor, slope, offset))

    def with_trust(self, trust: Trust | None) -> Fitted:
        """Return the same with other parameters of the trust in rows with unknown n-grams."""
        return replace(self, predictor=self.predictor.with_trust(trust))


def predictor_class(engine: Engine) -> type[Predictor]:
    """Return the class of the models of an engine; raise HiNetError if a package is missing."""
    if engine == "fused":
        return Search
    require("torch", "a model of the engine 'torch'")
    from hinet.networks.predictor import NetworkPredictor

    return NetworkPredictor


def rows_to_predict(features: Features, engine: Engine, X: Any, threads: int | None) -> Any:
    """Return checked input as features, for the fused engine with the share of unknown n-grams of each text."""
    if engine == "fused" and isinstance(features, TextInput | FrameInput):
        return features.rows_with_unknown(X, threads)
    return features.rows(X, threads, sparse=engine == "fused")
