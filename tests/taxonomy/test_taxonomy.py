from __future__ import annotations

import copy
import gzip
import os
import pickle
import re
from pathlib import Path
from subprocess import PIPE

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import FileError, LabelError, Layers, Taxonomy, TaxonomyError, Traces
from tests.processes import started
from tests.strategies import awkward_names, taxonomies


@given(
    taxonomy=taxonomies(),
    suffix=st.sampled_from([".csv", ".tsv"]),
    titles=st.lists(st.one_of(awkward_names, st.just("")), min_size=9, max_size=9),
)
def test_a_taxonomy_round_trips_through_a_file(
    tmp_path_factory: pytest.TempPathFactory, taxonomy: Taxonomy, suffix: str, titles: list[str]
) -> None:
    path = tmp_path_factory.mktemp("round") / f"taxonomy{suffix}"
    with_titles = Taxonomy.from_edges(
        [(None if parent == "" else parent, node) for node, parent in taxonomy.rows()],
        attributes={"title": dict(zip(taxonomy.ids, titles, strict=False))},
    )
    told = dict(zip(with_titles.ids, with_titles.titles, strict=True))
    assert told == dict(zip(taxonomy.ids, titles, strict=False))
    for original in (taxonomy, with_titles):
        original.write(path)
        assert Taxonomy.from_file(path, format="table") == original


@given(taxonomies())
def test_networkx_gives_the_same_taxonomy(taxonomy: Taxonomy) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(taxonomy.ids)
    graph.add_edges_from((p, n) for n, p in taxonomy.rows() if p)
    built = Taxonomy.from_networkx(graph)
    assert set(built.ids) == set(taxonomy.ids)
    assert all(set(built.parents(n)) == set(taxonomy.parents(n)) for n in taxonomy)
    assert built.is_tree == taxonomy.is_tree
    generations = {node: level for level, nodes in enumerate(nx.topological_generations(graph)) for node in nodes}
    shift = 0 if taxonomy.root >= 0 else 1
    assert {n: int(built.depth[built.position(n)]) - shift for n in built} == generations


def test_networkx_attributes_and_numbers_become_text() -> None:
    graph = nx.DiGraph([(1, 2), (1, 3)])
    graph.nodes[2]["title"] = "two"
    taxonomy = Taxonomy.from_networkx(graph)
    assert taxonomy.ids == ("1", "2", "3")
    assert taxonomy.titles == ("", "two", "")
    with pytest.raises(TaxonomyError, match="not directed"):
        Taxonomy.from_networkx(nx.Graph([(1, 2)]))


def test_one_name_under_two_parents_is_two_nodes() -> None:
    taxonomy = Taxonomy.from_paths([("A", "other"), ("B", "other"), ("B",)])
    assert taxonomy.ids == ("A", "A > other", "B", "B > other")
    assert taxonomy.titles == ("A", "other", "B", "other")
    assert taxonomy.is_tree


@given(st.lists(st.lists(awkward_names, min_size=1, max_size=4).map(tuple), min_size=1, max_size=6, unique=True))
def test_every_path_of_names_has_its_own_id(paths: list[tuple[str, ...]]) -> None:
    prefixes = {path[:length] for path in paths for length in range(1, len(path) + 1)}
    assert len(Taxonomy.from_paths(paths)) == len(prefixes)


@given(st.lists(st.lists(awkward_names, min_size=1, max_size=3).map(tuple), min_size=2, max_size=6, unique=True))
def test_added_nodes_come_last(paths: list[tuple[str, ...]]) -> None:
    whole, part = Taxonomy.from_paths(paths), Taxonomy.from_paths(paths[:1])
    whole, part = whole.under_virtual_root(), part.under_virtual_root()
    wider = part.with_nodes({node: next(iter(whole.parents(node)), None) for node in whole.ids if node not in part.ids})
    assert wider.ids[: len(part)] == part.ids
    assert set(wider.ids) == set(whole.ids)
    for node in whole.ids:
        assert wider.depth[wider.position(node)] == whole.depth[whole.position(node)]
        assert wider.parents(node) == whole.parents(node)
        assert set(wider.children(node)) == set(whole.children(node))
    rooted = Taxonomy.from_edges([("r", "a")]).with_nodes({"b": None})
    assert (rooted.children("r"), rooted.depth.tolist()) == (("a", "b"), [0, 1, 1])


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"milk": "fod"}, "'milk': its parent 'fod' is neither in the taxonomy nor a new node before it; did you mean"),
        ({"rye": "loaves", "loaves": "food"}, "'rye': its parent 'loaves' is neither in the taxonomy nor a new node"),
        ({"milk": "food", "bread": "food"}, "'bread' is in the taxonomy already; give each new node an id of its own"),
    ],
)
def test_nodes_that_cannot_be_added_raise(parents: dict[str, str | None], message: str) -> None:
    with pytest.raises(TaxonomyError, match=re.escape(message)):
        Taxonomy.from_edges([("food", "bread"), ("food", "cake")]).with_nodes(parents)


