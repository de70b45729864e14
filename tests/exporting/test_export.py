"""Whole exports: onnxruntime's scores are ours, and what a folder holds is enough to find our traces."""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from hinet import FileError, HiNetError, Layers, Taxonomy, Traces
from hinet.engine import EngineSettings, FusedModel, Search, fit
from hinet.engine.model.experts import Mix
from hinet.exporting import export_onnx
from hinet.exporting.decode import decode, paths, read
from hinet.exporting.export import exported_part
from hinet.exporting.scoring import ALIGNED
from hinet.networks import (
    DenseFeatures,
    FlattenNetwork,
    HeadSettings,
    HiNet,
    SparseBag,
    SparseRows,
    paper,
    predict_traces,
)
from tests.engine.fused_network import FusedNetwork
from tests.engine.oracle import FEATURES, random_model, random_rows
from tests.engine.test_fit import data
from tests.processes import run
from tests.strategies import layered

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
NEAR = 1e-4
WIDTH = 4
seeds = st.integers(0, 10_000)


def feed_of(rows: sp.csr_array) -> dict[str, NDArray[Any]]:
    entries = rows.tocoo()
    return {
        "row": entries.coords[0].astype(np.int64),
        "feature": entries.coords[1].astype(np.int64),
        "value": entries.data.astype(np.float32),
        "rows": np.array(rows.shape[0]),
    }


def scores_by(folder: Path, feed: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the output of an exported graph by onnxruntime."""
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (log_p,) = session.run(["log_p"], feed)
    assert isinstance(log_p, np.ndarray)
    return log_p


def fused_scores(model: FusedModel, rows: sp.csr_array) -> NDArray[np.float32]:
    """(rows, options) The torch modules' scores of the same experts."""
    with torch.no_grad():
        scores: NDArray[np.float32] = (
            FusedNetwork.of(model).option_scores(SparseRows.of(rows, 0, rows.shape[0])).T.numpy()
        )
    return scores


def assert_traces_are_those_of_search(folder: Path, model: FusedModel, rows: sp.csr_array, k: int) -> None:
    """The same traces in the same order, or, where two are as good as equal, one of them."""
    found = decode(scores_by(folder, feed_of(rows)), read(str(folder / "traces.npz")), k)
    expected = Search(exported_part(model), threads=1).traces(rows, k).traces
    assert expected.log_p is not None
    np.testing.assert_array_equal(found.row_offsets, expected.row_offsets)
    np.testing.assert_allclose(found.log_p, expected.log_p, rtol=1e-5, atol=NEAR)
    gaps = np.abs(np.diff(expected.log_p, prepend=np.inf, append=-np.inf))
    clear = np.flatnonzero((gaps[:-1] > 2 * NEAR) & (gaps[1:] > 2 * NEAR))
    for trace in clear.tolist():
        ours = found.neurons[found.offsets[trace] : found.offsets[trace + 1]]
        np.testing.assert_array_equal(ours, expected.neurons[expected.offsets[trace] : expected.offsets[trace + 1]])


def some_network(kind: str, features: nn.Module, layers: Layers, seed: int) -> HiNet | FlattenNetwork:
    torch.manual_seed(seed)
    if kind == "flatten":
        ends = np.unique(layers.node[layers.ends])
        network: HiNet | FlattenNetwork = FlattenNetwork(features, layers, WIDTH, ends[ends >= 0])
    else:
        network = HiNet(features, layers, WIDTH, HeadSettings(tied=kind == "tied"))
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def some_tree() -> Layers:
    """A tree whose groups are of one, two, three and many options, some of which end traces above others."""
    edges = [("r", "a"), ("r", "b"), ("r", "c"), ("a", "a1"), ("a1", "a2"), ("b", "b1"), ("b", "b2")]
    edges += [("c", f"c{child}") for child in range(21)] + [("c3", f"c3{child}") for child in range(3)]
    return Layers.of(Taxonomy.from_edges(edges), ends=["b", "c3"])


@pytest.mark.parametrize("k", [1, 3])
@given(layers=layered(), seed=seeds, count=st.sampled_from([1, 20]))
@settings(max_examples=25)
def test_a_fused_model_scores_and_decodes_the_same(k: int, layers: Layers, seed: int, count: int) -> None:
    model, rows = random_model(layers, seed).model, random_rows(count, seed)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "exported")
        export_onnx(model, folder)
        log_p = scores_by(folder, feed_of(rows))
        np.testing.assert_allclose(log_p, fused_scores(exported_part(model), rows), rtol=1e-5, atol=NEAR)
        assert_traces_are_those_of_search(folder, model, rows, k)


