"""``hinet serve`` and ``mcp``: trained models over REST, with a web page, and as tools for agents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hinet.cli.options import RunOptions, SharedOptions, ThreadedRun, option
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.serving.settings import Settings, read_tokens

NAME = re.compile(r"[\w][\w.-]{0,99}")
_ALLOWED_HOST = (
    "Host name that requests may have in addition to addresses and localhost, such as that of a proxy; *.NAME for all "
    "names below it, * for any; repeatable (default: any name with --token-file)."
)
_TOKEN_FILE = "File with SHA-256 digests of bearer tokens, one per line (default: no token needed)."
_FEEDBACK = "SQLite file to keep feedback in; created if necessary (default: none is kept)."
_REVIEW = "Keep doubtful texts in the file of --feedback, for people to review."
_ENCODER = (
    "Encoder of a model, if it moved: a folder, a folder that holds it, or a name; repeatable (default: in the model, "
    "where it was in training, or in a folder of $HINET_ENCODERS)."
)
_MAX_REQUESTS = "Maximum concurrent requests; further requests get 429."
_HTTP = "Serve streamable HTTP at /mcp of --host and --port, next to all that 'hinet serve' offers (default: stdio)."
_GRACE = "Seconds that running requests have to finish when the service stops."
QUEUE = 1_000  # rows in the review queue


@dataclass(frozen=True)
class ServiceOptions(SharedOptions):
    """Address, limits and files of a service."""

    panel = "Service"
    host: Annotated[str, option("Address to listen at; 0.0.0.0 accepts other machines.")] = Settings.host
    port: Annotated[int, option("Port to listen at.", min=1, max=65_535)] = Settings.port
    allowed_host: Annotated[list[str] | None, option(_ALLOWED_HOST)] = None
    token_file: Annotated[Path | None, option(_TOKEN_FILE)] = None
    feedback: Annotated[Path | None, option(_FEEDBACK)] = None
    review: Annotated[bool, option(_REVIEW, "--review")] = False
    encoder: Annotated[list[str] | None, option(_ENCODER)] = None
    max_body: Annotated[int, option("Maximum request size in bytes.", min=1_000)] = Settings.max_body
    max_file: Annotated[int, option("Maximum table size in bytes.", min=1_000)] = Settings.max_file
    max_texts: Annotated[int, option("Maximum texts per request.", min=1)] = Settings.max_texts
    max_length: Annotated[int, option("Maximum characters per text.", min=1)] = Settings.max_length
    max_requests: Annotated[int, option(_MAX_REQUESTS, min=1)] = Settings.max_requests
    seconds: Annotated[float, option("Maximum seconds per request.", min=0.1)] = Settings.seconds
    grace: Annotated[float, option(_GRACE, min=1)] = Settings.grace
    log_requests: Annotated[bool, option("Log every request, without its texts.", "--log-requests")] = False
    log_texts: Annotated[bool, option("Log request bodies, including users' texts.", "--log-texts")] = False

    @property
    def tokens(self) -> frozenset[bytes]:
        """The digests of accepted tokens."""
        return frozenset() if self.token_file is None else read_tokens(self.token_file)

    def settings(self, models: list[str], threads: int | None, *, mcp: bool = False) -> Settings:
        """Return the settings of a service with these models."""
        if self.review and self.feedback is None:
            raise HiNetError("--review keeps texts in the feedback file; give --feedback too")
        return Settings(
            _folders(models), host=self.host, port=self.port, tokens=self.tokens, feedback=self.feedback,
            review=QUEUE if self.review else 0, allowed_hosts=tuple(self.allowed_host or ()), max_body=self.max_body,
            max_file=self.max_file, max_texts=self.max_texts, max_length=self.max_length,
            max_requests=self.max_requests, seconds=self.seconds, grace=self.grace, threads=threads, mcp=mcp,
            log_requests=self.log_requests or self.log_texts, log_texts=self.log_texts,
            encoders=tuple(self.encoder or ()),
        )  # fmt: skip


ServedModels = Annotated[
    list[str], typer.Argument(help="Folder of a trained model, or NAME=FOLDER; several.", show_default=False)
]


def serve(model: ServedModels, service: ServiceOptions, run: ThreadedRun) -> None:
    """Serve models over REST, with a page to classify, explore, correct and review.

    Example: hinet serve model --port 8000 --feedback feedback.db --review

    The page is at the address itself; docs/serving.md lists the endpoints. When a model is saved again, the service
    loads the new version without a restart. Running requests are finished before the process stops.
    """
    require("fastapi", "serve")
    require("uvicorn", "serve")
    run_service(service.settings(model, run.threads), run)


def mcp(
    model: ServedModels,
    service: ServiceOptions,
    run: ThreadedRun,
    http: Annotated[bool, option(_HTTP, "--http")] = False,
) -> None:
    """Offer models to agents as tools (Model Context Protocol): classify, explain, search, feedback.

    Example: hinet mcp model --feedback feedback.db

    Without --http, an agent starts the command and talks to it over standard input and output; the log goes to standard
    error. The tools have the limits of 'hinet serve'; docs/agents.md describes them.
    """
    require("mcp", "hinet mcp")
    require("fastapi", "hinet mcp")
    settings = service.settings(model, run.threads, mcp=True)
    if http:
        run_service(settings, run)
        return
    address = service.host, service.port, settings.tokens, settings.allowed_hosts
    if address != (Settings.host, Settings.port, Settings.tokens, Settings.allowed_hosts):
        raise HiNetError("--host, --port, --allowed-host and --token-file are for --http; add it, or leave them out")
    import asyncio

    from hinet.serving.agents import serve_standard_streams
    from hinet.serving.server import log_to_stderr

    log_to_stderr(quiet=run.quiet and not settings.log_requests)
    asyncio.run(serve_standard_streams(settings))


def run_service(settings: Settings, run: RunOptions) -> None:
    """Print the address, and a warning if others can use it; serve until the process is terminated."""
    from hinet.serving.server import serve

    served = ", ".join(settings.models) if settings.project is None else f"project {settings.project.resolve().name}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    run.message(f"serving {served} at http://{host}:{settings.port}")
    if settings.host not in ("127.0.0.1", "localhost", "::1") and not settings.tokens:
        run.message("warning: other machines can send requests without a token; give --token-file, or use a proxy")
    serve(settings, quiet=run.quiet and not settings.log_requests)


def _folders(models: list[str]) -> dict[str, Path]:
    """Return folders by model name; the default name is that of the folder."""
    from hinet.classifier.model_folder import MANIFEST, read_manifest

    folders: dict[str, Path] = {}
    for given in models:
        name, equals, folder = given.partition("=")
        path = Path(folder if equals else given)
        name = name if equals else path.resolve().name
        if not NAME.fullmatch(name):
            raise HiNetError(f"{name!r} cannot name a model; use letters, digits, '-', '_' and '.': NAME={path}")
        if name in folders:
            raise HiNetError(f"two models are called {name!r}; name them: NAME={path}")
        if not (path / MANIFEST).is_file():  # a damaged model does not stop the others
            read_manifest(path)  # raises an error that describes the folder
        folders[name] = path
    return folders
