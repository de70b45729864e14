"""Explanations of a trace: the features that favour the chosen node over its strongest rival, at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.answers import STOPS, Trace, frame, push_cell, table, trace_along
from hinet.classifier.fitted import Fitted, Neighbour
from hinet.classifier.inputs import MatrixInput, first_text, text_of
from hinet.data import Traces
from hinet.data.matrices import MixedRows
from hinet.data.text import unknown_words
from hinet.encoders.meaning import TunedInput
from hinet.engine.model.experts.neighbours import nearest_entries
from hinet.engine.model.kernels import log_chances
from hinet.engine.search.corrections import odds_shift
from hinet.engine.search.predictor import GroupParts
from hinet.taxonomy import PATH_SEP, STOP, last_name

WHOLE_TEXT = "meaning of the text"
NEAREST_TEXTS = 3  # known texts that an explanation names
NOT = "(not there)"  # rival of a node with a probability of its own


class Reason(NamedTuple):
    """A feature of the row, and its contribution to the difference of the logits of the chosen node and its rival."""

    feature: str
    push: float


@dataclass(frozen=True)
class Step:
    """A choice along a trace.

    The pushes of all ``reasons``, ``others`` (features that are not listed) and ``rest`` (biases) add up to
    ``difference``, the logit of ``chosen`` minus that of ``rival``. If rows have several labels, nodes have no rival,
    and the difference is the logit itself.
    """

    chosen: str
    probability: float  # among its siblings; with one label per row, all steps multiply to that of the trace
    rival: str
    difference: float
    reasons: tuple[Reason, ...]
    others: float
    rest: float

    def pushes(self) -> list[tuple[str, float]]:
        """Return all contributions to the difference: listed features, other features, and biases."""
        return [*self.reasons, ("other features", self.others), ("without any feature", self.rest)]


@dataclass(frozen=True)
class Explanation:
    """The choices along a trace, from the top down, the unknown words of a text, and the known texts most like it.

    Unknown words may still count by their character n-grams.
    """

    trace: Trace
    steps: tuple[Step, ...]
    unknown_words: tuple[str, ...] = ()
    nearest: tuple[Neighbour, ...] = ()

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one line per feature of each step.

        Its columns are ``step`` (from 1 at the top), ``chosen``, ``rival``, ``feature`` and ``push``. The pushes of a
        step, including other features and biases, add up to the difference of the logits.
        """
        lines = [
            (number, step.chosen, step.rival, *push)
            for number, step in enumerate(self.steps, 1)
            for push in step.pushes()
        ]
        return frame(("step", "chosen", "rival", "feature", "push"), lines)

    def _repr_html_(self) -> str:
        parts = [self.trace._repr_html_()]
        if self.unknown_words:
            parts.append(f"<p>unknown words: {escape(', '.join(self.unknown_words))}</p>")
        parts += [f"<p>{escape(line)}</p>" for line in self.nearest_lines()]
        for step in self.steps:
            pushes = step.pushes()
            largest = max(abs(push) for _, push in pushes)
            cells = ((escape(feature), push_cell(push, largest)) for feature, push in pushes)
            rival = f"{step.probability:.3f}, against {escape(step.rival)} by {step.difference:+.2f}"
            parts.append(f"<p><b>{escape(step.chosen)}</b> {rival}</p>" + table(("feature", "push"), cells))
        return "".join(parts)

    def nearest_lines(self) -> list[str]:
        """Return a line for each of the nearest texts."""
        return [f"most like: {each}, {each.label}, {each.similarity:.2f}" for each in self.nearest]

    def __str__(self) -> str:
        lines = [f"{PATH_SEP.join(map(last_name, self.trace.steps))}  {self.trace.probability:.3f}"]
        if self.unknown_words:
            lines.append(f"unknown words: {', '.join(self.unknown_words)}")
        lines += self.nearest_lines()
        for step in self.steps:
            lines.append(f"{step.chosen}  {step.probability:.3f}, against {step.rival} by {step.difference:+.2f}")
            lines += [f"    {push:+8.3f}  {feature}" for feature, push in step.pushes()]
        return "\n".join(lines)