@pytest.mark.parametrize("experts", [("deep",), ("flat",), ("deep", "flat")], ids="+".join)
def test_groups_of_all_sizes_and_large_scores(experts: tuple[str, ...], tmp_path: Path) -> None:
    model, rows = random_model(some_tree(), 3, sharpness=30.0).model, random_rows(40, 3)
    mix = np.array(Mix(deep=0.7 * ("deep" in experts), wide=0.2, flat=0.9 * ("flat" in experts)), np.float32)
    model = FusedModel(model.layers, model.experts._replace(mix=mix))
    assert export_onnx(model, tmp_path / "exported").experts == experts
    log_p = scores_by(tmp_path / "exported", feed_of(rows))
    np.testing.assert_allclose(log_p, fused_scores(exported_part(model), rows), rtol=1e-5, atol=NEAR)
    groups = np.add.reduceat(np.exp(log_p.astype(np.float64)), model.layers.option_offsets[:-1], 1)
    np.testing.assert_allclose(groups, 1, rtol=1e-4)
    assert_traces_are_those_of_search(tmp_path / "exported", model, rows, 2)


def test_weights_in_8_bits_and_merged_features_score_the_same(tmp_path: Path) -> None:
    model = random_model(some_tree(), 4).model
    experts = model.experts._replace(deep=model.experts.deep.quantised(), flat=model.experts.flat.quantised())
    merged = np.random.default_rng(4).integers(0, FEATURES, 3 * FEATURES).astype(np.int32)
    model = replace(model, experts=experts, merged=merged)
    rows = sp.hstack([random_rows(30, 4), random_rows(30, 5), random_rows(30, 6)], format="csr")
    exported = export_onnx(model, tmp_path / "exported")
    assert "Embeddings are in 8 bits" in str(exported)
    log_p = scores_by(tmp_path / "exported", feed_of(rows))
    np.testing.assert_allclose(log_p, fused_scores(exported_part(model), rows), rtol=1e-5, atol=NEAR)
    assert_traces_are_those_of_search(tmp_path / "exported", model, rows, 2)


def test_entries_may_come_in_any_order_and_rows_may_be_empty(tmp_path: Path) -> None:
    model, rows = random_model(some_tree(), 5).model, random_rows(20, 5)
    export_onnx(model, tmp_path / "exported")
    feed = feed_of(rows)
    straight = scores_by(tmp_path / "exported", feed)
    order = np.random.default_rng(0).permutation(len(feed["row"]))
    mixed = {name: values[order] if values.ndim else values for name, values in feed.items()}
    np.testing.assert_allclose(scores_by(tmp_path / "exported", mixed), straight, atol=NEAR)
    nothing = sp.csr_array((3, FEATURES), dtype=np.float32)
    np.testing.assert_allclose(
        scores_by(tmp_path / "exported", feed_of(nothing)), fused_scores(exported_part(model), nothing), atol=NEAR
    )
    assert scores_by(tmp_path / "exported", feed_of(nothing[:0])).shape == (0, len(model.layers.option_neuron))


@pytest.mark.parametrize("kind", ["tree", "dag"])
def test_an_exported_model_is_about_as_accurate_and_the_report_gives_both_figures(kind: str, tmp_path: Path) -> None:
    rows, traces, labels = data(kind)
    model = fit(rows, traces, EngineSettings(width=16, flat_width=8, flat=kind == "tree", threads=2))
    exported = export_onnx(model, tmp_path / "exported", rows, traces)
    assert exported.folder == tmp_path / "exported"
    assert exported.experts == (("deep", "flat") if kind == "tree" else ("deep",))
    assert exported.left_out == ("wide",)
    folder, arrays = exported.folder, read(str(exported.folder / "traces.npz"))
    best = paths(decode(scores_by(folder, feed_of(rows)), arrays), arrays)
    hits = np.mean([found[0][-1] == label for found, label in zip(best, labels, strict=True)])
    assert exported.accuracy == pytest.approx(hits)
    assert exported.accuracy_of_model is not None
    assert hits > 0.9
    assert "Left out: wide" in str(exported)
    assert f"Accuracy {hits:.2%}, of the whole model {exported.accuracy_of_model:.2%}." in str(exported)
    assert str(exported) in (folder / "README.md").read_text("utf-8")


