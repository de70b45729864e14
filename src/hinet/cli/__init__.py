"""The command line: one file a group of commands."""

from hinet.cli.main import app, main

__all__ = ["app", "main"]
