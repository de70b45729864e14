"""Vectors in files of NumPy beside tables: ``products.embedding.npy`` has a column of ``products.csv``, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.errors import FileError
from hinet.files.streams import STANDARD, strip_compression


@dataclass(frozen=True, eq=False)
class VectorFile:
    """The vectors of the rows of a table, mapped into memory."""

    path: Path
    vectors: NDArray[Any]  # (rows of the table, width)

    def take(self, positions: list[int]) -> NDArray[Any]:
        """Return the vectors of the rows at these positions in the table, counted from 0."""
        if positions and positions[-1] >= len(self.vectors):
            raise FileError(self.path, f"has {len(self.vectors):,} rows, and the table has more; give one for each row")
        return np.asarray(self.vectors[positions])

    def check_end(self, least: int, most: int) -> None:
        """Raise FileError unless there are as many rows as in the table, which are known up to invalid ones."""
        if not least <= len(self.vectors) <= most:
            raise FileError(
                self.path, f"has {len(self.vectors):,} rows, and the table {most:,}; give one for each row of the table"
            )


def vector_files(table: str, columns: Iterable[str]) -> dict[str, VectorFile]:
    """Return the files beside a table that have columns of vectors."""
    file = Path(strip_compression(table))
    if table == STANDARD or not file.name:
        return {}
    stem = file.with_suffix("")
    paths = {column: stem.with_name(f"{stem.name}.{column}.npy") for column in columns if "/" not in column}
    return {column: VectorFile(path, _read(path)) for column, path in paths.items() if path.is_file()}


def _read(path: Path) -> NDArray[Any]:
    try:
        vectors: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(path, f"cannot be read as an array of NumPy: {error}; write it with numpy.save") from None
    if vectors.ndim != 2 or vectors.dtype.kind not in "iuf":
        raise FileError(
            path, f"has the shape {vectors.shape} and values of type {vectors.dtype}, expected rows of numbers"
        )
    return vectors