def explain_row(fitted: Fitted, inputs: Any, traces: Traces | None, max_features: int) -> Explanation:
    """Explain the most probable of some traces of one row, or its best trace, with ``max_features`` per step."""
    row, text = fitted.rows(inputs), first_text(fitted.features, inputs)
    if traces is None:
        traces = fitted.predictor.traces(row).traces
    parts = fitted.predictor.row_parts(row)
    named = partial(_named_pushes, fitted, row, parts.features, text)
    group_parts = lru_cache(maxsize=None)(parts.of_group)
    options, offsets = traces.options()
    option_paths = [options[start:end].tolist() for start, end in pairwise(offsets.tolist())]
    log_probabilities = [
        [_log_p(fitted, group_parts, option) for option in options_of_path] for options_of_path in option_paths
    ]
    best = int(np.argmax([sum(log_p) for log_p in log_probabilities]))
    layers = fitted.codec.layers
    log_p = log_probabilities[best]
    path, probabilities = _probabilities(fitted, row, option_paths[best], log_p)
    shares, above = np.exp(log_p), np.append(1, probabilities[:-1])
    if not layers.multilabel:
        shares = np.divide(probabilities, above, out=shares, where=above > 0)
    steps = []
    for option, share in zip(option_paths[best], shares.tolist(), strict=True):
        group = int(layers.option_parent[option])
        low = int(layers.option_offsets[group])
        if layers.option_offsets[group + 1] - low > 1:
            steps.append(_step(fitted, group_parts(group), option - low, low, share, named, max_features))
    unknown: tuple[str, ...] = ()
    if text is not None and (text_input := text_of(fitted.features)) is not None:
        unknown = unknown_words(text_input.features, text)
    trace = trace_along(fitted.codec, path, tuple(probabilities[:-1].tolist()), float(probabilities[-1]))
    return Explanation(trace, tuple(steps), unknown, nearest_texts(fitted, row))


def nearest_texts(fitted: Fitted, row: Any) -> tuple[Neighbour, ...]:
    """Return the known texts that are most like that of a row."""
    if not fitted.predictor.can_remember:
        return ()
    experts = fitted.search.model.experts
    entry, cosine = nearest_entries(fitted.search.text_vectors(row), experts.neighbours, 2 * NEAREST_TEXTS)
    found: list[Neighbour] = []
    for number, similarity in zip(entry.tolist(), cosine.tolist(), strict=True):
        near = _neighbour(fitted, number, similarity)
        if near.text is None or (near.text, near.node) not in [(each.text, each.node) for each in found]:
            found.append(near)  # otherwise a title with its context
    return tuple(found[:NEAREST_TEXTS])


def nearest_of_nodes(fitted: Fitted, rows: Any, nodes: Sequence[Sequence[int]]) -> list[list[Neighbour | None]]:
    """Return, for each row and each of its nodes, the known text of the node that is most like that of the row."""
    if not fitted.predictor.can_remember:
        return [[None] * len(each) for each in nodes]
    experts = fitted.search.model.experts
    memory, node_of = experts.neighbours, experts.spans.paths.node[experts.neighbours.label]
    found: list[list[Neighbour | None]] = []
    for vector, wanted in zip(fitted.search.text_vectors(rows), nodes, strict=True):
        entries = np.flatnonzero(np.isin(node_of, wanted))
        order, cosine = nearest_entries(vector[None], memory.take(entries), len(entries))
        best: dict[int, tuple[int, float]] = {}
        for entry, similarity in zip(entries[order].tolist(), cosine.tolist(), strict=True):
            best.setdefault(int(node_of[entry]), (entry, similarity))
        found.append([_neighbour(fitted, *best[node]) if node in best and vector.any() else None for node in wanted])
    return found


def _neighbour(fitted: Fitted, entry: int, similarity: float) -> Neighbour:
    """Return an entry of the memory."""
    experts = fitted.search.model.experts
    memory = experts.neighbours
    node, position = int(experts.spans.paths.node[memory.label[entry]]), int(memory.row[entry])
    known = None if fitted.remembered is None else fitted.remembered.find(position)
    text, origin = known or (None, "correction" if memory.boost[entry] > 0 else "row")
    label = fitted.codec.decode(np.array([node]))[0]
    row_number = position if known is not None and origin == "row" else None
    return Neighbour(text, label, node, similarity, origin, row_number)


def _log_p(fitted: Fitted, group_parts: Callable[[int], GroupParts], option: int) -> float:
    """Return the log probability of an option in its group."""
    layers = fitted.codec.layers
    group = int(layers.option_parent[option])
    low = int(layers.option_offsets[group])
    if not layers.has_choice[group]:
        return 0.0
    logits = group_parts(group).logits
    if not layers.multilabel:
        return float(logits[option - low] - np.logaddexp.reduce(logits))
    log_p = logits.copy()
    log_chances(log_p, len(log_p), bool(layers.exhaustive[group]))  # type: ignore[no-untyped-call]
    return float(log_p[option - low])


