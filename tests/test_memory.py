"""Work that would not fit into memory is rejected before it starts."""

from __future__ import annotations

import gzip
import resource
import sys
import tracemalloc
from pathlib import Path

import pytest

from hinet import FileError, HiNetError, Taxonomy, parameters
from hinet.engine.settings import MemoryPlan
from hinet.files.streams import read_text
from hinet.networks import DenseFeatures, SparseBag
from tests.processes import run


def test_total_memory_respects_machine_container_and_process_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "CONTAINER_LIMITS", ())
    machine = parameters.total_memory()
    assert 1e8 < machine < 1e15
    limit, none = tmp_path / "memory.max", tmp_path / "none"
    monkeypatch.setattr(parameters, "CONTAINER_LIMITS", (none, limit))
    for written, expected in (("max\n", machine), ("50000000\n", 50_000_000), (f"{1 << 62}\n", machine)):
        limit.write_text(written)
        assert parameters.total_memory() == expected
    code = "from hinet.parameters import total_memory; print(total_memory())"

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (500_000_000, 500_000_000))

    assert run([sys.executable, "-c", code], preexec_fn=limit_memory).stdout == "500000000\n"


def test_training_that_needs_too_much_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "total_memory", lambda: 1_000_000_000)
    MemoryPlan(900_000_000, 0, 0, 0).check(None)
    with pytest.raises(HiNetError, match=r"takes 1.10 GB.* more than the 1.00 GB of memory available; lower `width`"):
        MemoryPlan(1_100_000_000, 0, 0, 0).check(None)
    MemoryPlan(1_100_000_000, 0, 0, 0).check(2.0)
    with pytest.raises(HiNetError, match=r"more than the 1.00 GB of memory available; lower the width"):
        SparseBag(30, 100_000_000)
    with pytest.raises(HiNetError, match=r"a feature network of 30 x 5 x 100,000,000 weights takes"):
        DenseFeatures(30, (5, 100_000_000))


def test_hierarchy_that_decompresses_beyond_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "categories.txt.gz"
    file.write_bytes(gzip.compress(b"a b\n" * 250_000))
    assert file.stat().st_size < 5_000
    assert len(Taxonomy.from_file(file)) == 2
    monkeypatch.setattr(parameters, "total_memory", lambda: 64 * 900_000)
    with pytest.raises(FileError, match=r"gz: is longer than 900,000 bytes, more than there is memory for"):
        Taxonomy.from_file(file)


def test_reading_a_text_allocates_no_more_than_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "total_memory", lambda: sys.maxsize)
    (tmp_path / "small.txt").write_text("rye\n")
    tracemalloc.start()
    assert read_text(tmp_path / "small.txt", memory_per_byte=1) == "rye\n"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 23
