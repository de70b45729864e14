"""The cache: nothing is encoded twice, whatever happens to processes and files."""

from __future__ import annotations

import signal
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet.data.matrices import unit_rows
from hinet.encoders import CachedEncoder, Encoder, default_folder
from hinet.progress import Progress
from tests.processes import run, started

TEXTS = [
    f"{first} {second} {third}" for first in ("rye", "toy") for second in ("bread", "car") for third in "abcdefghi"
]

CHILD = """
import os, signal, sys
from hinet.encoders import CachedEncoder
from tests.encoders.test_cache import TEXTS, Counting
CachedEncoder.segment_seconds = 0.0  # a segment for every batch
write, written = CachedEncoder._write, []
def counted(self, keys, vectors):
    write(self, keys, vectors)
    written.append(len(keys))
    if len(written) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
CachedEncoder._write = counted
CachedEncoder(Counting(), sys.argv[1]).encode(TEXTS[int(sys.argv[3]):], batch=3)
"""


class Counting:
    """An encoder with one fixed vector per text, which counts the texts that it encodes."""

    width, fingerprint = 16, "tests"

    def __init__(self) -> None:
        self.encoded = 0

    def batches(
        self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        for start in range(0, len(texts), batch or 64):
            numbers = np.arange(start, min(start + (batch or 64), len(texts)))
            self.encoded += len(numbers)
            yield numbers, self.encode([texts[number] for number in numbers])

    def encode(self, texts: Sequence[str | None]) -> Any:
        seeds = [zlib.crc32((text or "").encode()) for text in texts]
        return unit_rows(np.array([np.random.default_rng(seed).normal(size=16) for seed in seeds], np.float32))


@pytest.fixture
def encoder() -> Any:
    return Counting()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def test_a_text_is_encoded_once(encoder: Any, tmp_path: Path) -> None:
    first = CachedEncoder(encoder, tmp_path).encode([*TEXTS, TEXTS[0], None])
    assert encoder.encoded == len(TEXTS) + 1
    np.testing.assert_allclose(first, encoder.encode([*TEXTS, TEXTS[0], None]), atol=2e-3)
    encoder.encoded = 0
    cached = CachedEncoder(encoder, tmp_path)
    assert np.array_equal(cached.encode([*TEXTS[::-1]]), first[: len(TEXTS)][::-1])
    assert encoder.encoded == 0
    assert cached.encode(["another", TEXTS[3]]).shape == (2, 16)
    assert encoder.encoded == 1
    cached.clear()
    assert not segments(tmp_path)
    assert np.array_equal(cached.encode(TEXTS), first[: len(TEXTS)])


def test_a_real_encoder_encodes_each_text_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(tiny, threads=1)
    wanted = CachedEncoder(encoder, tmp_path).encode(TEXTS)
    np.testing.assert_allclose(wanted, encoder.encode(TEXTS), atol=2e-3)
    monkeypatch.setattr(Encoder, "_encode_batches", None)  # nothing is left to compute
    assert np.array_equal(CachedEncoder(encoder, tmp_path).encode(TEXTS), wanted)


def test_a_killed_run_resumes(encoder: Any, tmp_path: Path) -> None:
    done = run([sys.executable, "-c", CHILD, tmp_path, "4", "0"])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(segments(tmp_path)) == 4
    vectors = CachedEncoder(encoder, tmp_path).encode(TEXTS)
    assert 0 < encoder.encoded < len(TEXTS)
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS), atol=2e-3)


def test_two_processes_may_share_a_cache(encoder: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, tmp_path, "-1"]
    with started([*command, "0"]) as one, started([*command, "9"]) as two:
        pass
    assert (one.returncode, two.returncode) == (0, 0)
    CachedEncoder(encoder, tmp_path).encode(TEXTS)
    assert encoder.encoded == 0


@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "foreign"])
def test_damaged_vectors_are_encoded_again(encoder: Any, tmp_path: Path, damage: str) -> None:
    wanted = CachedEncoder(encoder, tmp_path).encode(TEXTS)
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flipped":  # one bit of a vector, which the format does not notice
        data[-40] ^= 16
        path.write_bytes(data)
    else:
        path.write_bytes({"truncated": bytes(data[: len(data) // 2]), "emptied": b"", "foreign": b"x" * 99}[damage])
    encoder.encoded = 0
    assert np.array_equal(CachedEncoder(encoder, tmp_path).encode(TEXTS), wanted)
    assert encoder.encoded == (1 if damage == "flipped" else len(TEXTS))
    encoder.encoded = 0
    assert np.array_equal(CachedEncoder(encoder, tmp_path).encode(TEXTS), wanted)
    assert encoder.encoded == 0


def test_many_small_segments_are_merged(encoder: Any, tmp_path: Path) -> None:
    cached = CachedEncoder(encoder, tmp_path)
    cached.max_small_segments = 4
    for text in TEXTS:
        cached.encode([text])
    assert len(segments(tmp_path)) <= 5
    assert encoder.encoded == len(TEXTS)
    CachedEncoder(encoder, tmp_path).encode(TEXTS)
    assert encoder.encoded == len(TEXTS)


def test_the_oldest_segments_are_removed_beyond_the_limit(encoder: Any, tmp_path: Path) -> None:
    cached = CachedEncoder(encoder, tmp_path, limit=2_000)
    for text in TEXTS:
        cached.encode([text])
    assert 0 < sum(path.stat().st_size for path in segments(tmp_path)) <= 2_000
    encoder.encoded = 0
    cached.encode(TEXTS[-2:])
    assert encoder.encoded == 0


def test_a_read_only_disk_loses_no_vectors(encoder: Any, tmp_path: Path) -> None:
    class Notes(Progress):
        text = ""

        def message(self, text: str) -> None:
            self.text += text

    (tmp_path / "file").write_text("")
    notes = Notes()
    assert CachedEncoder(encoder, tmp_path / "file").encode(TEXTS, progress=notes).shape == (len(TEXTS), 16)
    assert notes.text.startswith("embeddings are not cached: ")


def test_the_default_folder_is_in_the_user_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "hinet" / "embeddings"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "hinet" / "embeddings"
