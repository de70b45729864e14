"""Models that were forged, with digests that agree: refused with the file and the array, or answered; never a crash."""

from __future__ import annotations

import json
import math
import shutil
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.forging import FUSED, OUTCOMES, TORCH, Base, trained, try_all
from hinet import FileError, load
from hinet.classifier.model_folder import digest_of, sealed
from hinet.cli import main
from hinet.files import read_arrays, write_arrays

CASES = 120  # ten thousand are tried by benchmarks/forged_models.py
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Base]:
    return trained(tmp_path_factory.mktemp("bases"), (*FUSED, *TORCH))


def test_forged_models_are_refused_or_answer(bases: list[Base]) -> None:
    counts = Counter(dict.fromkeys(OUTCOMES, 0))
    for seed, changed, outcome in try_all(bases[: len(FUSED)], range(CASES)):
        counts[outcome.kind] += 1
        assert outcome.kind in ("refused", "answered"), (seed, changed, outcome)
    assert counts["refused"] > CASES // 2
    assert counts["answered"] > CASES // 20


@pytest.fixture
def copies(bases: list[Base], tmp_path: Path) -> dict[str, Path]:
    """A copy of each model, to be forged."""
    return {base.folder.name: Path(shutil.copytree(base.folder, tmp_path / base.folder.name)) for base in bases}


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    """Let all digests agree."""
    for told in manifest["files"].values():
        with (folder / told["file"]).open("rb") as stream:
            told.update(bytes=(folder / told["file"]).stat().st_size, blake2b=digest_of(stream))
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))


