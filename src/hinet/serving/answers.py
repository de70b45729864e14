"""Answers of a model in the terms of the service: labels, traces, siblings, unknown words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.explanation import explain_row
from hinet.classifier.inputs import FrameInput, TextInput, text_part
from hinet.classifier.loaded import LoadedModel
from hinet.classifier.prediction_table import label_text
from hinet.classifier.predictions import STOPS
from hinet.data import Traces
from hinet.data.tables import RowBlock
from hinet.data.tables.labelled_tables import input_table, is_blank
from hinet.data.text import unknown_words
from hinet.engine import Found
from hinet.engine.model.targets import Targets
from hinet.engine.search.odds_scaling import odds_shift
from hinet.errors import HiNetError
from hinet.files.delimited import missing_column_message
from hinet.ragged import gather, offsets_of
from hinet.serving.places import TextPlaces
from hinet.taxonomy import STOP, VIRTUAL_ROOT

MOST_LABELS = 1 << 20  # whose text is remembered: a DAG may have more paths than memory can hold

Json = dict[str, Any]


class RowError(HiNetError):
    """A row cannot be read: which of them, and why."""

    def __init__(self, row: int, message: str) -> None:
        self.row = row
        super().__init__(message)


@dataclass(frozen=True)
class Question:
    """What is asked of every text of a batch."""

    top: int = 1
    min_confidence: float | None = None
    siblings: int = 0
    unknown_words: bool = False


@dataclass(frozen=True, eq=False)
class Answerer:
    """Answers questions about texts, or about rows of a table, by a loaded model."""

    model: LoadedModel

    @property
    def reads_rows(self) -> bool:
        """Whether the model needs more columns than a text."""
        return isinstance(self.model.fitted.features, FrameInput)

    def table(self, rows: Sequence[Json]) -> Any:
        """Return rows as what the model reads: texts or a table; RowError tells which cannot be read."""
        columns = self.model.columns
        names = columns.inputs if self.reads_rows else columns.text
        for number, row in enumerate(rows):
            for name in names:
                if name not in row:
                    raise RowError(
                        number, missing_column_message(name, list(row)) + "; null stands for a missing value"
                    )
        if self.reads_rows:
            return self._frame(rows)
        texts = []
        for number, row in enumerate(rows):
            cells = [row[name] for name in names]
            if not all(cell is None or isinstance(cell, str) for cell in cells):
                raise RowError(number, f"expected text in {', '.join(names)}")
            texts.append(" ".join(cell for cell in cells if cell))
        return texts

    def _frame(self, rows: Sequence[Json]) -> Any:
        columns, widths = self.model.columns, self.model.widths(self.model.columns)

        def table(some: Sequence[Json]) -> Any:
            cells = {name: [row[name] for row in some] for name in columns.inputs}
            block = RowBlock("rows", "jsonl", list(range(1, len(some) + 1)), cells, positions=list(range(len(some))))
            return input_table(block, columns, widths)

        try:
            return self.model.named_as_trained(table(rows))
        except HiNetError as error:
            for number, row in enumerate(rows):
                try:
                    table([row])
                except HiNetError as reason:
                    raise RowError(number, str(reason)) from None
            raise error from None

    def answer(self, inputs: Any, question: Question) -> list[Json]:
        """Return the answer to every text or row; to a blank text, nothing."""
        fitted = self.model.fitted
        rows = fitted.rows(inputs)
        found = fitted.predictor.traces(rows, question.top)
        results = self._traces(found)
        several = fitted.codec.sets is not None
        if several:
            self._add_sets(rows, question.min_confidence, results)
        elif question.min_confidence is not None:
            self._confident(rows, question.min_confidence, results)
        if question.siblings and not several:  # whose options are no shares of one
            self._add_siblings(rows, found, question.siblings, results)
        texts = text_part(fitted.features, inputs)
        if question.unknown_words:
            given = [None] * len(results) if texts is None else list(map(str, texts[1]))
            for result, text in zip(results, given, strict=True):
                result["unknown_words"] = [] if text is None else self.unknown(text)
        if not self.reads_rows:
            for number, text in enumerate(inputs):
                if is_blank(text):
                    results[number] = _nothing(question)
        return results

    def _traces(self, found: Found) -> list[Json]:
        """Return the best traces of every row; the first is the answer."""
        traces = found.traces
        assert traces.log_p is not None
        nodes = traces.layers.node[traces.neurons].tolist()
        along = np.minimum(np.exp(found.log_p), 1.0).tolist()
        whole = np.minimum(np.exp(traces.log_p), 1.0).tolist()
        offsets, ids, titles = traces.offsets.tolist(), self._ids, self._titles
        results: list[Json] = []
        for first, last in pairwise(traces.row_offsets.tolist()):
            best = []
            for trace in range(first, last):
                start, end = offsets[trace], offsets[trace + 1]
                steps = [
                    {"node": ids[node], "title": titles[node], "probability": p, "siblings": None}
                    for node, p in zip(nodes[start:end], along[start:end], strict=True)
                ]
                best.append({**self._label(nodes[start:end], whole[trace]), "steps": steps, "below": None})
            answer = {name: best[0][name] for name in ("label", "node", "title", "probability")} if best else None
            results.append({"labels": [] if answer is None else [answer], "traces": best, "unknown_words": None})
        return results

    def _label(self, path: list[int], probability: float) -> Json:
        """Return the end of a path of nodes below the root as a label."""
        end = path[-1] if path else self.model.fitted.codec.taxonomy.root
        return {
            "label": self.label(path),
            "node": self._ids[end],
            "title": self._titles[end],
            "probability": probability,
        }

    def label(self, path: Sequence[int]) -> str:
        """Return the end of a path of nodes as labels were written in training."""
        key = path[-1] if path and self._is_tree else tuple(path)
        label = self._labels.get(key)
        if label is None:
            label = label_text(self.model.fitted.codec.label_of(path), self.model.style)
            if len(self._labels) < MOST_LABELS:
                self._labels[key] = label
        return label

    def _confident(self, rows: Any, least: float, results: list[Json]) -> None:
        """Put the deepest nodes of at least a probability in the place of the answers, or nothing."""
        codec = self.model.fitted.codec
        sure = self.model.fitted.predictor.deepest_confident(rows, least)
        for result, node, p in zip(results, sure.nodes.tolist(), sure.probability.tolist(), strict=True):
            result["labels"] = [self._label(codec.path_to(node), min(p, 1.0))] if p >= least else []

    def _add_sets(self, rows: Any, least: float | None, results: list[Json]) -> None:
        """Put the labels above the thresholds of the model, or of a given probability, in the place of the answers."""
        fitted = self.model.fitted
        sets = fitted.label_sets(rows, min_probability=least)
        nodes, probability = sets.nodes.tolist(), np.minimum(sets.probability, 1.0).tolist()
        for result, (first, last) in zip(results, pairwise(sets.offsets.tolist()), strict=True):
            pairs = zip(nodes[first:last], probability[first:last], strict=True)
            result["labels"] = [self._label(fitted.codec.path_to(node), p) for node, p in pairs]

    # Siblings

    def _add_siblings(self, rows: Any, found: Found, most: int, results: list[Json]) -> None:
        """Add the most probable other options at every step of the best traces, and below their ends."""
        layers = self.model.fitted.codec.layers
        targets = Targets.of(_first_of_rows(found.traces))
        logits = self.model.fitted.predictor.logits_along(rows, targets)
        row_of, step_of = targets.row_steps()
        groups = targets.arrays.step_group[step_of]
        chosen = targets.arrays.choice_option[targets.arrays.choice_offsets[step_of]]
        sizes = layers.option_offsets[groups + 1] - layers.option_offsets[groups]
        offsets = offsets_of(np.where(layers.has_choice[groups], sizes, 0))  # without a choice there is no logit
        steps_of: list[list[tuple[int, int, NDArray[np.float64]]]] = [[] for _ in results]
        for step, row in enumerate(row_of.tolist()):
            part = logits[offsets[step] : offsets[step + 1]]
            share = np.exp(part - np.logaddexp.reduce(part)) if len(part) else np.ones(1)
            steps_of[row].append((int(groups[step]), int(chosen[step]), share))
        shares = self.model.fitted.predictor.label_shares
        trust_in = self.model.fitted.predictor.trust_in(rows).tolist()
        for result, steps, trust in zip(results, steps_of, trust_in, strict=True):
            reached = [1.0, *np.cumprod([share[option] for _, option, share in steps]).tolist()]
            kept = 1 - float(odds_shift(np.array(reached[-1:]), self.model.fitted.predictor.odds_scale)[0])
            trace = result["traces"][0]
            for number, (group, option, share) in enumerate(steps):
                probability = trust * kept * reached[number] * share
                if trust < 1:
                    children = layers.option_neuron[layers.option_offsets[group] : layers.option_offsets[group + 1]]
                    probability += (1 - trust) * shares[np.where(children == STOP, -1, layers.node[children])]
                others = self._others(group, option, probability, most)
                if number < len(trace["steps"]):
                    trace["steps"][number]["siblings"] = others
                else:
                    trace["below"] = others

    def _others(self, group: int, chosen: int, probability: NDArray[np.float64], most: int) -> Json:
        """Return the most probable options of a group but the chosen one."""
        layers = self.model.fitted.codec.layers
        first = int(layers.option_offsets[group])
        probability[chosen] = -1
        order = np.argsort(-probability, kind="stable")[: min(most, len(probability) - 1)]
        nodes = []
        for option in order.tolist():
            neuron = int(layers.option_neuron[first + option])
            node = int(layers.node[group if neuron == STOP else neuron])
            nodes.append(
                {
                    "node": self._ids[node],
                    "title": self._titles[node],
                    "probability": min(float(probability[option]), 1.0),
                    "children": self._children[node],
                    "stops": neuron == STOP,
                }
            )
        return {"total": len(probability) - 1, "nodes": nodes}

    # Words

    def unknown(self, text: str, places: TextPlaces | None = None) -> list[Json]:
        """Return every occurrence of the words of a text that the model does not know."""
        features = self.model.fitted.features
        read_by = features.text if isinstance(features, FrameInput) else features
        if not isinstance(read_by, TextInput):
            return []
        places = places or TextPlaces(text)
        spans = {span for word in unknown_words(read_by.features, text) for span in places.of_term(word)}
        return [{"word": text[start:end], "start": start, "end": end} for start, end in sorted(spans)]

    def explain(self, inputs: Any, node: int | None, words: int) -> Json:
        """Return the words behind every step of the best trace of one text or row, or of the trace to a node."""
        fitted = self.model.fitted
        row = fitted.rows(inputs)
        traces = fitted.predictor.traces(row).traces
        if node is not None:
            traces = Traces.of_nodes(fitted.codec.layers, np.array([node]))
        texts = text_part(fitted.features, inputs)
        text = "" if texts is None else str(texts[1][0])
        explained = explain_row(fitted, row, traces, words, text)
        places, taxonomy = TextPlaces(text), fitted.codec.taxonomy
        path = [taxonomy.position(step) for step in explained.trace.steps]

        def option(name: str, parent: int) -> Json:
            end = parent if name == STOPS else taxonomy.position(name)
            return {"node": self._ids[end], "title": self._titles[end], "stops": name == STOPS}

        steps = []
        for step in explained.steps:
            depth = len(path) if step.chosen == STOPS else path.index(taxonomy.position(step.chosen))
            parent = path[depth - 1] if depth else taxonomy.root
            reasons = [
                {"feature": feature, "push": push, "places": places.of_feature(feature)}
                for feature, push in step.reasons
            ]
            steps.append(
                {
                    "chosen": option(step.chosen, parent),
                    "rival": None if fitted.codec.layers.multilabel else option(step.rival, parent),
                    "probability": min(step.probability, 1.0),
                    "difference": step.difference,
                    "reasons": reasons,
                    "others": step.others,
                    "rest": step.rest,
                }
            )
        along = [
            {
                "node": self._ids[node],
                "title": self._titles[node],
                "probability": min(max(p, 0.0), 1.0),
                "siblings": None,
            }
            for node, p in zip(path, explained.trace.probabilities, strict=True)
        ]
        whole = min(max(explained.trace.probability, 0.0), 1.0)
        return {
            "trace": {**self._label(path, whole), "steps": along, "below": None},
            "steps": steps,
            "unknown_words": self.unknown(text, places),
        }

    # Nodes by number, the virtual root last

    @cached_property
    def _ids(self) -> tuple[str, ...]:
        taxonomy = self.model.fitted.codec.taxonomy
        return (*taxonomy.ids, "") if taxonomy.root == VIRTUAL_ROOT else taxonomy.ids

    @cached_property
    def _titles(self) -> tuple[str, ...]:
        """Titles, or ids where there are none."""
        taxonomy = self.model.fitted.codec.taxonomy
        titles = tuple(title or node for title, node in zip(taxonomy.titles, taxonomy.ids, strict=True))
        return (*titles, "") if taxonomy.root == VIRTUAL_ROOT else titles

    @cached_property
    def _children(self) -> list[int]:
        taxonomy = self.model.fitted.codec.taxonomy
        return [*np.diff(taxonomy.child_lists[1]).tolist(), len(taxonomy.tops)]

    @cached_property
    def _is_tree(self) -> bool:
        return self.model.fitted.codec.taxonomy.is_tree

    @cached_property
    def _labels(self) -> dict[int | tuple[int, ...], str]:
        """Labels as text by their node, or in a DAG by their path, as they were asked for."""
        return {}


def _first_of_rows(traces: Traces) -> Traces:
    """Return the best trace of every row alone."""
    neurons, lengths = gather(traces.neurons, traces.offsets, traces.row_offsets[:-1])
    return Traces(traces.layers, np.arange(len(traces) + 1), offsets_of(lengths), neurons.astype(np.int32))


def _nothing(question: Question) -> Json:
    return {"labels": [], "traces": [], "unknown_words": [] if question.unknown_words else None}
