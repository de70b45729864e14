"""The wheel in a fresh environment, as ``pip install`` makes it: the demo and every main command, run from there.

There are no constraints, so the newest release of every dependency is tried; ``make test`` has the pinned ones. There
is no torch.
"""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
LONGEST = 400.0  # seconds that a step may take, on a machine that has other work to do
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
REMEDY = "needs torch; install it with: pip install 'hinet[torch]'"

IN_PYTHON = """
import importlib.util
import numpy as np
import hinet

assert importlib.util.find_spec("torch") is None
rows = np.random.default_rng(0).normal(size=(60, 4))
labels = ["high" if row[0] > 0 else "low" for row in rows]
classifier = hinet.HiNetClassifier(validation_fraction=0.2).fit(rows, labels)
assert classifier.score(rows, labels) > 0.8
for given in ({"network": object()}, {"device": "cuda"}, {"engine": "torch"}):
    try:
        hinet.HiNetClassifier(**given).fit(rows, labels)
    except hinet.HiNetError as error:
        assert str(error).endswith(REMEDY), error
    else:
        raise AssertionError(given)
try:
    import hinet.networks
except hinet.HiNetError as error:
    assert str(error).endswith(REMEDY), error
""".replace("REMEDY", repr(REMEDY))


def run(*command: str | Path, code: int = 0, cwd: Path = ROOT) -> str:
    """Run a command to its end, which must exit with this code, and return what it wrote to both streams."""
    start = time.perf_counter()
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, check=False, timeout=LONGEST, text=True, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    told = " ".join(str(part).strip().partition("\n")[0] for part in command)
    sys.stdout.write(f"{time.perf_counter() - start:6.1f} s  {told}\n")
    sys.stdout.flush()
    if done.returncode != code:
        raise SystemExit(f"{told} exited with {done.returncode} instead of {code}:\n{done.stdout}")
    return done.stdout


def write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write a table of texts and labels."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])


def shop() -> list[tuple[str, str]]:
    """Return texts with labels that are paths."""
    kinds = {"Food > Bread": "rye white brown", "Food > Milk": "whole skimmed sour", "Toys": "car train doll"}
    return [
        (f"{word} {path.rpartition('> ')[2].lower()} {number}", path)
        for path, words in kinds.items()
        for word in words.split()
        for number in range(12)
    ]


def check_commands(hinet: Path, folder: Path) -> None:
    """Run the commands one after the other on a small table."""
    write_table(folder / "rows.csv", shop())
    write_table(folder / "more.csv", [(f"mint tea {number}", "Food > Tea") for number in range(30)])

    def hinet_does(*arguments: str, code: int = 0) -> str:
        return run(hinet, *arguments, code=code, cwd=folder)

    hinet_does("train", "rows.csv", "--valid-share", "0.5", "--risk", "0.4", "--out", "model")
    predicted = hinet_does("predict", "model", "rows.csv", "--min-confidence", "calibrated")
    assert "Food > Bread" in predicted, predicted
    assert "accuracy" in hinet_does("evaluate", "model", "rows.csv")
    assert "Bread" in hinet_does("explain", "model", "rye bread")
    assert "calibrated  on" in hinet_does("inspect", "model")
    hinet_does("update", "model", "--rows", "more.csv", "--out", "updated")
    assert "Food > Tea" in hinet_does("predict", "updated", "more.csv")
    served = hinet_does("serve", "model", code=2)
    assert served == "error: serve needs fastapi; install it with: pip install 'hinet[serve]'\n", served
    compared = hinet_does("compare", "rows.csv", code=2)
    assert compared == f"error: compare {REMEDY}\n", compared


def check_service(hinet: Path, folder: Path) -> None:
    """Serve the model, and ask for one answer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [str(hinet), "serve", "model", "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        timer = Timer(LONGEST, process.kill)
        timer.start()
        try:
            assert process.stderr is not None
            lines: list[str] = []
            while not any(" ready: " in line for line in lines):
                lines.append(process.stderr.readline())
                if not lines[-1]:
                    raise SystemExit(f"{' '.join(command)} ended:\n{''.join(lines)}")
            content = json.dumps({"texts": ["rye bread"]}).encode()
            request = Request(f"http://127.0.0.1:{port}/v1/classify", content, {"content-type": "application/json"})
            with urlopen(request, timeout=LONGEST) as answer:
                answered = answer.read().decode()
            assert "Bread" in answered, answered
            process.terminate()
            process.stderr.read()
            assert process.wait() == 0, process.returncode
        finally:
            timer.cancel()
            process.kill()
    sys.stdout.write(f"          {' '.join(command)}\n")


def main() -> None:
    """Build a wheel, or take that of the command line; install it, and run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
        if len(sys.argv) > 1:
            wheel = Path(sys.argv[1]).resolve()
        else:
            run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
            (wheel,) = folder.glob("hinet-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            assert "hinet/serving/page/index.html" in packed.namelist()
        install = (*pip, "install", "--no-compile")  # what is imported is compiled, and that is little
        run(*install, f"{wheel}[demo,meaning]")
        sys.stdout.write(run(*pip, "freeze"))
        run(python.with_name("hinet"), "compile", "--quiet")
        demo = run(python.with_name("hinet"), "demo", "--rows", "10000", cwd=folder)  # make test-slow takes all
        assert "bitten by a dog" in demo, demo
        assert "static vectors of wordllama" in demo, demo
        check_commands(python.with_name("hinet"), folder)
        run(*install, f"{wheel}[serve]")
        check_service(python.with_name("hinet"), folder)
        run(python, "-c", IN_PYTHON, cwd=folder)


if __name__ == "__main__":
    main()
