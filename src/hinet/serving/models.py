"""Served models: loaded, compiled, warmed up, and reloaded when their folders change; requests in batches.

Requests that arrive during a search are answered together by the next search. A search of one text costs nearly as
much as one of twenty. Requests never wait for others: if no search is running, a request starts one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, zip_longest
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from hinet.classifier.fitted import Fitted
from hinet.classifier.model_folder import MANIFEST, OURS, read_evaluation, read_manifest, trainings_of
from hinet.classifier.saved_model import LoadedModel, load_model, meaning_entry
from hinet.compiled import compile_from_now_on
from hinet.data import Traces
from hinet.engine import Found
from hinet.engine.search.predictor import Search
from hinet.errors import HiNetError, quoted
from hinet.files.database import utc_now
from hinet.serving.answers import Answerer, Question
from hinet.serving.endpoints import run_in
from hinet.serving.nodes import Nodes
from hinet.serving.problems import ProblemError, invalid
from hinet.taxonomy import VIRTUAL_ROOT

EXAMPLES = 6  # texts to try, per model
EXAMPLES_TO_CHOOSE_FROM = 100
MAX_EXAMPLE_LENGTH = 120  # characters
VERSION_DIGITS = 16

Item = TypeVar("Item")
Stamp = tuple[tuple[str, int, int], ...]  # names, sizes and times of files, to detect changes
log = logging.getLogger("hinet.serving")
MAX_TEXTS = 256  # per search
Json = dict[str, Any]


class Correction(NamedTuple):
    """A row of the training table, and the node that is right for it."""

    row: dict[str, Any]
    node: str


def corrected(model: LoadedModel, corrections: Sequence[Correction]) -> tuple[LoadedModel, int]:
    """Return a model that remembers corrections, and how many it could learn.

    A model without a memory learns none. Corrections of rows or nodes that the model does not have, such as those of an
    earlier version with another taxonomy, are left out.
    """
    fitted = model.fitted
    if not fitted.can_correct:
        return model, 0
    taxonomy, labels = fitted.codec.taxonomy, set(fitted.codec.label_nodes.tolist())
    known = [each for each in corrections if each.node in taxonomy and taxonomy.position(each.node) in labels]
    known = [each for each in known if _is_readable(model, each)]
    if not known:
        return model, 0
    inputs = model.inputs_of([each.row for each in known])
    nodes = np.array([taxonomy.position(each.node) for each in known])
    rows = fitted.feature_rows(inputs)
    learned = int(fitted.has_vectors(rows).sum())
    if not learned:
        return model, 0
    traces = Traces.of_nodes(fitted.codec.layers, nodes)
    return replace(model, fitted=fitted.remembering(rows, traces, fitted.texts_to_remember(inputs))), learned


def _is_readable(model: LoadedModel, correction: Correction) -> bool:
    try:
        model.inputs_of([correction.row])
    except HiNetError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model with its name and description."""

    name: str
    folder: Path
    model: LoadedModel
    nodes: Nodes
    loaded: str = field(default_factory=utc_now)
    corrections: int = 0  # feedback that it remembers
    base: LoadedModel | None = None  # the model without corrections, if it was served

    @property
    def version(self) -> str:
        """The first digits of its digest."""
        return self.digest[:VERSION_DIGITS]

    @property
    def digest(self) -> str:
        """The digest of its manifest."""
        return str(self.model.manifest["blake2b"])

    @cached_property
    def answerer(self) -> Answerer:
        """The answers of the model."""
        return Answerer(self.model, self.nodes)

    def node(self, name: str, field: str) -> int:
        """Return the position of a node below the root, or raise ProblemError, which names the ``field``."""
        taxonomy = self.model.fitted.codec.taxonomy
        if name not in taxonomy:
            raise invalid(field, "there is no such node in the taxonomy")
        node = taxonomy.position(name)
        if node in (VIRTUAL_ROOT, taxonomy.root):
            raise invalid(field, "this is the root; name a node below it")
        return node

    def warm_up(self) -> None:
        """Answer every kind of question once, so that no request waits for compilation."""
        if self.model.reads_rows:
            columns = self.model.columns
            values = {**dict.fromkeys(columns.text, "a é"), **dict.fromkeys(columns.number, 1.0)}
            inputs = self.model.inputs_of([{name: values.get(name) for name in columns.inputs}])
        else:
            inputs = [f"{text} é" for text in self.examples] or ["a é"]
        codec = self.model.fitted.codec
        questions = [Question(), Question(3, 0.5, 5, True)]
        if isinstance(self.model.fitted.predictor, Search):
            questions.append(Question(within=(codec.taxonomy.ids[codec.label_nodes[0]],)))
        for question in questions:
            self.answerer.answer(inputs, question)
        self.answerer.explain(inputs[:1], None, 5)
        self.nodes.search("a", 0, 1)

    @cached_property
    def examples(self) -> list[str]:
        """Texts to try: titles of labels from all branches of the taxonomy."""
        if self.model.reads_rows:
            return []
        codec = self.model.fitted.codec
        titles = codec.taxonomy.titles
        nodes = [node for node in codec.label_nodes.tolist() if 0 < len(titles[node]) <= MAX_EXAMPLE_LENGTH]
        branches: dict[int, list[str]] = {}
        for node in _spread(nodes, EXAMPLES_TO_CHOOSE_FROM):
            branches.setdefault((codec.path_to(node) or [node])[0], []).append(titles[node])
        rounds = zip_longest(*_spread(list(branches.values()), EXAMPLES))  # a title of each branch in turn
        return list(dict.fromkeys(title for titles in rounds for title in titles if title is not None))[:EXAMPLES]

    def describe(self, problem: str | None) -> dict[str, Any]:
        """Return the entry of the model in the list of models."""
        manifest, codec = self.model.manifest, self.model.fitted.codec
        calibration, bound = manifest["calibration"], self.model.risk_bound
        return {
            "name": self.name, "version": self.version, "kind": "row" if self.model.reads_rows else "text",
            "columns": self.model.columns.inputs, "several_labels": codec.sets is not None,
            "nodes": len(codec.taxonomy), "labels": len(codec.label_nodes), "levels": codec.layers.height,
            "is_tree": codec.taxonomy.is_tree,
            "trained_rows": sum(training["rows"] for training in trainings_of(manifest)),
            "engine": manifest["engine"], "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
            "versions": manifest["versions"], "metrics": manifest["metrics"],
            "calibration": calibration
            and {
                **{name: calibration[name] for name in ("rows", "temperature", "error_before", "error_after")},
                "risk": bound and {"risk": bound.risk, "threshold": bound.threshold},
            },
            "examples": self.examples, "corrections": self.corrections, "loaded": self.loaded, "problem": problem,
        }  # fmt: skip

    def evaluation(self) -> dict[str, Any] | None:
        """Return the evaluation that was saved with the model."""
        return read_evaluation(self.folder, self.digest)


