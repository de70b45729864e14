"""The program ``hinet``: its commands, and its error messages and exit codes."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from hinet import __version__
from hinet.cli.command_list import CommandList
from hinet.cli.messages import with_options
from hinet.errors import HiNetError

USAGE_ERROR = 2  # also what a wrong option exits with

app = typer.Typer(
    name="hinet",
    cls=CommandList,
    help="Classify rows into a large hierarchy.\n\nStart with 'hinet demo', or see 'hinet train --help'.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"hinet {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit: with 0, 2 for user errors, 130 when interrupted, 143 when terminated."""
    if arguments is None:
        _own_process()
    if sys.stderr is None:  # closed before the process started
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # question marks for characters that the terminal cannot show
    try:
        try:
            app(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk is reported here, not when Python exits
            if arguments is None:
                gc.freeze()  # so that Python exits without a garbage collection
    except HiNetError as error:
        sys.stderr.write(f"error: {with_options(str(error))}\n")
        sys.exit(USAGE_ERROR)
    except MemoryError as error:
        sys.stderr.write(f"error: not enough memory: {error or 'use less data or smaller settings'}\n")
        sys.exit(USAGE_ERROR)
    except OSError as error:
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        sys.stdout = None  # its buffer cannot be written
        sys.exit(USAGE_ERROR)


def _own_process() -> None:
    """Set up signals, standard streams and garbage collection of the process."""
    for number in range(3):  # a file that reused the number of a closed standard stream would receive its output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    gc.set_threshold(100_000, 50, 50)  # imported objects stay: frequent collections take a tenth of the start
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by default under nohup and in background jobs
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a closed pipe ends the process, as with other tools


def _end(number: int, frame: object) -> None:
    """Exit as after an error, so that partial files are removed."""
    sys.exit(128 + number)
