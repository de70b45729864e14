"""The command line, one module per command."""

from hinet.cli.main import app, main

__all__ = ["app", "main"]
