"""Saved models come back exactly; whatever happens to their folder, they never come back wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import FileError, HiNetClassifier, HiNetError, load
from hinet.classifier.model_folder import digest_of, sealed
from hinet.data.text import TextSettings
from hinet.files import read_arrays, write_arrays
from tests.classifier.data import PATHS, numbers, small, taxonomy, texts
from tests.processes import killed_before

TEXTS, LABELS = texts()
NEW, TRUE = texts(30, seed=1)


def trained(kind: str) -> tuple[HiNetClassifier, Any]:
    rows, labels = numbers()
    return {
        "texts": lambda: (small(taxonomy=taxonomy(), text=TextSettings(min_df=1)).fit(TEXTS, LABELS), NEW),
        "plain": lambda: (small().fit(TEXTS, LABELS), NEW),
        "numbers": lambda: (small().fit(TEXTS, [len(label) for label in LABELS]), NEW),
        "paths": lambda: (small().fit(TEXTS, [PATHS[label] for label in LABELS]), NEW),
        "flat": lambda: (small(taxonomy=taxonomy(), flat=True).fit(TEXTS, LABELS, valid=(NEW, TRUE)), NEW),
        "dense": lambda: (small(epochs=None).fit(rows, labels), rows),
        "torch dense": lambda: (small(epochs=None, engine="torch").fit(rows, labels), rows),
        "torch texts": lambda: (small(engine="torch").fit(TEXTS, LABELS), NEW),
    }[kind]()


@pytest.mark.parametrize("kind", ["texts", "plain", "numbers", "paths", "flat", "dense", "torch dense", "torch texts"])
def test_a_saved_model_answers_as_before(kind: str, tmp_path: Path) -> None:
    before, rows = trained(kind)
    before.save(tmp_path / "model")
    after = load(tmp_path / "model")
    np.testing.assert_array_equal(after.predict_proba(rows), before.predict_proba(rows))
    assert after.predict(rows).tolist() == before.predict(rows).tolist()
    assert after.predict(rows).dtype == before.predict(rows).dtype
    assert after.classes_.tolist() == before.classes_.tolist()
    assert after.taxonomy_ == before.taxonomy_
    assert after.metrics_ == before.metrics_
    told, mine = after.get_params(), before.get_params()
    assert {name: told[name] for name in told if name != "taxonomy"} == {n: mine[n] for n in mine if n != "taxonomy"}
    suffixes = {path.suffix for path in (tmp_path / "model").iterdir()}
    assert suffixes == {".json", ".tsv", ".safetensors"}


def test_half_precision_takes_less_room(tmp_path: Path) -> None:
    before, rows = trained("texts")
    sizes = []
    for half in (False, True):
        before.save(tmp_path / "model", half=half)
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "model").glob("model-*")))
        np.testing.assert_allclose(load(tmp_path / "model").predict_proba(rows), before.predict_proba(rows), atol=0.01)
    assert sizes[1] < sizes[0]
    dense, _ = trained("torch dense")
    with pytest.raises(HiNetError, match="half precision is for models of the fused engine"):
        dense.save(tmp_path / "dense", half=True)


def test_calibration_is_kept(tmp_path: Path) -> None:
    before, rows = trained("texts")
    before.calibrate(*texts(300, seed=2), risk=0.2)
    before.save(tmp_path / "model")
    after = load(tmp_path / "model")
    assert after.calibration_ == before.calibration_
    np.testing.assert_array_equal(after.predict_proba(rows), before.predict_proba(rows))
    assert after.predict(rows, "calibrated").tolist() == before.predict(rows, "calibrated").tolist()


def test_a_network_of_ones_own_is_given_again(tmp_path: Path) -> None:
    import torch

    rows, labels = numbers()
    own = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh())
    before = small(network=own, epochs=2).fit(rows, labels)
    before.save(tmp_path / "model")
    with pytest.raises(HiNetError, match=r"your own network; pass it again, as load\(path, network=...\)"):
        load(tmp_path / "model")
    after = load(tmp_path / "model", network=torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh()))
    np.testing.assert_array_equal(after.predict_proba(rows), before.predict_proba(rows))
    with pytest.raises(HiNetError, match="do not fit the network"):
        load(tmp_path / "model", network=torch.nn.Linear(4, 6))


def saved(folder: Path) -> Path:
    trained("texts")[0].save(folder)
    return folder


def the_file(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / "manifest.json").read_text())["files"][name]["file"]


@pytest.mark.parametrize("name", ["taxonomy", "features", "model"])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    path = the_file(folder, name)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", whole + b" "):
        path.write_bytes(broken)
        with pytest.raises(FileError, match=rf"{path.name}: has [\d,]+ bytes instead of [\d,]+; copy the folder again"):
            load(folder)
    for place in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileError, match=rf"{path.name}: was changed after the model was saved"):
            load(folder)
    path.unlink()
    with pytest.raises(FileError, match=rf"{path.name}: is missing; the model needs its {name}"):
        load(folder)


def test_swapped_files_are_refused(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "first"), tmp_path / "second"
    small(taxonomy=taxonomy(), random_state=5).fit(TEXTS, LABELS).save(second)
    shutil.copy(the_file(second, "model"), the_file(first, "model"))
    with pytest.raises(FileError, match=r"was changed|bytes instead"):
        load(first)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda manifest: manifest.update(format=99), "the model has format 99, this version of hinet reads format 1"),
        (lambda manifest: manifest.pop("format"), "the model has format None"),
        (lambda manifest: manifest.pop("labels"), "the manifest is damaged"),
        (lambda manifest: manifest.pop("parameters"), "the manifest is damaged"),
        (lambda manifest: manifest["files"].pop("model"), "the manifest is damaged"),
        (lambda manifest: manifest["files"]["model"].update(file="../model"), "outside of the folder|damaged"),
        (lambda manifest: manifest["parameters"].update(evil=1), "its parameters are damaged"),
    ],
    ids=["format", "no format", "no labels", "no parameters", "no model", "outside", "unknown parameter"],
)
def test_edited_manifests_are_refused(edit: Any, message: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "model") / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(FileError, match=f"{message}|was changed after the model was saved"):
        load(tmp_path / "model")
    path.write_text(json.dumps(sealed(manifest)))  # a forged manifest with a valid digest
    with pytest.raises(FileError, match=message):
        load(tmp_path / "model")


def forged(folder: Path, name: str, change: Any) -> None:
    """Change the arrays of a saved model, and its manifest so that all digests are right."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    told = manifest["files"][name]
    arrays, _ = read_arrays(folder / told["file"])
    change(arrays)
    write_arrays(folder / told["file"], arrays)
    with (folder / told["file"]).open("rb") as stream:
        told.update(bytes=(folder / told["file"]).stat().st_size, blake2b=digest_of(stream))
    path.write_text(json.dumps(sealed(manifest)))