def forge_array(folder: Path, file: str, name: str, change: Callable[[Any], Any]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / manifest["files"][file]["file"]
    arrays, _ = read_arrays(path)
    arrays[name] = np.ascontiguousarray(change(arrays[name].copy()))
    write_arrays(path, arrays)
    sign(folder, manifest)


def at(place: int, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        if array.dtype.kind in "iu":
            array = array.astype(np.int64)  # numbers are as narrow as they can be
        array.reshape(-1)[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("kind", "file", "array", "change", "message"),
    [
        ("tree", "model", "wide.feature", at(0, 2_000_000_000), "holds 2000000000 at index 0, expected 0 to"),
        ("tree", "model", "wide.feature", at(-1, -7), "holds -7 at index"),
        ("tree", "model", "wide.feature", lambda array: array[::-1], "is not ascending"),
        ("tree", "model", "wide.slot_offsets", at(1, 1 << 62), "expected ascending values"),
        ("tree", "model", "wide.weight_offsets", at(1, -(1 << 62)), "expected ascending values"),
        ("tree", "model", "wide.weight_offsets", at(1, 0), "expected ascending values"),
        ("tree", "model", "wide.row", at(0, -1), "holds -1 at index 0"),
        ("tree", "model", "wide.row", lambda array: array * 0, "rows of another group"),
        ("tree", "model", "wide.weight", at(3, math.nan), "holds nan at index 3"),
        ("tree", "model", "prototypes.offsets", at(1, 1 << 40), "expected ascending values"),
        ("tree", "model", "prototypes.label", lambda array: array + 3, "expected 0 to 2"),
        ("tree", "model", "features.bias", at(5, math.inf), "holds inf at index 5"),
        ("tree", "model", "features.weight", lambda array: array.astype(np.int64), "is of int64, expected floats"),
        ("tree", "model", "features.weight", lambda array: array.view(np.uint8), "is of uint8, expected floats"),
        ("tree", "model", "head.weight", lambda array: array[:, 1:], "has the shape"),
        ("tree", "model", "head.weight", lambda array: array.astype(np.int64), "expected integers of 8 bits"),
        ("tree", "model", "head.weight", lambda array: array.astype(np.float32), "expected integers of 8 bits"),
        ("tree", "model", "features.scale", at(0, 0.0), "holds 0.0 at index 0"),
        ("tree", "model", "features.scale", at(1, -1.0), "holds -1.0 at index 1"),
        ("tree", "model", "flat.features.scale", at(0, math.nan), "holds nan at index 0"),
        ("tree", "model", "head.scale", at(0, math.inf), "holds inf at index 0"),
        ("tree", "model", "head.scale", lambda array: array[:-1], "has the shape"),
        ("tree", "model", "flat.head.scale", lambda array: array.astype(np.int8), "is of int8, expected floats"),
        ("tree", "model", "flat.head.bias", lambda array: array[:-1], "has the shape"),
        ("tree", "model", "mix", at(0, -1), "holds -1.0 at index 0"),
        ("dag", "model", "mix", at(2, 0.5), "uses the flat expert, which the model does not have"),
        ("tree", "model", "label_nodes", at(0, 99), "holds 99 at index 0"),
        ("tree", "model", "examples.nodes", at(0, 99), "holds 99 at index 0"),
        ("tree", "model", "examples.indptr", at(1, 1 << 40), "expected ascending values"),
        ("dag", "model", "held_out.nodes", at(0, -1), "holds -1 at index 0"),
        ("dag", "model", "held_out.indices", at(0, 1 << 40), "holds 1099511627776 at index 0"),
        ("dag", "model", "held_out.data", at(0, math.nan), "holds nan at index 0"),
        ("tree", "features", "words.idf", lambda array: array[:, None], "has the shape"),
        ("tree", "features", "words.hashes", lambda array: array[None], "has the shape"),
        ("hashed", "features", "chars.idf", at(0, 1e-40), "between 0 and 1"),
        ("dense", "features", "scale", at(0, math.nan), "holds nan at index 0"),
        ("dense", "model", "head.weight", at(0, math.nan), "holds nan at index 0"),
        ("dense", "model", "head.bias", lambda array: array.astype(np.float16), "has type float16"),
        ("torch texts", "model", "features.weight", lambda array: array[:-1], "has the shape"),
    ],
)
def test_a_forged_array_is_named_with_its_file(
    copies: dict[str, Path], kind: str, file: str, array: str, change: Callable[[Any], Any], message: str
) -> None:
    forge_array(copies[kind], file, array, change)
    with pytest.raises(FileError, match=rf"{file}-\w+\.safetensors: cannot be used: the array '{array}' .*{message}"):
        load(copies[kind])


def test_an_array_of_nothing_asks_for_no_memory(copies: dict[str, Path]) -> None:
    forge_array(copies["tree"], "model", "features.weight", lambda array: np.zeros((0, 1 << 31), np.float32))
    with pytest.raises(FileError, match=r"the array 'features.bias' has the shape \(8,\), expected \(width = 2,147"):
        load(copies["tree"])


def put(*path: Any) -> Callable[[Any], None]:
    """Return what sets a value deep in a manifest, the last of the path."""

    def change(manifest: Any) -> None:
        inside = manifest
        for step in path[:-2]:
            inside = inside[step]
        inside[path[-2]] = path[-1]

    return change


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("tree", put("calibration", "temperature", "hot"), "calibration.temperature is 'hot', expected a number"),
        ("tree", put("calibration", "promise", "threshold", []), "promise.threshold is a list of 0, expected"),
        ("tree", put("calibration", "promise", "risk", "x"), "promise.risk is 'x', expected a number"),
        ("tree", put("calibration", "promise", "zz", 1), "unknown entry 'zz'"),
        ("tree", put("calibration", 7), "calibration is 7, expected a mapping"),
        ("tree", put("metrics", []), "metrics is a list of 0, expected a mapping"),
        ("tree", put("metrics", {"validation": {"rows": 3}}), "has no entry 'accuracy'"),
        ("tree", put("notes", "mine"), "notes is 'mine', expected a mapping"),
        ("tree", put("history", 0, "epoch", "first"), "expected a whole number"),
        ("tree", put("input_features", 1.5), "input_features is 1.5"),
        ("tree", put("features", "settings", "sublinear", "x"), "sublinear is 'x', expected true or false"),
        ("tree", put("versions", "hinet", "\ud800"), "half of a character"),
        ("tree", put("parameters", "device", {"x": json.loads("[" * 99 + "]" * 99)}), "more than 50 levels"),
        ("tree", put("parameters", "n_jobs", "all"), "n_jobs"),
        ("tree", put("trust", "rate", -1.0), "trust has rate -1"),
        ("tree", put("trust", "power", 1e9), "trust has rate .* and power 1e"),
        ("tree", put("trust", "rate", "high"), "trust.rate is 'high', expected a number"),
        ("tree", put("trust", "zz", 1), "unknown entry 'zz'"),
        ("dag", put("trust", {"rate": 1.0, "power": 2.0}), "trust is for trees of the fused engine"),
        ("path text", put("labels", "style", "mark", ""), "need a mark"),
        ("tree", put("labels", "root", 7), "root is 7, expected"),
        ("table", put("labels", "columns", 10**12), "labels of 1,000,000,000,000 columns"),
        ("hashed", put("labels", "values", "kind", "<U1000000000"), "unknown kind '<U1000000000'"),
        ("hashed", put("labels", "values", "values", [5, 4, 10**30]), "beyond 64 bits|are not"),
        ("hashed", put("labels", "values", "values", [1, 2, 3]), "differ from the nodes"),
        ("dense", put("model", "features", "features", 10**12), "has the shape"),
        ("dense", put("model", "width", 10**12), "the head does not read"),
        ("dense", put("model", "head", "wiring", 7), "model.head.wiring is 7"),
        ("dense", put("input_features", 4), "are scaled"),
        ("sparse", put("input_features", 4), "reads 5 features, and rows have 4"),
    ],
)  # fmt: skip
def test_a_forged_manifest_is_refused(
    copies: dict[str, Path], kind: str, change: Callable[[Any], None], message: str
) -> None:
    folder = copies[kind]
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    sign(folder, manifest)
    with pytest.raises(FileError, match=message):
        load(folder)


