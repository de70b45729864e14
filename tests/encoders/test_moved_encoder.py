"""Models with a frozen encoder on another machine: the encoder is given again, looked up, or in the model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hinet
from hinet import HiNetClassifier, Taxonomy
from hinet.cli import main
from hinet.encoders import Encoder
from hinet.errors import FileError, HiNetError
from hinet.serving.models import Models
from tests.classifier.test_forged import forge_array, sign
from tests.encoders.conftest import make_encoder
from tests.encoders.test_meaning import EDGES, KNOWN, texts_of

TEXTS = ["rye bread", "milk cheese", "a wheel of the car", ""]


class Trained(NamedTuple):
    """Models of one training, whose encoder is gone, and their probabilities for the texts."""

    plain: Path
    bundled: Path
    probabilities: Any
    fingerprint: str


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HINET_ENCODERS", raising=False)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the training encoder and another encoder."""
    pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("held")
    make_encoder(folder / "another", seed=1)
    make_encoder(folder / "right")
    return folder


@pytest.fixture(scope="module")
def trained(encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    work = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(work / "cache"))
        folder = Path(shutil.copytree(encoders / "right", work / "gone"))
        classifier = HiNetClassifier(Taxonomy.from_edges(EDGES), encoder=folder, titles=False, n_jobs=1, epochs=2)
        classifier.fit(*texts_of(40, 0, KNOWN))
        classifier.save(work / "plain")
        classifier.save(work / "bundled", bundle_encoder=True)
        probabilities = classifier.predict_proba(TEXTS)
        shutil.rmtree(folder)
    return Trained(work / "plain", work / "bundled", probabilities, Encoder.load(encoders / "right").fingerprint)


def test_a_model_whose_encoder_is_gone_names_it_and_the_remedy(trained: Trained) -> None:
    with pytest.raises(HiNetError, match="no such folder") as error:
        hinet.load(trained.plain).predict(TEXTS)
    for part in ("/gone'", trained.fingerprint, "`encoder`", "$HINET_ENCODERS"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["right", "."])
def test_an_encoder_can_be_given_at_another_place(trained: Trained, encoders: Path, name: str, tmp_path: Path) -> None:
    loaded = hinet.load(trained.plain, encoder=encoders / name)
    assert np.array_equal(loaded.predict_proba(TEXTS), trained.probabilities)
    loaded.save(tmp_path / "again")
    assert np.array_equal(hinet.load(tmp_path / "again").predict_proba(TEXTS), trained.probabilities)


def test_a_loaded_encoder_can_be_given(trained: Trained, encoders: Path) -> None:
    loaded = hinet.load(trained.plain, encoder=Encoder.load(encoders / "right"))
    assert np.array_equal(loaded.predict_proba(TEXTS), trained.probabilities)


@pytest.mark.parametrize("model", ["plain", "bundled"])
@pytest.mark.parametrize("given", [Path, Encoder.load])
def test_another_encoder_is_rejected_with_both_fingerprints(
    trained: Trained, encoders: Path, model: str, given: Callable[[Path], Any]
) -> None:
    other = Encoder.load(encoders / "another").fingerprint
    with pytest.raises(HiNetError, match=rf"fingerprint {trained.fingerprint}.*another has {other}.*`encoder`"):
        hinet.load(getattr(trained, model), encoder=given(encoders / "another"))


