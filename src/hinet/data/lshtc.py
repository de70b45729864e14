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
    """A hierarchy, and the term counts of training and test rows for the features of the training rows."""

    taxonomy: Taxonomy
    train: LibsvmRows
    test: LibsvmRows


def read_lshtc(folder: str | Path, test: str | None = None) -> LshtcData:
    """Read ``train.txt``, a test file and the hierarchy, which may be one folder up.

    ``test`` names the test file, by default ``validation.txt`` or else ``test.txt``. Features that no training row has
    are left out.

    Raises
    ------
    FileError
        If a file is missing or cannot be read; names the line.
    """
    root = Path(folder)
    hierarchy = _first_file([root / name for name in HIERARCHIES] + [root.parent / name for name in HIERARCHIES])
    test_file = root / test if test is not None else _first_file([root / name for name in TESTS])
    train, test_rows = read_libsvm(root / TRAIN), read_libsvm(test_file)
    used = np.unique(train.features.indices)
    if not len(used):
        raise FileError(root / TRAIN, "no row has a feature other than the internal one, 0")
    return LshtcData(Taxonomy.from_file(hierarchy), _select_features(train, used), _select_features(test_rows, used))


def _first_file(candidates: list[Path]) -> Path:
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        names = " or ".join(dict.fromkeys(path.name for path in candidates))
        raise FileError(candidates[0].parent, f"the folder has no {names}")
    return file


def _select_features(rows: LibsvmRows, features: Any) -> LibsvmRows:
    """Return the rows with only these features, renumbered."""
    matrix = rows.features
    index = np.minimum(np.searchsorted(features, matrix.indices), len(features) - 1)
    keep = features[index] == matrix.indices
    indptr = np.append(0, np.cumsum(keep))[matrix.indptr]
    shape = (matrix.shape[0], len(features))
    return LibsvmRows(sp.csr_array((matrix.data[keep], index[keep], indptr), shape=shape), rows.labels)
