"""The service as an ASGI application: its endpoints, their documentation, and the page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hinet import __version__
from hinet.errors import HiNetError
from hinet.serving import metrics, schemas
from hinet.serving.gate import BODY, INTERNAL_ERROR, App, Gate, check_json
from hinet.serving.pages import read_page
from hinet.serving.problems import CONTENT_TYPE, FieldProblem, ProblemError, of_fields
from hinet.serving.service import Service
from hinet.serving.settings import Settings
from hinet.serving.table_requests import answer_table
from hinet.serving.tables import TYPES, table_problem

DESCRIPTION = "Classifies texts and rows into a large hierarchy, and shows why."
BODIES: dict[str, type[BaseModel]] = {
    "/v1/classify": schemas.ClassifyRequest,
    "/v1/explain": schemas.ExplainRequest,
    "/v1/feedback": schemas.FeedbackRequest,
}
PROBLEMS = {
    400: "The body or the Host header cannot be read.",
    401: "A token is needed.",
    404: "There is no such thing.",
    405: "Another method is needed.",
    408: "The request came too slowly.",
    409: "The service was started without this.",
    413: "The request is too large.",
    415: "Another type of content is needed.",
    421: "The service does not answer for this host.",
    422: "A field is wrong, unknown or missing.",
    429: "Too many requests at once; see Retry-After.",
    431: "The head of the request is too long.",
    503: "The service is not ready, the request took too long, or feedback cannot be read or written now.",
}

log = logging.getLogger("hinet.serving")


class JSON(Response):
    """Plain values as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return orjson.dumps(content)


def create_app(settings: Settings, on_failure: Callable[[HiNetError], None] = lambda error: None) -> App:
    """Return the service as an application; models are loaded once it runs, and ``on_failure`` hears if they cannot."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def start() -> None:
            try:
                await service.load_models()
            except HiNetError as error:
                on_failure(error)
                return
            except Exception as error:
                log.exception("the service cannot start")
                on_failure(HiNetError(f"the service cannot start: {type(error).__name__}: {error}"))
                return
            await service.watch()

        task = asyncio.create_task(start())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="hinet", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.service = service
    _add_problems(app)
    _add_endpoints(app, service)
    _add_page(app, settings.page)
    return Gate(app, settings, service.metrics, {("POST", "/v1/classify"): service.classify})


def _add_problems(app: FastAPI) -> None:
    @app.exception_handler(ProblemError)
    async def problem(request: Request, error: ProblemError) -> Response:
        return Response(error.body(), error.status, dict(error.headers), CONTENT_TYPE)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [FieldProblem(".".join(map(str, reason["loc"][1:])), reason["msg"]) for reason in error.errors()]
        return await problem(request, of_fields(fields))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "invalid-request")
        detail = "there is nothing at this path" if kind == "not-found" else str(error.detail)
        return await problem(request, ProblemError(error.status_code, kind, detail, headers=dict(error.headers or {})))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # which goes on to the gate, and into the log
        return await problem(request, INTERNAL_ERROR)

    @app.exception_handler(HiNetError)
    async def refused(request: Request, error: HiNetError) -> Response:
        return await problem(request, table_problem(error))


def _described(model: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the answers of an endpoint for its documentation."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answers: dict[int | str, dict[str, Any]] = {status: {"model": model}}
    return answers | {code: {"description": text, "content": content} for code, text in PROBLEMS.items()}


def _add_endpoints(app: FastAPI, service: Service) -> None:
    @app.post("/v1/classify", responses=_described(schemas.ClassifyResponse), summary="Classify texts or rows")
    async def classify(request: Request) -> Response:  # the gate answers; this is what it documents
        return Response(await service.classify(request.scope[BODY]), media_type="application/json")

    @app.post("/v1/explain", responses=_described(schemas.ExplainResponse), summary="The words behind every step")
    async def explain(request: Request) -> Response:
        check_json(request.headers.get("content-type", "").encode())
        return Response(await service.explain(request.scope[BODY]), media_type="application/json")

    @app.post(
        "/v1/feedback", status_code=201, responses=_described(schemas.FeedbackResponse, 201), summary="Keep a verdict"
    )
    async def feedback(request: Request) -> Response:
        check_json(request.headers.get("content-type", "").encode())
        return JSON(await service.feedback(request.scope[BODY]), 201)

    @app.get("/v1/feedback", responses=_described(schemas.FeedbackPage), summary="Feedback that is kept")
    async def list_feedback(asked: Annotated[schemas.FeedbackQuery, Query()]) -> Response:
        return JSON(await service.list_feedback(asked))

    @app.delete("/v1/feedback/{id}", status_code=204, responses=_described(None, 204), summary="Delete feedback")
    async def delete_feedback(id: Annotated[int, PathParameter(ge=1, le=schemas.MAX_ID)]) -> Response:
        await service.delete_feedback(id)
        return Response(status_code=204)

    table = {kind.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}} for kind in TYPES.values()}
    documented = {**_described(schemas.Status), 200: {"description": "The answered table.", "content": table}}

    @app.post(
        "/v1/classify/file", responses=documented, summary="Classify a table",
        openapi_extra={"requestBody": {"required": True, "content": table}},
    )  # fmt: skip
    async def classify_file(request: Request, asked: Annotated[schemas.FileQuery, Query()]) -> Response:
        return await answer_table(service, request, asked)

    @app.get("/v1/taxonomy", responses=_described(schemas.NodePage), summary="A node and its children")
    async def taxonomy(asked: Annotated[schemas.NodeQuery, Query()]) -> Response:
        return JSON(await service.nodes(asked))

    @app.get("/v1/taxonomy/search", responses=_described(schemas.MatchPage), summary="Search the taxonomy")
    async def search(asked: Annotated[schemas.SearchQuery, Query()]) -> Response:
        return JSON(await service.search(asked))

    @app.get("/v1/review", responses=_described(schemas.ReviewPage), summary="Rows that deserve a look")
    async def review(asked: Annotated[schemas.ReviewQuery, Query()]) -> Response:
        return JSON(await service.review(asked))

    @app.get("/v1/models", responses=_described(schemas.ModelList), summary="What is served")
    async def models() -> Response:
        return JSON(await service.list_models())

    @app.get("/v1/models/{name}", responses=_described(schemas.ModelDetails), summary="A model with its evaluation")
    async def model(name: str) -> Response:
        return JSON(await service.show_model(name))

    @app.get("/health", responses=_described(schemas.Status), summary="Whether the process runs")
    async def health() -> Response:
        return JSON({"status": "ok", "models": service.models.names})

    @app.get("/ready", responses=_described(schemas.Status), summary="Whether requests are answered")
    async def ready() -> Response:
        service.models.check_ready()
        return JSON({"status": "ready", "models": service.models.names})

    @app.get("/metrics", summary="Figures for Prometheus", response_class=Response)
    async def figures() -> Response:
        return Response(service.metrics.text(), media_type=metrics.CONTENT_TYPE)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSON(openapi_of(app))


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """Return the documentation of all endpoints; bodies are read by us, so we also describe them."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
        kinds: list[type[BaseModel]] = [*BODIES.values(), schemas.Problem]
        _, bodies = models_json_schema(
            [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
        )
        document["components"]["schemas"] |= bodies["$defs"]
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, kind in BODIES.items():
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
            document["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        app.openapi_schema = document
    return app.openapi_schema


def _add_page(app: FastAPI, folder: Path) -> None:
    files = read_page(folder)

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        file = files.get(request.scope["path"])
        if file is None:
            raise HTTPException(404)
        return file.response(request)
