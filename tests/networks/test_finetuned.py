"""Fine-tuning an encoder with random weights."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from hinet import HiNetClassifier, Taxonomy, load
from hinet.classifier.model_folder import MANIFEST, _write_file, sealed
from hinet.data import Traces
from hinet.encoders import Encoder
from hinet.encoders.meaning import TunedInput
from hinet.engine.training.checkpoints import DIGEST, _digest
from hinet.errors import FileError, HiNetError
from hinet.files import read_arrays, write_arrays
from hinet.metrics import accuracy
from hinet.networks.fine_tuning import TokenExamples, TuningSettings, fine_tune
from hinet.networks.models import predict_traces
from hinet.progress import Progress
from hinet.taxonomy import Layers
from tests.encoders.conftest import make_encoder

# The label of a text depends on whether its two words agree, which no sum over words can represent.
FILLERS = ("the", "a", "of", "and", "whole", "sour")
PAIRS = {("rye", "bread"): "a1", ("white", "milk"): "a2", ("rye", "milk"): "b1", ("white", "bread"): "b2"}
TEXTS = [f"{filler} {one} {two}" for filler, (one, two) in product(FILLERS, PAIRS)] * 2
LABELS = [PAIRS[one, two] for _, (one, two) in product(FILLERS, PAIRS)] * 2
EDGES = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")]
NEW = ["rye bread", "white bread", "rye", "", "coffee shop toy train"]
QUICK: dict[str, Any] = {"engine": "torch", "n_jobs": 1, "titles": False, "epochs": 2}


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
        patch.setitem(os.environ, "TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoders") / "tiny")


@pytest.fixture(scope="module")
def taxonomy() -> Taxonomy:
    return Taxonomy.from_edges(EDGES)


@pytest.fixture(scope="module")
def fitted(folder: Path, taxonomy: Taxonomy) -> HiNetClassifier:
    return HiNetClassifier(taxonomy, encoder=folder, **QUICK).fit(TEXTS, LABELS, valid=(TEXTS[:8], LABELS[:8]))


class Interrupting(Progress):
    """Interrupts a run after some batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def advanced(self, rows: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def tuned(folder: Path, taxonomy: Taxonomy, settings: TuningSettings, **options: Any) -> tuple[Any, Any, float]:
    encoder = TunedInput.of(folder).encoder
    traces = Traces.encode(Layers.of(taxonomy), LABELS)
    rows = encoder.tokens(TEXTS)
    network, history = fine_tune(encoder, TokenExamples(rows, traces), settings, threads=1, **options)
    return network, history, accuracy(traces, predict_traces(network, encoder.embed_tokens(rows)))


def state_of(network: Any) -> dict[str, Any]:
    return {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


def test_a_fine_tuned_encoder_learns_what_a_frozen_one_cannot(folder: Path, taxonomy: Taxonomy) -> None:
    settings = TuningSettings(epochs=60, batch=8, encoder_rate=3e-3, head_rate=5e-3)
    _, history, right = tuned(folder, taxonomy, settings)
    _, frozen_history, frozen = tuned(folder, taxonomy, replace(settings, encoder_rate=1e-12))
    assert history[-1].cost < frozen_history[-1].cost < frozen_history[0].cost
    assert right > 0.95
    assert right > frozen + 0.3


@pytest.mark.parametrize("every", [0.0, 1e-9])
def test_an_interrupted_run_ends_with_the_same_network(
    folder: Path, taxonomy: Taxonomy, tmp_path: Path, every: float
) -> None:
    settings = TuningSettings(epochs=3, batch=8)
    encoder = TunedInput.of(folder).encoder
    rows, traces = encoder.tokens(TEXTS), Traces.encode(Layers.of(taxonomy), LABELS)
    valid = TokenExamples(rows[np.arange(9)], Traces.encode(Layers.of(taxonomy), LABELS[:9]))
    whole, history, _ = tuned(folder, taxonomy, settings, valid=valid)
    options: dict[str, Any] = {"valid": valid, "checkpoint": tmp_path / "kept", "checkpoint_every": every}
    for batches in (8, 5, 3):
        with pytest.raises(KeyboardInterrupt):
            tuned(folder, taxonomy, settings, progress=Interrupting(batches), **options)
    resumed, records, _ = tuned(folder, taxonomy, settings, **options)
    assert [(each.cost, each.valid_score) for each in records] == [(each.cost, each.valid_score) for each in history]
    for name, array in state_of(whole).items():
        np.testing.assert_array_equal(state_of(resumed)[name], array)
    with pytest.raises(FileError, match="other rows or settings"):
        tuned(folder, taxonomy, replace(settings, batch=16), **options)
    assert len(traces) == len(TEXTS)


def test_a_damaged_checkpoint_is_rejected(folder: Path, taxonomy: Taxonomy, tmp_path: Path) -> None:
    settings = TuningSettings(epochs=1, batch=8)
    tuned(folder, taxonomy, settings, checkpoint=tmp_path)
    (file,) = tmp_path.iterdir()
    arrays, metadata = read_arrays(file)
    for changed in (arrays | {"steps": np.array([10**6])}, {"steps": arrays["steps"]}):
        write_arrays(file, changed, metadata)
        with pytest.raises(FileError, match="damaged"):
            tuned(folder, taxonomy, settings, checkpoint=tmp_path)
    arrays["steps"][0] -= 1
    rest = {name: value for name, value in metadata.items() if name != DIGEST}
    write_arrays(file, arrays, {**rest, DIGEST: _digest(arrays, rest)})
    with pytest.raises(FileError, match="contradicts itself"):
        tuned(folder, taxonomy, settings, checkpoint=tmp_path)


def test_patience_keeps_the_best_epoch(folder: Path, taxonomy: Taxonomy) -> None:
    classifier = HiNetClassifier(taxonomy, encoder=folder, **QUICK | {"epochs": 6, "patience": 1})
    classifier.fit(TEXTS, LABELS, valid=(TEXTS[:8], LABELS[:8]))
    scores = [record.valid_score or 0.0 for record in classifier.history_]
    best = int(np.argmax(scores))
    assert len(scores) in (6, best + 2)
    assert classifier.metrics_["validation"]["accuracy"] == scores[best]


def test_a_saved_model_gives_the_same_answers_without_its_folder(
    taxonomy: Taxonomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_encoder(tmp_path / "encoder")
    classifier = HiNetClassifier(taxonomy, encoder=folder, **QUICK).fit(TEXTS, LABELS)
    classifier.save(tmp_path / "model")
    folder.rename(tmp_path / "gone")
    monkeypatch.setattr(Encoder, "load", lambda *args, **options: pytest.fail("the encoder is in the model"))
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(NEW), classifier.predict_proba(NEW))
    assert loaded.predict(NEW).tolist() == classifier.predict(NEW).tolist()
    assert loaded.get_params()["encoder"] == str(folder)
    assert loaded.history_ == classifier.history_
    # an answer does not depend on the other rows
    one_by_one = np.concatenate([loaded.predict_proba([text]) for text in NEW])
    np.testing.assert_allclose(one_by_one, loaded.predict_proba(NEW), atol=1e-5)
    assert loaded.predict_proba([]).shape == (0, 4)
    loaded.save(tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").predict_proba(NEW), loaded.predict_proba(NEW))


def test_the_encoder_that_was_given_is_not_changed(folder: Path, taxonomy: Taxonomy) -> None:
    encoder = Encoder.load(folder, device="cpu")
    before = encoder.encode(NEW)
    HiNetClassifier(taxonomy, encoder=encoder, **QUICK).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(encoder.encode(NEW), before)


def test_every_method_of_a_classifier_works(fitted: HiNetClassifier, taxonomy: Taxonomy, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    classifier = load(tmp_path / "model")
    explanation = classifier.explain("rye bread")
    assert [reason.feature for reason in explanation.steps[0].reasons] == ["meaning of the text"]
    assert classifier.calibrate([*TEXTS] * 3, [*LABELS] * 3).rows == 3 * len(TEXTS)
    more = Taxonomy.from_edges([*EDGES, ("c", "c1"), ("c", "c2")])
    classifier.update_taxonomy(more)
    assert set(classifier.classes_) >= {"c1", "c2"}
    before = dict(classifier.fitted_.features.to_arrays())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the update made old rows worse")
        classifier.set_params(epochs=100).partial_fit([*TEXTS, *["coffee shop"] * 20], [*LABELS, *["c1"] * 20])
    for name, array in classifier.fitted_.features.to_arrays().items():  # more rows teach the head alone
        np.testing.assert_array_equal(array, before[name])
    assert classifier.predict(["coffee shop"])[0] == "c1"


def test_unsupported_fine_tuning_is_rejected(folder: Path, taxonomy: Taxonomy, tmp_path: Path) -> None:
    from torch import nn

    from hinet.data.text import TextSettings

    with pytest.raises(HiNetError, match="reads texts, and the rows are numbers"):
        HiNetClassifier(encoder=folder, engine="torch").fit(np.eye(4), ["x", "y", "x", "y"])
    for option in ({"network": nn.Identity()}, {"text": TextSettings()}):
        with pytest.raises(HiNetError, match=f"`{next(iter(option))}` and a fine-tuned `encoder` cannot be combined"):
            HiNetClassifier(taxonomy, encoder=folder, **QUICK, **option).fit(TEXTS, LABELS)
    other = make_encoder(tmp_path / "other")
    (other / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 16, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True})
    )
    with pytest.raises(HiNetError, match="pooling by max"):
        HiNetClassifier(taxonomy, encoder=other, **QUICK).fit(TEXTS, LABELS)


def forge(model: Path, change: Any) -> None:
    """Change the manifest and the arrays of the features, with digests that fit."""
    manifest = json.loads((model / MANIFEST).read_text())
    arrays, _ = read_arrays(model / manifest["files"]["features"]["file"])
    change(manifest["features"]["tuned"], arrays)
    manifest["files"]["features"] = _write_file(model, "features", lambda path: write_arrays(path, arrays))
    (model / MANIFEST).write_text(json.dumps(sealed(manifest)))


FORGED = {
    "a tokenizer that is none": lambda shape, arrays: arrays.update(tokenizer=np.frombuffer(b"{}", np.uint8)),
    "a tokenizer of another encoder": lambda shape, arrays: arrays.update(
        tokenizer=np.frombuffer(arrays["tokenizer"].tobytes().replace(b'"rye":10', b'"rye":9999'), np.uint8)
    ),
    "no tokenizer": lambda shape, arrays: arrays.pop("tokenizer"),
    "an unknown family": lambda shape, arrays: shape.update(family="evil/remote"),
    "a family of other weights": lambda shape, arrays: shape.update(family="distilbert"),
    "a huge width": lambda shape, arrays: shape["config"].update(hidden_size=2**40, intermediate_size=2**40),
    "endless layers": lambda shape, arrays: shape["config"].update(num_hidden_layers=10**9),
    "an unknown activation": lambda shape, arrays: shape["config"].update(hidden_act="os.system"),
    "chunks that do not fit": lambda shape, arrays: shape["config"].update(chunk_size_feed_forward=7),
    "text for a number": lambda shape, arrays: shape["config"].update(hidden_size="16"),
    "no tokens": lambda shape, arrays: shape.update(longest=0),
    "too many tokens": lambda shape, arrays: shape.update(longest=500),
    "weights that are not finite": lambda shape, arrays: next(
        array for name, array in arrays.items() if name.endswith("weight")
    ).fill(np.nan),
    "a missing weight": lambda shape, arrays: arrays.pop(next(name for name in arrays if name.endswith("weight"))),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_encoder_is_rejected(fitted: HiNetClassifier, tmp_path: Path, name: str) -> None:
    fitted.save(tmp_path / "model")
    forge(tmp_path / "model", FORGED[name])
    with pytest.raises(FileError):
        load(tmp_path / "model").predict(["rye bread " * 50])


def test_code_that_a_forged_file_names_is_ignored(fitted: HiNetClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    expected = fitted.predict_proba(NEW)

    def name_code(shape: Any, arrays: Any) -> None:
        shape["config"].update(auto_map="evil--modeling.Model", _attn_implementation="evil/kernel")

    forge(tmp_path / "model", name_code)
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(NEW), expected)


def test_the_shell_fine_tunes_and_answers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hinet.cli import main

    def run(*arguments: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return int(ended.value.code or 0)

    rows = tmp_path / "rows.csv"
    lines = [f"{text},{label[0]} > {label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    rows.write_text("\n".join(["text,label", *lines]))
    model = tmp_path / "model"
    options = ["--out", model, "--epochs", 2, "--threads", 1]
    assert run("train", rows, "--fine-tune", *options) == 2
    assert "--fine-tune needs an encoder to train; give --encoder" in capsys.readouterr().err
    assert run("train", rows, "--encoder", folder, "--fine-tune", "--valid-share", 0.2, *options) == 0
    assert "encoder  epoch 2/2" in capsys.readouterr().err
    assert not (tmp_path / "model.checkpoint").exists()
    assert run("predict", model, rows, "--levels", "--out", tmp_path / "answers.csv") == 0
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == len(TEXTS) + 1
    assert run("explain", model, "rye bread") == 0
    assert run("inspect", model) == 0
    assert "encoder of the family bert" in capsys.readouterr().out
