"""The kernel that looks over the arrays of a CSR matrix once, before other kernels read them without a check."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import kernel

SORTED, UNSORTED, BAD_OFFSET, BAD_FEATURE, BAD_VALUE = 0, 1, 2, 3, 4


@kernel
def survey(
    indptr: NDArray[np.int64], indices: NDArray[Any], data: NDArray[np.float32], features: int
) -> tuple[int, int]:
    """Return what is wrong first, and where: the row of an offset, or the entry of a feature or value.

    ``UNSORTED`` is not wrong: features of a row that do not rise, or repeat, at the entry returned.
    """
    if indptr[0] != 0:
        return BAD_OFFSET, 0
    for row in range(len(indptr) - 1):
        if indptr[row + 1] < indptr[row] or indptr[row + 1] > len(indices):
            return BAD_OFFSET, row + 1
    unsorted = -1
    for row in range(len(indptr) - 1):
        before = -1
        for entry in range(indptr[row], indptr[row + 1]):
            feature = indices[entry]
            if feature < 0 or feature >= features:
                return BAD_FEATURE, entry
            if not np.isfinite(data[entry]):
                return BAD_VALUE, entry
            if feature <= before:
                unsorted = entry
            before = feature
    return (SORTED, 0) if unsorted < 0 else (UNSORTED, unsorted)
