"""Measure sentence encoders on NAICS: ways to run one on a CPU, the cache, and static vectors on unseen rows.

python benchmarks/encoders.py    (HINET_DATA names the folder with naics2022_index/naics2022_index.tsv)

Each variant runs in its own process together with single precision, with one thread. Speed is in rows per second and
core, because the machine may be busy; the ratio to single precision is from the same process.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # must be set before torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from measure import DATA, Case, run_cases

from hinet.data.matrices import unit_rows
from hinet.encoders import CachedEncoder, Encoder, distill, packaged_encoder
from hinet.encoders.encoder import BATCH
from hinet.encoders.token_vectors import read_vectors

NAICS = DATA / "naics2022_index" / "naics2022_index.tsv"
TEXTS, REPEATS, OTHER_BATCH = 1_000, 2, 8


def naics(split: str) -> list[str]:
    lines = NAICS.read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[2] for line in lines if line.split("\t")[0] == split]


def sample() -> list[str]:
    texts = naics("train")
    return [texts[row] for row in np.linspace(0, len(texts) - 1, TEXTS).astype(int)]


def minilm() -> Encoder:
    return Encoder.load(packaged_encoder(), device="cpu", threads=1)


def core_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def compared(make: Callable[[Encoder], Encoder]) -> Case:
    """Return a case that compares a variant of the encoder with single precision."""

    def case() -> dict[str, Any]:
        texts, exact = sample(), minilm()
        wanted = exact.encode(texts)  # computed before the model is converted
        other = make(exact)
        found = other.encode(texts)
        seconds, exact_seconds = [], []
        for _ in range(REPEATS):
            seconds.append(core_seconds(lambda: other.encode(texts)))
            exact_seconds.append(core_seconds(lambda: exact.encode(texts)))
        assert np.abs(exact.encode(texts) - wanted).max() < 1e-5, "the model was changed while it was measured"
        cosines = (found * wanted).sum(axis=1)
        return {
            "texts": len(texts),
            "rows_a_second": round(len(texts) / min(seconds)),
            "speed_ratio": round(min(exact_seconds) / min(seconds), 2),
            "mean_cosine": round(float(cosines.mean()), 5),
            "least_cosine": round(float(cosines.min()), 5),
            "largest_change_by_batch": float(f"{np.abs(other.encode(texts, batch=OTHER_BATCH) - found).max():.1g}"),
        }

    return case


def changed(convert: Callable[[Any], Any]) -> Callable[[Encoder], Encoder]:
    """Return a function that makes an encoder from a converted copy of the model."""
    return lambda exact: Encoder(convert(copy.deepcopy(exact._model)), exact.folder, exact.name, 1)


def bfloat16(model: Any) -> Any:
    import torch

    return model.to(torch.bfloat16)


def int8(model: Any) -> Any:
    import torch

    quantise: Any = torch.ao.quantization.quantize_dynamic
    return quantise(model, {torch.nn.Linear}, dtype=torch.qint8)


def onnx(quantise: bool) -> Callable[[Encoder], Encoder]:
    def make(exact: Encoder) -> Encoder:
        import onnxruntime
        import torch
        from onnxruntime.quantization import quantize_dynamic

        class Hidden(torch.nn.Module):
            def __init__(self, network: Any) -> None:
                super().__init__()
                self.network = network

            def forward(self, ids: Any, mask: Any) -> Any:
                return self.network(input_ids=ids, attention_mask=mask).last_hidden_state

        axes = {name: {0: "rows", 1: "tokens"} for name in ("ids", "mask", "hidden")}
        with tempfile.TemporaryDirectory() as name:
            path, small = Path(name) / "model.onnx", Path(name) / "int8.onnx"
            ones = torch.ones(2, 8, dtype=torch.long)
            torch.onnx.export(
                Hidden(copy.deepcopy(exact._model[0].auto_model)), (ones, ones), str(path), input_names=["ids", "mask"],
                output_names=["hidden"], dynamic_axes=axes, dynamo=False,
            )  # fmt: skip
            if quantise:  # 7 bits per channel, as processors without VNNI need
                quantize_dynamic(path, small, per_channel=True, reduce_range=True)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(
                str(small if quantise else path), options, providers=["CPUExecutionProvider"]
            )

        class Onnx(Encoder):
            def _forward(self, ids: Any, lengths: Any) -> Any:
                batch = np.array(ids, np.int64)
                return session.run(None, {"ids": batch, "mask": np.ones_like(batch)})[0].mean(axis=1)

        return Onnx(exact._model, exact.folder, exact.name, 1)

    return make


def library(exact: Encoder) -> Encoder:
    class Library(Encoder):
        def encode(
            self, texts: Any, *, progress: Any = None, batch: int | None = None, threads: int | None = None
        ) -> Any:
            options = {"normalize_embeddings": True, "show_progress_bar": False}
            return self._model.encode(texts, batch_size=batch or BATCH, **options)

    return Library(exact._model, exact.folder, exact.name, 1)


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
    "single precision": compared(lambda exact: exact),
    "sentence-transformers": compared(library),
    "bfloat16": compared(changed(bfloat16)),
    "torch int8": compared(changed(int8)),
    "onnxruntime": compared(onnx(quantise=False)),
    "onnxruntime int8": compared(onnx(quantise=True)),
    "cache": cache,
    "static": static(with_texts=False),
    "static, fitted to texts": static(with_texts=True),
}

if __name__ == "__main__":
    run_cases(__file__, "encoders", CASES)
