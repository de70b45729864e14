from __future__ import annotations

import pytest

from hinet.taxonomy import Edges, Report, Table, check
from hinet.taxonomy import layers as layers_module
from hinet.taxonomy.check import WIDE, RowLabels


def checked(text: str, **options: object) -> Report:
    return check(Table().parse("t.csv", text), source="t.csv", **options)  # type: ignore[arg-type]


def found(report: Report) -> list[tuple[str, int | None]]:
    return [(problem.code, problem.line) for problem in report.problems]


def test_every_error_is_listed_with_its_line() -> None:
    report = checked(
        "node,parent\n"  # 1
        "a,\n"  # 2
        "b,a\n"  # 3
        ",a\n"  # 4 empty id
        "b,a\n"  # 5 duplicate id
        "c,nowhere\n"  # 6 unknown parent
        "d,d\n"  # 7 self-parent
        "e,g\n"  # 8 cycle e < g < f < e
        "f,e\n"
        "g,f\n"
        "h,g\n"
    )
    assert found(report) == [
        ("empty-id", 4),
        ("duplicate-id", 5),
        ("unknown-parent", 6),
        ("self-parent", 7),
        ("cycle", 8),
    ]
    assert report.summary is None
    cycle = report.errors[-1]
    assert cycle.nodes == ("e", "f", "g")
    assert "e > f > g > e (lines 8, 9, 10)" in cycle.message


def test_each_of_several_cycles_is_printed() -> None:
    report = checked("node,parent\na,b\nb,a\nc,d\nd,c\ne,a\ne,c\n")
    assert [problem.nodes for problem in report.errors] == [("a", "b"), ("c", "d")]


def test_a_long_cycle_is_shortened_in_the_message_only() -> None:
    size = 3000
    report = checked("node,parent\n" + "\n".join(f"n{k},n{(k + 1) % size}" for k in range(size)))
    (problem,) = report.errors
    assert len(problem.nodes) == size
    assert len(problem.message) < 500


def test_rows_with_one_id_must_agree() -> None:
    report = checked("node,parent,title\nr,,R\na,r,A\nb,r,B\nc,a,One\nc,b,Two\n")
    assert found(report) == [("duplicate-id", 6)]
    assert "title 'Two' here and 'One' above" in report.errors[0].message
    assert found(checked("node,parent\nr,\na,r\na,\n")) == [("duplicate-id", 4)]


def test_one_missing_parent_suggests_its_row() -> None:
    report = checked("node,parent\na,ROOT\nb,ROOT\n")
    assert "add a row for 'ROOT' with an empty parent" in report.errors[0].message


def test_warnings_do_not_fail() -> None:
    wide = "\n".join(f"w{number},wide,t{number}" for number in range(WIDE + 1))
    report = checked(f"node,parent,title\nr,,\nchain,r,A\nlink,chain,B\nend,link,C\nwide,r,D\ntwin,r,a\n{wide}\n")
    assert not report.errors
    assert found(report) == [("single-child", 3), ("same-title", 7), ("wide", 6)]
    assert report.warnings[0].nodes == ("chain", "link", "end")


def test_nodes_next_to_the_root_are_reported() -> None:
    text = "node,parent\nr,\na,r\nb,r\nlone,\n"
    assert found(checked(text)) == [("unreachable", 5)]
    chosen = checked(text, root="r")
    assert found(chosen) == [("unreachable", 5)]
    assert chosen.summary is not None
    assert chosen.summary["levels"] == 1


def test_summary_counts() -> None:
    report = checked("node,parent\nr,\na,r\nb,r\nc,a\nc,b\nd,c\nd,r\n")
    assert report.summary is not None
    assert report.summary["kind"] == "DAG"
    assert (report.summary["nodes"], report.summary["edges"]) == (5, 6)
    assert report.summary["several_parents"] == 2
    assert report.summary["nodes_by_depth"] == {0: 1, 1: 2, 2: 1, 3: 1}
    assert report.summary["neurons_by_layer"] == [3, 1, 1]
    assert report.summary["branching"] == {"mean": 1.5, "median": 1.0, "max": 3, "widest": "r"}


def test_rows_are_checked_against_the_taxonomy() -> None:
    rows = RowLabels("rows.csv", [2, 3, 4, 5], [["c"], ["b"], ["bb"], []])
    report = checked("node,parent\nr,\na,r\nb,r\nc,a\nd,a\ne,r\nf,e\ng,e\n", rows=[rows])
    assert [(problem.code, problem.line, problem.path) for problem in report.errors] == [
        ("unknown-label", 4, "rows.csv"),
        ("empty-label", 5, "rows.csv"),
    ]
    assert [problem.nodes for problem in report.warnings if problem.code == "no-rows"] == [("d",), ("e",)]
    assert report.summary is not None
    assert report.summary["rows"] == {
        "labels_given": 2,
        "labels": 2,
        "labels_by_depth": {1: 1, 2: 1},
        "inner_labels": 0,
        "given_at_inner_labels": 0,
        "nodes_without_rows": 4,
    }


def test_repeated_edges_are_a_warning() -> None:
    report = check(Edges().parse("e.txt", "a b\na c\na b\n"))
    assert found(report) == [("repeated-edge", 3)]


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_smallest_hierarchies_have_a_summary(nodes: int) -> None:
    report = checked("node,parent\na,\nb,a\n" if nodes == 2 else "node,parent\na,\n")
    assert report.summary is not None
    assert report.summary["nodes"] == nodes
    assert report.summary["levels"] == 1


def test_a_cycle_names_the_lines_of_its_own_links() -> None:
    report = checked("node,parent\nr,\ne,r\nf,e\nx,r\ne,f\n")
    assert "e > f > e (lines 4, 6)" in report.errors[0].message


def test_a_guessed_separator_and_a_long_cell_are_warnings() -> None:
    report = checked("node,parent\nr,\na,r\nb,r\nc,a|b\n")
    assert found(report) == [("guessed-separator", 5)]
    report = check(Table().parse("t.tsv", 'node\tparent\ttitle\nr\t\t\na\tr\t"inch\nb\tr\t12"\nc\tr\tC\n'))
    assert found(report) == [("long-cell", 3)]


def test_a_dag_too_large_to_unroll_still_has_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "MAX_NEURONS", 50)
    report = check(Edges().parse("e.txt", "".join(f"n{n} n{n + s}\n" for n in range(20) for s in (1, 2))))
    assert [problem.code for problem in report.warnings] == ["unrolls"]
    assert report.summary is not None
    assert report.summary["nodes"] == 22


def test_leaves_are_counted_by_depth() -> None:
    report = checked("node,parent\nr,\na,r\nb,r\nc,a\n")
    assert report.summary is not None
    assert report.summary["leaves_by_depth"] == {1: 1, 2: 1}


def test_several_top_nodes_are_checked_too() -> None:
    wide = "".join(f"w{number},,t{number}\n" for number in range(WIDE))
    exactly = checked(f"node,parent,title\n{wide}x,w1,X\ny,w1,Y\n")
    assert "wide" not in {code for code, _ in found(exactly)}
    more = checked(f"node,parent,title\n{wide}one,,T1\nx,w1,X\ny,w1,Y\n")
    assert {("wide", None), ("same-title", WIDE + 2)} <= set(found(more))
