from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import LabelError
from hinet.data import LabelledRows, split_by_hash

row_lists = st.lists(st.tuples(st.text(max_size=4), st.sampled_from("abc")), unique=True, max_size=40)


def as_rows(pairs: list[tuple[str, str]]) -> LabelledRows:
    return LabelledRows(tuple(text for text, _ in pairs), tuple(label for _, label in pairs))


@given(row_lists.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_a_split_loses_nothing_and_ignores_the_order(both: tuple[list, list]) -> None:
    first, second = (split_by_hash(as_rows(pairs), {"valid": 0.3, "test": 0.3}, rest="train") for pairs in both)
    for name in ("train", "valid", "test"):
        assert set(zip(first[name].texts, first[name].labels, strict=True)) == set(
            zip(second[name].texts, second[name].labels, strict=True)
        )
    assert sum(map(len, first.values())) == len(both[0])
    assert set(first["train"].labels) == {label for _, label in both[0]}


def test_shares_are_about_right() -> None:
    rows = LabelledRows(tuple(map(str, range(10_000))), ("x",) * 10_000)
    parts = split_by_hash(rows, {"valid": 0.1, "test": 0.2}, rest="train")
    assert 900 < len(parts["valid"]) < 1100
    assert 1850 < len(parts["test"]) < 2150


def test_a_label_for_every_text() -> None:
    with pytest.raises(LabelError, match="2 texts and 1 label;"):
        LabelledRows(("a", "b"), ("x",))
