"""The program ``hinet``: its commands, and errors as a person at a terminal should see them."""

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
from hinet.cli import compare, compile, demo, evaluate, explain, export, inspect, predict, taxonomy, train, update
from hinet.errors import HiNetError

USAGE_ERROR = 2  # also what a wrong option exits with

app = typer.Typer(
    name="hinet",
    help="Classify things into a large hierarchy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", epilog=train.EXAMPLE)(train.train)
app.command("predict", epilog=predict.EXAMPLE)(predict.predict)
app.command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command("inspect", epilog=inspect.EXAMPLE)(inspect.inspect)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain)
app.command("update", epilog=update.EXAMPLE)(update.update)
app.command("export", epilog=export.EXAMPLE)(export.export)
app.command("compare", epilog=compare.EXAMPLE)(compare.compare)
app.command("compile", epilog=compile.EXAMPLE)(compile.compile_kernels)
app.add_typer(taxonomy.app, name="taxonomy")
app.command("demo", epilog=demo.EXAMPLE)(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Run the program and exit: 0, 2 for what the user can mend, 130 when interrupted, 143 when asked to end."""
    if arguments is None:
        _own_process()
    if sys.stderr is None:  # it was closed before the process began
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    try:
        try:
            app(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk is found here, not when Python closes down
            if arguments is None:
                gc.freeze()  # so that Python closes down without looking through it all
    except HiNetError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USAGE_ERROR)
    except MemoryError as error:
        sys.stderr.write(f"error: there is not enough memory: {error or 'less data, or smaller settings, may fit'}\n")
        sys.exit(USAGE_ERROR)
    except OSError as error:
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        sys.stdout = None  # what it still holds cannot go anywhere
        sys.exit(USAGE_ERROR)


def _own_process() -> None:
    """Set up a process that does nothing else."""
    for number in range(3):  # a file that took the number of a closed standard stream would hear its messages
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    gc.set_threshold(100_000, 50, 50)  # what imports make stays: to look through it often takes a tenth of the start
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and background jobs start with it ignored
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that goes away ends it, as it does other tools


def _end(number: int, frame: object) -> None:
    """End as if by an error, so that what is half-written is removed."""
    sys.exit(128 + number)
