from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet.data import load_arff
from hinet.errors import FileError

TREE = """% genes
@RELATION 'genes'

@ATTRIBUTE length   numeric
@ATTRIBUTE 'the strand' {w,c,'not known'}
@attribute class    hierarchical 01,01/01,01/01/03,02,02/05
@DATA
0.5,w,01/01/03@02
?,c,02/05

-1e3, 'not known' ,?
"""
DAG = """@relation go
@attribute x real
@attribute class hierarchical root/a,root/b,a/c,b/c,c/d
@data
1,c@b
2,d
"""


def written(folder: Path, text: str, name: str = "rows.arff") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_tree_with_numbers_categories_and_missing_values(tmp_path: Path) -> None:
    data = load_arff(written(tmp_path, TREE))
    assert data.rows.to_pydict() == {"length": [0.5, None, -1000.0], "the strand": ["w", "c", "not known"]}
    assert data.labels == [{"01/01/03", "02"}, {"02/05"}, frozenset()]
    assert data.columns == {"number": ("length",), "category": ("the strand",)}
    assert data.taxonomy.is_tree
    assert data.taxonomy.ids == ("01", "01/01", "01/01/03", "02", "02/05")
    assert data.taxonomy.parents("01/01/03") == ("01/01",)


def test_a_dag_of_edges_from_the_root(tmp_path: Path) -> None:
    data = load_arff(written(tmp_path, DAG))
    assert not data.taxonomy.is_tree
    assert data.taxonomy.ids[data.taxonomy.root] == "root"
    assert {*data.taxonomy.parents("c")} == {"a", "b"}
    assert data.labels == [{"b", "c"}, {"d"}]


def test_children_may_be_declared_before_and_without_their_parents(tmp_path: Path) -> None:
    data = load_arff(
        written(tmp_path, DAG.replace("root/a,root/b,a/c,b/c,c/d", "c/d,c,b,b,a/e/f").replace("2,d", "2,c/d"))
    )
    assert {node: data.taxonomy.parents(node) for node in data.taxonomy} == {
        "c": (), "c/d": ("c",), "b": (), "a": (), "a/e": ("a",), "a/e/f": ("a/e",)
    }  # fmt: skip


def test_the_only_top_node_of_a_tree_is_not_the_root(tmp_path: Path) -> None:
    data = load_arff(
        written(tmp_path, DAG.replace("root/a,root/b,a/c,b/c,c/d", "c,c/b,c/d").replace("c@b\n2,d", "c/b"))
    )
    assert data.taxonomy.depth[data.taxonomy.position("c")] == 1


@pytest.mark.parametrize(("name", "opened"), [("rows.arff.gz", gzip.open), ("rows.arff.xz", lzma.open)])
def test_compressed_files(tmp_path: Path, name: str, opened: object) -> None:
    with opened(tmp_path / name, "wt") as file:  # type: ignore[operator]
        file.write(TREE.replace("\n", "\r\n"))
    assert load_arff(tmp_path / name).labels == load_arff(written(tmp_path, TREE)).labels


def test_equal_names_get_a_number(tmp_path: Path) -> None:
    text = (
        "@relation r\n"
        + "@attribute x numeric\n" * 3
        + "@attribute 'x 2' numeric\n@attribute class hierarchical a,b\n@data\n1,2,3,4,a\n"
    )
    assert load_arff(written(tmp_path, text)).rows.column_names == ["x", "x 3", "x 4", "x 2"]


