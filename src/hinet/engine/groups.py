"""The sibling groups as plain arrays, the form kernels read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.ragged import offsets_of
from hinet.taxonomy import Layers


class Groups(NamedTuple):
    """Sibling groups, one below each neuron, and the rows of output weights their options own.

    A group of one option is certain and owns no rows. The options of a larger group own consecutive rows, in the order
    of the groups, just as in :class:`hinet.networks.SiblingHead`.
    """

    option_offsets: NDArray[np.int64]  # (neurons + 1,) options of each group
    option_neuron: NDArray[np.int32]  # (options,) where an option leads, -1 for stop
    first_row: NDArray[np.int64]  # (neurons + 1,) row of the first option of each group

    @classmethod
    def of(cls, layers: Layers) -> Groups:
        """Return the groups of some layers."""
        sizes = np.diff(layers.option_offsets)
        return cls(layers.option_offsets.copy(), layers.option_neuron.copy(), offsets_of(np.where(sizes > 1, sizes, 0)))

    @property
    def rows(self) -> int:
        """Number of rows of output weights."""
        return int(self.first_row[-1])

    def row_options(self) -> NDArray[np.int64]:
        """(rows,) The option that owns each row."""
        sizes = np.diff(self.option_offsets)
        return np.flatnonzero(np.repeat(sizes > 1, sizes))

    def row_groups(self) -> NDArray[np.int64]:
        """(rows,) The neuron whose group each row belongs to."""
        return np.repeat(np.arange(len(self.first_row) - 1), np.diff(self.first_row))
