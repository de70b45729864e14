"""The kernel that validates the arrays of a CSR matrix, as other kernels check no bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import kernel

SORTED, UNSORTED, BAD_OFFSETS, BAD_FEATURES, BAD_VALUES = 0, 1, 2, 3, 4
EXPONENT = np.uint32(0x7F800000)  # all ones in a number that is not finite


def _validation_steps(indptr: Any, indices: Any, *_: Any) -> int:
    return 2 * len(indptr) + 3 * len(indices)


@kernel(steps=_validation_steps)
def validate_csr(indptr: NDArray[np.int64], indices: NDArray[Any], data: NDArray[np.float32], features: int) -> int:
    """Return what is wrong with the arrays, or whether the features of every row are ascending.

    Each loop checks one property without an early exit, so that it can be vectorised.
    """
    falls = 0
    for row in range(1, len(indptr)):
        falls += indptr[row] < indptr[row - 1]
    if falls > 0 or indptr[0] != 0 or indptr[-1] != len(indices):
        return BAD_OFFSETS
    if len(indices) == 0:
        return SORTED
    lowest = highest = indices[0]
    for entry in range(len(indices)):
        lowest, highest = min(lowest, indices[entry]), max(highest, indices[entry])
    if lowest < 0 or highest >= features:
        return BAD_FEATURES
    bits = data.view(np.uint32)
    infinite = 0
    for entry in range(len(bits)):
        infinite += (bits[entry] & EXPONENT) == EXPONENT
    if infinite > 0:
        return BAD_VALUES
    for entry in range(1, len(indices)):
        falls += indices[entry] <= indices[entry - 1]
    for row in range(1, len(indptr) - 1):  # features may descend at the start of a row
        start = indptr[row]
        if 0 < start < len(indices) and start != indptr[row - 1]:
            falls -= indices[start] <= indices[start - 1]
    return SORTED if falls == 0 else UNSORTED
