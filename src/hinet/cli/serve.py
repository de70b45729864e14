"""``hinet serve``: a REST service for trained models, and a page for people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import RunOptions, option, thread_options
from hinet.errors import HiNetError
from hinet.extras import require

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.serving.settings import Settings

EXAMPLE = "hinet serve model --port 8000 --feedback feedback.db --review"
NAME = re.compile(r"[\w][\w.-]{0,99}")
QUEUE = 1_000  # rows of the review queue
MEGABYTE = 1 << 20


@thread_options
def serve(
    model: Annotated[
        list[str], typer.Argument(help="Folder of a trained model, or NAME=FOLDER; several.", show_default=False)
    ],
    run: RunOptions,
    host: Annotated[str, option("Address to listen at; 0.0.0.0 is reachable from other machines.")] = "127.0.0.1",
    port: Annotated[int, option("Port to listen at.", least=1, most=65_535)] = 8_000,
    allowed_host: Annotated[
        list[str] | None,
        option(
            "Host name that requests may have in addition to addresses and localhost, such as that of a proxy; "
            "*.NAME for all names below it, * for any; repeatable (default: any name with --token-file)."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, option("File with the SHA-256 digests of bearer tokens, one a line (default: no token needed).")
    ] = None,
    feedback: Annotated[
        Path | None, option("SQLite file to keep feedback in; created if necessary (default: none is kept).")
    ] = None,
    review: Annotated[
        bool, option("Keep doubtful texts in the file of --feedback, for people to review.", "--review")
    ] = False,
    encoder: Annotated[
        list[str] | None,
        option(
            "Encoder of a model, if it moved: a folder, a folder that holds it, or a name; repeatable (default: in the "
            "model, where it was in training, or in a folder of $HINET_ENCODERS)."
        ),
    ] = None,
    max_body: Annotated[int, option("Most bytes of a request.", least=1_000)] = MEGABYTE,
    max_file: Annotated[int, option("Most bytes of a table.", least=1_000)] = 1_024 * MEGABYTE,
    max_texts: Annotated[int, option("Most texts of a request.", least=1)] = 1_000,
    max_length: Annotated[int, option("Most characters of a text.", least=1)] = 100_000,
    max_requests: Annotated[
        int, option("Most requests at work at once; others are told to come again.", least=1)
    ] = 256,
    seconds: Annotated[float, option("Most seconds of a request.", least=0.1)] = 30.0,
    grace: Annotated[
        float, option("Seconds that running requests have to finish when the service ends.", least=1)
    ] = 30.0,
    log_requests: Annotated[bool, option("Log every request, without its texts.", "--log-requests")] = False,
    log_texts: Annotated[bool, option("Log what requests hold, texts of users included.", "--log-texts")] = False,
) -> None:
    """Serve models by REST, with a page to classify, explore, correct and review.

    The page is at the address itself; docs/serving.md has the endpoints. A model that is saved anew is taken up
    without a restart. Requests that run are finished when the process is told to end.
    """
    require("fastapi", "serve")
    require("uvicorn", "serve")
    from hinet.serving.server import serve as run_server
    from hinet.serving.settings import Settings, read_tokens

    if review and feedback is None:
        raise HiNetError("--review keeps texts in the file of feedback; give --feedback too")
    settings = Settings(
        _folders(model), host, port, frozenset() if token_file is None else read_tokens(token_file), feedback,
        QUEUE if review else 0, tuple(allowed_host or ()), max_body, max_file, max_texts, max_length,
        max_requests=max_requests, seconds=seconds, grace=grace, threads=run.threads,
        log_requests=log_requests or log_texts, log_texts=log_texts, encoders=tuple(encoder or ()),
    )  # fmt: skip
    _announce(settings, run)
    run_server(settings, quiet=run.quiet and not settings.log_requests)


def _folders(models: list[str]) -> dict[str, Path]:
    """Return folders by name: as given, or that of the folder."""
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
            read_manifest(path)  # raises with what is there instead
        folders[name] = path
    return folders


def _announce(settings: Settings, run: RunOptions) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    run.message(f"serving {', '.join(settings.models)} at http://{host}:{settings.port}")
    if settings.host not in ("127.0.0.1", "localhost", "::1") and not settings.tokens:
        run.message("warning: other machines may ask without a token; give --token-file, or put a proxy before it")
