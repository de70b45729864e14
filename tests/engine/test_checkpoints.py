"""Checkpoints that are damaged or forged: each resumes into the same model, or is refused with a remedy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import FileError, HiNetError, Traces
from hinet.engine import EngineSettings, FusedModel, ValidationRows, fit
from hinet.engine.training.checkpoints import DIGEST, _digest, check_folder, remove_checkpoints
from hinet.files import read_arrays, write_arrays
from tests.engine.test_fit import data

SMALL = EngineSettings(width=4, flat_width=4, flat=True, threads=1, deep_epochs=3, members=1)
Given = tuple[Any, Traces, ValidationRows]
Edit = Callable[[dict[str, Any], dict[str, str]], None]


@pytest.fixture(scope="module")
def given() -> Given:
    rows, traces, _ = data(count=60)
    return rows, traces, ValidationRows(*data(count=20, seed=3)[:2])


def trained(given: Given, folder: Path | None, *, patience: int | None = None) -> FusedModel:
    rows, traces, valid = given
    settings = EngineSettings(**{**SMALL.__dict__, "patience": patience})
    return fit(rows, traces, settings, valid=valid, checkpoint=folder)


@pytest.fixture(scope="module")
def kept(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a whole run."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    trained(given, folder, patience=9)
    return folder


def same(one: FusedModel, other: FusedModel) -> bool:
    arrays = one.to_arrays(), other.to_arrays()
    return all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


@pytest.mark.parametrize("part", ["length", "header", "values"])
def test_a_flipped_bit_is_refused_or_changes_nothing(part: str, given: Given, kept: Path, tmp_path: Path) -> None:
    whole = trained(given, shutil.copytree(kept, tmp_path / "run"), patience=9)
    refused = tried = 0
    files = [tmp_path / "run" / f"{name}-1.safetensors" for name in ("deep", "flat", "wide")]
    random = np.random.default_rng(len(part))
    for path in files:
        sound = path.read_bytes()
        header = 8 + int.from_bytes(sound[:8], "little")
        low, high = {"length": (0, 8), "header": (8, header), "values": (header, len(sound))}[part]
        for place in sorted({low, high - 1, *random.integers(low, high, 4).tolist()}):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ (1 << random.integers(8))]) + sound[place + 1 :])
            tried += 1
            try:
                assert same(trained(given, tmp_path / "run", patience=9), whole), (path.name, place)
            except FileError as error:
                refused += 1
                assert str(path) in str(error)  # noqa: PT017
        path.write_bytes(sound)
    assert same(trained(given, tmp_path / "run", patience=9), whole)
    assert refused == tried or (part == "header" and refused > tried / 2)  # a blank may become another


def array(name: str, value: Any, at: int = 0) -> Edit:
    def edit(arrays: dict[str, Any], told: dict[str, str]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return edit


def replaced(name: str, change: Callable[[Any], Any]) -> Edit:
    return lambda arrays, told: arrays.update({name: change(arrays[name])})


def telling(name: str, value: str) -> Edit:
    return lambda arrays, told: told.update({name: value})


def record(**changed: Any) -> Edit:
    def edit(arrays: dict[str, Any], told: dict[str, str]) -> None:
        records = json.loads(told["records"])
        told["records"] = json.dumps([{**each, **changed} for each in records])

    return edit


FORGED: dict[str, tuple[str, Edit, str]] = {
    "NaN": ("deep-1", array("embedding", np.nan), "the array 'embedding' holds nan at index 0"),
    "infinity": ("deep-1", array("slots.weight", np.inf), "the array 'slots.weight' holds inf at index 0"),
    "NaN in the best": ("deep-1", array("best.bias", np.nan), "the array 'best.bias' holds nan"),
    "another shape": (
        "deep-1",
        replaced("weight", lambda a: a[:, :2]),
        r"'weight' has the shape \(\d+, 2\)",
    ),
    "another type": ("deep-1", replaced("weight", lambda a: a.astype(np.int32)), "the array 'weight' is of int32"),
    "an array too few": ("deep-1", lambda arrays, told: arrays.pop("bias"), "the arrays have no 'bias'"),
    "a feature too large": ("wide-1", array("feature", 10_000), "feature numbers are out of range"),
    "a negative feature": ("wide-1", array("feature", -1), "feature numbers are out of range"),
    "features not sorted": (
        "wide-1",
        replaced("feature", lambda a: a[::-1].copy()),
        "feature numbers are out of range",
    ),
    "an offset too large": ("wide-1", array("weight_offset", 2**40), "weight offsets are out of range"),
    "a negative offset": ("wide-1", array("weight_offset", -5), "weight offsets are out of range"),
    "a last offset too small": ("wide-1", array("weight_offset", 0, -1), "weight offsets are out of range"),
    "an output row too large": ("wide-1", array("row", 10_000), "output rows are out of range"),
    "a negative output row": ("wide-1", array("row", -1), "output rows are out of range"),
    "an epoch too many": ("deep-1", record(epoch=7), "it has the epochs"),
    "a cost that is none": ("deep-1", record(cost=float("nan")), "a cost is not finite"),
    "a cost that is text": ("deep-1", record(cost="low"), "must be real number"),
    "a record that is none": ("deep-1", telling("records", "[7]"), "must be a mapping"),
    "records that are none": ("deep-1", telling("records", "{"), "Expecting property name"),
    "deep records": ("deep-1", telling("records", "[" * 100_000), "recursion"),
    "a best epoch to come": ("deep-1", telling("best_epoch", "9"), "the best epoch 9"),
    "a best score that is none": ("deep-1", telling("best_score", "nan"), "with score nan"),
    "no fingerprint": ("deep-1", lambda arrays, told: told.pop("fingerprint"), "'fingerprint'"),
    "another fingerprint": ("deep-1", telling("fingerprint", "00"), "from other rows or settings"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_checkpoint_is_refused(case: str, given: Given, kept: Path, tmp_path: Path) -> None:
    name, edit, message = FORGED[case]
    path = shutil.copytree(kept, tmp_path / "run") / f"{name}.safetensors"
    arrays, told = read_arrays(path)
    del told[DIGEST]
    edit(arrays, told)
    write_arrays(path, arrays, {**told, DIGEST: _digest(arrays, told)})
    with pytest.raises(FileError, match=rf"^{re.escape(str(path))}: the checkpoint is .*{message}.*; remove"):
        trained(given, path.parent, patience=9)


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", lambda data: bytes(len(data))])
def test_a_checkpoint_that_is_cut_off_or_zeroed_is_refused_with_its_remedy(
    damage: Callable[[bytes], bytes], given: Given, tmp_path: Path
) -> None:
    trained(given, tmp_path)
    path = tmp_path / "deep-1.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    remedy = r"the checkpoint is damaged .*; remove it to train deep 1 again, or the folder to start again"
    with pytest.raises(FileError, match=remedy):
        trained(given, tmp_path)


def test_a_checkpoint_without_a_digest_is_refused(given: Given, tmp_path: Path) -> None:
    trained(given, tmp_path)
    path = tmp_path / "deep-1.safetensors"
    arrays, told = read_arrays(path)
    del told[DIGEST]
    write_arrays(path, arrays, told)
    remedy = "its digest does not match.*; remove it to train deep 1 again, or the folder to start again"
    with pytest.raises(FileError, match=remedy):
        trained(given, tmp_path)
    path.unlink()
    assert same(trained(given, tmp_path), trained(given, None))


def test_weights_that_are_not_finite_are_neither_written_nor_returned(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hinet.engine.training.deep import DeepJob

    run = DeepJob.run_epoch

    def spoiled(self: DeepJob, *arguments: Any) -> float:
        cost = run(self, *arguments)
        if arguments[0] == self.epochs - 1:
            self.expert.bias[0] = np.nan
        return cost

    monkeypatch.setattr(DeepJob, "run_epoch", spoiled)
    for folder in (tmp_path / "run", None):
        with pytest.raises(HiNetError, match=r"(deep|flat) 1 is no longer finite: the array 'bias' holds nan"):
            trained(given, folder)
    kept, _ = read_arrays(tmp_path / "run" / "deep-1.safetensors")
    assert all(np.isfinite(array).all() for array in kept.values())


def test_only_checkpoints_are_removed(tmp_path: Path) -> None:
    ours = ["deep-1.safetensors", "flat-12.safetensors", "wide.safetensors", ".wide-2.safetensors.0123456789abcdef"]
    others = ["pytorch_model.safetensors", "deep-1.safetensors.bak", "my-wide.safetensors", ".deep-1.safetensors"]
    for name in [*ours, *others]:
        (tmp_path / name).touch()
    with pytest.raises(FileError, match="contains other files than checkpoints"):
        check_folder(tmp_path)
    remove_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


class Idle:
    """A runner whose workers write no states, as if they shared no folder with this process."""

    fingerprint = ""

    def run(self, *arguments: Any, **options: Any) -> None:
        pass


def test_jobs_that_no_worker_did_are_reported_instead_of_trained(given: Given) -> None:
    rows, traces, _ = given
    with pytest.raises(HiNetError, match=r"no state of .*deep 1.* in .*; set `checkpoint` to a folder that all nodes"):
        fit(rows, traces, SMALL, runner=Idle())
