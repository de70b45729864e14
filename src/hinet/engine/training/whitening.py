"""Whitening of dense columns for training: linear discriminant analysis.

Variation among rows of one label says little about labels, and so do directions in which labels hardly differ. Experts
train on columns times a matrix that shrinks the former and drops the latter. The matrix is then multiplied into their
embeddings, so that models read the original columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.engine.model.experts import DeepExpert, Floats

SHRINKAGE = 0.3  # shrinkage of the covariance towards the identity; more with few rows
MAX_COLUMNS = 128  # columns that are kept if there are more labels


def whitening(columns: Floats, label: NDArray[np.int64]) -> Floats:
    """Return the matrix that whitens columns within labels and keeps the most discriminative ones, (d, kept).

    The mean square of all rows is preserved.
    """
    with threadpool_limits(1):  # another order of sums would change the model
        return _whitening(columns, label)


def whitened(columns: Floats, matrix: Floats) -> Floats:
    """Return columns times the matrix."""
    with threadpool_limits(1):
        product: Floats = columns @ matrix
        return product


def _whitening(columns: Floats, label: NDArray[np.int64]) -> Floats:
    count, width = columns.shape
    _, group, sizes = np.unique(label, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(sizes) - sizes
    means = np.add.reduceat(columns[order].astype(np.float64), starts, axis=0) / sizes[:, None]  # (labels, d)
    total = float(np.square(columns, dtype=np.float64).sum())
    within = _gram(columns - means[group].astype(np.float32))
    spread = float(np.trace(within)) / width
    if not spread > 0:
        return np.eye(width, dtype=np.float32)
    share = max(SHRINKAGE, width / (width + count - len(sizes)))
    shrunk = (1 - share) / spread * within + share * np.eye(width)
    values, directions = np.linalg.eigh(shrunk)
    matrix = (directions / np.sqrt(values)) @ directions.T
    if width > MAX_COLUMNS and len(sizes) > MAX_COLUMNS:  # fewer labels differ in fewer directions
        apart = (means - sizes @ means / count) * np.sqrt(sizes)[:, None]  # (labels, d)
        _, directions = np.linalg.eigh(matrix @ (apart.T @ apart) @ matrix)
        matrix = matrix @ directions[:, -MAX_COLUMNS:]
    after = float((_gram(columns) * (matrix @ matrix.T)).sum())
    scaled: Floats = (matrix * np.sqrt(total / max(after, 1e-12))).astype(np.float32)
    return scaled


def read_directly(expert: DeepExpert, matrix: Floats) -> DeepExpert:
    """Return an expert trained on whitened columns as one that reads the original columns.

    Its embedding has rows for all columns; the last ones, one per kept column, were trained.
    """
    embedding = expert.embedding.copy()
    columns, kept = matrix.shape
    embedding[len(embedding) - columns :] = whitened(matrix, embedding[len(embedding) - kept :])
    return expert._replace(embedding=embedding)


def _gram(columns: Floats) -> NDArray[np.float64]:
    """Return the Gram matrix of the columns, (d, d)."""
    product: NDArray[np.float64] = (columns.T @ columns).astype(np.float64)
    return product
