"""Endpoints of the service: methods that answer requests, and the threads in which they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import wraps
from typing import Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, get_type_hints

from pydantic import BaseModel

from hinet.files.database import StoreError
from hinet.serving.problems import ProblemError
from hinet.serving.schemas import RequestBody

WORKERS = 4  # threads for requests other than small searches
TABLE_WORKERS = 2  # threads for tables, which take turns block by block
RETRY_SECONDS = 5  # time after which to retry if a database cannot be read or written

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
log = logging.getLogger("hinet.serving")


class Threads:
    """The threads of a service: requests, tables, loading of models and databases each have their own."""

    def __init__(self, searches: int) -> None:
        self.searching = ThreadPoolExecutor(searches, "search")
        self.working = ThreadPoolExecutor(WORKERS, "work")
        self.tables = ThreadPoolExecutor(TABLE_WORKERS, "table")
        self.loading = ThreadPoolExecutor(1, "load")
        self.storing = ThreadPoolExecutor(1, "store")  # only requests to a database wait for a lock on its file

    def close(self) -> None:
        """Stop all threads."""
        for pool in (self.searching, self.working, self.tables, self.loading, self.storing):
            pool.shutdown(cancel_futures=True)


async def run_in(pool: Executor, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Return the result of a function that runs in a thread."""
    return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)


class _HasThreads(Protocol):
    threads: Threads


Owner = TypeVar("Owner", bound=_HasThreads)
Method = Callable[[Owner, *Arguments], Result]


def in_thread(method: Method[Owner, *Arguments, Result]) -> Method[Owner, *Arguments, Coroutine[Any, Any, Result]]:
    """Let a method run in a thread for requests."""

    @wraps(method)
    async def run(self: Owner, *arguments: *Arguments) -> Result:
        return await run_in(self.threads.working, method, self, *arguments)

    return run


def with_store(method: Method[Owner, *Arguments, Result]) -> Method[Owner, *Arguments, Coroutine[Any, Any, Result]]:
    """Let a method that uses a database run in the one thread for them, and raise ProblemError if it cannot now."""

    @wraps(method)
    async def run(self: Owner, *arguments: *Arguments) -> Result:
        try:
            return await run_in(self.threads.storing, method, self, *arguments)
        except StoreError as error:
            log.warning("%s", error)
            headers = {"Retry-After": str(RETRY_SECONDS)}
            raise ProblemError(503, "store-unavailable", error.message, headers=headers) from None

    return run


class Endpoint(NamedTuple):
    """A method that answers requests."""

    verb: str
    path: str
    name: str
    shown: type[BaseModel] | None  # the response; None if it has no body
    summary: str
    status: int
    answer: Callable[..., Awaitable[Any]]  # gets the object of the method, and the body or parameters
    body: type[RequestBody] | None
    parameters: dict[str, Any]  # types of parameters: one in the path, or all in the URL as a model


Answer = TypeVar("Answer", bound=Callable[..., Awaitable[Any]])


class Endpoints(list[Endpoint]):
    """The endpoints of a class."""

    def add(
        self, request: str, shown: type[BaseModel] | None, summary: str, status: int = 200, name: str = ""
    ) -> Callable[[Answer], Answer]:
        """Declare a method as the answer to a ``request`` such as ``"GET /v1/models"``."""

        def declare(method: Answer) -> Answer:
            verb, path = request.split()
            asked = get_type_hints(method, include_extras=True)
            del asked["return"]
            body = asked.pop("asked") if verb == "POST" else None
            self.append(Endpoint(verb, path, name or method.__name__, shown, summary, status, method, body, asked))
            return method

        return declare
