"""Training of prototypes: the mean rows of labels, which are used if validation rows gain by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import LabelWeights
from hinet.engine.model.groups import LabelSpans, Targets
from hinet.engine.settings import MAX_FLAT_LABELS
from hinet.engine.training.context import ExpertTraining, TrainingContext

TEMPERATURES = (20.0, 40.0)  # lengths of prototypes that are tried


class PrototypeTraining(ExpertTraining):
    """The training of prototypes."""

    def __init__(self, context: TrainingContext) -> None:
        self._context = context

    @classmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training."""
        return cls(context)

    def trained(self) -> LabelWeights:
        """Return the prototypes of the model that is trained further; otherwise none, as they are candidates."""
        start = self._context.start
        return LabelWeights.none(self._context.features) if start is None else start.experts.prototypes

    def candidates(self) -> Mapping[float, Callable[[], LabelWeights]]:
        """Return prototypes by length if labels are few, as all of them are scored."""
        context = self._context
        if not 0 < len(context.spans.neuron) <= MAX_FLAT_LABELS or context.layers.multilabel:
            return {}
        make = partial(prototypes, context.data.rows, context.features, context.targets, context.spans)
        return {temperature: partial(make, temperature) for temperature in TEMPERATURES}


def prototypes(
    rows: SparseMatrix, features: int, targets: Targets, spans: LabelSpans, temperature: float
) -> LabelWeights:
    """Return the mean row of each label, scaled to length ``temperature``."""
    by_target = sum_by_target(rows, features, targets, values=True)
    label = spans.labels_at(targets.arrays.end_neurons())  # (targets,)
    by_label = (incidence(label, np.arange(len(label)), (len(spans.neuron), len(label))) @ by_target).tocsr()
    row = np.repeat(np.arange(by_label.shape[0]), np.diff(by_label.indptr))
    length = np.sqrt(np.bincount(row, by_label.data**2, by_label.shape[0]))
    scale = temperature / np.maximum(length, 1e-12)
    by_label.data *= scale[row].astype(np.float32)
    by_feature = by_label.T.tocsr()
    by_feature.sort_indices()
    return LabelWeights(by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data)


def sum_by_target(rows: SparseMatrix, features: int, targets: Targets, *, values: bool = False) -> sp.csr_array:
    """Return the weighted sum of the rows of each target; without ``values``, the number of rows per feature."""
    arrays = targets.arrays
    row_of_entry = np.repeat(np.arange(len(targets)), np.diff(arrays.row_offsets))
    data, share = (rows.data, arrays.entry_share) if values else map(np.ones_like, (rows.data, arrays.entry_share))
    shape = len(arrays.step_offsets) - 1, len(targets)
    members = sp.csr_array((share, (arrays.entry_target, row_of_entry)), shape=shape)
    return (members @ sp.csr_array((data, rows.indices, rows.indptr), shape=(len(targets), features))).tocsr()


def incidence(row: NDArray[np.int64], column: NDArray[np.int64], shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix of ones and zeros."""
    return sp.csr_array((np.ones(len(row), np.float32), (row, column)), shape=shape)
