"""``hinet mcp``: models as tools for agents, over the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

from hinet.cli.options import RunOptions, option, thread_options
from hinet.cli.serve import ServedModels, ServiceOptions, run_service, service_options
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.serving.settings import Settings

_HTTP = "Serve streamable HTTP at /mcp of --host and --port, next to all that 'hinet serve' offers (default: stdio)."


@thread_options
@service_options
def mcp(
    model: ServedModels,
    service: ServiceOptions,
    run: RunOptions,
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
    from hinet.serving.agents import serve_standard_streams
    from hinet.serving.server import log_to_stderr

    log_to_stderr(quiet=run.quiet and not settings.log_requests)
    serve_standard_streams(settings)
