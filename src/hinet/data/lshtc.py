"""Folders of the LSHTC challenges: the hierarchy, and libSVM files of training and test rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hinet.data.libsvm import LibsvmRows, read_libsvm
from hinet.errors import FileError
from hinet.taxonomy import Taxonomy

HIERARCHIES = ("cat_hier.txt", "hierarchy.txt")
TRAIN = "train.txt"
TESTS = ("validation.txt", "test.txt")


@dataclass(frozen=True)
class LshtcData:
    """A hierarchy with raw term counts of training and test rows over the features of the training rows."""

    taxonomy: Taxonomy
    train: LibsvmRows
    test: LibsvmRows


def read_lshtc(folder: str | Path, test: str | None = None) -> LshtcData:
    """Read ``train.txt``, a test file and the hierarchy, which may lie one folder up.

    ``test`` names the test file, by default ``validation.txt`` or else ``test.txt``. Features that no training row has
    are left out.

    Raises
    ------
    FileError
        If a file is missing or cannot be read; names the line.
    """
    place = Path(folder)
    hierarchy = _first_file([place / name for name in HIERARCHIES] + [place.parent / name for name in HIERARCHIES])
    test_file = place / test if test is not None else _first_file([place / name for name in TESTS])
    train, tested = read_libsvm(place / TRAIN), read_libsvm(test_file)
    used = np.unique(train.features.indices)
    if not len(used):
        raise FileError(place / TRAIN, "no row has a feature other than the internal one, 0")
    return LshtcData(Taxonomy.from_file(hierarchy), _over(train, used), _over(tested, used))


def _first_file(candidates: list[Path]) -> Path:
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        names = " or ".join(dict.fromkeys(path.name for path in candidates))
        raise FileError(candidates[0].parent, f"the folder has no {names}")
    return found


def _over(rows: LibsvmRows, features: Any) -> LibsvmRows:
    """Return the rows with only the given features, numbered anew."""
    matrix = rows.features
    place = np.minimum(np.searchsorted(features, matrix.indices), len(features) - 1)
    kept = features[place] == matrix.indices
    indptr = np.append(0, np.cumsum(kept))[matrix.indptr]
    shape = (matrix.shape[0], len(features))
    return LibsvmRows(sp.csr_array((matrix.data[kept], place[kept], indptr), shape=shape), rows.labels)
