"""The endpoints of a labelling project, without HTTP."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hinet.data.tables.labelled_tables import is_blank
from hinet.data.tables.writing import escape_formula
from hinet.errors import quoted
from hinet.files.database import utc_now
from hinet.labelling.folder import NODE_SEP
from hinet.labelling.project import Project
from hinet.labelling.queue import LEASE_SECONDS
from hinet.labelling.store import Label
from hinet.serving import labelling_schemas as schemas
from hinet.serving.answers import Question
from hinet.serving.endpoints import Endpoints, in_thread, with_store
from hinet.serving.models import Correction, ServedModel
from hinet.serving.problems import ProblemError, check_characters, invalid, text_too_long
from hinet.serving.schemas import Id, PageQuery

if TYPE_CHECKING:
    from hinet.serving.service import Service

SUGGESTIONS = Question(5)
ANSWER = Question()
LABEL_COLUMNS = ("id", "text", "label", "annotator", "time", "note")
HISTORY_COLUMNS = (
    "label_id", "id", "text", "action", "nodes", "annotator", "time", "undone", "predicted", "probability", "version",
    "reason", "note",
)  # fmt: skip

Json = dict[str, Any]
ENDPOINTS = Endpoints()


class Labelling:
    """A labelling project and its model."""

    def __init__(self, service: Service, project: Project) -> None:
        self._service, self.project, self.threads = service, project, service.threads

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

    @ENDPOINTS.add("GET /v1/project", schemas.Project, "The labelling project", name="project")
    @in_thread
    def status(self) -> Json:
        """Return counts, people, and the state of the model."""
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

    @ENDPOINTS.add("POST /v1/project/next", schemas.NextResponse, "Rows most worth a label")
    @in_thread
    def next_rows(self, asked: schemas.NextRequest) -> Json:
        """Lend rows to a person, with the best answers."""
        project, answerer = self.project, self._model.answerer
        self._check_rows("ids", asked.ids)
        if asked.ids:
            lent, left = project.queue.lend(asked.ids)
        else:
            lent, left = project.next_rows(asked.annotator.strip(), asked.count)
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
            if row > len(self.project.texts):
                raise invalid(field, f"there is no row {row}", status=404, kind="not-found")

    @ENDPOINTS.add("POST /v1/project/rows", schemas.RowsResponse, "Add rows", 201)
    @with_store
    def add_rows(self, asked: schemas.RowsRequest) -> Json:
        """Add texts as rows."""
        max_length = self._service.settings.max_length
        for number, text in enumerate(asked.texts):
            field = f"texts[{number}]"
            if is_blank(text):
                raise invalid(field, f"the text is blank: {quoted(text)}; leave it out")
            if len(text) > max_length:
                raise text_too_long(field, max_length)
            check_characters(field, text)
        return self.project.add_texts(asked.texts)._asdict()

    # Labels

    @ENDPOINTS.add(
        "POST /v1/project/labels", schemas.LabelResponse, "Label or skip a row, or settle a disagreement", 201
    )
    @with_store
    def label(self, asked: schemas.LabelRequest) -> Json:
        """Predict a row, then write its label to disk and let the model remember it."""
        project, model, annotator = self.project, self._model, asked.annotator.strip()
        self._check_rows("id", [asked.id])
        nodes = self._nodes(asked)
        check_characters("annotator", asked.annotator)
        check_characters("note", asked.note)
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
        if change.after == label and len(nodes) == 1:
            correction = Correction({"text": project.text(label.row)}, nodes[0])
            learned = self._service.learn(project.name, correction)
        if change.before is not None and not learned and change.before != change.after:
            self._service.models.correct_again()  # the model forgets the label that counted before
        return {
            "label_id": label.id, "id": label.row, "time": label.time, "predicted": predicted,
            "probability": probability, "right": None if asked.skip else label.is_right, "learned": learned,
        }  # fmt: skip

    def _nodes(self, asked: schemas.LabelRequest) -> tuple[str, ...]:
        """Return the nodes of a label, or raise ProblemError."""
        if asked.skip:
            if asked.nodes or asked.settle:
                raise invalid("skip", "a skipped row has no nodes, and settles nothing; leave them out")
            return ()
        nodes = tuple(dict.fromkeys(asked.nodes))
        if not nodes:
            raise invalid("nodes", "name the right node, or skip the row")
        if len(nodes) > 1 and not self.project.settings.several:
            raise invalid("nodes", "rows of this project have one label; send one node")
        for number, name in enumerate(asked.nodes):
            self._model.node(name, f"nodes[{number}]")
        return nodes

    @ENDPOINTS.add("DELETE /v1/project/labels/{label_id}", None, "Undo", 204)
    @with_store
    def undo(self, label_id: Id) -> None:
        """Take a label or skip back."""
        with self.project.lock:
            label = self.project.ledger.find(label_id)
        if label is None:
            raise ProblemError(404, "not-found", f"there is no label {label_id} that counts")
        change = self.project.undo(label)
        if change.before != change.after:
            self._service.models.correct_again()

    @ENDPOINTS.add("GET /v1/project/labels", schemas.LabelPage, "Labels, newest first")
    @in_thread
    def labels(self, asked: schemas.LabelQuery) -> Json:
        """Return the labels and skips that count, the newest first."""
        with self.project.lock:
            labels = self.project.ledger.newest(None if asked.annotator is None else asked.annotator.strip())
        items = [
            {
                **self._shown(label), "id": label.row, "text": self.project.text(label.row),
                "skip": label.action == "skip", "settle": label.action == "settle", "predicted": label.predicted,
                "probability": label.probability,
            }
            for label in labels[asked.offset : asked.offset + asked.limit]
        ]  # fmt: skip
        return {"items": items, "total": len(labels), **asked.place}

    def _shown(self, label: Label) -> Json:
        """Return a label with the titles of its nodes."""
        nodes = self._model.nodes
        return {
            "label_id": label.id, "annotator": label.annotator, "time": label.time, "note": label.note,
            "nodes": [nodes.named(nodes.taxonomy.position(node)) for node in label.nodes],
        }  # fmt: skip

    # How good it is

    @ENDPOINTS.add("GET /v1/project/progress", schemas.Progress, "How good the model is")
    @in_thread
    def progress(self) -> Json:
        """Return the accuracy as it came, and agreement."""
        progress, agreement = self.project.figures(self._model.model.fitted.codec.taxonomy)
        saturation = progress.saturation and {"message": progress.saturation}
        return {**vars(progress), "saturation": saturation, "agreement": agreement}

    @ENDPOINTS.add("GET /v1/project/disagreements", schemas.DisagreementPage, "Rows on which people disagree")
    @in_thread
    def disagreements(self, asked: PageQuery) -> Json:
        """Return rows on which people disagree."""
        with self.project.lock:
            rows = sorted(self.project.ledger.disputed)
            items = [self._disagreement(row) for row in rows[asked.offset : asked.offset + asked.limit]]
        return {"items": items, "total": len(rows), **asked.place}

    def _disagreement(self, row: int) -> Json:
        labels = [self._shown(label) for label in self.project.ledger.current(row) if label.action != "skip"]
        return {"id": row, "text": self.project.text(row), "labels": labels}

    # Tables

    @in_thread
    def labels_csv(self, asked: schemas.TableQuery) -> bytes:
        """Return the labelled rows as CSV."""
        with self.project.lock:
            counted = sorted(self.project.ledger.counted.items())
        rows = (
            (row, self.project.text(row), NODE_SEP.join(label.nodes), label.annotator, label.time, label.note)
            for row, label in counted
        )
        return _csv(LABEL_COLUMNS, rows, asked.escape_formulas)

    @with_store
    def history_csv(self, asked: schemas.TableQuery) -> bytes:
        """Return every label, skip and undo as CSV, in the order of time."""
        rows = (
            (
                label.id, label.row, self.project.text(label.row), label.action, NODE_SEP.join(label.nodes),
                label.annotator, label.time, label.undone or "", NODE_SEP.join(label.predicted), label.probability,
                label.version, label.reason or "", label.note,
            )
            for label in self.project.store.labels()
        )  # fmt: skip
        return _csv(HISTORY_COLUMNS, rows, asked.escape_formulas)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], escape_formulas: bool) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([escape_formula(cell) if escape_formulas and isinstance(cell, str) else cell for cell in row])
    return text.getvalue().encode(errors="replace")
