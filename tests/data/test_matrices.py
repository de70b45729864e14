"""Inconsistent CSR matrices raise with the row before a kernel reads beyond its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hinet import HiNetClassifier, HiNetError
from hinet.data.matrices import MixedRows, SparseMatrix, as_csr, check_rows, seen_features, without_unseen
from hinet.engine import Search
from hinet.networks import predict_traces
from tests.classifier.data import small

LABELS = ["a", "b", "c"] * 4


def sound(kind: type[np.floating[Any]] = np.float32) -> sp.csr_array:
    """Return twelve rows of six features, two or three of them not zero."""
    return sp.csr_array(np.tile([[1, 0, 2, 0, 0, 0], [0, 1, 0, 3, 0, 0], [0, 0, 1, 0, 1, 4]], (4, 1)).astype(kind))


def with_arrays(**changed: Any) -> sp.csr_array:
    """Return the rows with other arrays, which SciPy does not look at."""
    rows = sound()
    for name, array in changed.items():
        setattr(rows, name, array)
    return rows


def put(name: str, at: int, value: Any) -> sp.csr_array:
    array = getattr(sound(), name).copy()
    array[at] = value
    return with_arrays(**{name: array})


DAMAGED = {
    "a feature too large": (lambda: put("indices", 4, 6), "row 2: feature 6 is not one of 6"),
    "a huge feature": (lambda: put("indices", 4, 2**31 - 1), "row 2: feature 2147483647 is not one of 6"),
    "a negative feature": (lambda: put("indices", 3, -1), "row 1: feature -1 is not one of 6"),
    "a wide feature": (
        lambda: with_arrays(indices=sound().indices.astype(np.int64) + 2**40),
        "row 0: feature 1099511627776 is not one of 6",
    ),
    "offsets that fall": (lambda: put("indptr", 3, 1), "row 2: indptr is 1 after 4, of 28 stored values"),
    "offsets beyond the values": (lambda: put("indptr", 12, 500), "row 11: indptr is 500 after 25, of 28 stored"),
    "huge offsets": (lambda: put("indptr", 5, 2**31 - 1), "row 4: indptr is 2147483647 after"),
    "negative offsets": (lambda: put("indptr", 5, -7), "row 4: indptr is -7 after"),
    "offsets whose difference overflows": (
        lambda: with_arrays(indptr=np.array([0, 2**63 - 1, -(2**63), -1, *[28] * 9])),
        "indptr is",
    ),
    "a late start": (lambda: put("indptr", 0, 1), "row 0: indptr is 1 at the start"),
    "too few offsets": (lambda: with_arrays(indptr=sound().indptr[:-3]), r"indptr has shape \(10,\) for 12 rows"),
    "too many offsets": (lambda: with_arrays(indptr=np.arange(20)), r"indptr has shape \(20,\) for 12 rows"),
    "no offsets": (lambda: with_arrays(indptr=np.zeros(0, int)), r"indptr has shape \(0,\) for 12 rows"),
    "fewer features than values": (lambda: with_arrays(indices=sound().indices[:-1]), r"indices have shape \(27,\)"),
    "features that are fractions": (lambda: with_arrays(indices=sound().indices * 0.5), "indices of float64, not"),
    "objects": (lambda: with_arrays(data=np.full(28, "x", object)), "real numbers, got values of type object"),
    "complex values": (lambda: with_arrays(data=np.ones(28, complex)), "real numbers, got values of type complex"),
    "an infinite value": (lambda: put("data", 9, np.inf), "row 4: feature 1 is inf"),
}


@pytest.fixture(scope="module", params=["fused", "torch"])
def fitted(request: pytest.FixtureRequest) -> HiNetClassifier:
    return small(engine=request.param, epochs=2).fit(sound(), LABELS)


@pytest.mark.parametrize("case", DAMAGED)
def test_every_entry_point_rejects_damaged_rows(case: str, fitted: HiNetClassifier) -> None:
    damaged, message = DAMAGED[case]
    entries: list[Callable[[Any], Any]] = [
        fitted.predict,
        fitted.predict_proba,
        fitted.features_of,
        lambda rows: fitted.score(rows, LABELS),
        lambda rows: fitted.calibrate(rows, LABELS),
        lambda rows: small(engine=fitted.fitted_.predictor.engine, validation_fraction=0.5).fit(rows, LABELS),
        lambda rows: small().fit(sound(), LABELS, valid=(rows, LABELS)),
        fitted.fitted_.predictor.traces,
        fitted.fitted_.predictor.labels,
        check_rows,
        as_csr,
        SparseMatrix.of,
    ]
    if fitted.fitted_.predictor.engine == "torch":
        entries.append(lambda rows: predict_traces(fitted.fitted_.predictor.model, rows))
    for entry in entries:
        with pytest.raises(HiNetError, match=message):
            entry(damaged())


def test_unsorted_rows_and_unused_elements_do_not_change_predictions(fitted: HiNetClassifier) -> None:
    right = fitted.predict_proba(sound())
    rows = sound()
    order = np.arange(28).reshape(-1)
    order[:2], order[4:7] = [1, 0], [6, 4, 5]
    shuffled = with_arrays(indices=rows.indices[order], data=rows.data[order])
    halves = sp.csr_array((np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), 2 * rows.indptr), shape=rows.shape)
    roomy = with_arrays(indices=np.append(rows.indices, [99, -5]), data=np.append(rows.data, [np.nan, 1]))
    flagged = shuffled.copy()
    flagged.has_canonical_format = True  # which is not so
    wide = with_arrays(indices=rows.indices.astype(np.int64), indptr=rows.indptr.astype(np.int64))
    frozen = sound()
    for array in (frozen.data, frozen.indices, frozen.indptr):
        array.flags.writeable = False
    for other in (shuffled, halves, roomy, flagged, wide, frozen, rows.tocsc(), rows.tocoo(), rows.tolil()):
        np.testing.assert_allclose(fitted.predict_proba(other), right, atol=1e-6)


def test_damaged_rows_of_other_formats_raise(fitted: HiNetClassifier) -> None:
    column, places = sound().tocsc(), sound().tocoo()
    column.indices = column.indices + 100
    places.coords = places.coords[0], places.coords[1] - 3
    for damaged, message in ((column, "the CSC matrix is damaged"), (places, "the COO matrix is damaged")):
        with pytest.raises(HiNetError, match=message):
            fitted.predict(damaged)
    keys = sp.dok_array((2, 3))
    keys._dict[(5, 1)] = 1.0
    with pytest.raises(HiNetError, match="the DOK matrix is damaged"):
        as_csr(keys)


def test_values_that_are_not_a_matrix_raise() -> None:
    for rows, message in (
        (sp.coo_array(np.ones(3)), "expected a CSR matrix, got COO"),
        (sp.csr_array(np.ones(3)), "a CSR matrix of two axes, got 1"),
        (np.ones(3), "a 2-D array of features, got ndarray"),
        (np.array([["a"]]), "real numbers, got values of type <U1"),
        (np.array([[1j]]), "real numbers, got values of type complex128"),
    ):
        with pytest.raises(HiNetError, match=message):
            check_rows(rows)


whole = st.one_of(st.integers(-3, 12), st.sampled_from([2**31 - 1, -(2**31)]))


@settings(max_examples=150)
@given(
    indptr=arrays.arrays(np.int32, st.integers(0, 6), elements=whole),
    indices=arrays.arrays(np.int32, st.integers(0, 8), elements=whole),
    values=st.integers(0, 8),
)
def test_any_arrays_raise_or_become_sorted_sums(indptr: Any, indices: Any, values: int) -> None:
    rows = sp.csr_array((4, 5), dtype=np.float32)
    rows.indptr, rows.indices, rows.data = indptr, indices, np.ones(values, np.float32)
    fits = len(indptr) == 5 and indptr[0] == 0 and (np.diff(indptr) >= 0).all() and indptr[-1] <= len(indices)
    fits = fits and len(indices) == values and ((indices[: indptr[-1]] >= 0) & (indices[: indptr[-1]] < 5)).all()
    if not fits:
        with pytest.raises(HiNetError):
            SparseMatrix.of(rows)
        return
    expected = np.zeros((4, 5))
    np.add.at(expected, (np.repeat(np.arange(4), np.diff(indptr)), indices[: indptr[-1]]), 1)
    found = SparseMatrix.of(rows)
    np.testing.assert_array_equal(
        sp.csr_array((found.data, found.indices, found.indptr), shape=(4, 5)).toarray(), expected
    )
    for start, end in zip(found.indptr, found.indptr[1:], strict=False):
        assert (np.diff(found.indices[start:end]) > 0).all()


def test_a_search_rejects_rows_with_other_features(fitted: HiNetClassifier) -> None:
    if isinstance(fitted.fitted_.predictor, Search):
        with pytest.raises(HiNetError, match="trained on 6 features, got 5"):
            fitted.fitted_.predictor.traces(sound()[:, :5])


def test_held_out_rows_lose_features_that_no_training_row_has() -> None:
    training = sp.csr_array(np.array([[1.0, 1, 0, 0], [0, 1, 0, 0]], np.float32))
    held_out = sp.csr_array(np.array([[3.0, 0, 4, 0], [0, 0, 0, 2], [0, 1, 0, 0]], np.float32))
    seen = seen_features(training)
    rows = without_unseen(held_out, seen, words=4)
    np.testing.assert_allclose(rows.sparse.toarray(), [[5, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_allclose(rows.unknown, [0.5, 1, 0])
    assert without_unseen(held_out, seen, words=3).unknown.tolist() == [0.5, 0, 0]  # others are not word n-grams
    mixed = MixedRows(held_out, np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(without_unseen(mixed, seen_features(mixed), words=4).dense, 1)