def test_the_weights_of_experts_left_out_go_to_the_others() -> None:
    model = random_model(some_tree(), 0).model
    assert exported_part(model).mix == pytest.approx((2.23 * 6 / 11, 0, 2.23 * 5 / 11, 0, 0, 0), abs=1e-6)
    wide = FusedModel(model.layers, model.experts._replace(mix=np.array(Mix(wide=1), np.float32)))
    with pytest.raises(HiNetError, match="has neither a deep nor a flat expert"):
        exported_part(wide)


@pytest.mark.parametrize("kind", ["default", "tied", "flatten"])
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@given(layers=layered(), seed=seeds)
@settings(max_examples=10)
def test_networks_score_and_decode_the_same(dense: bool, kind: str, layers: Layers, seed: int) -> None:
    features = DenseFeatures(FEATURES, (5, WIDTH)) if dense else SparseBag(FEATURES, WIDTH, linear_share=0.4)
    network = some_network(kind, features, layers, seed)
    rows = random_rows(6, seed).toarray() if dense else random_rows(6, seed)
    expected = predict_traces(network, rows)
    batch = torch.from_numpy(rows) if dense else SparseRows.of(rows, 0, 6)
    with torch.no_grad():
        flat = isinstance(network, FlattenNetwork)
        scores = network.label_scores(batch) if flat else network.option_scores(batch).T  # type: ignore[operator]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "exported")
        assert export_onnx(network, folder).left_out == ()
        log_p = scores_by(folder, {"x": rows} if dense else feed_of(rows))
        np.testing.assert_allclose(log_p, scores.numpy(), rtol=1e-5, atol=NEAR)
        found = decode(log_p, read(str(folder / "traces.npz")))
    first = expected.row_offsets[:-1]
    np.testing.assert_array_equal(np.diff(found.offsets), np.diff(expected.offsets)[first])
    starts = zip(found.offsets[:-1], expected.offsets[:-1][first], np.diff(found.offsets), strict=True)
    for ours, theirs, length in starts:
        np.testing.assert_array_equal(found.neurons[ours : ours + length], expected.neurons[theirs : theirs + length])


def test_the_k_best_labels_of_a_flat_network(tmp_path: Path) -> None:
    network, rows = some_network("flatten", SparseBag(FEATURES, WIDTH), some_tree(), 1), random_rows(5, 1)
    export_onnx(network, tmp_path / "exported")
    log_p = scores_by(tmp_path / "exported", feed_of(rows))
    arrays = read(str(tmp_path / "exported" / "traces.npz"))
    found = decode(log_p, arrays, 3)
    np.testing.assert_allclose(found.log_p.reshape(5, 3), -np.sort(-log_p, axis=1)[:, :3])
    ids = network.layers.taxonomy.ids
    assert isinstance(network, FlattenNetwork)
    best = network.label_nodes.numpy()[np.argsort(-log_p, axis=1)[:, :3]]
    assert [[path[-1] for path in row] for row in paths(found, arrays)] == [[ids[node] for node in row] for row in best]


def test_sequences_of_known_modules_are_features(tmp_path: Path) -> None:
    shared = nn.Tanh()
    features = nn.Sequential(nn.Linear(FEATURES, 3, bias=False), shared, nn.Sequential(nn.Linear(3, WIDTH), shared))
    network, rows = some_network("default", features, some_tree(), 2), random_rows(5, 2).toarray()
    export_onnx(network, tmp_path / "exported")
    assert isinstance(network, HiNet)
    with torch.no_grad():
        expected = network.option_scores(torch.from_numpy(rows)).T.numpy()
    np.testing.assert_allclose(scores_by(tmp_path / "exported", {"x": rows}), expected, atol=NEAR)


class Backwards(nn.Sequential):
    """A sequence that is applied in another order than it says."""

    def forward(self, rows: Any) -> Any:
        for part in reversed(self):
            rows = part(rows)
        return rows


