from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hinet import compiled, numba_internals
from hinet.engine.compiling import training_kernels
from hinet.engine.training.deep_kernels import train_deep, train_flat
from tests import processes

MODULE = """
from hinet.compiled import inlined, kernel

@kernel
def doubled(x):
    return tripled(x) - x

@inlined
def tripled(x):
    assert x > 0
    return 3 * x
"""
PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("hinet.tiny", sys.argv[1])
tiny = importlib.util.module_from_spec(spec)
sys.modules["hinet.tiny"] = tiny
spec.loader.exec_module(tiny)
stats = tiny.doubled.compiled.stats
print(tiny.doubled(21), tiny.tripled(2), len(stats.cache_hits), len(stats.cache_misses))
try:
    tiny.doubled(0)
except AssertionError:
    print("refused")
"""


FIRST_COMPILATION = "hinet: compiling for this machine; this is kept and happens once\n"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A module with a kernel and a function that it calls."""
    path = tmp_path / "source" / "tiny.py"
    path.parent.mkdir()
    path.write_text(MODULE)
    return path


def run(module: Path, **environment: str) -> tuple[str, str]:
    """Use the kernels in another process; return its standard output and error."""
    done = processes.run(
        [sys.executable, "-c", PROGRAM, str(module)],
        env={**{k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_kernels_are_compiled_once_and_cached_in_the_given_folder(tiny: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert run(tiny, NUMBA_CACHE_DIR=str(kept)) == ("42 6 0 1\nrefused\n", FIRST_COMPILATION)
    files = sorted(path for path in kept.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == {".nbi", ".nbc"}
    assert {path.parent for path in files} == {kept / compiled.FOLDER}
    assert run(tiny, NUMBA_CACHE_DIR=str(kept)) == ("42 6 1 0\nrefused\n", "")
    assert sorted(path for path in kept.rglob("*") if path.is_file()) == files
    assert [path.name for path in tiny.parent.rglob("*.nb?")] == []


def test_kernels_are_cached_next_to_their_source_by_default(tiny: Path) -> None:
    run(tiny)
    assert {path.suffix for path in tiny.parent.rglob(f"{compiled.FOLDER}/*")} == {".nbi", ".nbc"}
    assert run(tiny) == ("42 6 1 0\nrefused\n", "")


@pytest.mark.parametrize("writable", [True, False])
def test_untested_versions_of_numba_compile_and_cache_by_its_public_interface(
    tiny: Path, tmp_path: Path, writable: bool
) -> None:
    program = "from hinet import machine_code\nmachine_code.TESTED_VERSIONS = ()\n"
    if not writable:
        program += "from numba.core import caching\ncaching.CompileResultCacheImpl._locator_classes = []\n"
    program += PROGRAM + "print('hinet.numba_internals' in sys.modules)\n"
    for hits, misses in ((0, 1), (1, 0)) if writable else ((0, 1), (0, 1)):
        done = processes.run(
            [sys.executable, "-c", program, str(tiny)], env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
        )
        assert done.stdout == f"42 6 {hits} {misses}\nrefused\nFalse\n", done.stderr


def test_kernels_in_a_read_only_folder_are_used(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    run(tiny)
    doubled = _module(tiny).doubled
    (folder,) = tiny.parent.rglob(compiled.FOLDER)
    assert doubled.is_cached()
    monkeypatch.setattr(compiled, "_can_be_written", lambda folder: folder.is_relative_to(tmp_path / "user"))
    assert compiled.folder_for(doubled.py_func) == folder
    for index in folder.glob("*.nbi"):
        index.unlink()
    assert not doubled.is_cached()
    assert compiled.folder_for(doubled.py_func) == tmp_path / "user" / folder.name


CALLED = """
from hinet.compiled import inlined
FACTOR, TABLE = 3, np.arange(4)

@inlined
def tripled(x):
    return [FACTOR * y + TABLE[1] for y in (x,)][0]

def unused():
    return 1
"""
CALLING = """
class Pair(NamedTuple):
    first: int
    second: int

@kernel
def doubled(x):
    pair = Pair(tripled(x), x)
    return pair.first - pair.second

@kernel
def unrelated(x):
    return np.sqrt(x)
"""


def _digests(calling: str = CALLING, called: str = CALLED) -> tuple[str, str]:
    names: dict[str, Any] = {"np": np, "NamedTuple": NamedTuple, "kernel": compiled.kernel, "__name__": "hinet.tiny"}
    exec(called, names)
    exec(calling, names)
    return compiled.digest_of(names["doubled"].py_func), compiled.digest_of(names["unrelated"].py_func)


@pytest.mark.parametrize(
    "edit",
    ["FACTOR, TABLE = 3/FACTOR, TABLE = 4", "arange(4)/arange(5)", "[FACTOR */[1 + FACTOR *", "TABLE[1]/TABLE[2]"],
)
def test_a_kernel_is_compiled_again_after_an_edit_of_a_function_it_calls(edit: str) -> None:
    doubled, unrelated = _digests()
    edited = _digests(called=CALLED.replace(*edit.split("/")))
    assert edited[0] != doubled
    assert edited[1] == unrelated


def test_a_kernel_is_compiled_again_after_an_edit_of_its_records_only() -> None:
    assert _digests(CALLING.replace("first: int", "third: int"))[0] != _digests()[0]
    edited = CALLED.replace("return 1", "return 2").replace("FACTOR", "# a comment\nFACTOR", 1)
    assert _digests(called=edited) == _digests()


def test_a_kernel_is_not_compiled_again_after_an_edit_of_a_docstring() -> None:
    documented = [
        CALLED.replace("(x):\n", f'(x):\n    """{text}"""\n') for text in ("Triple.", "Return three times x.")
    ]
    first, second = (_digests(called=each) for each in documented)
    assert first == second


def test_the_digest_of_every_kernel_is_the_same_in_every_process() -> None:
    code = (
        "from hinet.engine.compiling import training_kernels\nfrom hinet.compiled import digest_of\n"
        "print(*(digest_of(kernel.py_func) for kernel in training_kernels()))"
    )
    done = processes.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "12"})
    assert done.stdout.split() == [compiled.digest_of(kernel.py_func) for kernel in training_kernels()]
    assert len({*done.stdout.split()}) == len(training_kernels())


RECORDS = """
from typing import NamedTuple
from hinet.compiled import kernel

class Pair(NamedTuple):
    first: float
    second: float

@kernel
def first_of(pair):
    return pair.first
"""


def test_kernels_notice_moved_fields_and_removed_records(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tiny.parent))
    swapped = RECORDS.replace("first: float", "").replace("second: float", "second: float\n    first: float")
    digests, hits = [], []
    for source in (RECORDS, RECORDS, swapped, RECORDS.replace("Pair", "Twin")):
        tiny.write_text(source)
        module = _module(tiny)
        monkeypatch.setitem(sys.modules, "hinet.tiny", module)
        record = module.Pair if "Pair" in source else module.Twin
        assert module.first_of.compiled(record(first=1.0, second=2.0)) == 1.0
        digests.append(compiled.digest_of(module.first_of.py_func))
        hits.append(len(module.first_of.compiled.stats.cache_hits))
    assert len({*digests}) == 1
    assert hits == [0, 1, 0, 0]


def test_files_of_kernels_unused_for_a_month_are_removed(tmp_path: Path) -> None:
    old, recent = time.time() - 31 * numba_internals.DAY, time.time() - 29 * numba_internals.DAY
    for name, used in (("a.old-1.py311", old), ("a.recent-2.py311", recent)):
        for file in (tmp_path / f"{name}.1.nbc", tmp_path / f"{name}.nbi"):
            file.touch()
            os.utime(file, (used, used))
    os.utime(tmp_path / "a.recent-2.py311.1.nbc", (old, old))
    numba_internals.remove_unused(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.recent-2.py311.1.nbc", "a.recent-2.py311.nbi"]
    numba_internals.remove_unused(tmp_path / "missing")


def test_the_last_use_of_a_kernel_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiled.kernel(_halved)(4.0) == 2.0
    (index,) = tmp_path.rglob("*.nbi")
    os.utime(index, (0, 0))
    assert compiled.kernel(_halved)(4.0) == 2.0
    assert index.stat().st_mtime > 0


def test_a_kernel_that_cannot_be_cached_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_internals, "folder_for", lambda function: tmp_path / "missing")
    halved = compiled.kernel(_halved)
    assert halved(4.0) == 2.0


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("hinet.tiny", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_run_without_a_writable_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_internals, "folder_for", lambda function: None)
    halved = compiled.kernel(_halved)
    assert halved(4.0) == 2.0
    assert not halved.compiled.stats.cache_path


def test_kernels_know_nan_and_infinity() -> None:
    assert compiled.kernel(_is_lost)(float("nan"))
    assert not compiled.kernel(_is_lost)(float("inf"))


def _halved(x: float) -> float:
    return x / 2


def _is_lost(x: float) -> bool:
    return x != x


TRAINING = """
import hashlib
import numpy as np
import scipy.sparse as sp
from hinet import Layers, Taxonomy, Traces
from hinet.engine import EngineSettings, fit

random = np.random.default_rng(0)
layers = Layers.of(Taxonomy.from_paths([(a, a + b) for a in "abc" for b in "xyz"], steps="ids"))
rows = sp.random_array((200, 40), density=0.2, format="csr", dtype=np.float32, rng=random)
labels = random.choice(sorted(a + b for a in "abc" for b in "xyz"), 200).tolist()
model = fit(rows, Traces.encode(layers, labels), EngineSettings(wide=False, flat=True, width=64, threads=1))
for expert in (model.experts.deep, model.experts.flat):
    print(hashlib.md5(expert.embedding.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [train_deep, train_flat], ids=lambda kernel: kernel.__name__)
def test_a_process_that_compiles_trains_the_same_bits_as_one_that_loads(
    trainer: compiled.Kernel, tmp_path: Path
) -> None:
    for kernel in training_kernels():  # the others may be cached
        folder = compiled.folder_for(kernel.py_func)
        if folder is not None and kernel is not trainer:
            for file in folder.glob(f"*.{kernel.__name__}-*"):
                (tmp_path / folder.name).mkdir(exist_ok=True)
                shutil.copy(file, tmp_path / folder.name)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", TRAINING]
    first, second = (processes.run(command, env=environment) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert ("compiling for this machine" in first.stderr, "compiling" in second.stderr) == (True, False)
    assert first.stdout == second.stdout
