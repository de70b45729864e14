from __future__ import annotations

import sys

import numpy as np
import pytest

from hinet import HiNetError, Layers, Traces, load_icd10cm
from hinet.data import datasets


def test_rows_and_labels_are_as_documented() -> None:
    icd = load_icd10cm()
    rows = [
        *zip(
            icd.train.texts + icd.valid.texts + icd.test.texts,
            icd.train.labels + icd.valid.labels + icd.test.labels,
            strict=True,
        )
    ]
    labels = {label for _, label in rows}
    assert 85_000 < len(rows) < 90_000
    assert len(rows) == len(set(rows))
    assert len(labels) > 19_000
    assert set(icd.train.labels) == labels
    assert all(text.strip() for text, _ in rows)
    depths = icd.taxonomy.depth[icd.taxonomy.positions(sorted(labels))]
    assert len(np.unique(depths)) == 5
    inner = ~icd.taxonomy.leaves[icd.taxonomy.positions(sorted(labels))]
    assert inner.sum() > 1500
    assert 12_000 < len(icd.test) < 14_000
    assert 4_000 < len(icd.valid) < 5_000


def test_the_description_of_a_leaf_is_labelled_with_its_parent() -> None:
    icd = load_icd10cm()
    rows = set()
    for part in (icd.train, icd.valid, icd.test):
        rows |= set(zip(part.texts, part.labels, strict=True))
    assert ("Cholera due to Vibrio cholerae 01, biovar cholerae", "A00") in rows
    assert ("Classical cholera", "A00") in rows  # an inclusion term of the leaf A00.0
    assert "A00.0" not in icd.taxonomy
    assert icd.taxonomy.parents("A00") == ("A00-A09",)
    assert icd.taxonomy.titles[icd.taxonomy.position("A00")] == "Cholera"


def test_a_block_of_one_category_has_an_id_of_its_own() -> None:
    taxonomy = load_icd10cm().taxonomy
    assert taxonomy.parents("B99") == ("B99-B99",)
    assert taxonomy.parents("B99-B99") == ("1",)
    assert taxonomy.is_tree


def test_all_rows_become_traces_and_back() -> None:
    icd = load_icd10cm()
    layers = Layers.of(icd.taxonomy, ends=set(icd.train.labels))
    assert Traces.encode(layers, icd.test.labels).decode() == list(icd.test.labels)


def test_a_missing_package_raises_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simple_icd_10_cm", None)
    with pytest.raises(HiNetError, match=r"pip install 'hinet\[demo\]'"):
        datasets.load_icd10cm.__wrapped__()
