"""The endpoints of a labelling project, without HTTP."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet.data.tables.labelled_tables import is_blank
from hinet.data.tables.writing import escape_formula
from hinet.errors import quoted
from hinet.labelling.folder import NODE_SEP
from hinet.labelling.progress import Share
from hinet.labelling.project import Project, utc_now
from hinet.labelling.queue import LEASE_SECONDS
from hinet.labelling.store import Label
from hinet.serving import labelling_schemas as schemas
from hinet.serving.answers import Question
from hinet.serving.corrections import Correction
from hinet.serving.problems import ProblemError, invalid
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy

if TYPE_CHECKING:
    from hinet.serving.models import ServedModel
    from hinet.serving.service import Service

SUGGESTIONS = Question(5)
ANSWER = Question()
LABEL_COLUMNS = ("id", "text", "label", "annotator", "time", "note")
HISTORY_COLUMNS = (
    "label_id", "id", "text", "action", "nodes", "annotator", "time", "undone", "predicted", "probability", "version",
    "reason", "note",
)  # fmt: skip
NUL = "\0"

Json = dict[str, Any]


class Labelling:
    """A labelling project and its model."""

    def __init__(self, service: Service, project: Project) -> None:
        self._service, self.project = service, project

    @property
    def models(self) -> Mapping[str, Path]:
        """The folder of the model, by its name."""
        return {self.project.name: self.project.folder.model}

    def close(self) -> None:
        """Stop the background work, and release the folder."""
        self.project.close()

    def use_model(self, model: ServedModel) -> None:
        """Rank the rows by a model that was loaded."""
        if model.name == self.project.name:
            self.project.use_model(model.model.manifest, model.model.fitted)

    def corrections(self, manifest: Mapping[str, Any]) -> list[Correction]:
        """Return the labels that a model was not trained on."""
        return [Correction({"text": text}, node) for text, node in self.project.to_remember(manifest)]

    @property
    def _model(self) -> ServedModel:
        return self._service.models.get(self.project.name)

    @property
    def _taxonomy(self) -> Taxonomy:
        return self._model.model.fitted.codec.taxonomy

    async def status(self) -> Json:
        """Return counts, people, and the state of the model."""
        return await self._service.work(self._status)

    def _status(self) -> Json:
        project, model = self.project, self._model
        ledger, queue, trained = project.ledger, project.queue, project.trained_on
        running = project.retrainer.running
        with project.lock:
            return {
                "name": project.name,
                "rows": len(project.texts),
                "labelled": len(ledger.counted),
                "skipped": len(ledger.skipped),
                "left": queue.left,
                "scored": queue.scored_share,
                "several": project.settings.several,
                "annotators": [{"name": name, **counts._asdict()} for name, counts in ledger.people().items()],
                "model": {"name": model.name, "version": model.version, "rows": trained.rows, "trained": trained.time},
                "retraining": running and {"started": running.started, "rows": running.rows},
                "retraining_problem": project.retrainer.problem,
                "labels_since_training": project.new_labels,
                "next_training": project.next_training,
                "disagreements": len(ledger.disputed),
            }

    # Rows

    async def next_rows(self, asked: schemas.NextRequest) -> Json:
        """Lend rows to a person, with the best answers."""
        return await self._service.work(self._next_rows, asked)

    def _next_rows(self, asked: schemas.NextRequest) -> Json:
        project, answerer = self.project, self._model.answerer
        self._check_rows("ids", asked.ids)
        lent, left = project.lend(asked.ids) if asked.ids else project.next_rows(asked.annotator.strip(), asked.count)
        texts = [project.text(row) for row, _ in lent]
        rows = []
        if lent:
            results = answerer.answer(texts, SUGGESTIONS)
            nearest = answerer.nearest_of_nodes(texts, [[each["node"] for each in r["traces"]] for r in results])
            for (row, reason), text, result, known in zip(lent, texts, results, nearest, strict=True):
                best = [{**trace, "nearest": near} for trace, near in zip(result["traces"], known, strict=True)]
                rows.append({"id": row, "text": text, "reason": reason, "best": best})
        return {"rows": rows, "left": left, "lease_seconds": LEASE_SECONDS}

    def _check_rows(self, field: str, rows: Iterable[int]) -> None:
        for row in rows:
            if not self.project.has_row(row):
                raise invalid(field, f"there is no row {row}", status=404, kind="not-found")

    async def add_rows(self, asked: schemas.RowsRequest) -> Json:
        """Add texts as rows."""
        settings = self._service.settings
        for number, text in enumerate(asked.texts):
            if is_blank(text):
                raise invalid(f"texts[{number}]", f"the text is blank: {quoted(text)}; leave it out")
            if len(text) > settings.max_length:
                message = f"the text has more than {settings.max_length:,} characters"
                raise invalid(f"texts[{number}]", message, status=413, kind="too-large")
            _check_characters(f"texts[{number}]", text)
        added = await self._service.with_store(self.project.add_texts, asked.texts)
        return {"ids": added.ids, "added": added.added}

    # Labels

    async def label(self, asked: schemas.LabelRequest) -> Json:
        """Predict a row, then write its label to disk and let the model remember it."""
        self._check_rows("id", [asked.id])
        nodes = self._nodes(asked)
        for field in ("annotator", "note"):
            _check_characters(field, getattr(asked, field))
        return await self._service.with_store(self._label, asked, nodes)

    def _nodes(self, asked: schemas.LabelRequest) -> tuple[str, ...]:
        """Return the nodes of a label, or raise ProblemError."""
        nodes = tuple(dict.fromkeys(asked.nodes))
        if asked.skip:
            if nodes or asked.settle:
                raise invalid("skip", "a skipped row has no nodes, and settles nothing; leave them out")
            return ()
        if not nodes:
            raise invalid("nodes", "name the right node, or skip the row")
        if len(nodes) > 1 and not self.project.settings.several:
            raise invalid("nodes", "rows of this project have one label; send one node")
        taxonomy = self._taxonomy
        for number, name in enumerate(asked.nodes):
            if name not in taxonomy:
                raise invalid(f"nodes[{number}]", "there is no such node in the taxonomy")
            if taxonomy.position(name) in (VIRTUAL_ROOT, taxonomy.root):
                raise invalid(f"nodes[{number}]", "this is the root; name a node below it")
        return nodes

    def _label(self, asked: schemas.LabelRequest, nodes: tuple[str, ...]) -> Json:
        project, model, annotator = self.project, self._model, asked.annotator.strip()
        if asked.settle and not project.ledger.independent(asked.id):
            raise invalid("settle", "nobody has labelled this row yet; label it without settle")
        (result,) = model.answerer.answer([project.text(asked.id)], ANSWER)
        predicted = tuple(label["node"] for label in result["labels"])
        probability = min((label["probability"] for label in result["labels"]), default=0.0)
        label, change = project.add(
            Label(
                0, asked.id, "skip" if asked.skip else "settle" if asked.settle else "label", nodes, annotator,
                utc_now(), asked.note, predicted, probability, model.version, None,
            )
        )  # fmt: skip
        learned = False
        if change.after == label:
            learned = self._remember(label)
        if change.before is not None and not learned and change.before != change.after:
            self._service.models.correct_again()  # the model forgets the label that counted before
        return {
            "label_id": label.id, "id": label.row, "time": label.time, "predicted": list(predicted),
            "probability": probability, "right": None if asked.skip else label.is_right, "learned": learned,
        }  # fmt: skip

    def _remember(self, label: Label) -> bool:
        if len(label.nodes) != 1:
            return False
        correction = Correction({"text": self.project.text(label.row)}, label.nodes[0])
        return self._service.learn(self.project.name, correction)

    async def undo(self, number: int) -> None:
        """Take a label or skip back."""
        await self._service.with_store(self._undo, number)

    def _undo(self, number: int) -> None:
        with self.project.lock:
            label = self.project.ledger.find(number)
        if label is None:
            raise ProblemError(404, "not-found", f"there is no label {number} that counts")
        change = self.project.undo(label)
        if change.before != change.after:
            self._service.models.correct_again()

    async def labels(self, asked: schemas.LabelQuery) -> Json:
        """Return the labels and skips that count, the newest first."""
        return await self._service.work(self._labels, asked)

    def _labels(self, asked: schemas.LabelQuery) -> Json:
        with self.project.lock:
            labels = self.project.ledger.newest(None if asked.annotator is None else asked.annotator.strip())
        items = [self._given(label) for label in labels[asked.offset : asked.offset + asked.limit]]
        return {"items": items, "total": len(labels), "offset": asked.offset, "limit": asked.limit}

    def _given(self, label: Label) -> Json:
        return {
            "label_id": label.id, "id": label.row, "text": self.project.text(label.row), "annotator": label.annotator,
            "time": label.time, "nodes": self._named(label.nodes), "skip": label.action == "skip",
            "settle": label.action == "settle", "note": label.note, "predicted": list(label.predicted),
            "probability": label.probability,
        }  # fmt: skip

    def _named(self, nodes: Iterable[str]) -> list[Json]:
        taxonomy = self._taxonomy
        return [{"node": node, "title": taxonomy.titles[taxonomy.position(node)] or node} for node in nodes]

    # How good it is

    async def progress(self) -> Json:
        """Return the accuracy as it came, and agreement."""
        return await self._service.work(self._progress)

    def _progress(self) -> Json:
        taxonomy = self._taxonomy
        progress, agreement = self.project.figures(taxonomy)
        return {
            "labels": progress.labels,
            "accuracy": progress.accuracy and progress.accuracy._asdict(),
            "random": progress.random and progress.random._asdict(),
            "curve": [{"labels": labels, **_accuracy(share)} for labels, share in progress.curve],
            "levels": [level._asdict() for level in progress.levels],
            "branches": [
                {**self._named([taxonomy.ids[node]])[0], **_accuracy(share), "rows": share.rows}
                for node, share in progress.branches
            ],
            "accept": progress.accept and progress.accept._asdict(),
            "saturation": progress.saturation and {"message": progress.saturation},
            "agreement": agreement and agreement._asdict(),
        }

    async def disagreements(self, asked: schemas.PageQuery) -> Json:
        """Return rows on which people disagree."""
        return await self._service.work(self._disagreements, asked)

    def _disagreements(self, asked: schemas.PageQuery) -> Json:
        with self.project.lock:
            rows = sorted(self.project.ledger.disputed)
            items = [self._disagreement(row) for row in rows[asked.offset : asked.offset + asked.limit]]
        return {"items": items, "total": len(rows), "offset": asked.offset, "limit": asked.limit}

    def _disagreement(self, row: int) -> Json:
        labels = [label for label in self.project.ledger.current(row) if label.action != "skip"]
        shown = [
            {
                "label_id": label.id, "annotator": label.annotator, "time": label.time,
                "nodes": self._named(label.nodes), "note": label.note,
            }
            for label in labels
        ]  # fmt: skip
        return {"id": row, "text": self.project.text(row), "labels": shown}

    # Tables

    async def labels_csv(self, asked: schemas.TableQuery) -> bytes:
        """Return the labelled rows as CSV."""
        return await self._service.work(self._labels_csv, asked)

    def _labels_csv(self, asked: schemas.TableQuery) -> bytes:
        with self.project.lock:
            counted = sorted(self.project.ledger.counted.items())
        rows = (
            (row, self.project.text(row), NODE_SEP.join(label.nodes), label.annotator, label.time, label.note)
            for row, label in counted
        )
        return _csv(LABEL_COLUMNS, rows, asked.escape_formulas)

    async def history_csv(self, asked: schemas.TableQuery) -> bytes:
        """Return every label, skip and undo as CSV, in the order of time."""
        labels = await self._service.with_store(self.project.store.labels)
        return await self._service.work(self._history_csv, labels, asked)

    def _history_csv(self, labels: list[Label], asked: schemas.TableQuery) -> bytes:
        rows = (
            (
                label.id, label.row, self.project.text(label.row), label.action, NODE_SEP.join(label.nodes),
                label.annotator, label.time, label.undone or "", NODE_SEP.join(label.predicted), label.probability,
                label.version, label.reason or "", label.note,
            )
            for label in labels
        )  # fmt: skip
        return _csv(HISTORY_COLUMNS, rows, asked.escape_formulas)


def _check_characters(field: str, text: str) -> None:
    if NUL in text:
        raise invalid(field, f"{quoted(text)} has a NUL character, which is invalid in CSV files; remove it")


def _accuracy(share: Share) -> Json:
    return {"accuracy": share.value, "low": share.low, "high": share.high}


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], escape_formulas: bool) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([escape_formula(cell) if escape_formulas and isinstance(cell, str) else cell for cell in row])
    return text.getvalue().encode(errors="replace")
