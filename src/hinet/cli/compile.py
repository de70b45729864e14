"""``hinet compile``: compile the whole engine ahead, as in the image of a container."""

from __future__ import annotations

from hinet.cli.options import RunOptions, thread_options

EXAMPLE = "hinet compile --threads 2"


@thread_options
def compile(run: RunOptions) -> None:
    """Compile the engine for this machine, all of it, on all cores, so that nothing is compiled later.

    What is compiled is kept beside the package or, where that cannot be written to, in the user's cache folder;
    NUMBA_CACHE_DIR names another. It is for this processor; where an image runs on several kinds, set
    NUMBA_CPU_NAME=generic in it, before it is compiled.
    """
    import time

    from rich.console import Console

    from hinet.engine.compiling import compile_everything
    from hinet.parameters import resolve_threads

    start = time.perf_counter()
    console = Console(stderr=True, quiet=run.quiet, highlight=False)
    done = 0
    with console.status("compiling") as status:
        for name, total in compile_everything(resolve_threads(run.threads)):
            done += 1
            status.update(f"compiling, {done} of {total}")
            if not console.is_terminal:
                run.message(f"{done}/{total}  {name}")
    run.message(f"compiled {done} kernels in {time.perf_counter() - start:.0f} s")
