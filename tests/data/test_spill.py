"""Rows on disk are read back, each once with its label and weight; damage raises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import hinet.data.spill as spill
from hinet import FileError, Layers, Taxonomy, Traces
from hinet.data.matrices import MixedRows
from hinet.data.spill import MANIFEST, Spill, SpillWriter, is_spill, remove_spill

LAYERS = Layers.of(Taxonomy.from_edges([("a", "b"), ("a", "c"), ("d", "c")]), ["a", "b", "c", "d"])


def rows(count: int, dense: int, seed: int = 0) -> tuple[Any, Traces, Any]:
    """Return rows whose first feature tells their number, with sets of labels and weights."""
    random = np.random.default_rng(seed)
    matrix = sp.random_array((count, 12), density=0.3, rng=random, dtype=np.float32, format="lil")
    matrix[:, 0] = np.arange(1, count + 1, dtype=np.float32)[:, None]
    labels = [random.choice(["a", "b", "c", "d"], random.integers(1, 3), replace=False).tolist() for _ in range(count)]
    csr = sp.csr_array(matrix.tocsr())
    mixed = MixedRows(csr, random.random((count, dense), dtype=np.float32)) if dense else csr
    return mixed, Traces.encode_sets(LAYERS, labels), random.random(count)


def written(folder: Path, count: int, blocks: int, dense: int) -> tuple[Spill, Any, Traces, Any]:
    matrix, traces, weights = rows(count, dense)
    writer = SpillWriter(folder, blocks, 0, 12 + dense, "print", dense)
    for start in range(0, count, 9):
        part = np.arange(start, min(start + 9, count))
        writer.add(matrix[part], traces.take(part), weights[part])
    return writer.finish({"note": 1}), matrix, traces, weights


@pytest.mark.parametrize("dense", [0, 3])
@pytest.mark.parametrize("blocks", [1, 4, 60])
def test_every_row_is_read_back_once(tmp_path: Path, blocks: int, dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "WINDOW_VALUES", 100)
    stored, matrix, traces, weights = written(tmp_path, 50, blocks, dense)
    assert stored == Spill.open(tmp_path, "print")
    assert stored.row_count == 50
    csr = matrix.sparse if dense else matrix
    assert stored.value_count == csr.nnz
    labels, found = traces.decode_sets(), []
    for number in range(len(stored.blocks)):
        block = stored.load(number, LAYERS)
        own = sp.csr_array(
            (block.rows.data, block.rows.indices, block.rows.indptr), (block.rows.row_count, 12)
        ).toarray()
        which = (own[:, 0] - 1).round().astype(int)
        assert np.array_equal(own, csr[which].toarray())
        if dense:
            assert np.array_equal(block.rows.dense, matrix.dense[which])
        assert block.traces.decode_sets() == [labels[row] for row in which.tolist()]
        assert block.weights is not None
        assert np.array_equal(block.weights, weights[which].astype(np.float32))
        found += which.tolist()
    assert sorted(found) == list(range(50))
    assert (found == list(range(50))) == (blocks == 1)  # a single block keeps the order


def test_rows_of_sorted_files_are_spread_over_all_blocks(tmp_path: Path) -> None:
    stored, *_ = written(tmp_path, 400, 4, 0)
    for number in range(4):
        which = stored.load(number, LAYERS).rows
        first = which.data[which.indptr[:-1]]
        assert 60 < len(first) < 140
        assert 130 < first.mean() < 270


def test_other_or_incomplete_rows_are_not_used(tmp_path: Path) -> None:
    stored, *_ = written(tmp_path, 20, 2, 0)
    assert Spill.open(tmp_path, "another") is None
    file = tmp_path / "rows-00001.bin"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    assert Spill.open(tmp_path, "print") is None
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FileError, match="its checksum does not match; remove the checkpoint folder"):
        stored.load(1, LAYERS)
    file.write_bytes(data)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    for key in manifest:
        (tmp_path / MANIFEST).write_text(json.dumps({name: manifest[name] for name in manifest if name != key}))
        assert Spill.open(tmp_path, "print") is None, key
    (tmp_path / MANIFEST).write_text("{")
    assert Spill.open(tmp_path, "print") is None


def test_rows_of_other_columns_or_layers_are_not_loaded(tmp_path: Path) -> None:
    stored, *_ = written(tmp_path, 20, 1, 0)
    fewer = Layers.of(Taxonomy.from_edges([("a", "b")]), ["a", "b"])
    for narrow, layers in ((replace(stored, columns=11), LAYERS), (stored, fewer)):
        with pytest.raises(FileError, match=r"is damaged.* out of range; remove the checkpoint folder"):
            narrow.load(0, layers)


def test_a_folder_that_cannot_be_written_raises_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot be written: .*; free some space, or put the checkpoints on another"):
        SpillWriter(tmp_path / "file" / "rows", 1, 0, 12, "print")
    writer = SpillWriter(tmp_path / "rows", 1, 0, 12, "print")
    (tmp_path / "rows" / "rows-00000.bin").mkdir()
    writer.add(*rows(5, 0))
    with pytest.raises(FileError, match=r"cannot be written: .*; free some space"):
        writer.finish({})


def test_only_spill_files_are_removed(tmp_path: Path) -> None:
    written(tmp_path, 20, 2, 0)
    (tmp_path / "rows-x.bin").touch()
    (tmp_path / "deep-1.safetensors").touch()
    assert is_spill(".rows.json.0123456789abcdef")
    remove_spill(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep-1.safetensors", "rows-x.bin"]
