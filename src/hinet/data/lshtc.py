"""Folders of the LSHTC challenges: the hierarchy, and libSVM files of training and test rows.

A line of a libSVM file is ``label[,label] feature:value ...``; files are read without a loop over rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.errors import FileError, quoted
from hinet.files.text import read_text
from hinet.ragged import offsets_of, positions
from hinet.taxonomy import Taxonomy

HIERARCHIES = ("cat_hier.txt", "hierarchy.txt")
TRAIN = "train.txt"
TESTS = ("validation.txt", "test.txt")
INTERNAL_FEATURE = 0  # the number of the document in LSHTC

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LINE = re.compile(rf"\s*-?\d+(?:\s*,\s*-?\d+)*(?:\s+\d{{1,15}}:{_NUMBER})*\s*")


@dataclass(frozen=True)
class LibsvmRows:
    """Rows of features with the labels of each."""

    features: Any  # scipy.sparse.csr_array of float32, (n, largest feature + 1)
    labels: tuple[tuple[str, ...], ...]


def read_libsvm(path: str | Path) -> LibsvmRows:
    """Read a libSVM file, plain, ``.gz`` or ``.xz``, without feature 0; features may be in any order.

    Raises
    ------
    FileError
        If the file cannot be read or a line is not ``label feature:value ...``; names the line.
    """
    text = read_text(path)
    data = np.frombuffer(text.encode(), np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    if len(data) and data[-1] != ord("\n"):
        ends = np.append(ends, len(data))
    entries = np.bincount(np.searchsorted(ends, np.flatnonzero(data == ord(":"))), minlength=len(ends))
    commas = np.bincount(np.searchsorted(ends, np.flatnonzero(data == ord(","))), minlength=len(ends))
    starts = np.append(0, ends[:-1] + 1)
    printed = np.append(0, np.cumsum(data > ord(" ")))
    blank = printed[ends] == printed[starts]
    labels = np.where(blank, 0, commas + 1)
    _check_lines(path, text)
    numbers = np.fromstring(text.translate({ord(":"): " ", ord(","): " "}), np.float64, sep=" ")
    return _assemble(numbers, labels[~blank], entries[~blank])


def _assemble(numbers: NDArray[np.float64], labels: NDArray[Any], entries: NDArray[Any]) -> LibsvmRows:
    starts = offsets_of(labels + 2 * entries)[:-1]
    label_numbers = numbers[positions(starts, labels)]
    entries_at = positions(starts + labels, 2 * entries)
    feature, value = numbers[entries_at[0::2]], numbers[entries_at[1::2]]
    row = np.repeat(np.arange(len(labels)), entries)
    keep = feature != INTERNAL_FEATURE
    shape = (len(labels), int(feature.max(initial=0)) + 1)
    pairs = (row[keep], feature[keep].astype(np.int64))
    matrix = sp.csr_array(sp.coo_array((value[keep].astype(np.float32), pairs), shape=shape))
    names = [str(int(number)) for number in label_numbers]
    bounds = offsets_of(labels).tolist()
    return LibsvmRows(matrix, tuple(tuple(names[s:e]) for s, e in pairwise(bounds)))


def _check_lines(path: str | Path, text: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        if not _LINE.fullmatch(line) and line.strip():
            raise FileError(path, f"expected 'label feature:value ...', got {quoted(line.strip())}", line=number)


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
