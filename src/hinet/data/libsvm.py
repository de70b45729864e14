"""LSHTC's libSVM files, ``label[,label] feature:value ...`` per line, read without a loop over rows."""

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
    blank = _is_blank(data, starts, ends)
    labels = np.where(blank, 0, commas + 1)
    _check_lines(path, text)
    numbers = np.fromstring(text.translate({ord(":"): " ", ord(","): " "}), np.float64, sep=" ")
    return _assemble(numbers, labels[~blank], entries[~blank])


def _is_blank(data: NDArray[np.uint8], starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.bool_]:
    printed = np.append(0, np.cumsum(data > ord(" ")))
    return np.asarray(printed[ends] == printed[starts])


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