@pytest.mark.parametrize(
    ("array", "value"),
    [("wide.row", 2_000_000_000), ("wide.known_as", -5), ("wide.weight_offsets", 10**12), ("wide.slot_offsets", -1)],
)
def test_arrays_that_would_lead_kernels_astray_are_refused(array: str, value: int, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")

    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[array] = arrays[array].astype(np.int64)
        arrays[array][len(arrays[array]) // 2] = value

    forged(folder, "model", change)
    with pytest.raises(FileError, match=rf"model-\w+\.safetensors: cannot be used: the array '{array}'"):
        load(folder)


@pytest.mark.parametrize("name", ["model_card.md", "taxonomy.csv", "features.parquet", "model-final.bin", ".hidden"])
def test_files_of_others_are_left_alone(name: str, tmp_path: Path) -> None:
    model, _ = trained("plain")
    for folder in (tmp_path / "new", saved(tmp_path / "old")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("precious")
        with pytest.raises(FileError, match="holds other files"):
            model.save(folder)
        assert (folder / name).read_text() == "precious"


def test_what_cannot_be_kept_is_said_before_anything_is_written(tmp_path: Path) -> None:
    model = small(width=np.int64(8)).fit(TEXTS, LABELS)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").width == 8
    weighted = small(class_weight={"bread": 2.0}).fit(TEXTS, LABELS)
    weighted.save(tmp_path / "weighted")
    assert load(tmp_path / "weighted").class_weight == {"bread": 2.0}
    with pytest.raises(HiNetError, match="labels are text or numbers; got bytes"):
        small().fit(TEXTS, [label.encode() for label in LABELS])


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be loaded: no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"it has no manifest\.json, so it is not a saved model"):
        load(tmp_path)
    for broken in ("{", "[" * 100_000):
        (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(FileError, match="the manifest cannot be read"):
            load(tmp_path)
    model, _ = trained("plain")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileError, match=r"holds other files \('thesis.txt'\); name a new folder"):
        model.save(tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="is a file; name a folder"):
        model.save(tmp_path / "file")


def test_a_model_is_replaced_whole(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    before = {path.name for path in folder.iterdir()}
    other = small(taxonomy=taxonomy(), random_state=5).fit(TEXTS, LABELS)
    other.save(folder)
    after = {path.name for path in folder.iterdir()}
    assert len(after) == len(before) == 4
    np.testing.assert_array_equal(load(folder).predict_proba(NEW), other.predict_proba(NEW))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn if there are threads
def test_a_save_that_is_killed_leaves_a_whole_model_or_none(tmp_path: Path) -> None:
    first, second, target = saved(tmp_path / "first"), tmp_path / "second", tmp_path / "target"
    small(taxonomy=taxonomy(), random_state=5).fit(TEXTS, LABELS).save(second)
    known = [load(folder).predict_proba(NEW) for folder in (first, second)]
    seen = []  # the model after each kill: 0, 1, or None
    for step in range(1, 60):
        if not killed_before(step, lambda: [load(folder).save(target) for folder in (first, second)]):
            break
        if (target / "manifest.json").exists():
            found = load(target).predict_proba(NEW)
            (same,) = (number for number, probability in enumerate(known) if np.array_equal(found, probability))
            seen.append(same)
        else:
            seen.append(None)
            with pytest.raises(FileError, match="cannot be loaded"):
                load(target)
    else:
        raise AssertionError("two saves take more steps")
    assert {*seen} == {None, 0, 1}
    load(first).save(target)
    assert len(list(target.iterdir())) == 4
