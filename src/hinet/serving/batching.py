"""Batching: requests that arrive during a search are answered together by the next search.

A search of one text costs nearly as much as one of twenty. Requests never wait for others: if no search is running, a
request starts one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from hinet.serving.answers import Question
from hinet.serving.models import ServedModel

MAX_TEXTS = 256  # per search

Json = dict[str, Any]


class _Job(NamedTuple):
    model: ServedModel
    question: Question
    texts: list[str]
    answer: asyncio.Future[list[Json]]


class Batcher:
    """Batches requests for the same model with the same question; ``searches`` run concurrently in threads."""

    def __init__(self, executor: Executor, searches: int, on_batch: Callable[[int], None]) -> None:
        self._executor, self._searches, self._on_batch = executor, searches, on_batch
        self._waiting: deque[_Job] = deque()
        self._running = 0
        self._scheduled = False

    async def answer(self, model: ServedModel, texts: list[str], question: Question) -> list[Json]:
        """Return the answers to texts."""
        loop = asyncio.get_running_loop()
        job = _Job(model, question, texts, loop.create_future())
        self._waiting.append(job)
        if not self._scheduled and self._running < self._searches:
            self._scheduled = True
            loop.call_soon(self._start, loop)  # after all requests that have arrived are read
        return await job.answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        while self._waiting and self._running < self._searches:
            jobs = self._take()
            self._running += 1
            self._on_batch(len(jobs))
            search = loop.run_in_executor(self._executor, _search, jobs)
            search.add_done_callback(partial(self._finish, loop, jobs))

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

    def _finish(
        self, loop: asyncio.AbstractEventLoop, jobs: list[_Job], done: asyncio.Future[list[list[Json]]]
    ) -> None:
        self._running -= 1
        error = done.exception()
        for number, job in enumerate(jobs):
            if job.answer.done():  # the client left
                continue
            if error is None:
                job.answer.set_result(done.result()[number])
            else:
                job.answer.set_exception(error)
        self._start(loop)


def _search(jobs: list[_Job]) -> list[list[Json]]:
    """Answer all texts in one search, and return the answers of each job."""
    first = jobs[0]
    results = first.model.answerer.answer([text for job in jobs for text in job.texts], first.question)
    parts, start = [], 0
    for job in jobs:
        parts.append(results[start : start + len(job.texts)])
        start += len(job.texts)
    return parts