def _probabilities(
    fitted: Fitted, row: Any, options: list[int], log_p: list[float]
) -> tuple[list[int], NDArray[np.float64]]:
    """Return the nodes along a list of options, the last of which is to stop, and the probability to get that far."""
    layers = fitted.codec.layers
    path = layers.node[layers.option_neuron[options[:-1]]].tolist()
    probabilities = np.exp(np.cumsum(log_p))
    slope = fitted.predictor.odds_scale
    if layers.multilabel and path:  # the other parents of a node also bound its probability
        search = fitted.search
        ends = search.label_probabilities(row).toarray()[0, path[-1]]
        probabilities = np.append(search.node_probabilities(row).toarray()[0, path], ends)
    elif slope != 1:
        best = fitted.predictor.uncorrected().traces(row).traces
        assert best.log_p is not None
        shift = float(odds_shift(np.exp(best.log_p), slope)[0])
        shared = np.isin(options, best.options()[0])
        probabilities = (1 - shift) * probabilities + shift * shared
    trust = float(fitted.predictor.trust_in(row)[0])
    if trust < 1:
        probabilities = trust * probabilities + (1 - trust) * fitted.predictor.label_shares[[*path, -1]]
    return path, probabilities


def _named_pushes(
    fitted: Fitted, row: Any, features: NDArray[np.int64], text: str | None, pushes: NDArray[np.float64]
) -> tuple[list[Reason], float]:
    """Return the pushes of features by name, and the rest.

    The dense columns of a text are attributed to its words if possible, else to the whole text.
    """
    source = fitted.features
    if isinstance(source, TunedInput):  # the encoder reads the whole text
        return [Reason(WHOLE_TEXT, float(pushes.sum()))], 0.0
    meaning = None if isinstance(source, MatrixInput) else source.meaning
    first = row.shape[1] - (0 if meaning is None else meaning.width)  # the first column of meaning
    used = np.flatnonzero(pushes)
    named = used[features[used] < first]
    by_name: dict[str, float] = {}
    for name, push in zip(source.names(features[named]), pushes[named].tolist(), strict=True):
        by_name[name] = by_name.get(name, 0.0) + push
    reasons = [Reason(name, push) for name, push in by_name.items()]
    if meaning is None:
        return reasons, 0.0
    columns = np.zeros(meaning.width)
    columns[features[features >= first] - first] = pushes[features >= first]
    values = (row.dense[0] if isinstance(row, MixedRows) else row.toarray()[0])[-meaning.width :].astype(np.float64)
    slopes = np.divide(columns, values, out=np.zeros(meaning.width), where=values != 0)
    by_word = meaning.by_word(text, slopes) if text is not None else None
    if by_word is None:
        return [*reasons, Reason(WHOLE_TEXT, float(columns.sum()))], 0.0
    return [*reasons, *(Reason(f"{word} (meaning)", push) for word, push in by_word[0])], by_word[1]


def _step(
    fitted: Fitted,
    parts: GroupParts,
    chosen: int,
    low: int,
    probability: float,
    named: Callable[[NDArray[np.float64]], tuple[list[Reason], float]],
    max_features: int,
) -> Step:
    logits = parts.logits
    pushes, rest = parts.of(chosen)
    layers, rival_name, difference = fitted.codec.layers, NOT, logits[chosen]
    if not layers.multilabel:  # otherwise each option has a probability of its own
        others = np.arange(len(logits)) != chosen
        rival = int(np.flatnonzero(others)[np.argmax(logits[others])])
        pushes_away, rest_away = parts.of(rival)
        pushes, rest = pushes - pushes_away, rest - rest_away
        rival_name, difference = _option_name(fitted, low + rival), logits[chosen] - logits[rival]
    reasons, unnamed = named(pushes)
    reasons.sort(key=lambda reason: -abs(reason.push))
    return Step(
        _option_name(fitted, low + chosen),
        probability,
        rival_name,
        float(difference),
        tuple(reasons[:max_features]),
        float(sum(reason.push for reason in reasons[max_features:])),
        rest + unnamed,
    )


def _option_name(fitted: Fitted, option: int) -> str:
    layers = fitted.codec.layers
    target = int(layers.option_neuron[option])
    return STOPS if target == STOP else layers.taxonomy.ids[layers.node[target]]
