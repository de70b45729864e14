"""The service as an ASGI application: its endpoints, their documentation, and the page."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from hinet import __version__
from hinet.errors import HiNetError
from hinet.serving import labelling_schemas, schemas
from hinet.serving.gate import BODY, INTERNAL_ERROR, App, Gate, check_json
from hinet.serving.problems import CONTENT_TYPE, FieldProblem, ProblemError, fields_problem
from hinet.serving.service import Service, parse
from hinet.serving.settings import Settings
from hinet.serving.tables import TYPES, answer_table, table_problem

if TYPE_CHECKING:
    from hinet.serving.agents import AgentEndpoint

DESCRIPTION = "Classifies texts and rows into a large hierarchy, and shows why."
BODIES: dict[str, type[BaseModel]] = {
    "/v1/classify": schemas.ClassifyRequest,
    "/v1/explain": schemas.ExplainRequest,
    "/v1/feedback": schemas.FeedbackRequest,
    "/v1/project/next": labelling_schemas.NextRequest,
    "/v1/project/labels": labelling_schemas.LabelRequest,
    "/v1/project/rows": labelling_schemas.RowsRequest,
}
PROBLEMS = {
    400: "The body or the Host header cannot be read.",
    401: "A token is required.",
    404: "Not found.",
    405: "Method not allowed.",
    408: "The request arrived too slowly.",
    409: "The service was started without this feature.",
    413: "The request is too large.",
    415: "Unsupported content type.",
    421: "The host is not allowed.",
    422: "A field is invalid, unknown or missing.",
    429: "Too many concurrent requests; see Retry-After.",
    431: "The headers of the request are too long.",
    503: "The service is not ready, the request took too long, or its database cannot be read or written now.",
}
PAGE = Path(__file__).parent / "page"
PAGE_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Body = TypeVar("Body", bound=BaseModel)


class JSON(Response):
    """A response with plain values as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return orjson.dumps(content)


def create_app(settings: Settings, on_failure: Callable[[HiNetError], None] = lambda error: None) -> App:
    """Return the service as an application; models are loaded once it runs, or ``on_failure`` is called."""
    service = Service(settings)
    agents = _agents(service) if settings.mcp else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running(on_failure), nullcontext() if agents is None else agents.running():
            yield

    app = FastAPI(
        title="hinet", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.service = service
    _add_problems(app)
    _add_classification(app, service)
    _add_feedback(app, service)
    _add_models(app, service)
    _add_project(app, service)
    _add_status(app, service)
    if agents is not None:
        app.router.routes.append(Route("/mcp", agents, methods=["GET", "POST", "DELETE"], include_in_schema=False))
    _add_page(app)
    return Gate(app, settings, service.metrics, {("POST", "/v1/classify"): service.classify})


def _agents(service: Service) -> AgentEndpoint:
    from hinet.serving.agents import AgentEndpoint

    return AgentEndpoint(service)


def _add_problems(app: FastAPI) -> None:
    @app.exception_handler(ProblemError)
    async def problem(request: Request, error: ProblemError) -> Response:
        return Response(error.body(), error.status, dict(error.headers), CONTENT_TYPE)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [FieldProblem(".".join(map(str, reason["loc"][1:])), reason["msg"]) for reason in error.errors()]
        return await problem(request, fields_problem(fields))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "invalid-request")
        detail = "there is nothing at this path" if kind == "not-found" else str(error.detail)
        return await problem(request, ProblemError(error.status_code, kind, detail, headers=dict(error.headers or {})))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # the gate logs the error
        return await problem(request, INTERNAL_ERROR)

    @app.exception_handler(HiNetError)
    async def refused(request: Request, error: HiNetError) -> Response:
        return await problem(request, table_problem(error))


def _responses(model: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an endpoint for its documentation."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: dict[int | str, dict[str, Any]] = {status: {"model": model}}
    return responses | {code: {"description": text, "content": content} for code, text in PROBLEMS.items()}


def _add_classification(app: FastAPI, service: Service) -> None:
    @app.post("/v1/classify", responses=_responses(schemas.ClassifyResponse), summary="Classify texts or rows")
    async def classify(request: Request) -> Response:  # documentation only: the gate answers
        return Response(await service.classify(request.scope[BODY]), media_type="application/json")

    @app.post("/v1/explain", responses=_responses(schemas.ExplainResponse), summary="The words behind every step")
    async def explain(request: Request) -> Response:
        check_json(request.headers.get("content-type", "").encode())
        return Response(await service.explain(request.scope[BODY]), media_type="application/json")

    table = {kind.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}} for kind in TYPES.values()}
    responses = {**_responses(schemas.Status), 200: {"description": "The answered table.", "content": table}}

    @app.post(
        "/v1/classify/file", responses=responses, summary="Classify a table",
        openapi_extra={"requestBody": {"required": True, "content": table}},
    )  # fmt: skip
    async def classify_file(request: Request, query: Annotated[schemas.FileQuery, Query()]) -> Response:
        return await answer_table(service, request, query)


