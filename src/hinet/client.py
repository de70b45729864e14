"""A client of the REST service that ``hinet serve`` starts; importing it imports the standard library alone.

>>> from hinet.client import Client
>>> client = Client("http://127.0.0.1:8000", token="secret", timeout=10)
>>> client.classify(["rye bread"], top=3)  # doctest: +SKIP
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast
from urllib.parse import quote, urlencode, urlsplit

from hinet.errors import FileError, HiNetError, quoted

MAX_WAIT = 30.0  # seconds before a retry
BLOCK = 1 << 18  # bytes of a table that are read at a time
MAX_REASON = 200  # characters of an answer that is not from hinet
TABLE_FORMATS = {"tab": "tsv", "ndjson": "jsonl", "pq": "parquet"}  # other extensions of table formats

Row = Mapping[str, Any]
MinConfidence = float | Literal["calibrated"]
Json = dict[str, Any]


class NamedNode(TypedDict):
    """A node and its title."""

    node: str
    title: str


class Label(NamedNode):
    """A predicted node."""

    label: str
    probability: float


class Step(NamedNode):
    """A step of a trace, with the probability of the path down to it."""

    probability: float
    siblings: Json | None


class Trace(Label):
    """A path from the top down."""

    steps: list[Step]
    below: Json | None


class Result(TypedDict):
    """The answer to a text or row."""

    labels: list[Label]
    traces: list[Trace]
    unknown_words: list[Json] | None


class Explanation(TypedDict):
    """The words behind every step of an answer."""

    model: str
    version: str
    trace: Trace
    steps: list[Json]
    unknown_words: list[Json]
    nearest: list[Json]


class Node(NamedNode):
    """A node of the taxonomy."""

    children: int
    is_label: bool


class Match(Node):
    """A node that matches a search."""

    matched: Literal["id", "title", "synonym"]
    text: str
    ancestors: list[Node]


class Kept(TypedDict):
    """Feedback that the service wrote to disk."""

    id: int
    model: str
    received: str
    learned: bool


class Problem(TypedDict):
    """A problem object (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: NotRequired[list[Json]]


class ServiceError(HiNetError):
    """The service refused a request, or could not answer it; ``problem`` says why, and names the fields."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(f"{problem['status']} {problem['title']}: {problem['detail']}")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem["status"]

    @property
    def kind(self) -> str:
        """The kind of problem, such as ``"too-large"``."""
        return self.problem["type"].rpartition(":")[2]


class ServiceUnreachableError(HiNetError):
    """The service cannot be reached, or did not answer in time."""


class Client:
    """Requests to a service, each on a connection of its own, so that threads can share a client.

    Parameters
    ----------
    url : str
        Address of the service, such as ``"http://127.0.0.1:8000"``.
    token : str, default=None
        Bearer token, if the service needs one.
    model : str, default=None
        Name of the model to ask; None asks the first one of the service.
    timeout : float, default=60
        Seconds to wait for the connection, and for each part of the answer.
    retries : int, default=2
        Number of times to repeat a request that gets 503 with ``Retry-After``, such as while models are loaded.

    Every method raises ServiceError if the service refuses the request, and ServiceUnreachableError if it does not
    answer. Arguments that are None have the default of the service.
    """

    def __init__(
        self, url: str, *, token: str | None = None, model: str | None = None, timeout: float = 60.0, retries: int = 2
    ) -> None:
        parts = urlsplit(url)
        try:
            self._port = parts.port
        except ValueError as error:
            raise HiNetError(f"`url` has an invalid port: {error}; got {quoted(url)}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise HiNetError(f"`url` must be an address such as http://127.0.0.1:8000; got {quoted(url)}")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise HiNetError("`token` must be a line of printable ASCII characters, without its line end")
        if retries < 0:
            raise HiNetError(f"`retries` must be at least 0; got {retries}")
        self._is_tls, self._host, self._path = parts.scheme == "https", parts.hostname, parts.path.rstrip("/")
        self.url, self.model, self.timeout, self.retries = url, model, timeout, retries
        self._headers = {"User-Agent": "hinet"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def classify(
        self,
        inputs: Sequence[str] | Sequence[Row],
        *,
        top: int | None = None,
        min_confidence: MinConfidence | None = None,
        within: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        siblings: int | None = None,
        unknown_words: bool | None = None,
    ) -> list[Result]:
        """Classify texts, or rows of a model of several columns; return the answers in their order."""
        if isinstance(inputs, str | Mapping):
            raise HiNetError(f"expected a list of texts or rows, got one {type(inputs).__name__}; put it in a list")
        given = list(inputs)
        if not given:
            return []
        body = {
            "texts" if isinstance(given[0], str) else "rows": given, "top": top, "min_confidence": min_confidence,
            "within": within, "exclude": exclude, "siblings": siblings, "unknown_words": unknown_words,
        }  # fmt: skip
        return cast(list[Result], self._post("/v1/classify", body)["results"])

    def explain(self, given: str | Row, *, node: str | None = None, words: int | None = None) -> Explanation:
        """Return the words behind every step of the best answer to a text or row, or of the path to a node."""
        return cast(Explanation, self._post("/v1/explain", {**_one(given), "node": node, "words": words}))

    def search(self, query: str, *, offset: int | None = None, limit: int | None = None) -> list[Match]:
        """Return nodes of the taxonomy that have all words of a query in their id, title or a synonym."""
        target = self._target("/v1/taxonomy/search", {"q": query, "offset": offset, "limit": limit})
        return cast(list[Match], self._json("GET", target)["matches"])

    def feedback(
        self,
        given: str | Row,
        nodes: Sequence[str],
        *,
        verdict: Literal["accept", "correct"] = "correct",
        predicted: Sequence[str] | None = None,
    ) -> Kept:
        """Store the correct nodes of a text or row, and return once they are on the disk of the service."""
        body = {**_one(given), "verdict": verdict, "nodes": list(nodes), "predicted": predicted}
        return cast(Kept, self._post("/v1/feedback", body))

    def models(self) -> Json:
        """Return the served models, and the features and limits of the service."""
        return self._json("GET", "/v1/models")

    def describe(self, model: str | None = None) -> Json:
        """Return a model with its evaluation: the one that is named, that of the client, or the first one."""
        name = model or self.model or self.models()["models"][0]["name"]
        return self._json("GET", f"/v1/models/{quote(name, safe='')}")

    def classify_table(self, table: str | Path, out: str | Path, *, format: str | None = None, **options: Any) -> int:
        """Classify a table in a file, write the answered table to another, and return its number of rows.

        ``format`` is by default that of the extension. ``options`` are the parameters of ``/v1/classify/file``, such as
        ``top=3, titles=True, keep=["id"]``. The file appears once it is complete.
        """
        from hinet.files.atomic import new_file

        path = Path(table)
        suffix = path.suffix.lower().removeprefix(".")
        query = {"format": format or TABLE_FORMATS.get(suffix, suffix), **options}
        try:
            stream = path.open("rb")
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from None
        with stream, new_file(out) as written:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
            with closing(self._ask("POST", self._target("/v1/classify/file", query), stream, headers)) as answer:
                while part := self._read(answer, BLOCK):
                    written.write(part)
                rows = answer.headers.get("Hinet-Rows", "")
                if not rows.isdecimal():  # before the file appears
                    raise ServiceError(_foreign_problem(answer, b""))
                return int(rows)

    def _post(self, path: str, body: Mapping[str, Any]) -> Json:
        given = {name: value for name, value in {"model": self.model, **body}.items() if value is not None}
        try:
            encoded = json.dumps(given, allow_nan=False, default=_plain).encode()
        except (TypeError, ValueError) as error:
            raise HiNetError(f"the request cannot be written as JSON: {error}") from None
        return self._json("POST", path, encoded, {"Content-Type": "application/json"})

    def _target(self, path: str, query: Mapping[str, Any]) -> str:
        """Return a path with a query; switches are ``true`` or ``false``."""
        given = {name: value for name, value in {"model": self.model, **query}.items() if value is not None}
        texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()}
        return f"{path}?{urlencode(texts, doseq=True)}" if texts else path

    def _json(self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Json:
        with closing(self._ask(method, target, body, headers or {})) as answer:
            content = self._read(answer)
        try:
            return cast(Json, json.loads(content))
        except ValueError:
            raise ServiceError(_foreign_problem(answer, content)) from None

    def _ask(self, method: str, target: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Return the answer to a request that succeeds, after retries if the service asks for them."""
        for attempt in range(self.retries + 1):
            if attempt and hasattr(body, "seek"):
                body.seek(0)
            answer = self._send(method, target, body, headers)
            if answer.status in (200, 201):
                return answer
            with closing(answer):
                error, wait = ServiceError(_problem(answer, self._read(answer))), answer.headers.get("Retry-After", "")
            if attempt == self.retries or error.status != 503 or not wait.isdigit():
                break
            time.sleep(min(float(wait), MAX_WAIT))
        raise error

    def _send(self, method: str, target: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout)
        sent = {**self._headers, **headers, "Connection": "close"}  # the answer then owns the connection
        try:
            with self._reporting():
                with suppress(BrokenPipeError, ConnectionResetError):  # a body that is refused before it is read
                    connection.request(method, self._path + target, body, sent)
                return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _read(self, answer: http.client.HTTPResponse, size: int | None = None) -> bytes:
        with self._reporting():
            content = answer.read(size)
            if not content and answer.length:  # http.client reports an answer that ends early only without a size
                raise http.client.IncompleteRead(content, answer.length)
            return content

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raise ServiceUnreachableError for failures of the network."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachableError(f"{self.url} did not answer: {error or type(error).__name__}") from None


def _one(given: str | Row) -> Json:
    return {"text": given} if isinstance(given, str) else {"row": given}


def _plain(value: Any) -> Any:
    """Return a mapping, sequence or NumPy number as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__}")


def _problem(answer: http.client.HTTPResponse, content: bytes) -> Problem:
    """Return the problem of an answer that is not a success."""
    with suppress(ValueError):
        problem = json.loads(content)
        if isinstance(problem, dict) and Problem.__required_keys__ <= problem.keys():
            return cast(Problem, problem)
    return _foreign_problem(answer, content)


def _foreign_problem(answer: http.client.HTTPResponse, content: bytes) -> Problem:
    """Return the problem of an answer that is not from hinet, such as one of a proxy, with the start of its text."""
    text = content[:MAX_REASON].decode(errors="replace").strip()
    return {
        "type": "about:blank", "title": answer.reason, "status": answer.status,
        "detail": f"the answer is not from hinet; check the address{': ' + quoted(text) if text else ''}",
    }  # fmt: skip