def test_what_is_forged_is_told_in_the_shell(copies: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = copies["tree"]
    forge_array(folder, "model", "wide.row", at(0, 1 << 30))
    for command in (["explain", str(folder), "rye bread"], ["export", str(folder), str(folder / "onnx")]):
        with pytest.raises(SystemExit, match="2"):
            main(command)
        assert "the array 'wide.row' holds 1073741824 at index 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[" * 100_000, "cannot be read"),
        (b'{"a":' * 50_000, "cannot be read"),
        (b"[]", "the header is a list of 0, expected a mapping"),
        (b'{"mix":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}', "'mix' of the shape"),
        (b'{"mix":{"dtype":"F32","shape":[-1,-4],"data_offsets":[0,16]}}', "'mix' of the shape"),
        (b'{"mix":{"dtype":"F32","shape":[4],"data_offsets":[0,17179869184]}}', "'mix' of the shape"),
        (b'{"mix":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}', "unknown dtype 'BF16'"),
        (b"{}", "arrays of 0 bytes in a file with"),
    ],
)
def test_a_forged_header_is_refused(copies: dict[str, Path], header: bytes, message: str) -> None:
    folder = copies["tree"]
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / manifest["files"]["model"]["file"]
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for length in (len(header), 1 << 34):
        path.write_bytes(length.to_bytes(8, "little") + header + data[start:])
        sign(folder, manifest)
        with pytest.raises(FileError, match=message if length == len(header) else "a header of 17,179,869,184 bytes"):
            load(folder)


def test_what_could_not_be_loaded_is_not_saved(bases: list[Base], tmp_path: Path) -> None:
    model = load(bases[0].folder)
    with pytest.raises(FileError, match="more than 50 levels of nested lists and mappings"):
        model.save(tmp_path / "model", notes={"deep": json.loads("[" * 99 + "]" * 99)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mapped", [True, False])
def test_a_model_that_is_cut_off_while_it_is_in_use(bases: list[Base], tmp_path: Path, mapped: bool) -> None:
    shutil.copytree(bases[0].folder, tmp_path / "model")
    model = load(tmp_path / "model", mapped=mapped)
    before = model.predict_proba(bases[0].rows)
    (path,) = (tmp_path / "model").glob("model-*")
    with path.open("r+b") as stream:
        stream.truncate(100)
    if not mapped:
        np.testing.assert_array_equal(model.predict_proba(bases[0].rows), before)
        return
    for ask in (
        lambda: model.predict(bases[0].rows),
        lambda: model.save(tmp_path / "other"),
        lambda: model.update_taxonomy(bases[0].taxonomy),
    ):
        with pytest.raises(FileError, match=rf"{path.name}: was truncated while the model was in use"):
            ask()


def test_a_manifest_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)  # takes no room on disk
    tracemalloc.start()
    try:
        with pytest.raises(
            FileError, match=r"manifest\.json: is longer than 268,435,456 bytes, more than such a file has"
        ):
            load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
