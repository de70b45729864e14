"""Kernels compiled ahead in worker processes."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE
from threading import Thread

import pytest

from hinet.compiled import Kernel
from hinet.engine import compiling
from hinet.engine.compiling import Workers, calls, compile_for_training, training_kernels
from tests import processes

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
FAILING = "import sys\nfor line in sys.stdin:\n    if 'bad' in line: sys.exit(1)\n    print(line, end='', flush=True)"
SLOW = """
import os, sys, time
for line in sys.stdin:
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    print(line, end='', flush=True)
"""


def worker(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> None:
    monkeypatch.setattr(compiling, "WORKER", (sys.executable, "-c", program, *arguments))


def test_workers_compile_all_and_report(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, ECHO)
    done: list[str] = []
    workers = Workers("abcde", 2, done.append)
    workers.join()
    assert sorted(done) == list("abcde")
    assert workers.left == []


def test_kernels_that_a_worker_fails_to_compile_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, FAILING)
    workers = Workers(["good", "bad", "later"], 1)
    workers.join()
    assert workers.left == ["bad", "later"]
    workers.claim("bad")
    workers.claim("later")


def test_workers_that_cannot_start_leave_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "WORKER", ("/no such program",))
    workers = Workers(["a", "b"], 2)
    workers.join()
    assert workers.left == ["a", "b"]


def test_a_claim_waits_for_a_begun_kernel_and_takes_a_waiting_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed = tmp_path / "proceed"
    worker(monkeypatch, SLOW, str(proceed))
    done: list[str] = []
    workers = Workers(["first", "second"], 1, done.append)
    with workers._changed:
        assert workers._changed.wait_for(lambda: "first" in workers._running, timeout=processes.LONGEST)
    workers.claim("second")
    waiting = Thread(target=workers.claim, args=("first",))
    waiting.start()
    assert waiting.is_alive()
    proceed.touch()
    waiting.join(timeout=processes.LONGEST)
    workers.join()
    assert done == ["first"]


COMPILING = """
import threading
from types import SimpleNamespace
from hinet import machine_code
from hinet.engine import compiling

files, asked = threading.Lock(), threading.Event()

class Lock:
    def __enter__(self):
        asked.set()
        files.acquire()
    def __exit__(self, *error):
        files.release()

def compile(types):
    with files:
        print("begun", flush=True)
        asked.wait()
        print("written", flush=True)
    threading.Event().wait()

machine_code.SAVING = Lock()
compiling.calls = lambda: {"slow": [(SimpleNamespace(compiled=SimpleNamespace(compile=compile)), ())]}
compiling.main()
"""


def test_a_worker_ends_with_its_input_while_it_compiles_but_not_while_it_writes() -> None:
    with processes.started([sys.executable, "-c", COMPILING], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("slow\n")
        process.stdin.flush()
        assert process.stdout.readline() == "begun\n"
        process.stdin.close()
        assert process.stdout.read() == "written\n"
    assert process.returncode == 0


def test_training_starts_no_workers_on_one_core_or_if_all_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(compiling, "Workers", lambda *given: started.append(given))
    monkeypatch.setattr(compiling, "_once", compiling.Lock())
    monkeypatch.setattr(compiling, "resolve_threads", lambda threads: 1)
    compile_for_training()
    monkeypatch.setattr(compiling, "resolve_threads", lambda threads: 8)
    monkeypatch.setattr(compiling.Kernel, "is_cached", lambda self: True)
    compile_for_training()
    assert started == []


@pytest.fixture(scope="module")
def every() -> set[str]:
    """Names of all kernels that are compiled ahead."""
    return {*calls()}


def test_the_tiny_models_call_every_kernel(every: set[str]) -> None:
    existing = {
        value.__name__
        for name, module in list(sys.modules.items())
        if name.startswith("hinet.")
        for value in vars(module).values()
        if isinstance(value, Kernel)
    }
    assert {kernel.__name__ for kernel in training_kernels()} <= existing
    assert every == existing


STORY = """
import copy, csv, pickle, sys
from pathlib import Path
import numba
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, event): compiled.append(event.data["dispatcher"].py_func.__qualname__)
    def on_end(self, event): pass
event.register("numba:compile", Listener())

import numpy as np, scipy.sparse as sp
from hinet import HiNetClassifier, Taxonomy, load
from hinet.compiled import compile_from_now_on
from hinet.data.text import TextSettings
from hinet.cli import app
compile_from_now_on()

folder = Path(sys.argv[1])
texts = ["rye bread", "whole milk", "toy car", "a toy train", "skimmed milk", "white bread"] * 5
labels = ["bread", "milk", "car", "train", "milk", "bread"] * 5
edges = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train")]
with (folder / "rows.csv").open("w", newline="") as stream:
    csv.writer(stream).writerows([("text", "label"), *zip(texts, labels)])
tree, dag = Taxonomy.from_edges(edges), Taxonomy.from_edges([*edges, ("food", "train")])
tree.write(folder / "tree.tsv")

def run(*arguments):
    app([*map(str, arguments)], standalone_mode=False)

rows, model = folder / "rows.csv", folder / "model"
run("train", rows, "--taxonomy", folder / "tree.tsv", "--valid-share", "0.3", "--out", model)
run("predict", model, rows, "--top", "2", "--levels", "--out", folder / "a.csv")
run("predict", model, rows, "--min-confidence", "0.6", "--out", folder / "b.csv")
run("predict", model, rows, "--decoding", "label", "--out", folder / "c.csv")
run("evaluate", model, rows)
run("explain", model, "rye bread")
for taxonomy in (tree, dag):
    for settings in (None, TextSettings(hash_bits=6, keep_names=False)):
        classifier = HiNetClassifier(taxonomy, text=settings, validation_fraction=0.2, epochs=2, width=8)
        classifier.fit(texts, labels).calibrate(list(texts) * 10, list(labels) * 10)
        classifier.partial_fit(texts, labels)
        classifier.save(folder / "saved")
        copied = copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier))
        for each in (classifier, *copied, load(folder / "saved"), load(folder / "saved", mapped=False)):
            each.predict(texts), each.predict(texts, min_confidence=0.5), each.predict_labels(texts, 2)
            each.predict_traces(texts, 2), each.predict_proba(texts), each.score(texts, labels)
    numbers = sp.random_array((30, 12), density=0.4, format="csr", dtype=np.float64, rng=np.random.default_rng(0))
    for kind in (np.int32, np.int64):
        arrays = numbers.data, numbers.indices.astype(kind), numbers.indptr.astype(kind)
        given = sp.csr_array(arrays, shape=numbers.shape)
        classifier = HiNetClassifier(taxonomy, epochs=2, width=8).fit(given, labels)
        classifier.predict(given), classifier.predict_proba(given), classifier.explain(given[:1])
moved = Taxonomy.from_edges([("food", "bread"), ("food", "milk"), ("toys", "car"), ("food", "train")])
HiNetClassifier(tree, epochs=2, width=8).fit(texts, labels).update_taxonomy(moved)
print("compiled", compiled)
"""


def test_nothing_is_compiled_after_compiling_ahead(every: set[str], tmp_path: Path) -> None:
    ahead = processes.run([Path(sys.executable).with_name("hinet"), "compile", "--threads", "1"])
    assert ahead.returncode == 0, ahead.stderr
    assert "compiled " in ahead.stderr
    assert f"{len(every)}/{len(every)}" in ahead.stderr
    done = processes.run([sys.executable, "-c", STORY, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "compiled []"
