"""Fewer dense columns, in which rows of one label vary alike in all directions, for training alone.

What varies among rows of one label says little about labels, and so do directions in which labels hardly differ.
Experts train on columns times a matrix that makes the first short and leaves the second out: linear discriminant
analysis. The matrix is then multiplied into their embeddings, so that models read rows as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.engine.model.experts import DeepExpert, Floats

SHRINKAGE = 0.3  # of the covariance to that of columns that all vary alike; more if there are few rows
MOST_COLUMNS = 128  # that are left, if there are more labels


def whitening(columns: Floats, label: NDArray[np.int64]) -> Floats:
    """Return the matrix that whitens columns within labels and keeps those in which labels differ most, (d, kept).

    The mean square of all rows stays.
    """
    with threadpool_limits(1):  # sums in another order would give another model
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
    if width > MOST_COLUMNS and len(sizes) > MOST_COLUMNS:  # fewer labels differ in fewer directions
        apart = (means - sizes @ means / count) * np.sqrt(sizes)[:, None]  # (labels, d)
        _, directions = np.linalg.eigh(matrix @ (apart.T @ apart) @ matrix)
        matrix = matrix @ directions[:, -MOST_COLUMNS:]
    after = float((_gram(columns) * (matrix @ matrix.T)).sum())
    scaled: Floats = (matrix * np.sqrt(total / max(after, 1e-12))).astype(np.float32)
    return scaled


def read_directly(expert: DeepExpert, matrix: Floats) -> DeepExpert:
    """Return an expert on whitened columns, in single precision, as one on the columns themselves.

    Its embedding has room for all columns, and was trained at the last rows, one for each that was kept.
    """
    embedding = expert.embedding.copy()
    columns, kept = matrix.shape
    embedding[len(embedding) - columns :] = whitened(matrix, embedding[len(embedding) - kept :])
    return expert._replace(embedding=embedding)


def _gram(columns: Floats) -> NDArray[np.float64]:
    """Return the products of all pairs of columns, (d, d)."""
    product: NDArray[np.float64] = (columns.T @ columns).astype(np.float64)
    return product
