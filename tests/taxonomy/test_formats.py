from __future__ import annotations

import gzip
import itertools
import json
import lzma
from pathlib import Path

import pytest

from hinet import FileError, Taxonomy, TaxonomyError
from hinet.taxonomy import FORMATS, LabelPaths, Table, TaxonomyFormat
from hinet.taxonomy.formats import detect


def read(tmp_path: Path, text: str, **options: object) -> Taxonomy:
    path = tmp_path / "file.txt"
    path.write_bytes(text.encode())
    return Taxonomy.from_file(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node\tparent\n1\t\n", "table"),
        ("title,Parent,Node\nx,,1\n", "table"),
        ("code;parents\n1;\n", "table"),
        ("1 2\n2 3\n", "edges"),
        ("1 2 3 20\n1 2\n", "paths"),
        ("10 2 3\n11 5\n", "paths"),
        ("# version 3\nFood\nFood > Bread & Butter\n", "labels"),
        ('{"a": {}}', "json"),
        (' [{"id": "a", "children": []}]', "json"),
        ("sep=;\nnode;parent\n1;\n", "table"),
        ("Parent ID,Name\n,1\n", "table"),
    ],
)
def test_formats_are_detected(text: str, expected: str) -> None:
    assert type(detect("file", text)) is FORMATS[expected]


@pytest.mark.parametrize(
    "text", ["hello world again\nand more\n", "x,y\n1,2\n", "a\tb\tc\nd\te\tf\n", "A :: B :: C\nA :: D\n"]
)
def test_texts_that_are_not_a_hierarchy_raise(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError, match=r"file.txt:1: .*(format|column)"):
        read(tmp_path, text)


def test_a_table_keeps_its_other_columns(tmp_path: Path) -> None:
    taxonomy = read(tmp_path, 'node,parent,title,rank\n1,,"All, really",top\n2,1,Two,\n')
    assert taxonomy.ids == ("1", "2")
    assert dict(taxonomy.attributes) == {"title": ("All, really", "Two"), "rank": ("top", "")}
    assert taxonomy.titles == ("All, really", "Two")


def test_several_parents_by_rows_by_separator_and_by_guess(tmp_path: Path) -> None:
    head = "node\tparent\nr\t\na\tr\nb\tr\n"
    by_rows = read(tmp_path, head + "c\ta\nc\tb\n")
    assert by_rows.parents("c") == ("a", "b")
    assert by_rows == read(tmp_path, head + "c\ta|b\n", format=Table(parent_sep="|"))
    assert by_rows == read(tmp_path, head + "c\ta b\n")
    assert not by_rows.is_tree


def test_a_separator_is_not_guessed_where_it_explains_only_some_cells(tmp_path: Path) -> None:
    with pytest.raises(TaxonomyError, match=r"file.txt:5: the parent 'a x' of 'c'"):
        read(tmp_path, "node\tparent\nr\t\na\tr\nb\tr\nc\ta x\nd\ta b\n")


def test_columns_can_be_named(tmp_path: Path) -> None:
    text = "above,below\n,1\n1,2\n"
    assert read(tmp_path, text, format=Table(node_column="below", parent_column="above")).ids == ("1", "2")
    with pytest.raises(FileError, match=r"file.txt:1: no column 'belo' among 'above', 'below'; did you mean 'below'\?"):
        read(tmp_path, text, format=Table(node_column="belo", parent_column="above"))


def test_edges_and_id_paths_share_nodes(tmp_path: Path) -> None:
    assert read(tmp_path, "r a\nr b\na c\nb c\n").parents("c") == ("a", "b")
    assert read(tmp_path, "r a c\nr b c\n").parents("c") == ("a", "b")
    with pytest.raises(FileError, match=r"file.txt:2: expected 'parent child', got 3 words"):
        read(tmp_path, "r a\nr b c\n", format="edges")


def test_label_paths_may_have_any_separator(tmp_path: Path) -> None:
    assert read(tmp_path, "Food > Bread\nFood>Milk\n").ids == ("Food", "Food > Bread", "Food > Milk")
    assert read(tmp_path, "Food/Bread\nToys/Bread\n", format=LabelPaths("/")).ids == (
        "Food",
        "Food/Bread",
        "Toys",
        "Toys/Bread",
    )
    with pytest.raises(FileError, match=r"file.txt:2: empty step"):
        read(tmp_path, "Food > Bread\nFood > > Milk\n")