def test_padding_is_allowed_at_the_end_of_a_path_only() -> None:
    assert Taxonomy.from_paths([["A", "B", ""], ["C", None, None]]).ids == ("A", "A > B", "C")
    with pytest.raises(LabelError, match="row 1: step 0"):
        Taxonomy.from_paths([["A"], ["", "B"]])
    with pytest.raises(LabelError, match="row 0: expected a path of steps, got 'A > B'"):
        Taxonomy.from_paths(["A > B"])


def test_the_only_top_node_with_children_is_the_root() -> None:
    assert Taxonomy.from_edges([("r", "a")]).root == 0
    assert Taxonomy.from_edges([("r", "a"), ("s", "b")]).root == -1
    assert Taxonomy.from_edges([(None, "a")]).root == -1


def test_nodes_outside_a_chosen_root_are_unreachable() -> None:
    taxonomy = Taxonomy.from_edges([("r", "a"), (None, "lost"), ("lost", "found"), ("lost", "a")], root="r")
    assert dict(zip(taxonomy.ids, taxonomy.depth.tolist(), strict=True)) == {"r": 0, "a": 1, "lost": -1, "found": -1}
    with pytest.raises(TaxonomyError, match="root 'x' is not among the nodes"):
        Taxonomy.from_edges([("r", "a")], root="x")
    for edges in ([("r", "a"), (None, "alone")], [(None, "alone")]):
        with pytest.raises(
            TaxonomyError, match="root 'alone' has no children; set `root` to the node above all others"
        ):
            Taxonomy.from_edges(edges, root="alone")
    with pytest.raises(TaxonomyError, match="root 'a' has a parent"):
        Taxonomy.from_edges([("r", "a")], root="a")


def test_invalid_python_values_raise() -> None:
    with pytest.raises(TaxonomyError, match="cycle of 3: a > b > c > a"):
        Taxonomy.from_edges([("a", "b"), ("b", "c"), ("c", "a"), (None, "top")])
    with pytest.raises(TaxonomyError, match="'b' is its own parent"):
        Taxonomy.from_edges([("a", "b"), ("b", "b")])
    with pytest.raises(TaxonomyError, match="at least one node"):
        Taxonomy.from_edges([])
    with pytest.raises(TaxonomyError, match="edge 0: the child of 'a' is empty"):
        Taxonomy.from_edges([("a", " ")])
    with pytest.raises(TaxonomyError, match="no text file can hold"):
        Taxonomy.from_edges([("a", "b\0")])
    with pytest.raises(TaxonomyError, match="no text file can hold"):
        Taxonomy.from_edges([("a", "\ud800")])
    with pytest.raises(TaxonomyError, match="no text file can hold"):
        Taxonomy.from_edges([("a", "b")], attributes={"title": {"b": "\0"}})
    with pytest.raises(TaxonomyError, match="'z', which is not a node"):
        Taxonomy.from_edges([("a", "b")], attributes={"title": {"z": "zed"}})


def test_a_taxonomy_is_frozen() -> None:
    taxonomy = Taxonomy.from_edges([("a", "b")])
    with pytest.raises(AttributeError):
        taxonomy.root = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        taxonomy.attributes["title"] = ("x", "y")  # type: ignore[index]
    for array in (taxonomy.edge_parent, taxonomy.leaves, taxonomy.child_lists[0], taxonomy.tops, taxonomy.depth):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_taxonomy_can_be_pickled_and_copied() -> None:
    taxonomy = Taxonomy.from_edges([("a", "b")], attributes={"title": {"a": "A"}})
    assert pickle.loads(pickle.dumps(taxonomy)) == taxonomy
    assert copy.deepcopy(taxonomy) == taxonomy


def test_taxonomies_that_differ_in_anything_are_not_equal() -> None:
    edges = [(None, "r"), ("r", "a"), ("r", "b"), (None, "s")]
    one = Taxonomy.from_edges(edges)
    assert one == Taxonomy.from_edges(edges)
    assert one != Taxonomy.from_edges(edges, root="r")
    assert one != Taxonomy.from_edges(edges, attributes={"title": {"a": "A"}})
    assert one != Taxonomy.from_edges([*edges[:2], ("s", "b"), (None, "s")])
    assert one != "taxonomy"


def test_siblings_are_in_the_order_of_the_nodes() -> None:
    taxonomy = Taxonomy.from_edges([("p", "b"), ("q", "a"), ("q", "b"), ("p", "a")])
    assert taxonomy.children("p") == taxonomy.children("q") == ("b", "a")


