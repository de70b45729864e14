"""Which row goes to whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hinet import Taxonomy
from hinet.labelling.queue import LEASE_SECONDS, Queue, top_nodes
from hinet.labelling.selection import Pool, Scores, plan
from hinet.labelling.store import Ledger
from tests.labelling.conftest import label

ROWS = 60


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def scores(tree: Taxonomy, rows: int = ROWS) -> Scores:
    """Return rows in two groups of the same vectors, whose answers are in two branches."""
    rng = np.random.default_rng(0)
    side = np.arange(rows) % 2
    vectors = np.eye(2, 8, dtype=np.float32)[side] + rng.normal(0, 0.2, (rows, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    node = np.where(side, tree.position("rye"), tree.position("doll"))
    return Scores(rng.random(rows).astype(np.float32), node, vectors)


def queue(tree: Taxonomy, ledger: Ledger | None = None, clock: Clock | None = None) -> Queue:
    """Return a queue with a plan."""
    made = Queue(ROWS, ledger or Ledger(), clock=clock or Clock())
    made.set_scores(np.arange(ROWS), scores(tree), tree)
    made.plan(None)
    return made


def test_no_row_is_lent_twice_until_its_time_is_over(tree: Taxonomy) -> None:
    clock = Clock()
    rows = queue(tree, clock=clock)
    lent = [each.row for _ in range(20) for who in ("Ada", "Bob") for each in rows.next(who, 3)[0]]
    assert sorted(lent) == sorted({*lent}) == list(range(1, ROWS + 1))
    assert rows.next("Ada", 1) == ([], 0)
    clock.now = LEASE_SECONDS + 1
    assert len(rows.next("Cy", 50)[0]) == 50


def test_labelled_rows_do_not_come_again_and_skipped_ones_only_to_others(tree: Taxonomy) -> None:
    ledger, clock = Ledger(), Clock()
    rows = queue(tree, ledger, clock)
    lent, left = rows.next("Ada", ROWS)
    assert left == 0
    for number, (row, _) in enumerate(lent, 1):
        ledger.add(label(number, row, "rye" if number > 5 else ""))
        rows.done(row)
    assert rows.left == 0
    assert rows.next("Ada", 10)[0] == []
    skipped = {row for row, _ in lent[:5]}
    given_to_bob = rows.next("Bob", ROWS)[0]
    assert {row for row, reason in given_to_bob if reason == "second"}.isdisjoint(skipped)
    assert {row for row, reason in given_to_bob if reason != "second"} == skipped


def test_a_tenth_of_the_labelled_rows_gets_a_second_label(tree: Taxonomy) -> None:
    ledger = Ledger(label(number, number, "rye") for number in range(1, 41))
    rows = queue(tree, ledger)
    assert [reason for _, reason in rows.next("Ada", ROWS)[0]].count("second") == 0
    clock = Clock()
    rows = queue(tree, ledger, clock)
    seconds = [row for row, reason in rows.next("Bob", ROWS)[0] if reason == "second"]
    assert len(seconds) == 4
    assert {*seconds} <= {*range(1, 41)}


def test_an_undone_label_frees_its_row(tree: Taxonomy) -> None:
    ledger = Ledger()
    rows = queue(tree, ledger)
    added = label(1, 3, "rye")
    ledger.add(added)
    rows.done(3)
    assert rows.left == ROWS - 1
    ledger.undo(added)
    rows.done(3)
    assert rows.left == ROWS
    assert 3 in [row for row, _ in rows.next("Ada", ROWS)[0]]


def test_a_share_of_the_rows_is_random_and_branches_with_few_labels_are_visited(tree: Taxonomy) -> None:
    toys = list(range(1, 60, 2))  # positions 0, 2, …
    ledger = Ledger(label(number, row, "doll") for number, row in enumerate(toys[:20], 1))
    rows = queue(tree, ledger)
    lent = rows.next("Ada", 40)[0]
    reasons = [reason for _, reason in lent]
    assert reasons.count("random") == 4
    of_branch = [row for row, reason in lent if reason == "branch"]
    assert of_branch
    assert of_branch[0] % 2 == 0  # food, which has no label


def test_scores_of_an_old_model_are_left_out(tree: Taxonomy) -> None:
    rows = Queue(ROWS, Ledger())
    generation = rows.generation
    rows.expire_scores()  # a new model comes while the old one scores
    rows.set_scores(np.arange(ROWS), scores(tree), tree, generation)
    assert rows.scored_share == 0
    rows.set_scores(np.arange(ROWS), scores(tree), tree, rows.generation)
    assert rows.scored_share == 1


def test_rows_that_no_model_has_ranked_yet_come_at_random(tree: Taxonomy) -> None:
    rows = Queue(5, Ledger())
    assert (rows.scored_share, len(rows.unscored(100))) == (0, 5)
    assert [reason for _, reason in rows.next("Ada", 5)[0]] == ["random"] * 5
    rows.grow(7)
    assert sorted(row for row, _ in rows.next("Bob", 5)[0]) == [6, 7]


def test_the_plan_prefers_doubtful_rows_that_stand_for_many() -> None:
    vectors = np.zeros((40, 3), np.float32)
    vectors[:20, 0] = 1  # twenty equal rows, doubtful
    vectors[20:30, 1] = 1  # ten equal rows, as doubtful
    vectors[30:, 2] = 1  # ten equal rows with certain answers
    probability = np.repeat(np.float32([0.3, 0.3, 1.0]), [20, 10, 10])
    pool = Pool(np.arange(100, 140), probability, np.zeros(40, np.int64), np.concatenate([np.zeros((100, 3)), vectors]))
    found = plan(pool, np.zeros((0, 3), np.float32), None, 2, np.random.default_rng(0))
    assert sorted(row // 10 for row in found.rows.tolist()) in ([10, 12], [11, 12])
    assert found.reasons == ["different", "different"]
    known = plan(pool, vectors[:1], None, 1, np.random.default_rng(0))
    assert known.rows[0] // 10 == 12  # the others are like a labelled row


def test_the_last_rows_are_planned_once(tree: Taxonomy) -> None:
    clock = Clock()
    rows = queue(tree, clock=clock)
    lent = [rows.next("Ada", 5)[0] for _ in range(4) if not rows.needs_plan]
    assert [len(each) for each in lent] == [5] * 4
    assert not rows.needs_plan
    clock.now = LEASE_SECONDS + 1
    rows.next("Ada", 1)
    assert rows.needs_plan  # rows that were lent are free again
    rows.plan(None)
    assert not rows.needs_plan


def test_room_for_new_rows_grows_by_a_factor(tree: Taxonomy, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = queue(tree)
    made, zeros = list[tuple[int, int]](), np.zeros

    def note(shape: Any, *kind: Any) -> Any:
        if isinstance(shape, tuple):
            made.append(shape)
        return zeros(shape, *kind)

    with monkeypatch.context() as patched:
        patched.setattr(np, "zeros", note)
        for count in range(ROWS + 1, 2 * ROWS + 1):
            rows.grow(count)
    assert made == [(90, 8), (135, 8)]
    rows.set_scores(np.arange(ROWS, 2 * ROWS), scores(tree), tree)
    rows.plan(None)
    assert len(rows.next("Ada", 2 * ROWS)[0]) == 2 * ROWS


def test_the_plan_of_no_rows_is_empty() -> None:
    nothing = np.zeros((0, 0), np.float32)
    pool = Pool(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.int64), nothing)
    found = plan(pool, nothing, np.ones((3, 8), np.float32), 5, np.random.default_rng(0))
    assert (len(found.rows), found.reasons, found.branches) == (0, [], {})


def test_top_nodes_are_those_above_a_label(tree: Taxonomy, dag: Taxonomy) -> None:
    nodes = np.array([tree.position("rye"), -1, tree.position("toys"), tree.position("doll")])
    assert [node if node < 0 else tree.ids[node] for node in top_nodes(nodes, tree)] == ["food", -1, "toys", "toys"]
    assert dag.ids[top_nodes(np.array([dag.position("rye")]), dag)[0]] in ("food", "toys")


@pytest.mark.parametrize("rows", [0, 1])
def test_a_queue_without_rows_plans_nothing(tree: Taxonomy, rows: int) -> None:
    made = Queue(rows, Ledger())
    made.set_scores(np.arange(rows), scores(tree, rows), tree)
    made.plan(None)
    assert len(made.next("Ada", 5)[0]) == rows