def test_the_environment_variable_lists_folders_of_encoders(
    trained: Trained, encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for places in ([tmp_path / "empty", encoders], [tmp_path / "nowhere", encoders / "right"]):
        monkeypatch.setenv("HINET_ENCODERS", os.pathsep.join(map(str, places)))
        assert np.array_equal(hinet.load(trained.plain).predict_proba(TEXTS), trained.probabilities)
    monkeypatch.setenv("HINET_ENCODERS", str(encoders / "another"))
    with pytest.raises(HiNetError, match=r"another has [0-9a-f]{32}"):
        hinet.load(trained.plain).predict(TEXTS)


def test_a_model_without_an_encoder_rejects_one(encoders: Path, tmp_path: Path) -> None:
    HiNetClassifier(n_jobs=1, epochs=1, effort="quick").fit(["a b", "a c"], ["x", "y"]).save(tmp_path / "model")
    with pytest.raises(HiNetError, match="leave `encoder` out"):
        hinet.load(tmp_path / "model", encoder=encoders / "right")
    with pytest.raises(HiNetError, match="leave `bundle_encoder` out"):
        hinet.load(tmp_path / "model").save(tmp_path / "again", bundle_encoder=True)


@pytest.mark.filterwarnings("ignore:the update made old rows worse")  # a random encoder confuses texts
def test_a_model_can_contain_its_encoder(trained: Trained, tmp_path: Path) -> None:
    loaded = hinet.load(trained.bundled)
    np.testing.assert_allclose(loaded.predict_proba(TEXTS), trained.probabilities, atol=1e-3)
    loaded.partial_fit(*texts_of(8, 0, KNOWN, seed=5)).save(tmp_path / "again")
    again = hinet.load(tmp_path / "again")
    assert np.array_equal(again.predict_proba(TEXTS), loaded.predict_proba(TEXTS))
    again.set_params(epochs=1).fit(*texts_of(20, 0, KNOWN)).save(tmp_path / "refitted")
    hinet.load(tmp_path / "refitted").predict(TEXTS)
    assert {path.suffix for path in trained.bundled.iterdir()} == {".json", ".safetensors", ".tsv"}


def test_a_forged_manifest_cannot_point_outside_a_model_with_its_own_encoder(
    trained: Trained, encoders: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(trained.bundled, tmp_path / "model"))
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["features"]["meaning"]["encoder"]["source"] = str(encoders / "another")
    manifest["features"]["meaning"]["encoder"]["fingerprint"] = Encoder.load(encoders / "another").fingerprint
    sign(model, manifest)
    expected = hinet.load(trained.bundled).predict_proba(TEXTS)
    assert np.array_equal(hinet.load(model).predict_proba(TEXTS), expected)


def _drop_row(array: Any) -> Any:
    return array[:-1]


@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("bundled.encoder.embeddings.word_embeddings.weight", _drop_row),
        ("bundled.encoder.embeddings.LayerNorm.weight", lambda array: array * np.float32(np.nan)),
        ("bundled.tokenizer", _drop_row),
    ],
)
def test_forged_encoders_are_rejected(
    trained: Trained, tmp_path: Path, array: str, change: Callable[[Any], Any]
) -> None:
    model = Path(shutil.copytree(trained.bundled, tmp_path / "model"))
    forge_array(model, "features", array, change)
    with pytest.raises(FileError, match="cannot be used"):
        hinet.load(model)


@pytest.mark.parametrize(
    ("field", "value"), [("family", "os"), ("longest", 0), ("config", {"num_hidden_layers": 10**9}), ("pooling", "max")]
)
def test_forged_shapes_of_encoders_are_rejected(trained: Trained, tmp_path: Path, field: str, value: Any) -> None:
    model = Path(shutil.copytree(trained.bundled, tmp_path / "model"))
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["features"]["meaning"]["encoder"]["bundled"][field] = value
    sign(model, manifest)
    with pytest.raises(FileError):
        hinet.load(model)


def shell(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_commands_accept_the_encoder_of_a_moved_model(
    trained: Trained, encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, labels = texts_of(12, 0, KNOWN, seed=7)
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(["text,label", *(f"{text},{label}" for text, label in zip(texts, labels, strict=True))]))
    model, right = str(trained.plain), str(encoders)
    commands = (
        ("predict", model, str(rows), "--out", str(tmp_path / "out.csv")),
        ("evaluate", model, str(rows)),
        ("explain", model, "rye bread"),
        ("update", model, "--rows", str(rows), "--out", str(tmp_path / "updated")),
    )
    for command in commands:
        assert shell(*command) == 2
        assert "--encoder" in capsys.readouterr().err
        assert shell(*command, "--encoder", right) == 0
    assert shell("inspect", str(trained.bundled)) == 0
    assert f"fingerprint {trained.fingerprint}; in the model" in capsys.readouterr().out


def test_train_bundles_the_encoder(encoders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "rye bread,food\nwhite bread,food\ntoy car,toys\ntoy train,toys\n")
    gone = Path(shutil.copytree(encoders / "right", tmp_path / "gone"))
    command = ("train", str(rows), "--epochs", "1", "--effort", "quick", "--out", str(tmp_path / "model"), "--quiet")
    assert shell(*command, "--bundle-encoder") == 2
    assert "give --encoder" in capsys.readouterr().err
    config = json.loads((gone / "config.json").read_text())
    other = Path(shutil.copytree(gone, tmp_path / "other"))
    (other / "config.json").write_text(json.dumps({**config, "model_type": "megatron-bert"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HiNetClassifier, "fit", lambda *_, **__: pytest.fail("trained before the encoder was checked"))
        assert shell(*command, "--encoder", str(other), "--bundle-encoder") == 2
    assert "is of the family 'megatron-bert', and --bundle-encoder supports" in capsys.readouterr().err
    assert shell(*command, "--encoder", str(gone), "--bundle-encoder") == 0
    shutil.rmtree(gone)
    assert shell("explain", str(tmp_path / "model"), "rye bread") == 0


def test_the_service_finds_the_encoder_of_each_model(trained: Trained, encoders: Path, tmp_path: Path) -> None:
    HiNetClassifier(n_jobs=1, epochs=1, effort="quick").fit(["a b", "a c"], ["x", "y"]).save(tmp_path / "words")
    models = Models({"words": tmp_path / "words", "shop": trained.plain}, 1, (str(encoders),))
    models.load_all()
    assert models.names == ["words", "shop"]
