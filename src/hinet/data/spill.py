"""Labelled rows on disk, in blocks that are each a random sample of all rows, for training on a stream.

Rows arrive in the order of their files. One window of rows at a time is distributed to the blocks at random, so each
block is well shuffled whatever the order of the files. A block is read as a whole.
"""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.data.traces import Traces
from hinet.errors import FileError, HiNetError
from hinet.files.atomic import write_text
from hinet.ragged import group_by, offsets_of
from hinet.taxonomy import Layers

MANIFEST = "rows.json"
NAMES = "names.safetensors"
BLOCK_ROWS = 1 << 15
BLOCK_VALUES = 1 << 22  # 32 MB
WINDOW_VALUES = 1 << 24  # values distributed at a time: 128 MB
_OWN_FILES = re.compile(rf"(\.)?(rows-\d+\.bin|{re.escape(MANIFEST)}|{re.escape(NAMES)})(?(1)\.[0-9a-f]{{16}})")
_ARRAYS = 8  # arrays of a piece, the rows that one window adds to a block
_REMEDY = "remove the checkpoint folder and start again"
_SPACE_REMEDY = "free some space, or put the checkpoints on another disk"


class StoredBlock(NamedTuple):
    """Some rows with their labels, and the weight of each if rows have weights."""

    rows: SparseMatrix
    traces: Traces
    weights: NDArray[np.float32] | None

    @classmethod
    def joined(cls, blocks: Sequence[StoredBlock]) -> StoredBlock:
        """Return the rows of several blocks; all or none of them have weights."""
        if len(blocks) == 1:
            return blocks[0]
        lengths = np.concatenate([np.diff(block.rows.indptr) for block in blocks])
        arrays = (np.concatenate(parts) for parts in zip(*(block.rows[1:4] for block in blocks), strict=True))
        weights = [block.weights for block in blocks if block.weights is not None]
        return cls(
            SparseMatrix(offsets_of(lengths), *arrays),
            Traces.joined(blocks[0].traces.layers, [block.traces for block in blocks]),
            np.concatenate(weights) if weights else None,
        )


@dataclass(frozen=True)
class BlockInfo:
    """Counts and checksum of a block."""

    rows: int
    values: int
    bytes: int
    crc: int


