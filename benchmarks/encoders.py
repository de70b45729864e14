"""Measure sentence encoders on NAICS: their speed next to sentence-transformers, the cache, and static vectors.

    HINET_DATA=folder python benchmarks/encoders.py [case ...]

``short`` encodes rows as they are, ``long`` rows joined to texts of 200 words, with all cores. The ways to run
all-MiniLM-L6-v2 take turns, and the best of several rounds counts: ``int8`` and ``float32`` are hinet in onnxruntime,
``torch`` is hinet in torch. Ratios are to sentence-transformers in the same run, by the clock and by processor seconds;
on a busy machine only the latter mean anything. ``loss`` compares vectors with 8 bits with those in single precision:
cosines, and how often the nearest training row of a test row has its label.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from measure import DATA, Case, run_cases

from hinet.data.matrices import unit_rows
from hinet.encoders import CachedEncoder, Encoder, distill, packaged_encoder
from hinet.encoders.sources import Precision
from hinet.encoders.vector_files import read_vectors

NAICS = DATA / "naics2022_index" / "naics2022_index.tsv"
TEXTS, LONG_TEXTS, LONG_WORDS, ROUNDS = 500, 16, 200, 3
LOSS_ROWS = 4_000
LIBRARY = "sentence-transformers"


def naics(split: str) -> list[str]:
    return [text for _, text in naics_rows(split)]


def naics_rows(split: str) -> list[tuple[str, str]]:
    """Return the label and the text of each row."""
    rows = (line.split("\t") for line in NAICS.read_text(encoding="utf-8").splitlines()[1:])
    return [(row[1], row[2]) for row in rows if row[0] == split]


def sample() -> list[str]:
    texts = naics("train")
    return [texts[row] for row in np.linspace(0, len(texts) - 1, TEXTS).astype(int)]


def long_texts() -> list[str]:
    words = " ".join(naics("train")).split()
    return [" ".join(words[row * LONG_WORDS :][:LONG_WORDS]) for row in range(LONG_TEXTS)]


def minilm() -> Encoder:
    return Encoder.load(packaged_encoder(), device="cpu")


def core_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def speed(texts: Callable[[], list[str]]) -> Case:
    """Return a case that compares ways to run the encoder."""

    def case() -> dict[str, Any]:
        from sentence_transformers import SentenceTransformer

        from hinet.encoders.torch_runtime import TorchNetwork

        given, folder = texts(), packaged_encoder()
        library = SentenceTransformer(str(folder), device="cpu")
        encoders = {
            "torch": Encoder(TorchNetwork.load(folder, folder, "cpu"), folder, "torch"),
            "float32": Encoder.load(folder, device="cpu", precision="float32"),
            "int8": Encoder.load(folder, device="cpu", precision="int8"),
        }
        options = {"normalize_embeddings": True, "show_progress_bar": False}
        ways: dict[str, Callable[[], Any]] = {LIBRARY: lambda: library.encode(given, **options)}
        ways |= {name: partial(encoder.encode, given) for name, encoder in encoders.items()}
        clock: dict[str, list[float]] = {name: [] for name in ways}
        cores: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.perf_counter()
                cores[name].append(core_seconds(way))
                clock[name].append(time.perf_counter() - start)
        rates = {name: round(len(given) / min(seconds), 1) for name, seconds in clock.items()}
        return {
            "texts": len(given),
            "texts_a_second": rates,
            "ratio": {name: round(rate / rates[LIBRARY], 2) for name, rate in rates.items()},
            "core_ratio": {name: round(min(cores[LIBRARY]) / min(seconds), 2) for name, seconds in cores.items()},
        }

    return case


def loss() -> dict[str, Any]:
    train, test = (naics_rows(split)[:: max(len(naics_rows(split)) // LOSS_ROWS, 1)] for split in ("train", "test"))
    labels, wanted = np.array([label for label, _ in train]), np.array([label for label, _ in test])
    vectors: dict[str, list[Any]] = {}
    for precision in get_args(Precision):
        encoder = Encoder.load(packaged_encoder(), device="cpu", precision=precision)
        vectors[precision] = [encoder.encode([text for _, text in rows]) for rows in (train, test)]
    cosines = np.concatenate([(a * b).sum(axis=1) for a, b in zip(*vectors.values(), strict=True)])
    nearest = {name: labels[(rows @ known.T).argmax(axis=1)] for name, (known, rows) in vectors.items()}
    return {
        "train_rows": len(train),
        "test_rows": len(test),
        "mean_cosine": round(float(cosines.mean()), 4),
        "least_cosine": round(float(cosines.min()), 4),
        "nearest_accuracy": {name: round(float((found == wanted).mean()), 4) for name, found in nearest.items()},
        "same_label": round(float((nearest["float32"] == nearest["int8"]).mean()), 4),
    }


def cache() -> dict[str, Any]:
    texts, encoder = sample(), minilm()
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedEncoder(encoder, folder)
        first = core_seconds(lambda: cached.encode(texts))
        again = core_seconds(lambda: CachedEncoder(encoder, folder).encode(texts))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {
        "texts": len(texts),
        "first_core_seconds": round(first, 2),
        "again_core_seconds": round(again, 4),
        "bytes_a_text": round(size / len(texts)),
    }


def static(with_texts: bool) -> Case:
    def case() -> dict[str, Any]:
        train, test = naics("train"), naics("test")
        with tempfile.TemporaryDirectory() as folder:
            encoder = CachedEncoder(minilm(), Path(folder) / "cache")
            start, clock = time.process_time(), time.perf_counter()
            written = distill(encoder, Path(folder) / "vectors", texts=train if with_texts else None)
            seconds, clock = time.process_time() - start, time.perf_counter() - clock
            rows = train[:: max(len(train) // 5_000, 1)]
            parts = [
                (unit_rows(read_vectors(Path(folder) / "vectors").sums(part)), encoder.encode(part))
                for part in (rows, test)
            ]
            megabytes = (Path(folder) / "vectors" / "model.safetensors").stat().st_size / 1e6
        return {
            "tokens": written.tokens,
            "words": written.words,
            "pairs": written.pairs,
            "fitted_texts": written.fitted_texts,
            "core_seconds": round(seconds, 1),
            "seconds": round(clock, 1),
            "megabytes": round(megabytes, 1),
            "test_rows": len(test),
            "explained_variance": round(explained(*parts[0], *parts[1]), 3),
            "neighbour_overlap": round(overlap(*parts[1]), 3),
        }

    return case


def explained(rows: Any, wanted: Any, test_rows: Any, test_wanted: Any) -> float:
    """Return the share of the encoder's variance on test rows that a linear map of static vectors explains."""
    mean, ones = wanted.mean(axis=0), np.eye(rows.shape[1])
    matrix = np.linalg.solve(rows.T @ rows + ones, rows.T @ (wanted - mean))
    return 1 - float(((test_wanted - mean - test_rows @ matrix) ** 2).sum() / ((test_wanted - mean) ** 2).sum())


def overlap(rows: Any, wanted: Any, k: int = 10) -> float:
    """Return the share of a test row's k nearest rows by the encoder that are also nearest by static vectors."""
    near = []
    for vectors in (rows, unit_rows(wanted - wanted.mean(axis=0))):
        cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -2)
        near.append(np.argpartition(-cosines, k, axis=1)[:, :k])
    return float(np.mean([len({*a} & {*b}) / k for a, b in zip(*(part.tolist() for part in near), strict=True)]))


CASES: dict[str, Case] = {
    "short": speed(sample),
    "long": speed(long_texts),
    "loss": loss,
    "cache": cache,
    "static": static(with_texts=False),
    "static, fitted to texts": static(with_texts=True),
}

if __name__ == "__main__":
    run_cases(__file__, "encoders", CASES)
