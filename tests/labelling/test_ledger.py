"""Which labels count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hinet.labelling.store import Label, Ledger
from tests.labelling.conftest import label


def test_the_last_label_of_a_row_counts_and_people_disagree_until_one_settles() -> None:
    ledger = Ledger([label(1, 7, "rye"), label(2, 7, "white", "Bob")])
    assert ledger.counted[7].id == 2
    assert ledger.disputed == {7}
    ledger.add(label(3, 7, "rye", action="settle"))
    ledger.add(label(4, 7, "milk", "Cy"))
    assert (ledger.counted[7].id, ledger.disputed) == (3, set())
    assert [each.id for each in ledger.current(7)] == [2, 3, 4]
    ledger.add(label(5, 7, "rye"))  # the same person changes her mind: nothing is settled
    assert (ledger.counted[7].id, ledger.disputed) == (5, {7})


def test_an_undone_label_frees_the_row_and_the_one_that_it_had_replaced_counts_again() -> None:
    first, second = label(1, 7, "rye"), label(2, 7, "white")
    ledger = Ledger([first, second])
    assert (ledger.find(1), ledger.find(2)) == (None, second)
    ledger.undo(second)
    assert ledger.counted == {7: first}
    ledger.undo(first)
    assert (ledger.counted, ledger.people()) == ({}, {})


def test_a_skip_withdraws_the_label_of_the_same_person() -> None:
    ledger = Ledger([label(1, 7, "rye"), label(2, 7), label(3, 7, "white", "Bob")])
    assert [each.id for each in ledger.independent(7)] == [3]
    assert (ledger.twice, ledger.disputed) == (set(), set())
    ledger.add(label(4, 7, "rye"))
    assert (ledger.twice, ledger.disputed) == ({7}, {7})


def test_the_labels_that_counted_earlier_are_known() -> None:
    known = [label(1, 7, "rye"), label(2, 7, "white", "Bob"), label(3, 8, "milk"), label(4, 9, "rail", undone="2026")]
    ledger = Ledger(known)
    ledger.undo(known[1])
    ledger.undo(known[2])
    ledger.add(label(5, 8))
    ledger.add(label(6, 7, "rye"))
    assert ledger.counted_at(4, (4,)) == {7: known[1], 8: known[2]}
    assert ledger.counted_at(6, (2, 3, 4)) == ledger.counted
    assert [*ledger.counted_at(1, ())] == [7]


def test_a_skip_takes_the_place_of_a_label() -> None:
    ledger = Ledger([label(1, 7, "rye"), label(2, 7)])
    assert (ledger.counted, ledger.skipped) == ({}, {7})
    assert ledger.people()["Ada"] == (0, 1)


def test_a_row_is_judged_by_the_answer_before_its_first_label_even_if_that_was_undone() -> None:
    known = [
        label(1, 7, "rye", predicted=("milk",), undone="2026"),
        label(2, 8, "white"),
        label(3, 7, "white", predicted=("white",)),
    ]
    ledger = Ledger(known)
    assert [(each.id, each.nodes, each.predicted) for each in ledger.firsts()] == [
        (1, ("white",), ("milk",)), (2, ("white",), ("rye",)),
    ]  # fmt: skip


EVENTS = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from(["rye", "milk", ""]), st.sampled_from("AB"), st.booleans(), st.integers(0, 9)
    )
)


@given(EVENTS)
def test_a_ledger_that_was_changed_equals_one_that_is_read_again(events: list[tuple[int, str, str, bool, int]]) -> None:
    ledger, stored = Ledger(), list[Label]()
    for number, (row, node, who, settles, undo) in enumerate(events, 1):
        added = label(number, row, node, who, **({"action": "settle"} if settles and node else {}))
        ledger.add(added)
        stored.append(added)
        current = ledger.newest(None)
        if undo < len(current):
            ledger.undo(current[undo])
            stored[current[undo].id - 1] = current[undo]._replace(undone="2026")
    again = Ledger(stored)
    assert (ledger.counted, ledger.skipped, ledger.disputed) == (again.counted, again.skipped, again.disputed)
    assert (ledger.people(), ledger.twice) == (again.people(), again.twice)
    assert ledger.newest(None) == again.newest(None)
    assert ledger.firsts() == again.firsts()
