"""The service as an ASGI application: its endpoints, their documentation, and the page."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from hinet import __version__
from hinet.errors import HiNetError
from hinet.serving import labelling_schemas, schemas
from hinet.serving.endpoints import Endpoint, Endpoints
from hinet.serving.gate import BODY, INTERNAL_ERROR, App, Gate, check_json
from hinet.serving.labelling import ENDPOINTS as PROJECT_ENDPOINTS
from hinet.serving.problems import CONTENT_TYPE, FieldProblem, ProblemError, fields_problem
from hinet.serving.service import ENDPOINTS, Service, parse
from hinet.serving.settings import Settings
from hinet.serving.tables import TYPES, answer_table, table_problem

DESCRIPTION = "Classifies texts and rows into a large hierarchy, and shows why."
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


class JSON(Response):
    """A response with plain values as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return orjson.dumps(content)


def create_app(settings: Settings, on_failure: Callable[[HiNetError], None] = lambda error: None) -> App:
    """Return the service as an application; models are loaded once it runs, or ``on_failure`` is called."""
    service = Service(settings)
    agents = None
    if settings.mcp:
        from hinet.serving.agents import AgentEndpoint

        agents = AgentEndpoint(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running(on_failure), nullcontext() if agents is None else agents.running():
            yield

    async def classify(body: bytes) -> bytes:
        return orjson.dumps(await service.classify(parse(schemas.ClassifyRequest, body)))

    app = FastAPI(
        title="hinet", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.service = service
    _add_problems(app)
    _add_endpoints(app, ENDPOINTS, lambda: service)
    _add_endpoints(app, PROJECT_ENDPOINTS, lambda: service.project)
    _add_tables(app, service)
    _add_status(app, service)
    if agents is not None:
        app.router.routes.append(Route("/mcp", agents, methods=["GET", "POST", "DELETE"], include_in_schema=False))
    _add_page(app)
    return Gate(app, settings, service.metrics, classify)


def _add_problems(app: FastAPI) -> None:
    @app.exception_handler(ProblemError)
    async def problem(request: Request, error: ProblemError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [FieldProblem(".".join(map(str, reason["loc"][1:])), reason["msg"]) for reason in error.errors()]
        return fields_problem(fields).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "invalid-request")
        detail = "there is nothing at this path" if kind == "not-found" else str(error.detail)
        return ProblemError(error.status_code, kind, detail, headers=dict(error.headers or {})).response()

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # the gate logs the error
        return INTERNAL_ERROR.response()

    @app.exception_handler(HiNetError)
    async def refused(request: Request, error: HiNetError) -> Response:
        return table_problem(error).response()


def _responses(model: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Return the responses of an endpoint for its documentation."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: dict[int | str, dict[str, Any]] = {status: {"model": model}}
    return responses | {code: {"description": text, "content": content} for code, text in PROBLEMS.items()}


def _add_endpoints(app: FastAPI, endpoints: Endpoints, owner: Callable[[], Any]) -> None:
    """Add endpoints of the ``owner``, which may raise ProblemError."""
    for endpoint in endpoints:
        extra = None
        if endpoint.body is not None:
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{endpoint.body.__name__}"}}}
            extra = {"requestBody": {"required": True, "content": content}}
        app.add_api_route(
            endpoint.path, _handler(endpoint, owner), methods=[endpoint.verb], name=endpoint.name,
            status_code=endpoint.status, responses=_responses(endpoint.shown, endpoint.status),
            summary=endpoint.summary, openapi_extra=extra,
        )  # fmt: skip


def _handler(endpoint: Endpoint, owner: Callable[[], Any]) -> Callable[..., Awaitable[Response]]:
    """Return the function of an endpoint, with a signature from which the framework reads its parameters."""

    async def handle(request: Request, **parameters: Any) -> Response:
        instance, asked = owner(), list(parameters.values())
        if endpoint.body is not None:  # read by the gate
            check_json(request.headers.get("content-type", "").encode())
            asked = [parse(endpoint.body, request.scope[BODY])]
        value = await endpoint.answer(instance, *asked)
        return Response(status_code=endpoint.status) if value is None else JSON(value, endpoint.status)

    kinds: dict[str, Any] = {"request": Request}
    for name, kind in endpoint.parameters.items():
        kinds[name] = kind if f"{{{name}}}" in endpoint.path else Annotated[kind, Query()]
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in kinds.items()]
    handle.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return handle


def _add_tables(app: FastAPI, service: Service) -> None:
    table = {kind.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}} for kind in TYPES.values()}
    responses = {**_responses(schemas.Status), 200: {"description": "The answered table.", "content": table}}

    @app.post(
        "/v1/classify/file", responses=responses, summary="Classify a table",
        openapi_extra={"requestBody": {"required": True, "content": table}},
    )  # fmt: skip
    async def classify_file(request: Request, query: Annotated[schemas.FileQuery, Query()]) -> Response:
        return await answer_table(service, request, query)

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
        bodies = [endpoint.body for endpoint in (*ENDPOINTS, *PROJECT_ENDPOINTS) if endpoint.body is not None]
        _, kinds = models_json_schema(
            [(kind, "validation") for kind in (*bodies, schemas.Problem)], ref_template="#/components/schemas/{model}"
        )
        document["components"]["schemas"] |= kinds["$defs"]
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
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