def test_comments_and_mixed_quotes(tmp_path: Path) -> None:
    text = DAG.replace("x real", "x string").replace("1,c@b\n2,d", "%first\n\"it's\",c@b\n'a, b',d")
    assert load_arff(written(tmp_path, text)).rows.column("x").to_pylist() == ["it's", "a, b"]
    assert load_arff(written(tmp_path, DAG.replace("1,c@b", "1,c@b % a gene"))).labels[0] == {"b", "c"}


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("0.5,w,", "0.5,", 8, "expected 3 cells"),
        ("0.5,w", "half,w", 8, "'length' is 'half', expected a number"),
        ("0.5,w", "inf,w", 8, "expected a finite number"),
        ("?,c", "?,x", 9, "'the strand' is 'x', which is not among its values 'w', 'c'"),
        ("@02\n", "@03\n", 8, "the label '03' is not in the hierarchy"),
        ("numeric", "float", 4, "the type of 'length' is 'float'"),
        ("numeric", "hierarchical a", 6, "a second attribute is hierarchical"),
        ("02/05\n@", "02//5\n@", 6, "empty: '02//5'"),
        ("hierarchical 01,01/01,01/01/03,02,02/05", "{01}", None, "no attribute is hierarchical"),
        ("@DATA", "", None, "no line @data"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, old: str, new: str, line: int | None, message: str) -> None:
    path = written(tmp_path, TREE.replace(old, new))
    with pytest.raises(FileError, match=message) as error:
        load_arff(path)
    assert (error.value.path, error.value.line) == (str(path), line)


SPARSE = """@relation r
@attribute a numeric
@attribute b {no,yes}
@attribute class hierarchical 1,1/2,3
@attribute c numeric
@data
{0 3.5, 2 1/2@3, 3 -1}
{1 yes,2 3}
{ 0 ?, 2 1 }
{2 1}
"""


def test_sparse_rows(tmp_path: Path) -> None:
    data = load_arff(written(tmp_path, SPARSE))
    assert data.rows.to_pydict() == {"a": [3.5, 0, None, 0], "b": ["no", "yes", "no", "no"], "c": [-1, 0, 0, 0]}
    assert data.labels == [{"1/2", "3"}, {"3"}, {"1"}, {"1"}]


def test_a_tab_may_separate_the_number_of_an_attribute(tmp_path: Path) -> None:
    data = load_arff(written(tmp_path, SPARSE.replace("{0 3.5, 2 1/2@3", "{0\t3.5, 2\t1/2@3")))
    assert data.rows["a"].to_pylist()[0] == 3.5
    assert data.labels[0] == {"1/2", "3"}


def test_sparse_rows_of_numbers_stay_sparse(tmp_path: Path) -> None:
    data = load_arff(written(tmp_path, SPARSE.replace("{no,yes}", "numeric").replace("yes", "7")))
    expected = [[3.5, 0, -1], [0, 7, 0], [np.nan, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(data.rows.toarray(), expected)
    assert data.columns == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1 yes", "1 yes,1 no", "attribute 1 occurs twice"),
        ("1 yes", "1 maybe", "'b' is 'maybe'"),
        ("1 yes", "9 1", "got '9 1'"),
        ("1 yes", "0 x", "'a' is 'x', expected a"),
    ],
)
def test_errors_of_sparse_rows_name_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(FileError, match=message) as error:
        load_arff(written(tmp_path, SPARSE.replace(old, new)))
    assert error.value.line == 8


@given(
    st.lists(st.tuples(st.none() | st.floats(-1e30, 1e30), st.none() | st.sampled_from(["w", "c d", "it's"]),
                       st.sets(st.sampled_from(["1", "1/1", "2"]), min_size=1)), min_size=1, max_size=6)
)  # fmt: skip
def test_rows_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float | None, str | None, set[str]]]
) -> None:
    quoted = {None: "?", "w": "w", "c d": "'c d'", "it's": '"it\'s"'}
    lines = [f"{'?' if x is None else repr(x)},{quoted[y]},{'@'.join(sorted(labels))}" for x, y, labels in rows]
    head = "@relation r\n@attribute x real\n@attribute y {w,'c d',\"it's\"}\n@attribute z hierarchical 1,1/1,2\n@data\n"
    data = load_arff(written(tmp_path_factory.mktemp("arff"), head + "\n".join(lines)))
    assert data.rows.to_pydict() == {"x": [x for x, _, _ in rows], "y": [y for _, y, _ in rows]}
    assert data.labels == [labels for _, _, labels in rows]
