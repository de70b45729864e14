"""The kernel that looks over the arrays of a CSR matrix once, before other kernels read them without a check."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import kernel

SORTED, UNSORTED, BAD_OFFSETS, BAD_FEATURES, BAD_VALUES = 0, 1, 2, 3, 4
EXPONENT = np.uint32(0x7F800000)  # of a number that is not finite


def _steps_of_survey(indptr: Any, indices: Any, *_: Any) -> int:
    return 2 * len(indptr) + 3 * len(indices)


@kernel(steps=_steps_of_survey)
def survey(indptr: NDArray[np.int64], indices: NDArray[Any], data: NDArray[np.float32], features: int) -> int:
    """Return what is wrong with the arrays, or else whether the features of every row rise.

    Each loop looks at one thing and never stops halfway, so that it takes several values at once.
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
    for row in range(1, len(indptr) - 1):  # where a row begins, features may fall
        start = indptr[row]
        if 0 < start < len(indices) and start != indptr[row - 1]:
            falls -= indices[start] <= indices[start - 1]
    return SORTED if falls == 0 else UNSORTED
