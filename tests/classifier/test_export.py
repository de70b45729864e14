"""A classifier as an ONNX graph gives the scores and traces of the classifier itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import HiNetError
from hinet.data.text import TextSettings
from tests.classifier.data import numbers, small, taxonomy, texts

onnxruntime = pytest.importorskip("onnxruntime")


def decoder_of(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("decode", folder / "decode.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def feed_of(rows: sp.csr_array) -> dict[str, Any]:
    matrix = sp.coo_array(rows)
    return {
        "row": matrix.row.astype(np.int64),
        "feature": matrix.col.astype(np.int64),
        "value": matrix.data.astype(np.float32),
        "rows": np.array(rows.shape[0], np.int64),
    }


@pytest.mark.parametrize("slope", [1.0, 0.7])
def test_texts_are_answered_by_the_graph(slope: float, tmp_path: Path) -> None:
    rows, labels = texts()
    rows[0] += " and words that are unknown"
    classifier = small(taxonomy=taxonomy(), wide=False, flat=False, text=TextSettings(min_df=2)).fit(rows, labels)
    assert classifier.unknown_share(rows)[0] > 0.3
    classifier.fitted_ = classifier.fitted_.scaled(1.0, slope)  # like calibration
    report = classifier.export_onnx(tmp_path / "graph", rows, labels)
    assert report.accuracy == classifier.score(rows, labels)
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "model.onnx")
    (log_p,) = session.run(["log_p"], feed_of(classifier.features_of(rows)))
    decoder = decoder_of(tmp_path / "graph")
    arrays = decoder.read(tmp_path / "graph" / "traces.npz")
    found = decoder.decode(log_p, arrays, k=2, unknown=classifier.unknown_share(rows))
    best = classifier.predict_traces(rows, k=2)
    np.testing.assert_allclose(found.log_p, best.log_p, atol=1e-4)
    assert [trace[0].steps for trace in best] == [tuple(path[0]) for path in decoder.paths(found, arrays)]
    with pytest.raises(ValueError, match="share of unknown n-grams, from 0 to 1"):
        decoder.decode(log_p, arrays, unknown=np.full(len(rows), 2.0))


def test_what_the_wide_expert_adds_is_told(tmp_path: Path) -> None:
    rows, labels = texts()
    classifier = small(taxonomy=taxonomy()).fit(rows, labels)
    report = classifier.export_onnx(tmp_path / "graph", rows, labels)
    assert "wide" in report.left_out
    assert report.accuracy_of_model == classifier.score(rows, labels)
    assert "wide" in str(report)
    with pytest.raises(HiNetError, match="got only one of X and y"):
        classifier.export_onnx(tmp_path / "other", rows)


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_dense_rows_are_answered_by_the_graph(engine: str, tmp_path: Path) -> None:
    rows, labels = numbers()
    classifier = small(epochs=None, wide=False, engine=engine).fit(rows, labels)
    classifier.export_onnx(tmp_path / "graph")
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "model.onnx")
    scaled = classifier.features_of(rows)
    (log_p,) = session.run(["log_p"], {"x": scaled} if engine == "torch" else feed_of(scaled))
    decoder = decoder_of(tmp_path / "graph")
    found = decoder.decode(log_p, decoder.read(tmp_path / "graph" / "traces.npz"))
    np.testing.assert_allclose(found.log_p, classifier.predict_traces(rows).log_p, atol=1e-4)