@dataclass(frozen=True)
class Spill:
    """A complete folder of blocks."""

    folder: Path
    columns: int  # number of columns, dense ones included
    dense: int  # number of dense columns
    blocks: tuple[BlockInfo, ...]
    notes: Mapping[str, Any]  # further information for the reader

    @property
    def row_count(self) -> int:
        """Number of rows in all blocks."""
        return sum(block.rows for block in self.blocks)

    @property
    def value_count(self) -> int:
        """Number of sparse values in all blocks."""
        return sum(block.values for block in self.blocks)

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> Spill | None:
        """Return the blocks of a folder if they are complete and have this fingerprint, else None."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            if (manifest["fingerprint"], manifest["arrays"]) != (fingerprint, _ARRAYS):
                return None
            blocks = tuple(BlockInfo(**block) for block in manifest["blocks"])
            sizes = [_file(folder, number).stat().st_size for number in range(len(blocks))]
            spill = cls(folder, int(manifest["columns"]), int(manifest["dense"]), blocks, dict(manifest["notes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return spill if sizes == [block.bytes for block in blocks] else None

    def load(self, number: int, layers: Layers) -> StoredBlock:
        """Return a block.

        Raises
        ------
        FileError
            If the file is damaged, or belongs to other columns or layers.
        """
        path, info = _file(self.folder, number), self.blocks[number]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}; {_REMEDY}") from None
        if zlib.crc32(data) != info.crc:
            raise FileError(path, f"is damaged: its checksum does not match; {_REMEDY}")
        stream, pieces = io.BytesIO(data), []
        while stream.tell() < len(data):
            pieces.append([np.load(stream, allow_pickle=False) for _ in range(_ARRAYS)])
        lengths, indices, values, dense, traces, trace_lengths, neurons, weights = (
            np.concatenate(parts) for parts in zip(*pieces, strict=True)
        )
        for numbers, count in ((indices, self.columns - self.dense), (neurons, len(layers.node))):
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
                raise FileError(path, f"is damaged: it has features or labels that are out of range; {_REMEDY}")
        labels = Traces(layers, offsets_of(traces), offsets_of(trace_lengths), neurons)
        matrix = SparseMatrix(offsets_of(lengths), indices, values, dense)
        return StoredBlock(matrix, labels, weights if len(weights) else None)


@dataclass
class SpillWriter:
    """Distributes rows to ``count`` blocks in a folder, at random by a seed; :meth:`finish` makes them readable."""

    folder: Path
    count: int
    seed: int
    columns: int
    fingerprint: str
    dense: int = 0
    _waiting: list[StoredBlock] = field(default_factory=list)
    _values: int = 0
    _windows: int = 0

    def __post_init__(self) -> None:
        remove_spill(self.folder)
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._blocks = [BlockInfo(0, 0, 0, 0)] * self.count

    def add(self, rows: Any, traces: Traces, weights: NDArray[np.floating[Any]] | None = None) -> None:
        """Add CSR rows, or MixedRows, with their labels; all or none of them have weights."""
        matrix = SparseMatrix.of(rows)
        self._waiting.append(StoredBlock(matrix, traces, None if weights is None else weights.astype(np.float32)))
        self._values += len(matrix.indices) + matrix.dense.size
        if self._values >= WINDOW_VALUES:
            self._distribute()

    def finish(self, notes: Mapping[str, Any]) -> Spill:
        """Write the remaining rows and the manifest; return the blocks that have rows."""
        self._distribute()
        full = [number for number, block in enumerate(self._blocks) if block.rows]
        for number, old in enumerate(full):  # blocks of few rows may be empty
            if number != old:
                with _writing(self.folder):
                    _file(self.folder, old).replace(_file(self.folder, number))
        blocks = tuple(self._blocks[old] for old in full)
        manifest = {
            "fingerprint": self.fingerprint,
            "arrays": _ARRAYS,
            "columns": self.columns,
            "dense": self.dense,
            "blocks": [vars(block) for block in blocks],
            "notes": dict(notes),
        }
        write_text(self.folder / MANIFEST, json.dumps(manifest))
        return Spill(self.folder, self.columns, self.dense, blocks, dict(notes))

    def _distribute(self) -> None:
        """Write the waiting rows to their blocks."""
        if not self._waiting:
            return
        rows, traces, weights = StoredBlock.joined(self._waiting)
        self._waiting, self._values = [], 0
        random = np.random.default_rng([self.seed, 1 << 22, self._windows])
        self._windows += 1
        order, bounds = group_by(random.integers(0, self.count, rows.row_count), self.count)
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            chosen = order[bounds[number] : bounds[number + 1]]
            self._append(number, rows.take(chosen), traces.take(chosen), None if weights is None else weights[chosen])

    def _append(self, number: int, rows: SparseMatrix, traces: Traces, weights: NDArray[np.float32] | None) -> None:
        arrays = [
            np.diff(rows.indptr),
            rows.indices,
            rows.data,
            rows.dense,
            np.diff(traces.row_offsets),
            np.diff(traces.offsets),
            traces.neurons,
            np.zeros(0, np.float32) if weights is None else weights,
        ]
        piece = io.BytesIO()
        for array in arrays:
            np.save(piece, array, allow_pickle=False)
        data = piece.getvalue()
        path = _file(self.folder, number)
        with _writing(path), path.open("ab") as stream:
            stream.write(data)
        old = self._blocks[number]
        counts = old.rows + rows.row_count, old.values + len(rows.indices), old.bytes + len(data)
        self._blocks[number] = BlockInfo(*counts, zlib.crc32(data, old.crc))


def block_count(rows: int, values: float) -> int:
    """Return the number of blocks for this many rows and values."""
    return max(1, math.ceil(rows / BLOCK_ROWS), math.ceil(values / BLOCK_VALUES))


def is_spill(name: str) -> bool:
    """Return whether a file belongs to a spill, or is a temporary file of one."""
    return _OWN_FILES.fullmatch(name) is not None


def remove_spill(folder: Path) -> None:
    """Remove the blocks of a folder, and nothing else."""
    if folder.is_dir():
        (folder / MANIFEST).unlink(missing_ok=True)  # first, so that an incomplete spill is not used
        for path in list(folder.iterdir()):
            if is_spill(path.name):
                path.unlink(missing_ok=True)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise HiNetError if the disk of a folder has fewer than ``needed`` bytes left."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise HiNetError(
            f"the rows of a stream take about {needed / 1e9:.1f} GB on disk while it trains, and {existing} has "
            f"{free / 1e9:.1f} GB; {_SPACE_REMEDY}"
        )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Convert OSError to FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}; {_SPACE_REMEDY}") from None


def _file(folder: Path, number: int) -> Path:
    return folder / f"rows-{number:05d}.bin"