@pytest.mark.parametrize("features", [nn.GELU(), Backwards(nn.ReLU(), nn.Linear(FEATURES, WIDTH))])
def test_features_that_are_not_known_are_refused(features: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(HiNetError, match=f"the feature network has {type(features).__name__}"):
        export_onnx(some_network("default", features, some_tree(), 0), tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_other_heads_are_refused(tmp_path: Path) -> None:
    network = HiNet(SparseBag(FEATURES, WIDTH), some_tree(), WIDTH, paper())
    with pytest.raises(HiNetError, match="got 'chain' and 'level'"):
        export_onnx(network, tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_the_torch_form_of_a_fused_model_is_refused(tmp_path: Path) -> None:
    network: Any = FusedNetwork.of(random_model(some_tree(), 0).model)
    with pytest.raises(HiNetError, match="got FusedNetwork; export the FusedModel itself"):
        export_onnx(network, tmp_path / "exported")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_data_and_one_file_of_code(tmp_path: Path) -> None:
    export_onnx(random_model(some_tree(), 0).model, tmp_path / "exported")
    names = ["README.md", "decode.py", "model.onnx", "traces.npz", "weights.bin"]
    assert sorted(file.name for file in (tmp_path / "exported").iterdir()) == names
    with zipfile.ZipFile(tmp_path / "exported" / "traces.npz") as arrays:
        for name in arrays.namelist():
            with arrays.open(name) as stream:
                assert np.load(stream, allow_pickle=False).dtype != object
    assert list(tmp_path.iterdir()) == [tmp_path / "exported"]


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_the_readme_works_without_hinet(dense: bool, tmp_path: Path) -> None:
    features = DenseFeatures(FEATURES, (WIDTH,)) if dense else SparseBag(FEATURES, WIDTH)
    network = some_network("default", features, some_tree(), 4)
    rows = random_rows(6, 4)
    export_onnx(network, tmp_path / "exported")
    found = re.search(r"```python\n(.*?)```", (tmp_path / "exported" / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    sp.save_npz(tmp_path / "rows.npz", rows)
    code = f"import sys\nimport scipy.sparse\nX = scipy.sparse.load_npz({str(tmp_path / 'rows.npz')!r})\n"
    code += "X = X.toarray()\n" * dense + found[1] + "\nassert not any('hinet' in name for name in sys.modules)"
    code += "\nprint([row[0] for row in best])"
    done = run([sys.executable, "-c", code], cwd=tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    expected = predict_traces(network, rows.toarray() if dense else rows).paths()
    assert done.stdout == f"{[row[0] for row in expected]}\n"


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="exists already"):
        export_onnx(random_model(some_tree(), 0).model, tmp_path / "old")
    assert [file.name for file in tmp_path.rglob("*")] == ["old", "notes.txt"]
    (tmp_path / "old" / "notes.txt").unlink()
    export_onnx(random_model(some_tree(), 0).model, tmp_path / "old")
    assert (tmp_path / "old" / "model.onnx").is_file()


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        export_onnx(random_model(some_tree(), 0).model, tmp_path / "exported")
    with pytest.raises(FileError, match="cannot be written: No such file"):
        export_onnx(random_model(some_tree(), 0).model, tmp_path / "missing" / "exported")
    assert not list(tmp_path.iterdir())


def test_validation_needs_rows_and_traces_that_fit(tmp_path: Path) -> None:
    model, rows = random_model(some_tree(), 0).model, random_rows(3)
    traces = Traces.encode(model.layers, ["b1", "b2"])
    with pytest.raises(HiNetError, match="both rows and their true traces"):
        export_onnx(model, tmp_path / "exported", rows)
    with pytest.raises(HiNetError, match="3 rows of features and 2 rows of labels"):
        export_onnx(model, tmp_path / "exported", rows, traces)
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.extras.find_spec", lambda name: None)
    with pytest.raises(HiNetError, match=r"pip install 'hinet\[export\]'"):
        export_onnx(random_model(some_tree(), 0).model, tmp_path / "exported")


def test_sums_are_the_same_in_every_run(tmp_path: Path) -> None:
    """Scattered sums of many entries in several threads would not be."""
    model = random_model(some_tree(), 0).model
    export_onnx(model, tmp_path / "exported")
    random = np.random.default_rng(0)
    feed = {
        "row": np.zeros(50_000, np.int64),
        "feature": random.integers(0, FEATURES, 50_000),
        "value": random.standard_normal(50_000).astype(np.float32) / 100,
        "rows": np.array(1),
    }
    assert len({scores_by(tmp_path / "exported", feed).tobytes() for _ in range(5)}) == 1


def test_weights_are_laid_out_to_be_mapped(tmp_path: Path) -> None:
    import onnx

    export_onnx(random_model(some_tree(), 0, features=2_000).model, tmp_path / "exported")
    model = onnx.load(tmp_path / "exported" / "model.onnx", load_external_data=False)
    outside = [{entry.key: entry.value for entry in tensor.external_data} for tensor in model.graph.initializer]
    starts = [int(place["offset"]) for place in outside if place]
    assert starts
    assert all(start % ALIGNED == 0 for start in starts)