@pytest.mark.parametrize(
    "nested",
    [
        {"A": {"x": {}, "y": None}, "B": {}},
        {"A": ["x", "y"], "B": ""},
        [{"title": "A", "children": [{"name": "x"}, "y"]}, {"title": "B"}],
    ],
)
def test_nested_json_by_name(tmp_path: Path, nested: object) -> None:
    taxonomy = read(tmp_path, json.dumps(nested, indent=1))
    assert set(taxonomy.ids) == {"A", "A > x", "A > y", "B"}
    assert dict(zip(taxonomy.ids, taxonomy.titles, strict=True))["A > x"] == "x"


def test_nested_json_with_ids_may_be_a_dag(tmp_path: Path) -> None:
    leaf = {"id": 9, "title": "shared", "rank": "leaf"}
    root = {"id": "r", "title": "all", "children": [{"id": "a", "children": [leaf]}, {"id": "b", "children": [leaf]}]}
    taxonomy = read(tmp_path, json.dumps(root))
    assert taxonomy.parents("9") == ("a", "b")
    assert taxonomy.attributes["rank"][taxonomy.position("9")] == "leaf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": {}\n,}', r":2: .*expected a name in"),
        ('{"a" {}}', r":1: .*expected ':' after 'a'"),
        ('{"a": {}', r":1: .*ends before its brackets close"),
        ('{"a": {}}\n{"b": {}}', r":2: .*after its end"),
        ('{"a": \n nope}', r":2: .*'nope'"),
        ('{"a": 3}', r":1: expected the children of 'a'"),
        ('{"a": {"": {}}}', r":1: the name of a node is empty"),
        ('{"a": [1, 2}', r":1: .*expected ',' or a closing bracket"),
        ("[]", r":1: the JSON holds no node"),
        ('[{"id": "a", "children": [{"rank": "x"}]}]', r":1: a node has neither an id nor a title"),
        ('[{"id": "a", "children": [{"id": "b", "children": 5}]}]', r":1: the children of 'b' are not a list"),
        ('{"a": "unclosed', r":1: not valid JSON"),
    ],
)
def test_bad_json_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read(tmp_path, text)


def test_repeated_json_names_raise_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(TaxonomyError, match=r"file.txt:3: duplicate id: 'a'"):
        read(tmp_path, '{"a": {},\n "b": {},\n "a": {}}')


def test_json_of_any_depth_is_read(tmp_path: Path) -> None:
    depth = 5000
    listed = '{"id": "%d", "children": [' * depth % tuple(range(depth)) + "]}" * depth
    assert read(tmp_path, listed).height == depth - 1
    named = '{"x": ' * 1500 + "{}" + "}" * 1500
    assert read(tmp_path, named).height == 1499


def test_long_chains_are_read_from_every_line_format(tmp_path: Path) -> None:
    steps = [str(step) for step in range(5000)]
    assert read(tmp_path, "\n".join(f"{a} {b}" for a, b in itertools.pairwise(steps))).height == 4999
    assert read(tmp_path, " ".join(steps)).height == 4999
    table = "node,parent\n" + "\n".join(f"{b},{a}" for a, b in zip(["", *steps], steps, strict=False))
    assert read(tmp_path, table).height == 4999


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compressed_files_are_read_like_plain_ones(tmp_path: Path, compress: object) -> None:
    path = tmp_path / "taxonomy.tsv.any"
    path.write_bytes(compress(b"node\tparent\na\t\nb\ta\n"))  # type: ignore[operator]
    assert Taxonomy.from_file(path).ids == ("a", "b")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileError, match="damaged or cut short"):
        Taxonomy.from_file(path)


def test_bom_crlf_and_stray_quotes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfnode,parent,title\r\na,,"two\r\nlines"\r\nb,a,x\r\n')
    assert Taxonomy.from_file(path).attributes["title"] == ("two\r\nlines", "x")
    stray = read(tmp_path, 'node\tparent\ttitle\na\t\t"quoted" word\nb\ta\tonly "one\n')
    assert stray.titles == ('"quoted" word', 'only "one')


def test_a_self_parent_marks_the_root_only_if_nothing_else_does(tmp_path: Path) -> None:
    assert read(tmp_path, "node\tparent\n1\t1\n2\t1\n").root == 0
    with pytest.raises(TaxonomyError, match=r"file.txt:3: '2' is its own parent"):
        read(tmp_path, "node\tparent\n1\t\n2\t2\n")
    with pytest.raises(TaxonomyError, match=r"file.txt:2: '1' is its own parent"):
        read(tmp_path, "node\tparent\n1\t1\n")


