"""``hinet compile``: compile the whole engine ahead, as in the image of a container."""

from __future__ import annotations

from hinet.cli.options import Running, runs

EXAMPLE = "Example: hinet compile --threads 2"


@runs
def compile_kernels(running: Running) -> None:
    """Compile the engine for this machine, all of it, on all cores, so that nothing is compiled later.

    What is compiled is kept beside the package or, where that cannot be written to, in the user's cache folder;
    NUMBA_CACHE_DIR names another. It is for this processor; where an image runs on several kinds, set
    NUMBA_CPU_NAME=generic in it, before it is compiled.
    """
    import time

    from rich.console import Console

    from hinet.engine.compiling import compile_everything
    from hinet.parameters import thread_count

    start = time.perf_counter()
    console = Console(stderr=True, quiet=running.quiet, highlight=False)
    done = 0
    with console.status("compiling") as status:
        for name, total in compile_everything(thread_count(running.threads)):
            done += 1
            status.update(f"compiling, {done} of {total}")
            if not console.is_terminal:
                running.say(f"{done}/{total}  {name}")
    running.say(f"compiled {done} kernels in {time.perf_counter() - start:.0f} s")
