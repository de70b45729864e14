"""Invalid parameters raise errors that name the parameter, the expected values and the actual one."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import hinet
from hinet import FileError, HiNetClassifier, HiNetError
from hinet.classifier.parameters import RULES
from hinet.data.text import TextFeatures, TextSettings
from hinet.engine import EngineSettings, Search, fit
from hinet.networks import HeadSettings, TrainingSettings
from hinet.parameters import MAX_THREADS, real, resolve_threads, total_memory, whole
from tests.classifier.data import small, texts

QUICK = {"width": 2, "members": 1, "epochs": 1, "wide": False, "flat": False}
TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk"] * 3
LABELS = ["bread", "bread", "milk", "milk"] * 3
ROWS = np.array([[0.0, 1], [0, 2], [5, 1], [5, 2]] * 3)
NAN, INFINITE = float("nan"), float("inf")


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.fixture(scope="module")
def fitted() -> HiNetClassifier:
    return small(epochs=2).fit(*texts())


INVALID_PARAMETERS = [
    ("taxonomy", 5), ("taxonomy", ""), ("engine", "gpu"), ("engine", None), ("text", "words"), ("decoding", "best"),
    ("decoding", ["map"]), ("class_weight", [1, 2]), ("class_weight", "even"), ("class_weight", {"bread": "heavy"}),
    ("class_weight", {"bread": -1}), ("validation_fraction", 1.5), ("validation_fraction", "0.1"), ("width", 2.5),
    ("width", 0), ("width", True), ("members", "two"), ("epochs", -3), ("epochs", np.float64(2)), ("dropout", 1),
    ("dropout", NAN), ("wide", "yes"), ("flat", 2), ("prior_strength", INFINITE), ("prior_strength", "strong"),
    ("patience", 0.5), ("memory_limit", 0), ("memory_limit", "1GB"), ("network", "resnet"), ("device", "gpu0"),
    ("device", np.array([1, 2])), ("warm_start", "no"), ("checkpoint", 7), ("checkpoint", "a\0b"),
    ("checkpoint_every", -1), ("random_state", -1), ("random_state", 2**64), ("random_state", "seed"),
    ("n_jobs", "x"), ("n_jobs", 0), ("n_jobs", 1.5), ("verbose", "loud"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), INVALID_PARAMETERS)
def test_invalid_classifier_parameter_is_reported_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(HiNetError, match=rf"^{name}: expected .+, got .*{re.escape(repr(value))}"):
        HiNetClassifier(**{name: value}).fit(TEXTS, LABELS)


INVALID_SETTINGS = [
    (EngineSettings, "flat_width", 0), (EngineSettings, "wide_rate", "3"), (EngineSettings, "deep_accumulator", -1.0),
    (EngineSettings, "wide_prune", NAN), (EngineSettings, "seed", -1), (EngineSettings, "threads", 0),
    (TextSettings, "word_ngrams", 3), (TextSettings, "char_ngrams", (3, 2.5)), (TextSettings, "char_weight", "0.5"),
    (TextSettings, "min_df", 0.01), (TextSettings, "max_features", 0), (TextSettings, "hash_bits", 64),
    (TextSettings, "sublinear", "yes"), (TrainingSettings, "epochs", 0), (TrainingSettings, "batch", "large"),
    (TrainingSettings, "dense_rate", -1), (TrainingSettings, "warm_up", 2), (TrainingSettings, "patience", 1.5),
    (HeadSettings, "mask", "sparse"), (HeadSettings, "level_weights", "all"), (HeadSettings, "tied", "yes"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "name", "value"), INVALID_SETTINGS)
def test_invalid_setting_is_reported_with_its_value(settings: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(HiNetError, match=rf"^{name}: expected .+, got {re.escape(repr(value))}"):
        settings(**{name: value})


INVALID_ARGUMENTS: list[tuple[str, Callable[[HiNetClassifier], Any], Any]] = [
    ("min_confidence", lambda model: model.predict(TEXTS, min_confidence="abc"), "abc"),
    ("min_confidence", lambda model: model.predict(TEXTS, min_confidence=0), 0),
    ("min_confidence", lambda model: model.predict(TEXTS, min_confidence=NAN), NAN),
    ("k", lambda model: model.predict_traces(TEXTS, 1.5), 1.5),
    ("k", lambda model: model.predict_traces(TEXTS, "two"), "two"),
    ("risk", lambda model: model.calibrate(TEXTS, LABELS, risk="low"), "low"),
    ("certainty", lambda model: model.calibrate(TEXTS, LABELS, certainty=1), 1),
    ("certainty", lambda model: model.calibrate(TEXTS, LABELS, certainty=[0.9]), [0.9]),
    ("most", lambda model: model.explain("rye bread", most=2.5), 2.5),
    ("most", lambda model: model.explain("rye bread", most=-1), -1),
    ("sample_weight", lambda model: model.score(TEXTS, LABELS, sample_weight="heavy"), "heavy"),
    ("sample_weight", lambda model: small().fit(TEXTS, LABELS, sample_weight=[1, "b"] * 6), 1),
    ("sample_weight", lambda model: small().fit(TEXTS, LABELS, sample_weight=[1j] * 12), 1j),
    ("sample_weight", lambda model: small(validation_fraction=0.5).fit(TEXTS, LABELS, sample_weight="heavy"), "heavy"),
    ("y", lambda model: small().fit(TEXTS, 5), 5),
    ("y", lambda model: model.score(TEXTS, 5), 5),
    ("valid", lambda model: small().fit(TEXTS, LABELS, valid=TEXTS), "rye bread"),
    ("classes", lambda model: small().partial_fit(TEXTS, LABELS, classes=3), 3),
    ("taxonomy", lambda model: model.update_taxonomy(3), 3),
    ("path", lambda model: model.save(None), None),
    ("path", lambda model: model.save(""), ""),
    ("half", lambda model: model.save("model", half="yes"), "yes"),
    ("notes", lambda model: model.save("model", notes={"made": Path("here")}), "here"),
    ("notes", lambda model: model.save("model", notes=3), 3),
    ("path", lambda model: hinet.load(3), 3),
    ("path", lambda model: hinet.load("a\0b"), "a\0b"),
    ("network", lambda model: hinet.load("model", network=5), 5),
    ("folder", lambda model: model.export_onnx(3), 3),
    ("n_jobs", lambda model: small(n_jobs=1).fit(*texts()).set_params(n_jobs="x").predict(TEXTS), "x"),
]


@pytest.mark.parametrize(("name", "call", "value"), INVALID_ARGUMENTS)
def test_invalid_method_argument_is_reported_with_its_value(
    name: str,
    call: Callable[[HiNetClassifier], Any],
    value: Any,
    fitted: HiNetClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HiNetError, match=rf"^{name}: expected .+, got .*{re.escape(repr(value))}"):
        call(fitted)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((text for text in TEXTS), "X: expected a list of texts, a CSR matrix or a 2-D array, got <generator object"),
        (dict.fromkeys(TEXTS), "X: expected a list of texts, .* got {'rye bread': None"),
        (None, "X: expected a list of texts, .* got None"),
        (7, "X: .*[Ee]xpected 2D array"),
        (ROWS * 1j, "Complex data not supported"),
        (np.array([[{}, 1]] * 12, object), "X: .*must be a string or a real number"),
        (sp.csr_array((12, 2**31)), "2,147,483,648 features, at most 2,147,483,647 are possible"),
        (sp.csr_array(ROWS * 1j), "X: Complex|real numbers, got values of type complex"),
    ],
)
def test_invalid_rows_are_reported(rows: Any, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        small().fit(rows, LABELS)


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_model_that_exceeds_memory_is_rejected(engine: Any) -> None:
    rows = sp.csr_array((12, 2**31 - 1), dtype=np.float32)
    if total_memory() < 1e14:
        with pytest.raises(HiNetError, match=r"takes .* GB.*, more than the .* GB of memory available"):
            small(engine=engine, width=10_000).fit(rows, LABELS)
    with pytest.raises(HiNetError, match=r"more than `memory_limit=0\.5`"):
        small(engine=engine, memory_limit=0.5).fit(rows, LABELS)


ODD = [
    "x", "", b"x", -1, 0, 2, 1.5, -0.5, NAN, INFINITE, 2**31, 2**63, 10**400, None, True, [1, 2], (1, 2), {"a": 1},
    {"a": "b"}, set(), NoRepr(), np.int64(2), np.float16(0.5), np.array([1, 2]), Decimal("0.5"), Fraction(1, 2), 1j,
    int, "balanced", "a\0b", np.random.default_rng(0), "cuda", "meta",
]  # fmt: skip


@pytest.mark.parametrize("rows", [TEXTS, ROWS], ids=["texts", "dense"])
def test_fit_works_or_raises_hinet_error_for_any_parameter_value(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    worked = 0
    for name in inspect.signature(HiNetClassifier).parameters:
        for value in ODD:
            if name == "epochs" and isinstance(value, int) and value == 2**31:
                continue  # valid, but slow
            with contextlib.suppress(HiNetError):
                HiNetClassifier(**{**QUICK, name: value}).fit(rows, LABELS).predict(rows[:1])
                worked += 1
    assert worked > 50


def test_numpy_scalars_become_plain_numbers() -> None:
    settings = EngineSettings(width=np.int64(4), dropout=np.float16(0.5), wide=np.bool_(True), seed=np.uint8(3))
    assert (settings.width, settings.dropout, settings.wide, settings.seed) == (4, 0.5, True, 3)
    assert {type(settings.width), type(settings.seed)} == {int}
    assert type(settings.dropout) is float
    assert type(settings.wide) is bool


def test_bounds_of_rules() -> None:
    for rule, right, wrong in [
        (whole(1, 3), [1, 3], [0, 4, 2.0]),
        (real(0, below=1), [0, 0.99], [-1e-9, 1, INFINITE]),
        (real(high=1, above=0), [1e-9, 1], [0, 1.01]),
        (real(above=0, infinite=True), [INFINITE], [-INFINITE, NAN, 0]),
    ]:
        assert all(rule.validate("name", value) == value for value in right)
        for value in wrong:
            with pytest.raises(HiNetError, match="name: expected"):
                rule.validate("name", value)


def test_threads_are_counted_as_in_joblib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    counts = {None: 8, 1: 1, 3: 3, -1: 8, -2: 7, -8: 1, -99: 1, 10**9: MAX_THREADS}
    assert {threads: resolve_threads(threads) for threads in counts} == counts


def test_save_and_load_accept_every_kind_of_path(fitted: HiNetClassifier, tmp_path: Path) -> None:
    fitted.save(bytes(tmp_path / "model"), notes={"made": ["here", 1]})
    for path in (tmp_path / "model", str(tmp_path / "model"), bytes(tmp_path / "model"), str(tmp_path / "model") + "/"):
        assert hinet.load(path).predict(TEXTS[:1]) == fitted.predict(TEXTS[:1])
    with pytest.raises(FileError, match="cannot be read: File name too long"):
        hinet.load("m" * 5_000)


def test_every_parameter_has_a_rule_and_survives_saving(tmp_path: Path) -> None:
    assert set(RULES) == set(inspect.signature(HiNetClassifier).parameters)
    kept = {"device": "cuda:7", "class_weight": {np.int64(3): np.float32(2), "milk": 1}, "random_state": np.uint8(9)}
    before = small(n_jobs=-2, memory_limit=np.float64(9)).fit(*texts()).set_params(**kept)
    before.save(tmp_path / "model")  # on a machine without this device
    after = hinet.load(tmp_path / "model").get_params()
    assert after == {**before.get_params(), **kept}


def test_invalid_labels_and_networks_are_reported() -> None:
    import torch

    with pytest.raises(HiNetError, match="y: expected a list of labels, got <generator object"):
        small().fit(TEXTS, (label for label in LABELS))
    for network, message in (
        (torch.nn.Linear(7, 3), "network: it cannot read a batch of rows of 2 features: .*shapes cannot be multiplied"),
        (torch.nn.LSTM(2, 3), r"network: expected a tensor \(rows, units\) for a batch of rows, got tuple"),
        (torch.nn.Unflatten(1, (2, 1)), "the network gives 3 axes"),
    ):
        with pytest.raises(HiNetError, match=message):
            small(network=network).fit(ROWS, LABELS)


def test_engine_reports_invalid_arguments(fitted: HiNetClassifier) -> None:
    rows = fitted.features_of(TEXTS)
    with pytest.raises(HiNetError, match="traces: expected Traces, got 'labels'"):
        fit(rows, "labels")  # type: ignore[arg-type]
    with pytest.raises(HiNetError, match=r"settings: expected EngineSettings, got {'width': 3}"):
        fit(rows, None, {"width": 3})  # type: ignore[arg-type]
    with pytest.raises(HiNetError, match="threads: expected a whole number other than 0 or None, got 'x'"):
        Search(fitted.fitted_.predictor.model, "x").traces(rows)  # type: ignore[arg-type]
    with pytest.raises(HiNetError, match="threads: expected a whole number other than 0 or None, got 2\\.5"):
        TextFeatures.fit(TEXTS, threads=2.5)  # type: ignore[arg-type]