def test_attributes_that_a_table_cannot_hold_raise(tmp_path: Path) -> None:
    with pytest.raises(TaxonomyError, match="an attribute is called ' x'"):
        Taxonomy.from_edges([("a", "b")], attributes={" x": {"a": "1"}})
    with pytest.raises(TaxonomyError, match="an attribute is called 'parent'"):
        Taxonomy.from_edges([("a", "b")], attributes={"parent": {"a": "1"}}).write(tmp_path / "t.tsv")
    odd = Taxonomy.from_edges([("a", "b")], attributes={"a,b;c|d": {"a": "1"}})
    for name in ("t.tsv", "t.csv"):
        odd.write(tmp_path / name)
        assert Taxonomy.from_file(tmp_path / name) == odd


def test_many_errors_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("node,parent\n" + "".join(f"n{n},gone\n" for n in range(9)))
    with pytest.raises(TaxonomyError, match="and 4 more errors") as caught:
        Taxonomy.from_file(tmp_path / "t.csv")
    assert len(caught.value.problems) == 9


def test_looking_up_an_unknown_node_names_the_nearest() -> None:
    with pytest.raises(LabelError, match=r"'Sheeps' is not in the taxonomy of 2 nodes; did you mean 'Sheep'\?"):
        Taxonomy.from_edges([("Animal", "Sheep")]).children("Sheeps")


def test_an_unknown_node_may_be_a_title_or_the_end_of_an_iri() -> None:
    iri = "http://example.org/sheep"
    taxonomy = Taxonomy.from_edges([(None, iri)], attributes={"title": {iri: "Ovis aries"}})
    with pytest.raises(LabelError, match=f"'Ovis aries' is not in .*; it is the title of '{iri}', and labels are ids"):
        taxonomy.position("Ovis aries")
    with pytest.raises(LabelError, match=rf"'sheep' is not in .*; did you mean '{iri}'\?"):
        taxonomy.position("sheep")


def test_an_unknown_node_may_be_several_labels() -> None:
    with pytest.raises(LabelError, match=r"'a; b' is not in .*; its parts are: .* --label-sep ';'"):
        Taxonomy.from_edges([(None, "a"), (None, "b")]).position("a; b")


def test_repr_shows_the_shape() -> None:
    assert repr(Taxonomy.from_edges([("a", "b"), ("a", "c")])) == "<Taxonomy: tree of 3 nodes, 2 leaves, height 1>"


def test_numbers_are_ids_and_missing_values_are_not() -> None:
    taxonomy = Taxonomy.from_edges([(np.nan, 1), (1, 2), (np.int64(1), 3.5)], root=1)  # type: ignore[arg-type]
    assert taxonomy.ids == ("1", "2", "3.5")
    assert 2 in taxonomy
    assert taxonomy.position(2) == 1  # type: ignore[arg-type]
    assert Traces.encode(Layers.of(taxonomy), np.array([2, 2])).decode() == ["2", "2"]
    padded = np.array([["Food", "Bread", np.nan], ["Food", None, ""]], dtype=object)
    assert Taxonomy.from_paths(padded).ids == ("Food", "Food > Bread")
    with pytest.raises(TaxonomyError, match="edge 1: the child of 'A' is empty"):
        Taxonomy.from_edges([("A", "B"), ("A", None)])
    with pytest.raises(TaxonomyError, match=r"edge 0: expected a pair \(parent, child\), got 'AB'"):
        Taxonomy.from_edges(["AB"])  # type: ignore[list-item]
    with pytest.raises(TaxonomyError, match="steps are 'names' or 'ids', got 'x'"):
        Taxonomy.from_paths([("A",)], steps="x")  # type: ignore[arg-type]


def test_paths_of_names_too_deep_for_ids_raise() -> None:
    with pytest.raises(TaxonomyError, match="more than 100,000 characters"):
        Taxonomy.from_paths([("x" * 30_000,) * 4])


def test_the_suffix_determines_the_format_to_write(tmp_path: Path) -> None:
    taxonomy = Taxonomy.from_edges([("a", "b,c")])
    for name in ("t.tsv", "t.csv", "t.tsv.gz", "t.CSV.xz"):
        taxonomy.write(tmp_path / name)
        assert Taxonomy.from_file(tmp_path / name) == taxonomy
    assert gzip.decompress((tmp_path / "t.tsv.gz").read_bytes()) == b"node\tparent\na\t\nb,c\ta\n"
    with pytest.raises(FileError, match=r"t.json: a taxonomy is written as .tsv"):
        taxonomy.write(tmp_path / "t.json")


def test_writing_follows_links_keeps_permissions_and_writes_into_pipes(tmp_path: Path) -> None:
    taxonomy = Taxonomy.from_edges([("a", "b")])
    target, link, pipe = tmp_path / "t.tsv", tmp_path / "link.tsv", tmp_path / "pipe.tsv"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    taxonomy.write(link)
    assert link.is_symlink()
    assert Taxonomy.from_file(target) == taxonomy
    assert target.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    with started(["cat", pipe], stdout=PIPE) as reader:
        taxonomy.write(pipe)
        assert reader.communicate()[0] == target.read_text()
    assert pipe.is_fifo()
