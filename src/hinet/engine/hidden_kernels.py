"""Kernels of the way forward through a deep expert, in training and in search: features to hidden units to logits."""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined_kernel

F4 = np.float32


@inlined_kernel
def sum_embeddings(rows, row, deep, hidden, at):
    """Fill in what the hidden units of a row are before they are rectified."""
    width = hidden.shape[1]
    for unit in range(width):
        hidden[at, unit] = deep.embedding_bias[unit]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature, value = rows.indices[entry], rows.data[entry]
        for unit in range(width):
            hidden[at, unit] += value * deep.embedding[feature, unit]


@inlined_kernel
def logit_of(output, deep, hidden, at):
    """Return the logit of an output row."""
    logit = F4(0)
    for unit in range(hidden.shape[1]):
        logit += deep.weight[output, unit] * hidden[at, unit]
    return logit + deep.bias[output]
