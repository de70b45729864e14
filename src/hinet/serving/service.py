"""The endpoints of the service, without HTTP."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from hinet import __version__
from hinet.classifier.fitted import Fitted
from hinet.classifier.saved_model import RowError
from hinet.data.tables.labelled_tables import is_blank
from hinet.engine import Found
from hinet.errors import HiNetError, LabelError, quoted
from hinet.files.database import StoreError, utc_now
from hinet.labelling.project import Project
from hinet.parameters import resolve_threads
from hinet.serving import schemas
from hinet.serving.answers import Question, training_row
from hinet.serving.drift import Counts, ModelKey, report
from hinet.serving.endpoints import Endpoints, Threads, in_thread, run_in, with_store
from hinet.serving.gate import Metrics
from hinet.serving.labelling import Labelling
from hinet.serving.models import Batcher, Correction, Models, ServedModel
from hinet.serving.problems import ProblemError, check_characters, invalid, text_too_long, validation_problem
from hinet.serving.settings import Settings
from hinet.serving.store import Doubt, Entry, Store

MAX_BATCHED = 32  # texts of a request that is answered together with others
MIN_DOUBT = 0.1  # minimum doubt of rows to review
MAX_DOUBT_LENGTH = 10_000  # characters of such a row
MAX_PENDING = 10_000  # rows that wait to be written to the review queue
COUNT_SECONDS = 60.0  # time between writes of the counts of texts
MANIFEST_PARTS = ("format", "blake2b", "model", "parameters", "training_data", "files")  # parts that are shown
REVIEW_QUESTION = Question(3, None, 5, True)  # what is shown of a row in the review queue

Json = dict[str, Any]
Body = TypeVar("Body", bound=BaseModel)

log = logging.getLogger("hinet.serving")

ENDPOINTS = Endpoints()


class Service:
    """Models, the feedback store, and what answers requests; methods for requests may run in threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.store = None
        if settings.feedback is not None:
            self.store = Store.open(settings.feedback, lock_seconds=settings.lock_seconds)
        searches = resolve_threads(settings.threads)
        self.threads = Threads(searches)
        self.labelling: Labelling | None = None
        folders = dict(settings.models)
        if settings.project is not None:
            project = Project(settings.project)
            self.labelling = Labelling(self, project)
            folders = {project.name: project.folder.model, **folders}
        self.models = Models(folders, 1, settings.encoders, self._corrections, self._loaded)  # one thread per search
        self.counts = Counts(settings.feedback, settings.lock_seconds)
        self._counted = monotonic()  # when the counts were written
        self._counting = Lock()
        self._batcher = Batcher(self.threads.searching, searches, self.metrics.batches.observe, self._observe)
        self._doubts: deque[Doubt] = deque(maxlen=MAX_PENDING)
        self._flushing = Lock()

    @asynccontextmanager
    async def running(self, on_failure: Callable[[HiNetError], None]) -> AsyncIterator[None]:
        """Load models and watch their folders in the background, or call ``on_failure``; finally close the service."""
        task = asyncio.create_task(self._load_and_watch(on_failure))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.to_thread(self.close)

    async def _load_and_watch(self, on_failure: Callable[[HiNetError], None]) -> None:
        try:
            await self.load()
        except HiNetError as error:
            on_failure(error)
            return
        except Exception as error:
            log.exception("the service cannot start")
            on_failure(HiNetError(f"the service cannot start: {type(error).__name__}: {error}"))
            return
        await self.watch()

    async def load(self) -> None:
        """Load all models, or raise HiNetError if none can be served."""
        await run_in(self.threads.loading, self._load)

    def _load(self) -> None:
        results = self.models.load_all()
        gc.collect()
        self._count_loads(results)
        try:
            self.count(0)
        except StoreError as error:
            log.warning("%s", error)
        log.info("ready: %s", ", ".join(f"{name} {self.models.get(name).version}" for name in self.models.names))

    def _reload(self) -> None:
        """Load models whose folders have changed."""
        self._count_loads(self.models.refresh())

    def _count_loads(self, results: Sequence[tuple[str, bool]]) -> None:
        for name, is_served in results:
            self.metrics.loads.labels(name, "loaded" if is_served else "refused").inc()
        if results:
            gc.freeze()  # exclude models from garbage collections, which stop all requests

    def _loaded(self, model: ServedModel) -> None:
        if self.labelling is not None:
            self.labelling.use_model(model)

    def _retrain(self) -> None:
        """Train the model of the labelling project if it is due."""
        if self.labelling is not None:
            self.labelling.project.retrain()

    async def watch(self) -> None:
        """Load changed models, train, and write the review queue until cancelled; failures are logged."""
        loading, storing = self.threads.loading, self.threads.storing
        while True:
            await asyncio.sleep(self.settings.poll)
            for name, pool, task in (
                ("starting a training", loading, self._retrain),
                ("loading changed models", loading, self._reload),
                ("writing the review queue", storing, self.flush),
                ("comparing texts", loading, self.counts.measure),
                ("writing the counts of texts", storing, self.count),
            ):
                try:
                    await run_in(pool, task)
                except StoreError as error:  # such as on a full disk
                    log.warning("%s failed: %s", name, error)
                except Exception:
                    log.exception("%s failed", name)

    def flush(self) -> None:
        """Write pending rows to the review queue; if it cannot be written now, they stay pending.

        After it returns, all rows that were pending are in the queue, whichever thread wrote them.
        """
        with self._flushing:
            doubts = [self._doubts.popleft() for _ in range(len(self._doubts))]
            if doubts and self.store is not None:
                try:
                    self.store.enqueue(doubts, self.settings.review)
                except StoreError:
                    self._doubts.extendleft(reversed(doubts))
                    raise

    def _observe(self, model: ServedModel, fitted: Fitted, rows: Any, found: Found) -> None:
        """Count answered texts; a failure must not cost the answer."""
        try:
            self.counts.observe(ModelKey(model.name, model.version), fitted, rows, found)
        except Exception:
            log.exception("model %s: texts could not be counted", model.name)

    def count(self, seconds: float = COUNT_SECONDS) -> None:
        """Write the counts of texts if ``seconds`` have passed since the last time, and compare the last days."""
        with self._counting:
            if monotonic() - self._counted < seconds:
                return
            self._counted = monotonic()
            self._compare_days()

    def _compare_days(self) -> None:
        self.counts.flush()
        keys = [ModelKey(name, self.models.get(name).version) for name in self.models.names]
        self.counts.load(keys)
        for key in keys:
            found = report(self.counts.days(key))
            if self.metrics.set_drift(*key, found) and found is not None:
                names = ", ".join(each["signal"] for each in found["signals"] if each["differs"])
                log.warning("model %s: texts differ from those of its first days: %s", key.model, names)

    def close(self) -> None:
        """Stop all threads, and close the store."""
        self.threads.close()
        if self.labelling is not None:
            self.labelling.project.close()
        if self.store is not None:
            try:
                self.flush()
            except StoreError as error:
                log.warning("pending rows for review are lost: %s", error)
            self.store.close()
        try:
            self.counts.flush()
        except StoreError as error:
            log.warning("counts of texts are lost: %s", error)
        self.counts.close()

    # Classify

    @ENDPOINTS.add("POST /v1/classify", schemas.ClassifyResponse, "Classify texts or rows")
    async def classify(self, asked: schemas.ClassifyRequest) -> Json:
        """Classify texts or rows."""
        model = self.models.get(asked.model)
        threshold = self.threshold(model, asked.min_confidence)
        allowed = tuple(asked.within), tuple(asked.exclude)
        await self._check_branches(model, *allowed)
        question = Question(asked.top, threshold, asked.siblings, asked.unknown_words, *allowed)
        _check_one_given(asked, "text", "texts", "rows")
        if asked.rows is not None:
            self._check_count("rows", len(asked.rows))
            given: Sequence[Any] = asked.rows
            results = await self._answer(model, given, question)
        else:
            given = self._check_texts(model, [asked.text or ""] if asked.texts is None else asked.texts)
            if len(given) <= MAX_BATCHED:
                results = await self._batcher.answer(model, given, question)
            else:
                results = await self._answer(model, given, question)
        self.metrics.texts.labels(model.name).inc(len(results))
        if self.settings.review:
            self._add_doubts(model, given, results)
        return _of(model, {"results": results})

    @in_thread
    def _answer(self, model: ServedModel, given: Sequence[Any], question: Question) -> list[Json]:
        inputs = _inputs(model, given, "rows[{}]")
        return model.answerer.answer(inputs, question, partial(self._observe, model))

    def _check_texts(self, model: ServedModel, texts: list[str]) -> list[str]:
        name = "text" if len(texts) == 1 else "texts"
        if model.model.reads_rows:
            columns = ", ".join(model.model.columns.inputs)
            raise invalid(name, f"the model reads the columns {columns}; send rows")
        self._check_count(name, len(texts))
        for number, text in enumerate(texts):
            if len(text) > self.settings.max_length:
                raise text_too_long(name if len(texts) == 1 else f"texts[{number}]", self.settings.max_length)
        return texts

    def _check_count(self, name: str, count: int) -> None:
        if count > self.settings.max_texts:
            message = f"{count:,} are more than {self.settings.max_texts:,}; send several requests, or a file"
            raise invalid(name, message, status=413, kind="too-large")

    async def _check_branches(self, model: ServedModel, within: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        """Raise ProblemError, which names the field, unless labels are left."""
        for field, excluded in (("within", ()), ("exclude", exclude)):
            try:
                if within or excluded:
                    await run_in(self.threads.working, model.answerer.restricted, within, excluded)
            except HiNetError as error:
                raise invalid(field, str(error)) from None

    def threshold(self, model: ServedModel, min_confidence: float | Literal["calibrated"] | None) -> float | None:
        """Return the minimum probability of an answer, which may be the calibrated threshold of the model."""
        if min_confidence != "calibrated":
            return min_confidence
        bound = model.model.risk_bound
        if bound is None:
            raise invalid("min_confidence", "the model has no calibrated threshold; give a number")
        return bound.threshold

    def _add_doubts(self, model: ServedModel, given: Sequence[Any], results: Sequence[Json]) -> None:
        """Add rows with doubtful answers to those that wait for the review queue."""
        received = utc_now()
        for row, result in zip(given, results, strict=True):
            if result["traces"]:
                best = result["traces"][0]
                unsure = 1 - best["probability"]
                if unsure >= MIN_DOUBT and len(row if isinstance(row, str) else orjson.dumps(row)) <= MAX_DOUBT_LENGTH:
                    split = 1 - best["steps"][0]["probability"] if best["steps"] else 0.0
                    self._doubts.append(Doubt(received, model.name, row, unsure, split))

    @ENDPOINTS.add("POST /v1/explain", schemas.ExplainResponse, "The words behind every step")
    @in_thread
    def explain(self, asked: schemas.ExplainRequest) -> Json:
        """Explain every step of an answer by its words."""
        model = self.models.get(asked.model)
        given = self._one(model, asked.text, asked.row)
        node = None if asked.node is None else model.node(asked.node, "node")
        if node is not None and node not in model.model.fitted.codec.label_nodes:
            raise invalid("node", "the model never predicts this node; name one that is a label")
        inputs = _inputs(model, [given], "row")
        try:
            return _of(model, model.answerer.explain(inputs, node, asked.words))
        except LabelError as error:
            raise invalid("node", str(error)) from None

    def _one(self, model: ServedModel, text: str | None, row: Json | None) -> str | Json:
        """Return the one text or row of a request."""
        if row is not None and text is None:
            return row
        if text is None or row is not None:
            raise invalid("text", "give exactly one of text, row")
        return self._check_texts(model, [text])[0]

    # Taxonomy

    @ENDPOINTS.add("GET /v1/taxonomy", schemas.NodePage, "A node and its children")
    async def taxonomy(self, asked: schemas.NodeQuery) -> Json:
        """Return a node with a page of its children."""
        model = self.models.get(asked.model)
        taxonomy = model.model.fitted.codec.taxonomy
        if asked.node is not None and asked.node not in taxonomy:
            raise ProblemError(404, "not-found", "there is no such node in the taxonomy")
        node = taxonomy.root if asked.node is None else taxonomy.position(asked.node)
        return _of(model, model.nodes.page(node, asked.offset, asked.limit))

    @ENDPOINTS.add("GET /v1/taxonomy/search", schemas.MatchPage, "Search the taxonomy")
    @in_thread
    def search(self, asked: schemas.SearchQuery) -> Json:
        """Search the taxonomy."""
        model = self.models.get(asked.model)
        return _of(model, model.nodes.search(asked.q, asked.offset, asked.limit))

    # Feedback

    @ENDPOINTS.add("POST /v1/feedback", schemas.FeedbackResponse, "Keep a verdict", 201)
    async def feedback(self, asked: schemas.FeedbackRequest) -> Json:
        """Store a verdict, and return once it is on disk."""
        kept, correction = await self._stored(asked)
        return {**kept, "learned": correction is not None and await self._remembered(kept["model"], correction)}

    @with_store
    def _stored(self, asked: schemas.FeedbackRequest) -> tuple[Json, Correction | None]:
        """Store a verdict; return what the answer says of it, and the correction that the model should remember."""
        model, store = self.models.get(asked.model), self._open_store()
        given = _given(model, store, asked)
        kept = {"model": model.name, "received": utc_now()}
        if asked.verdict == "skip":
            if asked.review is None or asked.nodes:
                raise invalid(
                    "verdict", "skip removes a row from the review queue: give its id as review without nodes"
                )
            store.skip(model.name, asked.review)
            return {"id": asked.review, **kept}, None
        key, row = self._training_row(model, given, asked.nodes)
        entry = Entry(
            0, kept["received"], model.name, model.version, asked.verdict, row, asked.nodes, asked.predicted
        )  # fmt: skip
        number = store.add(entry, key, asked.review)
        self.metrics.feedback.labels(model.name, asked.verdict).inc()
        return {"id": number, **kept}, Correction(row, asked.nodes[0]) if len(asked.nodes) == 1 else None

    @in_thread
    def _remembered(self, name: str, correction: Correction) -> bool:
        return self.learn(name, correction)

    def learn(self, name: str, correction: Correction) -> bool:
        """Let a model remember what is on disk already; return whether it could."""
        try:
            return self.models.correct(name, correction)
        except Exception:
            log.exception("model %s could not remember feedback", name)
            return False

    def _corrections(self, name: str, manifest: Mapping[str, Any]) -> list[Correction]:
        """Return the last verdict on each text of a model, or its labels since training, with the right node."""
        if self.labelling is not None and name == self.labelling.project.name:
            return self.labelling.corrections(manifest)
        if self.store is None:
            return []
        verdicts = self.store.training_rows(name)
        return [Correction(verdict.row, verdict.nodes[0]) for verdict in verdicts if len(verdict.nodes) == 1]

    def _training_row(self, model: ServedModel, given: Any, names: Sequence[str]) -> tuple[Any, Json]:
        """Return the key of feedback and its training row; raise ProblemError if no model could learn from it."""
        if not names:
            raise invalid("nodes", "name the correct node")
        is_text = isinstance(given, str)
        field = "text" if is_text else "row"
        self._one(model, *((given, None) if is_text else (None, given)))
        nodes = [model.node(name, f"nodes[{number}]") for number, name in enumerate(names)]
        inputs = _inputs(model, [given], "row")
        if not model.model.reads_rows and is_blank(inputs[0]):
            raise invalid(field, f"the text is blank: {quoted(inputs[0])}; send the text that was classified")
        try:
            row = training_row(model.model, given, list(dict.fromkeys(nodes)))
        except HiNetError as error:
            raise invalid("nodes", str(error)) from None
        for name, cell in row.items():
            if isinstance(cell, str):
                check_characters(field, cell, f"{name}: ")
        return given if model.model.reads_rows else inputs[0], row

    @ENDPOINTS.add("GET /v1/feedback", schemas.FeedbackPage, "List feedback")
    @with_store
    def list_feedback(self, asked: schemas.FeedbackQuery) -> Json:
        """Return feedback, the newest first."""
        model = self.models.get(asked.model)
        entries, total = self._open_store().page(model.name, asked.offset, asked.limit)
        items = [{name: value for name, value in entry._asdict().items() if name != "model"} for entry in entries]
        return _of(model, {"items": items, "total": total, **asked.place})

    @ENDPOINTS.add("DELETE /v1/feedback/{id}", None, "Delete feedback", 204)
    @with_store
    def delete_feedback(self, id: schemas.Id) -> None:
        """Delete feedback by id."""
        if self._open_store().delete([id]):
            raise ProblemError(404, "not-found", f"there is no feedback {id}")
        self.models.correct_again()

    def _open_store(self) -> Store:
        if self.store is None:
            raise ProblemError(409, "not-enabled", "start the service with --feedback FILE to keep feedback")
        return self.store

    @ENDPOINTS.add("GET /v1/review", schemas.ReviewPage, "Rows to review")
    async def review(self, asked: schemas.ReviewQuery) -> Json:
        """Return the most doubtful rows of the review queue, with the answers of the current model."""
        model = self.models.get(asked.model)
        if not self.settings.review:
            raise ProblemError(409, "not-enabled", "start the service with --review for a review queue")
        items, total = await self._most_doubtful(asked, model.name)
        return await self._reviewed(asked, model, items, total)

    @with_store
    def _most_doubtful(self, asked: schemas.ReviewQuery, name: str) -> tuple[Sequence[Doubt], int]:
        store = self._open_store()
        self.flush()
        return store.queue(name, asked.order, asked.offset, asked.limit)

    @in_thread
    def _reviewed(self, asked: schemas.ReviewQuery, model: ServedModel, items: Sequence[Doubt], total: int) -> Json:
        shown = []
        for item in items:
            text, row = (item.input, None) if isinstance(item.input, str) else (None, item.input)
            result = _review_result(model, item.input)
            shown.append(
                {
                    "id": item.id, "text": text, "row": row, "received": item.received, "unsure": item.unsure,
                    "split": item.split, "result": result,
                }
            )  # fmt: skip
        return _of(model, {"items": shown, "total": total, **asked.place})

    @property
    def project(self) -> Labelling:
        """The labelling project; raise ProblemError if there is none."""
        if self.labelling is None:
            raise ProblemError(404, "not-found", "there is no labelling project; begin one with 'hinet start'")
        self.models.get(self.labelling.project.name)
        return self.labelling

    # Models

    @ENDPOINTS.add("GET /v1/models", schemas.ModelList, "List the served models", name="models")
    async def list_models(self) -> Json:
        """Return the served models, and the limits of the service."""
        self.models.check_ready()
        settings = self.settings
        limits = {
            "body_bytes": settings.max_body, "file_bytes": settings.max_file, "texts": settings.max_texts,
            "text_length": settings.max_length, "seconds": settings.seconds,
        }  # fmt: skip
        service = {
            "hinet": __version__, "feedback": self.store is not None, "review": settings.review > 0,
            "project": self.labelling is not None, "limits": limits,
        }  # fmt: skip
        return {
            "models": [self.models.describe(name) for name in self.models.names],
            "failed": [{"name": name, "problem": problem} for name, problem in self.models.failed.items()],
            "service": service,
        }

    @ENDPOINTS.add("GET /v1/models/{name}", schemas.ModelDetails, "A model with its evaluation", name="model")
    @in_thread
    def show_model(self, name: str) -> Json:
        """Describe a model, with its evaluation if there is one."""
        model = self.models.get(name)
        try:
            evaluation = model.evaluation()
        except HiNetError as error:
            log.warning("model %s: %s", name, error)
            evaluation = None
        manifest = {part: model.model.manifest[part] for part in MANIFEST_PARTS}
        texts = report(self.counts.days(ModelKey(name, model.version)))
        return {**self.models.describe(name), "manifest": manifest, "evaluation": evaluation, "texts": texts}


def parse(kind: type[Body], body: bytes) -> Body:
    """Return a JSON body, or raise ProblemError with the invalid fields."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise validation_problem(error, kind.model_fields) from None


def _check_one_given(asked: BaseModel, *names: str) -> None:
    """Raise ProblemError unless exactly one of some fields is given."""
    given = [name for name in names if getattr(asked, name) is not None]
    if len(given) != 1:
        raise invalid(given[-1] if given else names[0], f"give exactly one of {', '.join(names)}")


def _inputs(model: ServedModel, given: Sequence[Any], field: str) -> Any:
    """Return texts or rows as the model reads them, or raise ProblemError; ``field`` names a row by its number."""
    if isinstance(given[0], str):
        return given
    try:
        return model.model.inputs_of(given)
    except RowError as error:
        raise invalid(field.format(error.row), str(error)) from None


def _given(model: ServedModel, store: Store, asked: schemas.FeedbackRequest) -> Any:
    """Return the text or row of feedback, which may come from the review queue."""
    if asked.text is not None and asked.row is not None:
        raise invalid("row", "give only one of text, row")
    given: Any = asked.text if asked.row is None else asked.row
    if asked.review is None:
        return given
    item = store.queued(model.name, asked.review)
    if item is None:
        raise invalid("review", "this row is not in the review queue", status=404, kind="not-found")
    if given is not None and given != item.input:
        raise invalid("review", "the text or row differs from the one in the review queue; leave it out")
    return item.input


def _of(model: ServedModel, values: Mapping[str, Any]) -> Json:
    return {"model": model.name, "version": model.version, **values}


def _review_result(model: ServedModel, given: Any) -> Json:
    """Answer a row of the review queue; a row that the current model cannot read has an empty answer."""
    try:
        row = [given] if isinstance(given, str) else model.model.inputs_of([given])
        return model.answerer.answer(row, REVIEW_QUESTION)[0]
    except HiNetError:
        return {"labels": [], "traces": [], "unknown_words": []}
