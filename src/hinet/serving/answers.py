"""Rows of requests, and answers of a model as JSON values: labels, traces, siblings, explanations, unknown words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.answers import STOPS, PredictionOptions, select_answers
from hinet.classifier.explanation import Step, explain_row, nearest_of_nodes
from hinet.classifier.fitted import Fitted, Neighbour
from hinet.classifier.inputs import first_text, text_of, text_part
from hinet.classifier.predicted_sets import Answers
from hinet.classifier.prediction_table import label_text
from hinet.classifier.saved_model import LoadedModel
from hinet.data import Traces
from hinet.data.tables.labelled_tables import is_blank
from hinet.data.text import unknown_words
from hinet.data.text.text_input import align, word_pattern
from hinet.engine import Found
from hinet.engine.model.groups import Targets
from hinet.engine.search.corrections import odds_shift
from hinet.errors import HiNetError, quoted
from hinet.ragged import gather, offsets_of
from hinet.serving.nodes import Nodes
from hinet.taxonomy import STOP

Json = dict[str, Any]
MAX_CACHED_LABELS = 1 << 18  # a DAG may have more paths than memory can hold
MEANING = " (meaning)"  # suffix of a word in the name of a feature: the contribution of its vector
Span = tuple[int, int]
MAX_RESTRICTIONS = 16  # choices of branches whose searches are kept


def training_row(model: LoadedModel, given: str | Json, nodes: Sequence[int]) -> Json:
    """Return a text or row with its correct labels as a row of the training table.

    Raises
    ------
    HiNetError
        If the table cannot hold these labels.
    """
    columns, codec = model.columns, model.fitted.codec
    if len(nodes) > 1 and (codec.sets is None or len(columns.label) > 1):
        names = ", ".join(quoted(codec.taxonomy.ids[node]) for node in nodes)
        raise HiNetError(f"the model predicts one label per text; got {names}; send one node")
    if isinstance(given, str):
        cells: Json = {**dict.fromkeys(columns.inputs, ""), columns.text[0]: given}
    else:
        cells = {name: given.get(name) for name in columns.inputs}
    paths = [codec.path_to(node) for node in nodes]
    if len(columns.label) == 1:
        labels = [label_text(codec.label_of(path), model.style) for path in paths]
        return cells | {columns.label[0]: _label_cell(labels, columns.label_sep)}
    steps = [str(step) for step in codec.steps(paths[0])]
    if len(steps) > len(columns.label):
        raise HiNetError(
            f"the node is {len(steps)} levels deep, but training rows have {len(columns.label)} label columns; send a "
            "node above it"
        )
    return cells | dict(zip(columns.label, [*steps, *[""] * (len(columns.label) - len(steps))], strict=True))


def _label_cell(labels: list[str], separator: str | None) -> str | list[str]:
    """Return one or several labels as a cell: joined by the separator of training, or without one as a list."""
    if separator is None:
        return labels[0] if len(labels) == 1 else labels
    for label in labels:
        if separator in label:
            raise HiNetError(
                f"the label {quoted(label)} has the separator {quoted(separator)} of the training rows; send another "
                "node, or train with another separator"
            )
    return separator.join(labels)


@dataclass(frozen=True)
class Question:
    """Options of a request, the same for all texts of a batch."""

    top: int = 1
    min_confidence: float | None = None
    siblings: int = 0
    unknown_words: bool = False
    within: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Answerer:
    """Answers questions about texts, or about rows of a table, with a loaded model."""

    model: LoadedModel
    nodes: Nodes

    @property
    def fitted(self) -> Fitted:
        """The fitted model."""
        return self.model.fitted

    @cached_property
    def restricted(self) -> Callable[[tuple[str, ...], tuple[str, ...]], Fitted]:
        """Returns the model for some branches without others, or raises HiNetError; the last few are kept."""
        fitted = self.fitted  # a reference to self would be a cycle, which keeps a replaced model in memory

        @lru_cache(MAX_RESTRICTIONS)
        def restrict(within: tuple[str, ...], exclude: tuple[str, ...]) -> Fitted:
            return fitted.restricted(list(within) or None, list(exclude) or None) if within or exclude else fitted

        return restrict

    def answer(
        self, inputs: Any, question: Question, observe: Callable[[Fitted, Any, Found], None] | None = None
    ) -> list[Json]:
        """Return the answer to every text or row; a blank text has an empty answer.

        ``observe`` gets the rows and their traces, unless the answers are restricted to branches.
        """
        fitted = self.restricted(question.within, question.exclude)
        rows = fitted.rows(inputs)
        found = fitted.predictor.traces(rows, question.top)
        if observe is not None and fitted is self.fitted:
            observe(fitted, rows, found)
        results = self._traces(found)
        several, threshold = fitted.codec.sets is not None, question.min_confidence
        if several or threshold is not None:
            options = (
                PredictionOptions(min_probability=threshold) if several else PredictionOptions(min_confidence=threshold)
            )
            self._set_labels(select_answers(fitted, rows, options, with_traces=False), results)
        if question.siblings and not several and fitted is self.fitted:  # others do not add up to 1
            self._add_siblings(rows, found, question.siblings, results)
        if question.unknown_words:
            texts = text_part(fitted.features, inputs)
            given = [None] * len(results) if texts is None else list(map(str, texts[1]))
            for result, text in zip(results, given, strict=True):
                result["unknown_words"] = [] if text is None else unknown_spans(fitted, text)
        if not self.model.reads_rows:
            for text, result in zip(inputs, results, strict=True):
                if is_blank(text):
                    result |= {"labels": [], "traces": []}
        return results

    def _traces(self, found: Found) -> list[Json]:
        """Return the best traces of every row; the first is the answer."""
        traces = found.traces
        assert traces.log_p is not None
        nodes = traces.layers.node[traces.neurons].tolist()
        step_probability = np.minimum(np.exp(found.log_p), 1.0).tolist()
        trace_probability = np.minimum(np.exp(traces.log_p), 1.0).tolist()
        offsets = traces.offsets.tolist()
        results: list[Json] = []
        for first, last in pairwise(traces.row_offsets.tolist()):
            best = []
            for trace in range(first, last):
                part = slice(offsets[trace], offsets[trace + 1])
                best.append(self._trace(nodes[part], step_probability[part], trace_probability[trace]))
            labels = [{name: best[0][name] for name in ("label", "node", "title", "probability")}] if best else []
            results.append({"labels": labels, "traces": best, "unknown_words": None})
        return results

    def _trace(self, path: list[int], step_probability: Sequence[float], probability: float) -> Json:
        """Return a path of nodes below the root as a trace."""
        steps = [
            {**self.nodes.named(node), "probability": p, "siblings": None}
            for node, p in zip(path, step_probability, strict=True)
        ]
        return {**self._label(path, probability), "steps": steps, "below": None}

    def _label(self, path: list[int], probability: float) -> Json:
        """Return the end of a path of nodes below the root as a label."""
        end = path[-1] if path else self.fitted.codec.taxonomy.root
        return {"label": self._label_text(tuple(path)), **self.nodes.named(end), "probability": probability}

    @cached_property
    def _label_text(self) -> Callable[[tuple[int, ...]], str]:
        """Returns the end of a path of nodes as labels were written in training."""
        codec, style = self.fitted.codec, self.model.style

        @lru_cache(MAX_CACHED_LABELS)
        def text(path: tuple[int, ...]) -> str:
            return label_text(codec.label_of(path), style)

        return text

    def _set_labels(self, answers: Answers, results: list[Json]) -> None:
        """Replace the labels of results by those of answers."""
        nodes, probability = answers.nodes.tolist(), np.minimum(answers.probability, 1.0).tolist()
        for result, (first, last) in zip(results, pairwise(answers.offsets.tolist()), strict=True):
            pairs = zip(nodes[first:last], probability[first:last], strict=True)
            result["labels"] = [self._label(self.fitted.codec.path_to(node), p) for node, p in pairs]

    def _add_siblings(self, rows: Any, found: Found, max_siblings: int, results: list[Json]) -> None:
        """Add the most probable other options at every step of the best traces, and below their ends."""
        layers, predictor = self.fitted.codec.layers, self.fitted.predictor
        trust_in = predictor.trust_in(rows).tolist()
        for result, steps, trust in zip(results, self._steps(rows, found), trust_in, strict=True):
            reached = [1.0, *np.cumprod([share[option] for _, option, share in steps]).tolist()]
            kept = 1 - float(odds_shift(np.array(reached[-1:]), predictor.odds_scale)[0])
            trace = result["traces"][0]
            for number, (group, option, share) in enumerate(steps):
                probability = trust * kept * reached[number] * share
                if trust < 1:
                    children = layers.option_neuron[layers.option_offsets[group] : layers.option_offsets[group + 1]]
                    nodes = np.where(children == STOP, -1, layers.node[children])
                    probability += (1 - trust) * predictor.label_shares[nodes]
                others = self._others(group, option, probability, max_siblings)
                if number < len(trace["steps"]):
                    trace["steps"][number]["siblings"] = others
                else:
                    trace["below"] = others

    def _steps(self, rows: Any, found: Found) -> list[list[tuple[int, int, NDArray[np.float64]]]]:
        """Return the group, the chosen option and the shares of all options at each step of the best traces."""
        layers = self.fitted.codec.layers
        targets = Targets.of(_first_traces(found.traces))
        logits = self.fitted.predictor.logits_along(rows, targets)
        row_of, step_of = targets.arrays.entry_steps()
        groups = targets.arrays.step_group[step_of]
        chosen = targets.arrays.choice_option[targets.arrays.choice_offsets[step_of]]
        sizes = layers.option_offsets[groups + 1] - layers.option_offsets[groups]
        offsets = offsets_of(np.where(layers.has_choice[groups], sizes, 0))  # no logits without a choice
        steps: list[list[tuple[int, int, NDArray[np.float64]]]] = [[] for _ in range(len(found.traces))]
        for step, row in enumerate(row_of.tolist()):
            part = logits[offsets[step] : offsets[step + 1]]
            share = np.exp(part - np.logaddexp.reduce(part)) if len(part) else np.ones(1)
            steps[row].append((int(groups[step]), int(chosen[step]), share))
        return steps

    def _others(self, group: int, chosen: int, probability: NDArray[np.float64], max_siblings: int) -> Json:
        """Return the most probable options of a group except the chosen one."""
        layers = self.fitted.codec.layers
        first = int(layers.option_offsets[group])
        probability[chosen] = -1
        order = np.argsort(-probability, kind="stable")[: min(max_siblings, len(probability) - 1)]
        nodes = []
        for option in order.tolist():
            neuron = int(layers.option_neuron[first + option])
            node = int(layers.node[group if neuron == STOP else neuron])
            nodes.append(
                {
                    **self.nodes.named(node), "probability": min(float(probability[option]), 1.0),
                    "children": self.nodes.child_counts[node], "stops": neuron == STOP,
                }
            )  # fmt: skip
        return {"total": len(probability) - 1, "nodes": nodes}

    def explain(self, inputs: Any, node: int | None, max_words: int) -> Json:
        """Return the words behind every step of the best trace of one text or row, or of the trace to a node."""
        fitted = self.fitted
        traces = None if node is None else Traces.of_nodes(fitted.codec.layers, np.array([node]))
        text = first_text(fitted.features, inputs) or ""
        explanation = explain_row(fitted, inputs, traces, max_words)
        spans, trace = TextSpans(text), explanation.trace
        path = [fitted.codec.taxonomy.position(step) for step in trace.steps]
        probabilities = np.clip([*trace.probabilities, trace.probability], 0.0, 1.0).tolist()
        return {
            "trace": self._trace(path, probabilities[:-1], probabilities[-1]),
            "steps": [self._step(step, path, spans) for step in explanation.steps],
            "unknown_words": _word_spans(text, explanation.unknown_words, spans),
            "nearest": [self._neighbour(each) for each in explanation.nearest],
        }

    def nearest_of_nodes(self, texts: Sequence[str], nodes: Sequence[Sequence[str]]) -> list[list[Json | None]]:
        """Return, for each text and each of its nodes, the known text of the node that is most like it."""
        taxonomy = self.fitted.codec.taxonomy
        positions = [[taxonomy.position(node) if node in taxonomy else -1 for node in each] for each in nodes]
        found = nearest_of_nodes(self.fitted, self.fitted.rows(list(texts)), positions)
        return [[near and self._neighbour(near) for near in each] for each in found]

    def _neighbour(self, found: Neighbour) -> Json:
        return {
            **self.nodes.named(found.node), "text": found.text, "origin": found.origin, "row": found.row,
            "similarity": min(max(found.similarity, -1.0), 1.0),
        }  # fmt: skip

    def _step(self, step: Step, path: list[int], spans: TextSpans) -> Json:
        """Return the reasons of a step of a trace along a path of nodes."""
        taxonomy = self.fitted.codec.taxonomy
        depth = len(path) if step.chosen == STOPS else path.index(taxonomy.position(step.chosen))
        parent = path[depth - 1] if depth else taxonomy.root

        def option(name: str) -> Json:
            node = parent if name == STOPS else taxonomy.position(name)
            return {**self.nodes.named(node), "stops": name == STOPS}

        reasons = [
            {"feature": feature, "push": push, "places": spans.of_feature(feature)} for feature, push in step.reasons
        ]
        return {
            "chosen": option(step.chosen),
            "rival": None if self.fitted.codec.layers.multilabel else option(step.rival),
            "probability": min(step.probability, 1.0), "difference": step.difference, "reasons": reasons,
            "others": step.others, "rest": step.rest,
        }  # fmt: skip


def _first_traces(traces: Traces) -> Traces:
    """Return only the best trace of every row."""
    neurons, lengths = gather(traces.neurons, traces.offsets, traces.row_offsets[:-1])
    return Traces(traces.layers, np.arange(len(traces) + 1), offsets_of(lengths), neurons.astype(np.int32))


class TextSpans:
    """Finds features in a text as it was typed, though a model reads it normalised.

    >>> spans = TextSpans("Dark Rye, rye bread")
    >>> spans.of_feature("rye bread"), spans.of_feature("rye"), spans.of_feature("[ rye]")
    ([(10, 19)], [(5, 8), (10, 13)], [(5, 8), (10, 13)])
    """

    def __init__(self, text: str) -> None:
        self._normal, self._spans = align(text)
        self._words = list(word_pattern(self._normal).finditer(self._normal))

    def of_feature(self, name: str) -> list[Span]:
        """Return the spans of an n-gram by its name in an explanation; character n-grams are in brackets."""
        if name.startswith("[") and name.endswith("]"):
            return self._of_characters(name[1:-1])
        return self.of_term(name.removesuffix(MEANING))

    def of_term(self, term: str) -> list[Span]:
        """Return the spans of consecutive normalised words or, if there are none, of tokens equal to ``term``."""
        words = word_pattern(term).findall(term)
        size = len(words)
        spans = [
            self._typed(found[0].start(), found[-1].end())
            for found in (self._words[start : start + size] for start in range(len(self._words) - size + 1))
            if size and [word[0] for word in found] == words
        ]
        return spans or [self._typed(*token.span()) for token in self._tokens() if token[0] == term]

    def _of_characters(self, gram: str) -> list[Span]:
        """Return the spans of characters within tokens."""
        spans = set()
        for token in self._tokens():
            padded, start = f" {token[0]} ", token.start() - 1
            position = padded.find(gram)
            while position >= 0:
                first, last = max(start + position, token.start()), min(start + position + len(gram), token.end())
                if first < last:
                    spans.add(self._typed(first, last))
                position = padded.find(gram, position + 1)
        return sorted(spans)

    def _tokens(self) -> Iterator[re.Match[str]]:
        return re.finditer(r"\S+", self._normal)

    def _typed(self, start: int, end: int) -> Span:
        """Return the span of normalised characters in the text as it was typed."""
        return self._spans[start][0], self._spans[end - 1][1]


def unknown_spans(fitted: Fitted, text: str) -> list[Json]:
    """Return every occurrence of the words of a text that the model does not know."""
    features = text_of(fitted.features)
    return [] if features is None else _word_spans(text, unknown_words(features.features, text), TextSpans(text))


def _word_spans(text: str, words: Sequence[str], spans: TextSpans) -> list[Json]:
    """Return every occurrence of some words of a text."""
    unknown = {span for word in words for span in spans.of_term(word)}
    return [{"word": text[start:end], "start": start, "end": end} for start, end in sorted(unknown)]
