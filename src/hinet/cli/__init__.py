"""The command line: one file a command."""

from hinet.cli.main import app, main

__all__ = ["app", "main"]
