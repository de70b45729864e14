"""The endpoints of the service, without HTTP."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Literal, TypeVar, TypeVarTuple

import orjson
from pydantic import BaseModel, ValidationError

from hinet import __version__
from hinet.classifier.fitted import Fitted
from hinet.classifier.saved_model import RowError
from hinet.data.tables.labelled_tables import is_blank
from hinet.engine import Found
from hinet.errors import HiNetError, LabelError, quoted
from hinet.files.database import StoreError
from hinet.labelling.project import Project
from hinet.parameters import resolve_threads
from hinet.serving import schemas
from hinet.serving.answers import Question, training_row
from hinet.serving.corrections import Correction
from hinet.serving.drift import Counts, ModelKey, Observation, report
from hinet.serving.gate import Metrics
from hinet.serving.labelling import Labelling
from hinet.serving.models import Batcher, Models, ServedModel, utc_now
from hinet.serving.problems import ProblemError, invalid, validation_problem
from hinet.serving.settings import Settings
from hinet.serving.store import Doubt, Feedback, Store
from hinet.taxonomy import VIRTUAL_ROOT

WORKERS = 4  # threads for requests other than small searches
TABLE_WORKERS = 2  # threads for tables, which take turns block by block
MAX_BATCHED = 32  # texts of a request that is answered together with others
MIN_DOUBT = 0.1  # minimum doubt of rows to review
MAX_DOUBT_LENGTH = 10_000  # characters of such a row
MAX_PENDING = 10_000  # rows that wait to be written to the review queue
COUNT_SECONDS = 60.0  # time between writes of the counts of texts
RETRY_SECONDS = 5  # time after which to retry if feedback cannot be stored
MANIFEST_PARTS = ("format", "blake2b", "model", "parameters", "training_data", "files")  # parts that are shown
REVIEW_QUESTION = Question(3, None, 5, True)  # what is shown of a row in the review queue

NUL = "\0"

Json = dict[str, Any]
Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

log = logging.getLogger("hinet.serving")


class Service:
    """Models, the feedback store, and threads that answer requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.store = (
            None if settings.feedback is None else Store.open(settings.feedback, lock_seconds=settings.lock_seconds)
        )
        self.labelling = None if settings.project is None else Labelling(self, Project(settings.project))
        folders = dict(settings.models) if self.labelling is None else {**self.labelling.models, **settings.models}
        self.models = Models(folders, 1, settings.encoders, self._corrections, self._loaded)  # one thread per search
        searches = resolve_threads(settings.threads)
        self._searching = ThreadPoolExecutor(searches, "search")
        self._working = ThreadPoolExecutor(WORKERS, "work")
        self._tables = ThreadPoolExecutor(TABLE_WORKERS, "table")
        self._loading = ThreadPoolExecutor(1, "load")
        self._storing = ThreadPoolExecutor(1, "store")  # only feedback requests wait for a lock on the file
        self.counts = Counts(settings.feedback, settings.lock_seconds)
        self._counted = monotonic()  # when the counts were written
        self._counting = Lock()
        self._batcher = Batcher(self._searching, searches, self.metrics.batches.observe, self._observe)
        self._doubts: deque[Doubt] = deque(maxlen=MAX_PENDING)
        self._flushing = Lock()

    async def work(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of a function that runs in a thread."""
        return await _run(self._working, work, *arguments)

    async def work_on_table(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of a function that reads or answers one block of a table."""
        return await _run(self._tables, work, *arguments)

    async def load_models(self) -> None:
        """Load all models, or raise HiNetError."""
        await _run(self._loading, self.load)

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
            await self.load_models()
        except HiNetError as error:
            on_failure(error)
            return
        except Exception as error:
            log.exception("the service cannot start")
            on_failure(HiNetError(f"the service cannot start: {type(error).__name__}: {error}"))
            return
        await self.watch()

    async def with_store(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of a function that reads or writes a database, or raise ProblemError if it cannot now.

        Such functions run one after the other.
        """
        try:
            return await _run(self._storing, work, *arguments)
        except StoreError as error:
            log.warning("%s", error)
            headers = {"Retry-After": str(RETRY_SECONDS)}
            raise ProblemError(503, "store-unavailable", error.message, headers=headers) from None

    def load(self) -> None:
        """Load all models, or raise HiNetError if none can be served."""
        results = self.models.load_all()
        gc.collect()
        self._count_loads(results)
        try:
            self.count(0)
        except StoreError as error:
            log.warning("%s", error)
        log.info("ready: %s", ", ".join(f"{name} {self.models.get(name).version}" for name in self.models.names))

    def reload(self) -> None:
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

    def retrain(self) -> None:
        """Train the model of the labelling project if it is due."""
        if self.labelling is not None:
            self.labelling.project.retrain()

    async def watch(self) -> None:
        """Load changed models, train, and write the review queue until cancelled; failures are logged."""
        while True:
            await asyncio.sleep(self.settings.poll)
            for name, pool, task in (
                ("starting a training", self._loading, self.retrain),
                ("loading changed models", self._loading, self.reload),
                ("writing the review queue", self._storing, self.flush),
                ("comparing texts", self._loading, self.counts.measure),
                ("writing the counts of texts", self._storing, self.count),
            ):
                try:
                    await _run(pool, task)
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
            self.counts.observe(Observation(ModelKey(model.name, model.version), fitted, rows, found))
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
        """Write the counts of texts, and report the models whose last days differ."""
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
        for pool in (self._searching, self._working, self._tables, self._loading, self._storing):
            pool.shutdown(cancel_futures=True)
        if self.labelling is not None:
            self.labelling.close()
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

    async def classify(self, body: bytes) -> bytes:
        """Classify texts or rows."""
        asked = parse(schemas.ClassifyRequest, body)
        model = self.models.get(asked.model)
        threshold = self.threshold(model, asked.min_confidence)
        allowed = tuple(asked.within), tuple(asked.exclude)
        await self._check_branches(model, *allowed)
        question = Question(asked.top, threshold, asked.siblings, asked.unknown_words, *allowed)
        given: Sequence[Any]
        if _only(asked, "text", "texts", "rows") == "rows":
            given = asked.rows or ()
            results = await self._answer_rows(model, given, question, partial(self._observe, model))
        else:
            texts = [asked.text] if asked.texts is None else asked.texts
            given = self._check_texts(model, texts)
            if len(given) <= MAX_BATCHED:
                results = await self._batcher.answer(model, given, question)
            else:
                results = await self.work(model.answerer.answer, given, question, partial(self._observe, model))
        self.metrics.texts.labels(model.name).inc(len(results))
        if self.settings.review:
            self._add_doubts(model, given, results)
        return orjson.dumps(_of(model, {"results": results}))

    def _check_texts(self, model: ServedModel, texts: Sequence[str | None]) -> list[str]:
        name = "text" if len(texts) == 1 else "texts"
        if model.model.reads_rows:
            columns = ", ".join(model.model.columns.inputs)
            raise invalid(name, f"the model reads the columns {columns}; send rows")
        self._check_count(name, len(texts))
        checked = []
        for number, text in enumerate(texts):
            if text is None or len(text) > self.settings.max_length:
                field = name if len(texts) == 1 else f"texts[{number}]"
                message = f"the text has more than {self.settings.max_length:,} characters"
                raise invalid(field, message, status=413, kind="too-large")
            checked.append(text)
        return checked

    def _check_count(self, name: str, count: int) -> None:
        if count > self.settings.max_texts:
            message = f"{count:,} are more than {self.settings.max_texts:,}; send several requests, or a file"
            raise invalid(name, message, status=413, kind="too-large")

    async def _answer_rows(
        self, model: ServedModel, rows: Sequence[Json], question: Question, observe: Callable[..., None]
    ) -> list[Json]:
        self._check_count("rows", len(rows))
        try:
            return await self.work(lambda: model.answerer.answer(model.model.inputs_of(rows), question, observe))
        except RowError as error:
            raise invalid(f"rows[{error.row}]", str(error)) from None

    async def _check_branches(self, model: ServedModel, within: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        """Raise ProblemError, which names the field, unless labels are left."""
        for field, excluded in (("within", ()), ("exclude", exclude)):
            try:
                if within or excluded:
                    await self.work(model.answerer.restricted, within, excluded)
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

    async def explain(self, body: bytes) -> bytes:
        """Explain every step of an answer by its words."""
        asked = parse(schemas.ExplainRequest, body)
        model = self.models.get(asked.model)
        given = self._one(model, asked.text, asked.row)
        node = None if asked.node is None else self._label_node(model, asked.node)
        inputs = await self._inputs(model, given)
        try:
            explanation = await self.work(model.answerer.explain, inputs, node, asked.words)
        except LabelError as error:
            raise invalid("node", str(error)) from None
        return orjson.dumps(_of(model, explanation))

    def _one(self, model: ServedModel, text: str | None, row: Json | None) -> str | Json:
        """Return the one text or row of a request."""
        if (text is None) == (row is None):
            raise invalid("text", "give exactly one of text, row")
        return self._check_texts(model, [text])[0] if row is None else row

    async def _inputs(self, model: ServedModel, given: str | Json) -> Any:
        if isinstance(given, str):
            return [given]
        try:
            return await self.work(model.model.inputs_of, [given])
        except RowError as error:
            raise invalid("row", str(error)) from None

    def _label_node(self, model: ServedModel, name: str) -> int:
        node = _position(model, name)
        if node not in model.model.fitted.codec.label_nodes:
            raise invalid("node", "the model never predicts this node; name one that is a label")
        return node

    # Taxonomy

    async def nodes(self, asked: schemas.NodeQuery) -> Json:
        """Return a node with a page of its children."""
        model = self.models.get(asked.model)
        taxonomy = model.model.fitted.codec.taxonomy
        if asked.node is None:
            node = taxonomy.root
        elif asked.node in taxonomy:
            node = taxonomy.position(asked.node)
        else:
            raise ProblemError(404, "not-found", "there is no such node in the taxonomy")
        return _of(model, model.answerer.nodes.page(node, asked.offset, asked.limit))

    async def search(self, asked: schemas.SearchQuery) -> Json:
        """Search the taxonomy."""
        model = self.models.get(asked.model)
        return _of(model, await self.work(model.answerer.nodes.search, asked.q, asked.offset, asked.limit))

    # Feedback

    async def feedback(self, body: bytes) -> Json:
        """Store a verdict, and return once it is on disk."""
        asked = parse(schemas.FeedbackRequest, body)
        model = self.models.get(asked.model)
        store = self._open_store()
        given = await self._given(model, store, asked)
        received = utc_now()
        if asked.verdict == "skip":
            if asked.review is None or asked.nodes:
                raise invalid(
                    "verdict", "skip removes a row from the review queue: give its id as review without nodes"
                )
            await self.with_store(store.skip, model.name, asked.review)
            return {"id": asked.review, "model": model.name, "received": received, "learned": False}
        key, row = await self._training_row(model, given, asked.nodes)
        feedback = Feedback(
            received, model.name, model.version, asked.verdict, row, asked.nodes, asked.predicted, key, asked.review,
        )  # fmt: skip
        number = await self.with_store(store.add, feedback)
        self.metrics.feedback.labels(model.name, asked.verdict).inc()
        correction = Correction(row, asked.nodes[0])
        learned = len(asked.nodes) == 1 and await self.work(self.learn, model.name, correction)
        return {"id": number, "model": model.name, "received": received, "learned": learned}

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

    async def _given(self, model: ServedModel, store: Store, asked: schemas.FeedbackRequest) -> Any:
        """Return the text or row of feedback, which may come from the review queue."""
        if asked.text is not None and asked.row is not None:
            raise invalid("row", "give only one of text, row")
        given: Any = asked.text if asked.row is None else asked.row
        if asked.review is None:
            return given
        item = await self.with_store(store.queued, model.name, asked.review)
        if item is None:
            raise invalid("review", "this row is not in the review queue", status=404, kind="not-found")
        if given is not None and given != item.input:
            raise invalid("review", "the text or row differs from the one in the review queue; leave it out")
        return item.input

    async def _training_row(self, model: ServedModel, given: Any, names: Sequence[str]) -> tuple[Any, Json]:
        """Return the key of feedback and its training row; raise ProblemError if no model could learn from it."""
        if not names:
            raise invalid("nodes", "name the correct node")
        field = "text" if isinstance(given, str) else "row"
        self._one(model, *((given, None) if isinstance(given, str) else (None, given)))
        nodes = [_position(model, name, f"nodes[{number}]") for number, name in enumerate(names)]
        inputs = await self._inputs(model, given)
        if not model.model.reads_rows and is_blank(inputs[0]):
            raise invalid(field, f"the text is blank: {quoted(inputs[0])}; send the text that was classified")
        try:
            row = training_row(model.model, given, list(dict.fromkeys(nodes)))
        except HiNetError as error:
            raise invalid("nodes", str(error)) from None
        for name, cell in row.items():
            if isinstance(cell, str) and NUL in cell:
                raise invalid(
                    field, f"{name}: {quoted(cell)} has a NUL character, which is invalid in CSV files; remove it"
                )
        return given if model.model.reads_rows else inputs[0], row

    async def list_feedback(self, asked: schemas.FeedbackQuery) -> Json:
        """Return feedback, the newest first."""
        model = self.models.get(asked.model)
        entries, total = await self.with_store(self._open_store().page, model.name, asked.offset, asked.limit)
        items = [{name: value for name, value in entry._asdict().items() if name != "model"} for entry in entries]
        return _page(model, asked, items, total)

    async def delete_feedback(self, number: int) -> None:
        """Delete feedback by id."""
        if await self.with_store(self._open_store().delete, [number]):
            raise ProblemError(404, "not-found", f"there is no feedback {number}")
        await self.work(self.models.correct_again)

    def _open_store(self) -> Store:
        if self.store is None:
            raise ProblemError(409, "not-enabled", "start the service with --feedback FILE to keep feedback")
        return self.store

    async def review(self, asked: schemas.ReviewQuery) -> Json:
        """Return the most doubtful rows of the review queue, with the answers of the current model."""
        model = self.models.get(asked.model)
        if not self.settings.review:
            raise ProblemError(409, "not-enabled", "start the service with --review for a review queue")
        store = self._open_store()
        await self.with_store(self.flush)
        items, total = await self.with_store(store.queue, model.name, asked.order, asked.offset, asked.limit)
        results = await self.work(_review_results, model, [item.input for item in items])
        shown = [
            {
                "id": item.id,
                "text": item.input if isinstance(item.input, str) else None,
                "row": None if isinstance(item.input, str) else item.input,
                "received": item.received,
                "unsure": item.unsure,
                "split": item.split,
                "result": result,
            }
            for item, result in zip(items, results, strict=True)
        ]
        return _page(model, asked, shown, total)

    @property
    def project(self) -> Labelling:
        """The labelling project; raise ProblemError if there is none."""
        if self.labelling is None:
            raise ProblemError(404, "not-found", "there is no labelling project; begin one with 'hinet start'")
        self.models.get(self.labelling.project.name)
        return self.labelling

    # Models

    async def list_models(self) -> Json:
        """Return the served models, and the limits of the service."""
        self.models.check_ready()
        settings = self.settings
        limits = {
            "body_bytes": settings.max_body,
            "file_bytes": settings.max_file,
            "texts": settings.max_texts,
            "text_length": settings.max_length,
            "seconds": settings.seconds,
        }
        return {
            "models": [self.models.describe(name) for name in self.models.names],
            "failed": [{"name": name, "problem": problem} for name, problem in self.models.failed.items()],
            "service": {
                "hinet": __version__,
                "feedback": self.store is not None,
                "review": settings.review > 0,
                "project": self.labelling is not None,
                "limits": limits,
            },
        }

    async def show_model(self, name: str) -> Json:
        """Describe a model, with its evaluation if there is one."""
        model = self.models.get(name)
        try:
            evaluation = await self.work(model.evaluation)
        except HiNetError as error:
            log.warning("model %s: %s", name, error)
            evaluation = None
        manifest = {part: model.model.manifest[part] for part in MANIFEST_PARTS}
        texts = report(self.counts.days(ModelKey(name, model.version)))
        return {**self.models.describe(name), "manifest": manifest, "evaluation": evaluation, "texts": texts}


async def _run(pool: Executor, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)


def parse(kind: type[Body], body: bytes) -> Body:
    """Return a JSON body, or raise ProblemError with the invalid fields."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise validation_problem(error, kind.model_fields) from None


def _only(asked: BaseModel, *names: str) -> str:
    """Return the one field that is given, or raise ProblemError."""
    given = [name for name in names if getattr(asked, name) is not None]
    if len(given) != 1:
        raise invalid(given[-1] if given else names[0], f"give exactly one of {', '.join(names)}")
    return given[0]


def _position(model: ServedModel, name: str, field: str = "node") -> int:
    taxonomy = model.model.fitted.codec.taxonomy
    if name not in taxonomy:
        raise invalid(field, "there is no such node in the taxonomy")
    node = taxonomy.position(name)
    if node in (VIRTUAL_ROOT, taxonomy.root):
        raise invalid(field, "this is the root; name a node below it")
    return node


def _of(model: ServedModel, values: Mapping[str, Any]) -> Json:
    return {"model": model.name, "version": model.version, **values}


def _page(
    model: ServedModel, asked: schemas.FeedbackQuery | schemas.ReviewQuery, items: list[Json], total: int
) -> Json:
    return _of(model, {"items": items, "total": total, "offset": asked.offset, "limit": asked.limit})


def _review_results(model: ServedModel, inputs: Sequence[Any]) -> list[Json]:
    """Answer rows of the review queue; a row that the current model cannot read has an empty answer."""
    results: list[Json] = []
    for given in inputs:
        try:
            row = [given] if isinstance(given, str) else model.model.inputs_of([given])
            results += model.answerer.answer(row, REVIEW_QUESTION)
        except HiNetError:
            results.append({"labels": [], "traces": [], "unknown_words": []})
    return results