class Models:
    """All models by name; a model may be replaced at any time, and running requests finish with the old one."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        threads: int | None,
        encoders: tuple[str, ...] = (),
        corrections_of: Callable[[str, Mapping[str, Any]], Sequence[Correction]] = lambda name, manifest: (),
        on_load: Callable[[ServedModel], None] = lambda model: None,
    ) -> None:
        self._folders, self._threads, self._encoders = folders, threads, encoders
        self._corrections_of = corrections_of  # called with a name and a manifest
        self._on_load = on_load
        self._changing = Lock()  # held while a served model is replaced
        self._served: dict[str, ServedModel] = {}
        self._seen: dict[str, Stamp] = {}
        self._problems: dict[str, str] = {}  # why the version in the folder is not served, by model
        self._started = False

    @property
    def names(self) -> list[str]:
        """Names of the loaded models, in the order given."""
        return [name for name in self._folders if name in self._served]

    @property
    def failed(self) -> dict[str, str]:
        """Reasons why models are not served at all, by name."""
        return {name: problem for name, problem in self._problems.items() if name not in self._served}

    def describe(self, name: str) -> dict[str, Any]:
        """Return the entry of a model in the list of models."""
        return self.get(name).describe(self._problems.get(name))

    def check_ready(self) -> None:
        """Raise ProblemError until every model is loaded or has failed to load."""
        if not self._started:
            raise ProblemError(503, "not-ready", "models are being loaded", headers={"Retry-After": "1"})

    def get(self, name: str | None) -> ServedModel:
        """Return a model by name, by default the first, or raise ProblemError."""
        self.check_ready()
        wanted = next(iter(self._folders)) if name is None else name
        served = self._served.get(wanted)
        if served is not None:
            return served
        if wanted in self._folders:  # even by default: another model has another taxonomy
            raise ProblemError(503, "not-ready", f"model {wanted} could not be loaded; GET /v1/models has the reason")
        known = ", ".join(self.names)
        raise ProblemError(404, "not-found", f"there is no model {quoted(wanted)}; the service has {known}")

    def load_all(self) -> list[tuple[str, bool]]:
        """Load every model; return their names and whether they can be served. Raise HiNetError if none can."""
        compile_from_now_on()
        results = self.refresh()
        if self._folders and not self._served:
            reasons = "; ".join(f"{name}: {problem}" for name, problem in self._problems.items())
            raise HiNetError(f"no model can be served: {reasons}")
        self._started = True
        return results

    def refresh(self) -> list[tuple[str, bool]]:
        """Load models whose folders have changed; return their names and whether the new versions can be served.

        A model that cannot be served is tried again when its folder changes.
        """
        results = []
        for name, folder in self._folders.items():
            stamp = _stamp(folder)
            if stamp == self._seen.get(name):
                continue
            self._seen[name] = stamp
            try:
                if self._load(name, folder):
                    results.append((name, True))
                self._problems.pop(name, None)
            except Exception as error:  # a failure of one model must not stop the others
                self._report(name, error)
                results.append((name, False))
        return results

    def _load(self, name: str, folder: Path) -> bool:
        """Load and warm up the model in a folder; return False if this version is served already."""
        old, manifest = self._served.get(name), read_manifest(folder)
        if old is not None and manifest["blake2b"] == old.digest:
            return False
        has_encoder = (meaning_entry(manifest) or {}).get("encoder") is not None
        encoders = self._encoders if has_encoder else ()
        base = load_model(folder, self._threads, mapped=False, encoder=encoders or None)
        warm = ServedModel(name, folder, base, Nodes(base.fitted.codec))
        warm.warm_up()
        with self._changing:  # briefly, because corrections wait
            model = self._served[name] = self._corrected(warm)
        self._on_load(model)
        if old is not None:
            log.info("model %s: loaded version %s", name, model.version)
        return True

    def _corrected(self, served: ServedModel) -> ServedModel:
        """Return a model with all its corrections; without them if they cannot be read or remembered."""
        base, count = served.base or served.model, 0
        model = base
        try:
            model, count = corrected(base, self._corrections_of(served.name, base.manifest))
        except Exception:  # feedback must not keep a model from being served
            log.exception("model %s is served without the feedback that it should remember", served.name)
        return replace(served, model=model, corrections=count, base=base)

    def correct(self, name: str, correction: Correction) -> bool:
        """Let a model remember a correction; return whether it could."""
        with self._changing:
            served = self._served[name]
            model, learned = corrected(served.model, [correction])
            if learned:
                self._served[name] = replace(served, model=model, corrections=served.corrections + 1)
        return learned > 0

    def correct_again(self) -> None:
        """Let models forget corrections that were deleted."""
        with self._changing:
            for name, served in self._served.items():
                if served.model.fitted.can_correct:
                    self._served[name] = self._corrected(served)

    def _report(self, name: str, error: Exception) -> None:
        """Log why a model cannot be served, with a traceback unless the message is enough, and keep the reason."""
        is_expected = isinstance(error, HiNetError)
        reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
        self._problems[name] = reason
        stays = "; the old version is still served" if name in self._served else ""
        log.error("model %s cannot be served: %s%s", name, reason, stays, exc_info=None if is_expected else error)


def _spread(values: list[Item], count: int) -> list[Item]:
    """Return ``count`` evenly spaced values of a list, or all."""
    chosen = np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)
    return [values[number] for number in chosen.tolist()]


def _stamp(folder: Path) -> Stamp:
    """Return the files of a model with their sizes and times."""
    try:
        files = [file for file in os.scandir(folder) if file.name == MANIFEST or OURS.fullmatch(file.name)]
        return tuple(sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    except OSError:  # the folder or a file was removed: another change will follow
        return ()


class _Job(NamedTuple):
    model: ServedModel
    question: Question
    texts: list[str]
    answer: asyncio.Future[list[Json]]


class Batcher:
    """Batches requests for the same model with the same question; ``searches`` run concurrently in threads.

    ``observe`` gets the model with answered rows and their traces.
    """

    def __init__(
        self,
        executor: Executor,
        searches: int,
        on_batch: Callable[[int], None],
        observe: Callable[[ServedModel, Fitted, Any, Found], None],
    ) -> None:
        self._executor, self._searches, self._on_batch, self._observe = executor, searches, on_batch, observe
        self._waiting: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, model: ServedModel, texts: list[str], question: Question) -> list[Json]:
        """Return the answers to texts."""
        loop = asyncio.get_running_loop()
        job = _Job(model, question, texts, loop.create_future())
        self._waiting.append(job)
        if len(self._running) < self._searches:  # a task starts after all requests that have arrived are read
            self._running.add(loop.create_task(self._search_waiting()))
        return await job.answer

    async def _search_waiting(self) -> None:
        """Answer jobs, many at a time, as long as some are waiting."""
        try:
            while self._waiting:
                jobs = self._take()
                self._on_batch(len(jobs))
                try:
                    results = iter(await run_in(self._executor, self._search, jobs))
                except Exception as error:
                    for job in jobs:
                        if not job.answer.done():
                            job.answer.set_exception(error)
                    continue
                for job in jobs:
                    part = list(islice(results, len(job.texts)))
                    if not job.answer.done():  # else the client left
                        job.answer.set_result(part)
        finally:  # not in a callback of the task, before which a request could find all searches running and wait
            self._running.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _search(self, jobs: list[_Job]) -> list[Json]:
        """Answer the texts of jobs with one question in one search."""
        model, question, *_ = jobs[0]
        texts = [text for job in jobs for text in job.texts]
        return model.answerer.answer(texts, question, partial(self._observe, model))

    def _take(self) -> list[_Job]:
        """Return the first job with similar jobs, in their order."""
        first = self._waiting.popleft()
        jobs, others, texts = [first], deque[_Job](), len(first.texts)
        while self._waiting and texts < MAX_TEXTS:
            job = self._waiting.popleft()
            if job.model is first.model and job.question == first.question:
                jobs.append(job)
                texts += len(job.texts)
            else:
                others.append(job)
        self._waiting = others + self._waiting
        return jobs