def _add_feedback(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/feedback", status_code=201, responses=_responses(schemas.FeedbackResponse, 201), summary="Keep a verdict"
    )
    async def feedback(request: Request) -> Response:
        check_json(request.headers.get("content-type", "").encode())
        return JSON(await service.feedback(request.scope[BODY]), 201)

    @app.get("/v1/feedback", responses=_responses(schemas.FeedbackPage), summary="List feedback")
    async def list_feedback(query: Annotated[schemas.FeedbackQuery, Query()]) -> Response:
        return JSON(await service.list_feedback(query))

    @app.delete("/v1/feedback/{id}", status_code=204, responses=_responses(None, 204), summary="Delete feedback")
    async def delete_feedback(id: Annotated[int, PathParameter(ge=1, le=schemas.MAX_ID)]) -> Response:
        await service.delete_feedback(id)
        return Response(status_code=204)

    @app.get("/v1/review", responses=_responses(schemas.ReviewPage), summary="Rows to review")
    async def review(query: Annotated[schemas.ReviewQuery, Query()]) -> Response:
        return JSON(await service.review(query))


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/taxonomy", responses=_responses(schemas.NodePage), summary="A node and its children")
    async def taxonomy(query: Annotated[schemas.NodeQuery, Query()]) -> Response:
        return JSON(await service.nodes(query))

    @app.get("/v1/taxonomy/search", responses=_responses(schemas.MatchPage), summary="Search the taxonomy")
    async def search(query: Annotated[schemas.SearchQuery, Query()]) -> Response:
        return JSON(await service.search(query))

    @app.get("/v1/models", responses=_responses(schemas.ModelList), summary="List the served models")
    async def models() -> Response:
        return JSON(await service.list_models())

    @app.get("/v1/models/{name}", responses=_responses(schemas.ModelDetails), summary="A model with its evaluation")
    async def model(name: str) -> Response:
        return JSON(await service.show_model(name))


def _add_project(app: FastAPI, service: Service) -> None:
    def body(request: Request, kind: type[Body]) -> Body:
        check_json(request.headers.get("content-type", "").encode())
        return parse(kind, request.scope[BODY])

    @app.get("/v1/project", responses=_responses(labelling_schemas.Project), summary="The labelling project")
    async def project() -> Response:
        return JSON(await service.project.status())

    @app.post(
        "/v1/project/next", responses=_responses(labelling_schemas.NextResponse), summary="Rows most worth a label"
    )
    async def next_rows(request: Request) -> Response:
        return JSON(await service.project.next_rows(body(request, labelling_schemas.NextRequest)))

    @app.post(
        "/v1/project/labels", status_code=201, responses=_responses(labelling_schemas.LabelResponse, 201),
        summary="Label or skip a row, or settle a disagreement",
    )  # fmt: skip
    async def label(request: Request) -> Response:
        return JSON(await service.project.label(body(request, labelling_schemas.LabelRequest)), 201)

    @app.get("/v1/project/labels", responses=_responses(labelling_schemas.LabelPage), summary="Labels, newest first")
    async def labels(query: Annotated[labelling_schemas.LabelQuery, Query()]) -> Response:
        return JSON(await service.project.labels(query))

    @app.delete("/v1/project/labels/{label_id}", status_code=204, responses=_responses(None, 204), summary="Undo")
    async def undo(label_id: Annotated[int, PathParameter(ge=1, le=schemas.MAX_ID)]) -> Response:
        await service.project.undo(label_id)
        return Response(status_code=204)

    @app.get("/v1/project/progress", responses=_responses(labelling_schemas.Progress), summary="How good the model is")
    async def progress() -> Response:
        return JSON(await service.project.progress())

    @app.get(
        "/v1/project/disagreements", responses=_responses(labelling_schemas.DisagreementPage),
        summary="Rows on which people disagree",
    )  # fmt: skip
    async def disagreements(query: Annotated[labelling_schemas.PageQuery, Query()]) -> Response:
        return JSON(await service.project.disagreements(query))

    @app.post(
        "/v1/project/rows", status_code=201, responses=_responses(labelling_schemas.RowsResponse, 201),
        summary="Add rows",
    )  # fmt: skip
    async def add_rows(request: Request) -> Response:
        return JSON(await service.project.add_rows(body(request, labelling_schemas.RowsRequest)), 201)

    csv = {**_responses(schemas.Status), 200: {"description": "A table.", "content": {"text/csv": {}}}}

    @app.get("/v1/project/labels.csv", responses=csv, summary="The labelled rows")
    async def labels_csv(query: Annotated[labelling_schemas.TableQuery, Query()]) -> Response:
        return _attachment(await service.project.labels_csv(query), "labels.csv")

    @app.get("/v1/project/history.csv", responses=csv, summary="Who labelled what when")
    async def history_csv(query: Annotated[labelling_schemas.TableQuery, Query()]) -> Response:
        return _attachment(await service.project.history_csv(query), "history.csv")


def _attachment(body: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body, headers=headers, media_type="text/csv; charset=utf-8")


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses=_responses(schemas.Status), summary="Whether the process runs")
    async def health() -> Response:
        return JSON({"status": "ok", "models": service.models.names})

    @app.get("/ready", responses=_responses(schemas.Status), summary="Whether requests are answered")
    async def ready() -> Response:
        service.models.check_ready()
        return JSON({"status": "ready", "models": service.models.names})

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSON(openapi_of(app))


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """Return the documentation of all endpoints, including the bodies that endpoints parse themselves."""
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


def _add_page(app: FastAPI) -> None:
    files = _read_page()  # read once, so that the path of a request is never used as a path on disk

    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        if (file := files.get(request.scope["path"])) is None:
            raise HTTPException(404)
        body, kind, etag = file
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)


def _read_page() -> Mapping[str, tuple[bytes, str, str]]:
    """Return body, type and ETag of the files of the page by URL path; HTML also without its suffix."""
    files = {}
    for path in PAGE.rglob("*"):
        if path.suffix in PAGE_TYPES:
            body = path.read_bytes()
            etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            files["/" + path.relative_to(PAGE).as_posix()] = body, f"{PAGE_TYPES[path.suffix]}; charset=utf-8", etag
    files |= {path.removesuffix(".html"): file for path, file in files.items() if path.endswith(".html")}
    return {"/": files["/index"], **files}
