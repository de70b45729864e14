"""Encoders: order, containers, batches, fingerprints, and what is refused."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hinet import HiNetError
from hinet.encoders import Encoder
from tests.processes import run

TEXTS = ["rye bread", "", "the whole milk of the coffee shop and a toy train", None, "toy", "rye bread", "sour  milks"]


def test_vectors_have_length_1_and_keep_the_order_of_the_texts(tiny: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (7, encoder.width) == (7, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(encoder.encode([text])[0], vectors[row], atol=1e-5)
    assert np.array_equal(vectors[1], vectors[3])
    assert np.abs(vectors[0] - vectors[4]).max() > 0.01
    assert encoder.encode([]).shape == (0, 16)


def test_a_vector_is_the_same_in_any_batch(tiny: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    texts = [" ".join(["bread"] * count + ["milk"] * (row % 3)) for row, count in enumerate([1, 2, 3, 5, 8, 13] * 4)]
    reference = encoder.encode(texts, batch=1)
    for batch in (2, 7, 64):
        np.testing.assert_allclose(encoder.encode(texts, batch=batch), reference, atol=1e-5)


def test_padded_batches_of_other_devices_give_the_same_vectors(tiny: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    wanted = encoder.encode(TEXTS)
    encoder.device = "padded"  # computes where it did, with batches as on a GPU
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-4)


def test_every_container_of_texts_gives_the_same(tiny: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    encoder = Encoder.load(tiny, threads=1)
    wanted = encoder.encode(TEXTS)
    given: list[Any] = [tuple(TEXTS), pa.array(TEXTS), pa.chunked_array([TEXTS[:2], TEXTS[2:]]), polars.Series(TEXTS)]
    for texts in [*given, pandas.Series(TEXTS), pandas.Series(TEXTS, dtype=object)]:
        assert np.array_equal(encoder.encode(texts), wanted)
    with pytest.raises(HiNetError, match="row 1: expected a text, got int 3"):
        encoder.encode(["rye", 3])


def test_the_vectors_are_those_of_sentence_transformers(minilm: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["rye bread", "a coffee shop at the corner, open until late", ""]
    theirs = SentenceTransformer(str(minilm), device="cpu").encode(texts, normalize_embeddings=True)
    encoder = Encoder.load(minilm, threads=1)
    np.testing.assert_allclose(encoder.encode(texts), theirs, atol=1e-5)
    assert encoder.frame == ([101], [102])


def test_the_fingerprint_goes_by_content(tiny: Path, tmp_path: Path) -> None:
    fingerprint = Encoder.load(tiny).fingerprint
    copy = shutil.copytree(tiny, tmp_path / "copy")
    (copy / "README.md").write_text("about")
    assert Encoder.load(str(copy)).fingerprint == fingerprint
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert Encoder.load(copy).fingerprint != fingerprint


def test_a_folder_loads_without_network_access(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("socket.connect", "getaddrinfo", "create_connection"):
        monkeypatch.setattr(f"socket.{name}", refuse)
    assert Encoder.load(tiny, threads=1).encode(["rye"]).shape == (1, 16)


def test_threads_of_torch_are_as_before(tiny: Path) -> None:
    import torch

    before = torch.get_num_threads()
    Encoder.load(tiny, threads=1).encode(["rye"])
    assert torch.get_num_threads() == before


def test_what_is_no_encoder_is_refused_in_one_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    for source, message in (
        (tmp_path / "missing", "there is no such folder"),
        (f"{tmp_path}/missing", "there is no such folder"),
        (tmp_path / "empty", "neither modules.json nor config.json"),
        (broken, "cannot be loaded as an encoder"),
        ("no-such-encoder", "no encoder of this name here or on the hub"),
    ):
        with pytest.raises(HiNetError, match=message) as error:
            Encoder.load(source)
        assert "\n" not in str(error.value)
    with pytest.raises(HiNetError, match="device: torch finds no 'nowhere' here"):
        Encoder.load(tiny, device="nowhere")
    with pytest.raises(HiNetError, match="batch: expected a whole number of at least 1, got 0"):
        Encoder.load(tiny).encode(["rye"], batch=0)


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.extras.find_spec", lambda name: None)
    with pytest.raises(HiNetError, match=r"^an encoder needs .*; install it with: pip install 'hinet\[encoder\]'$"):
        Encoder.load("anything")


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, hinet.encoders, hinet.encoders.distillation; assert 'torch' not in sys.modules"
    assert run([sys.executable, "-c", code]).returncode == 0