def test_known_nodes_are_not_split_at_a_guessed_separator(tmp_path: Path) -> None:
    taxonomy = read(tmp_path, "node,parent\nFood,\nDrink,\nFresh Food,Food\nMilk,Fresh Food\nSoup,Food Drink\n")
    assert taxonomy.parents("Milk") == ("Fresh Food",)
    assert taxonomy.parents("Soup") == ("Food", "Drink")


def test_a_child_column_makes_the_rows_edges(tmp_path: Path) -> None:
    assert read(tmp_path, "parent,child,weight\nFood,Bread,1\nFood,Milk,2\n").ids == ("Food", "Bread", "Milk")


@pytest.mark.parametrize("text", ["Food & Drink\tBread\nBread\tRye bread\n", "Food & Drink,Bread\nBread,Rye bread\n"])
def test_delimited_edges_may_have_spaces(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text, format="edges").ids == ("Food & Drink", "Bread", "Rye bread")


def test_empty_spreadsheet_rows_are_skipped(tmp_path: Path) -> None:
    taxonomy = read(tmp_path, "sep=;\nnode;parent;title\na;;x\n;;\n   \nb;a;y\n")
    assert taxonomy.titles == ("x", "y")
    with pytest.raises(TaxonomyError, match=r"file.txt:6: the parent 'z' of 'b'"):
        read(tmp_path, "sep=;\nnode;parent;title\na;;x\n;;\n   \nb;z;y\n")


def test_a_flat_json_list_names_its_parents(tmp_path: Path) -> None:
    flat = [{"id": 1, "parent": None, "name": "all"}, {"id": 2, "parent": 1, "name": "some"}]
    taxonomy = read(tmp_path, json.dumps(flat))
    assert taxonomy.parents("2") == ("1",)
    assert dict(taxonomy.attributes) == {"title": ("all", "some")}


@pytest.mark.parametrize(
    ("parent", "hint"),
    [
        ("NULL", "leave the cell of a top node empty"),
        ("b", r"did you mean 'b '\? They differ in the spaces"),
        ("anchovy|bacon", "add a row for it, or set `parent_sep`"),
    ],
)
def test_unknown_parents_have_a_remedy(tmp_path: Path, parent: str, hint: str) -> None:
    with pytest.raises(TaxonomyError, match=f"file.txt:4: the parent .*{hint}"):
        read(tmp_path, f"node,parent\na,\nb ,a\nc,{parent}\nd,elsewhere\n")


@pytest.mark.parametrize("text", ['{"a":\u00a0{}}', '{"a":\x0c{}}', '["a"]\x1c', '{"a": ' + "1" * 5000 + "}", "[1"])
def test_invalid_json_raises(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        json.loads(text)
    with pytest.raises(FileError, match=r"file.txt:1: "):
        read(tmp_path, text, format="json")


def test_json_escapes_that_no_file_can_hold_raise(tmp_path: Path) -> None:
    for escape in ("\\ud800", "\\u0000"):
        with pytest.raises(FileError, match=r"file.txt:2: .*no text file can hold"):
            read(tmp_path, '{"a": {},\n"' + escape + '": {}}')


def test_json_nodes_may_be_repeated_by_their_id(tmp_path: Path) -> None:
    shared = {"id": "s", "title": "Shared", "children": [{"id": "t"}]}
    taxonomy = read(
        tmp_path, json.dumps([{"id": "a", "children": [shared]}, {"id": "b", "children": [shared, {"id": "t"}]}])
    )
    assert taxonomy.parents("s") == ("a", "b")
    bare = read(tmp_path, json.dumps([{"id": "a", "children": [{"id": "s"}]}, {"id": "b", "children": [shared]}]))
    assert bare.titles[bare.position("s")] == "Shared"


def test_json_objects_without_children_lists(tmp_path: Path) -> None:
    assert read(tmp_path, '[{"id": "a"}, {"id": "b", "children": null}]').ids == ("a", "b")
    assert read(tmp_path, '{"children": ["toys"], "adults": ["tools"]}').ids == (
        "children",
        "adults",
        "children > toys",
        "adults > tools",
    )
    assert dict(read(tmp_path, '[{"id": 1, "code": "x", "parent": null, "title": "T"}]').attributes) == {
        "title": ("T",),
        "code": ("x",),
    }


def test_json_line_numbers_are_those_of_the_names(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"file.txt:2: expected the children of 'b'"):
        read(tmp_path, '{"a": {},\n"b":\n\n7}')


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_in_the_table_is_a_taxonomy_format(name: str) -> None:
    assert issubclass(FORMATS[name], TaxonomyFormat)
    assert FORMATS[name]() == FORMATS[name]()  # all settings have defaults
