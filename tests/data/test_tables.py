"""Tables are read and written in blocks, with the number of every row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import random
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import FileError, HiNetError, Taxonomy
from hinet.data.tables import (
    Columns,
    ColumnSelection,
    FailFast,
    RowQuery,
    TableOptions,
    collect_rejects,
    labelled_blocks,
    new_table,
    output_format,
    read_blocks,
    reading,
    taxonomy_check,
)
from hinet.data.tables import blocks as blocks_module
from hinet.data.tables import labelled_tables as labelled_module
from hinet.data.tables import reading as reading_module
from hinet.data.tables.blocks import Rejects, TableFile
from hinet.data.tables.cells import row_bytes, to_python
from hinet.data.tables.writing import CellKind
from hinet.files.delimited import MAX_CELL
from hinet.files.streams import peek_stream

ROWS = [{"id": str(n), "text": f"text {n}, with a comma", "label": "ab"[n % 2]} for n in range(10)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    kinds: Any = dict.fromkeys(rows[0], "text")
    with new_table(str(path), output_format(str(path), None, "csv"), kinds) as table:
        table.write({name: [row[name] for row in rows] for name in rows[0]})
    return path


def read_rows(path: Path | str, *columns: str, **options: Any) -> list[dict[str, Any]]:
    blocks = read_blocks(
        [str(path)], ColumnSelection(columns or ("id", "text", "label")), TableOptions(**options), FailFast()
    )
    return [{name: cells[row] for name, cells in block.cells.items()} for block in blocks for row in range(len(block))]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "csv.gz", "tsv.xz", "jsonl.zst"])
def test_every_format_round_trips(ending: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path / f"rows.{ending}", ROWS)
    assert read_rows(path) == ROWS
    assert [path.name for path in tmp_path.iterdir()] == [f"rows.{ending}"]


def test_compressed_files_match_those_of_other_tools(tmp_path: Path) -> None:
    plain = write_rows(tmp_path / "rows.csv", ROWS).read_bytes()
    assert gzip.decompress(write_rows(tmp_path / "rows.csv.gz", ROWS).read_bytes()) == plain
    assert lzma.decompress(write_rows(tmp_path / "rows.csv.xz", ROWS).read_bytes()) == plain
    zstd = write_rows(tmp_path / "rows.csv.zst", ROWS)
    assert pa.input_stream(zstd, compression="zstd").read() == plain
    misnamed = tmp_path / "misnamed.csv"
    misnamed.write_bytes(zstd.read_bytes())
    assert read_rows(misnamed) == ROWS


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(lambda t: t == t.strip())


@given(
    st.lists(st.fixed_dictionaries({"text": CELLS, "label": CELLS}), min_size=1, max_size=20),
    st.sampled_from(["csv", "tsv", "jsonl"]),
)
def test_any_text_round_trips(rows: list[dict[str, str]], ending: Any) -> None:
    stream = io.BytesIO()
    with new_table("x", ending, {"text": "text", "label": "text"}, stream=stream) as writer:
        writer.write({name: [row[name] for row in rows] for name in ("text", "label")})
    opened = peek_stream(io.BufferedReader(io.BytesIO(stream.getvalue())))
    wanted, options = ColumnSelection(("text", "label")), TableOptions(quotes=True)
    blocks = reading_module._text_blocks(TableFile("x", opened, ending, wanted, options, FailFast()))
    found = [dict(zip(b.cells, cells, strict=True)) for b in blocks for cells in zip(*b.cells.values(), strict=True)]
    assert found == rows


class Drips(io.RawIOBase):
    """A stream that returns a few bytes at a time, like a pipe."""

    def __init__(self, data: bytes, size: int) -> None:
        self._stream, self._size = io.BytesIO(data), size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(self._size, len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def test_quotes_of_a_tab_separated_pipe_are_detected_however_it_is_chunked() -> None:
    rows = [f'{n}\t"a ""quoted"" text\nof two lines {n}"' for n in range(2000)]
    data = ("id\ttext\n" + "\n".join(rows) + "\n").encode()
    for size in (17, 5000, 64_000):
        opened = peek_stream(io.BufferedReader(Drips(data, size), size))
        file = TableFile("x", opened, "tsv", ColumnSelection(("text",)), TableOptions(), FailFast())
        blocks = reading_module._text_blocks(file)
        texts = [text for block in blocks for text in block.cells["text"]]
        assert texts == [f'a "quoted" text\nof two lines {n}' for n in range(2000)]


def test_blocks_are_limited_by_rows_and_by_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "rows.csv", ROWS)
    monkeypatch.setattr(blocks_module, "MAX_ROWS", 4)
    blocks = list(read_blocks([str(path), str(path)], ColumnSelection(("id",)), TableOptions(), FailFast()))
    assert [len(block) for block in blocks] == [4, 4, 2, 4, 4, 2]
    assert [place for block in blocks for place in block.numbers] == [*range(2, 12), *range(2, 12)]
    monkeypatch.setattr(blocks_module, "MAX_CHARACTERS", 1)
    assert [len(b) for b in read_blocks([str(path)], ColumnSelection(("id",)), TableOptions(), FailFast())] == [1] * 10


def test_row_numbers_count_quoted_line_breaks_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('# a comment\n\nid,text\n1,"two\nlines"\n\n2,one\n')
    (block,) = read_blocks([str(path)], ColumnSelection(("id", "text")), TableOptions(), FailFast())
    assert block.numbers == [4, 7]
    assert block.cells == {"id": ["1", "2"], "text": ["two\nlines", "one"]}


def test_delimiters_quotes_and_encodings_are_detected_or_given(tmp_path: Path) -> None:
    path = tmp_path / "rows.dat"
    path.write_text("id;text\n1;a, b\n")
    assert read_rows(path, "id", "text") == [{"id": "1", "text": "a, b"}]
    path.write_text("sep=|\nid|text\n1|a, b\n")
    assert read_rows(path, "id", "text", format="csv") == [{"id": "1", "text": "a, b"}]
    path.write_text('id\ttext\n1\t6" pipe\n2\t"good" pipe\n')
    assert [row["text"] for row in read_rows(path, "id", "text")] == ['6" pipe', '"good" pipe']
    path.write_text('id\ttext\n1\t"quoted\tcell"\n')
    assert read_rows(path, "text") == [{"text": "quoted\tcell"}]
    assert read_rows(path, "text", quotes=False, delimiter=",", format="text") == [
        {"text": "id\ttext"},
        {"text": '1\t"quoted\tcell"'},
    ]
    path.write_bytes("id,text\n1,café\n".encode("latin-1"))
    assert read_rows(path, "text", encoding="latin-1") == [{"text": "café"}]
    path.write_bytes("id,text\n1,café\n".encode("utf-16"))
    assert read_rows(path, "text", encoding="utf-16", format="csv") == [{"text": "café"}]
    path.write_bytes("\ufeffid,text\n1,café\n".encode())
    assert read_rows(path, "id") == [{"id": "1"}]


def test_plain_lines_are_texts_unless_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("rye bread\n\nwhole milk\n")
    (block,) = read_blocks([str(path)], ColumnSelection(("title",), explicit=False), TableOptions(), FailFast())
    assert block.format == "text"
    assert block.cells == {"title": ["rye bread", "", "whole milk"]}
    assert block.numbers == [1, 2, 3]
    with pytest.raises(FileError, match="no column 'title' among 'rye bread'"):
        list(read_blocks([str(path)], ColumnSelection(("title",)), TableOptions(), FailFast()))
    path.write_text("Title,price\nrye bread,3\n")
    with pytest.raises(FileError, match=r"no column 'title' among 'Title', 'price'; did you mean 'Title'\?"):
        list(read_blocks([str(path)], ColumnSelection(("title",), explicit=False), TableOptions(), FailFast()))
    path.write_text("title\nrye bread\n")
    (block,) = read_blocks([str(path)], ColumnSelection(("title",), explicit=False), TableOptions(), FailFast())
    assert block.cells == {"title": ["rye bread"]}


def parquet(table: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(table), stream)
    return stream.getvalue()


def twice_parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), stream)
    return stream.getvalue()


BAD = {
    "ragged": ("rows.csv", b"text,label\na,b\nc\n", ":3: expected 2 cells separated by comma, got 1: 'c'"),
    "column": ("rows.csv", b"txt,label\na,b\n", ":1: no column 'text' among 'txt', 'label'; did you mean 'txt'?"),
    "twice": ("rows.csv", b"text,text\na,b\n", ":1: two columns are called 'text'"),
    "encoding": (
        "rows.csv",
        b"text,label\na,b\ncaf\xe9,b\n",
        ":3: byte 0xe9 is not utf-8 text; save the file as UTF-8",
    ),
    "utf-16": ("rows.csv", "text,label\na,b\n".encode("utf-16"), ":1: is UTF-16 text"),
    "binary": ("rows.csv", b"text,label\na\0,b\n", ":2: NUL byte"),
    "quote": ("rows.csv", b'text,label\na,b\n"c"d,e\n', ":3: misplaced quote"),
    "comment": (
        "rows.csv",
        b"#text,label\na,b\n",
        ":2: no column 'text' among 'a', 'b'; set `text` to another column; lines before it that start with #",
    ),
    "blank row": ("rows.csv", b"text,label\na,b\n,\nc,b\n", ":3: the text is empty"),
    "twice in Parquet": ("rows.parquet", twice_parquet(), "two columns are called 'text'"),
    "object": ("rows.jsonl", b'{"text": {"a": 1}, "label": "b"}\n', ":1: the text is a list or an object"),
    "empty step": (
        "rows.jsonl",
        b'{"text": "a", "label": ["b", ""]}\n{"text": "a", "label": []}\n',
        ":2: the row has no label",
    ),
    "open quote": ("rows.csv", b'text,label\na,b\n"c,e\nf,g\n', ':3: a cell opens with " and is never closed'),
    "long cell": (
        "rows.csv",
        b"text,label\na,b\n" + b"x" * 50_000_000 + b",b\n",
        f":3: the line is longer than {MAX_CELL:,}",
    ),
    "long quoted": (
        "rows.csv",
        b'text,label\na,b\n"' + b"x\n" * 6_000_000 + b'",b\n',
        ":3: a cell is longer than 10,000,000",
    ),
    "empty": ("rows.csv", b"", ":1: the file is empty"),
    "header alone": ("rows.csv", b"text,label\n", "the file has no rows"),
    "json": ("rows.jsonl", b'{"text": "a", "label": "b"}\n{"text": \n', ":2: not a JSON object"),
    "json list": ("rows.jsonl", b'["a"]\n', ":1: expected a JSON object, got '[\"a\"]'"),
    "json column": ("rows.jsonl", b'{"label": "b"}\n', ":1: no column 'text' among 'label'"),
    "json surrogate": ("rows.jsonl", b'{"text": "\\ud800", "label": "b"}\n', ":1: half of a surrogate pair"),
    "gzip": (
        "rows.csv.gz",
        gzip.compress(b"text,label\na,b\n" * 1000)[:40],
        "the compressed data is damaged or cut short",
    ),
    "xz": (
        "rows.csv.xz",
        lzma.compress(b"text,label\na,b\n" * 1000)[:60],
        "the compressed data is damaged or cut short",
    ),
    "zstd": ("rows.csv.zst", b"\x28\xb5\x2f\xfd not so", "the compressed data is damaged or cut short"),
    "parquet": ("rows.parquet", b"PAR1 and no more", "the Parquet file is damaged or cut short"),
    "no parquet": ("rows.parquet", b"text,label\na,b\n", "is not a Parquet file"),
    "parquet column": ("rows.parquet", parquet({"label": ["b"]}), "no column 'text' among 'label'"),
    "no rows": ("rows.parquet", parquet({"text": [], "label": []}), "the file has no rows"),
    "empty text": ("rows.csv", b"text,label\na,b\n ,b\n", ":3: the text is empty"),
    "no text": ("rows.parquet", parquet({"text": ["a", None], "label": ["b", "b"]}), "row 2: the text is empty"),
    "no label": ("rows.csv", b"text,label\na,b\nc,\n", ":3: the row has no label"),
    "unknown label": (
        "rows.csv",
        b"text,label\na,b\nc,sheeps\n",
        ":3: label 'sheeps' is not in the taxonomy of 2 nodes; did you mean 'sheep'?",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_in_bad_files_name_the_row(name: str, tmp_path: Path) -> None:
    file, content, message = BAD[name]
    path = tmp_path / file
    path.write_bytes(content)
    query = RowQuery(Columns(), check=taxonomy_check(Taxonomy.from_edges([(None, "b"), (None, "sheep")])))
    with pytest.raises(FileError) as found:
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))
    assert message in str(found.value)
    assert str(found.value).startswith(str(path))


def test_folders_missing_files_and_unknown_encodings_raise(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "none.csv", "cannot be read: No such file")):
        with pytest.raises(FileError, match=message):
            read_rows(path)
    (tmp_path / "rows.csv").write_text("id\n1\n")
    for unknown in (
        "klingon",
        "rot13",
        "base64",
        "zlib",
        "undefined",
        "IDNA",
        "unicode_escape",
        "utf\0",
        "utf-\udce9",
        "",
    ):
        with pytest.raises(HiNetError, match=r"unknown encoding .*; set `encoding`"):
            TableOptions(encoding=unknown)


def test_invalid_rows_are_rejected_and_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'text,label\na,b\nragged\ncaf\xe9,b\n"x"y,b\n,b\nlast,b\n')
    with collect_rejects(tmp_path / "rejects.csv") as rejects:
        blocks = list(labelled_blocks([str(path)], RowQuery(Columns()), TableOptions(), rejects))
    assert [text for block in blocks for text in block.texts] == ["a", "last"]
    assert rejects.count == 4
    found = read_rows(tmp_path / "rejects.csv", "file", "place", "reason", "row")
    assert sorted(row["place"] for row in found) == ["line 3", "line 4", "line 5", "line 6"]
    by_place = {row["place"]: row for row in found}
    assert by_place["line 3"]["row"] == "ragged"
    assert "expected 2 cells" in by_place["line 3"]["reason"]
    assert json.loads(by_place["line 6"]["row"]) == {"text": "", "label": "b"}


def test_a_reject_file_needs_rejects_and_no_failure(tmp_path: Path) -> None:
    with collect_rejects(tmp_path / "rejects.csv"):
        pass

    def fails() -> None:
        with ExitStack() as stack:
            Rejects(tmp_path / "rejects.csv", stack).add("f", 1, "reason", "row")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not list(tmp_path.iterdir())


def labels(columns: Columns, *rows: dict[str, Any]) -> list[Any]:
    return [columns.parse_label([row[name] for name in columns.label]) for row in rows]


def test_labels_are_parsed_as_ids_paths_columns_or_sets() -> None:
    assert labels(Columns(), {"label": "A > B"}, {"label": 7}, {"label": 7.0}, {"label": None}) == [
        "A > B",
        "7",
        "7",
        "",
    ]
    assert labels(Columns(path_sep=">"), {"label": "A > B"}, {"label": "A"}, {"label": ""}) == [("A", "B"), ("A",), ()]
    assert labels(Columns(label_sep=";"), {"label": "a; b"}, {"label": ""}) == [frozenset("ab"), frozenset()]
    assert labels(Columns(), {"label": ["a", "b"]}) == [frozenset("ab")]
    assert labels(Columns(label_sep=";", path_sep="/"), {"label": "A/B;C"}) == [frozenset({("A", "B"), ("C",)})]
    levels = Columns(label=("one", "two"))
    assert labels(levels, {"one": "A", "two": "B"}, {"one": "A", "two": ""}) == [("A", "B"), ("A",)]
    assert Columns.from_dict(json.loads(json.dumps(levels.to_dict()))) == levels


def test_paths_are_checked_against_a_taxonomy() -> None:
    check = taxonomy_check(Taxonomy.from_edges([("a", "b"), ("a", "c"), ("c", "d")]))
    assert check(("c", "d")) == ""
    assert check(frozenset({"b", "d"})) == ""
    assert "'d' is not below 'b'" in check(("b", "d"))
    assert "'e' is not in the taxonomy" in check(("c", "e"))
    assert taxonomy_check(None)("anything") == ""


def test_conditions_filter_rows_before_they_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label,split,kind\na,x,train,1\n,,test,1\nb,x,train,2\n")

    def texts(**conditions: Any) -> list[str]:
        blocks = labelled_blocks([str(path)], RowQuery(Columns(), **conditions), TableOptions(), FailFast())
        return [text for block in blocks for text in block.texts]

    assert texts(where={"split": ("train",)}) == ["a", "b"]
    assert texts(where={"split": ("train",), "kind": ("2", "3")}) == ["b"]
    assert texts(where={"kind": ("2", "1"), "split": ("train",)}) == ["a", "b"]
    assert texts(exclude={"split": ("test",)}) == ["a", "b"]
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "label": "x", "ok": true}\n{"text": "b", "label": "x", "ok": false}\n')
    assert texts(where={"ok": ("true",)}) == ["a"]


def test_several_columns_of_text_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"title": "rye", "more": "bread"}\n{"title": "milk", "more": null}\n')
    query = RowQuery(Columns(text=("title", "more")), labels=False)
    (block,) = labelled_blocks([str(path)], query, TableOptions(), FailFast())
    assert block.texts == ["rye bread", "milk"]


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl.gz"])
def test_an_incomplete_table_leaves_no_file(ending: str, tmp_path: Path) -> None:
    old = tmp_path / f"rows.{ending}"
    old.write_text("old")

    def fails() -> None:
        with new_table(str(old), output_format(str(old), None, "csv"), {"a": "text"}) as table:
            table.write({"a": ["new"]})
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_a_full_disk_raises(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="/dev/full: cannot be written: No space left on device"):
        write_rows(Path("/dev/full"), ROWS)


def test_an_unclosed_quote_raises_even_if_invalid_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\na,b\n"c,b\n' + "d,b\n" * 100)
    with (
        pytest.raises(FileError, match=r":3: a cell opens with .* \(it runs on to line 103\)"),
        collect_rejects(tmp_path / "r.csv") as rejects,
    ):
        list(labelled_blocks([str(path)], RowQuery(Columns()), TableOptions(), rejects))


def test_kept_columns_keep_their_values_and_types(tmp_path: Path) -> None:
    moment = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns"))
    table = {
        "text": ["a", "b"],
        "n": pa.array([1, None], pa.int32()),
        "x": [12345678.9, 1e-9],
        "ok": [True, None],
        "when": moment,
        "tags": [["p", "q"], None],
    }
    pq.write_table(pa.table(table), tmp_path / "in.parquet")
    (block,) = read_blocks(
        [str(tmp_path / "in.parquet")], ColumnSelection(("text",), read_all=True), TableOptions(), FailFast()
    )
    kinds: Any = dict.fromkeys(block.names, "any")
    for ending in ("parquet", "jsonl", "csv"):
        with new_table(str(tmp_path / f"out.{ending}"), ending, kinds) as writer:  # type: ignore[arg-type]
            writer.write({name: block.column(name) for name in kinds})
    assert pq.read_table(tmp_path / "out.parquet").equals(pa.table(table))
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == {
        "text": "a",
        "n": 1,
        "x": 12345678.9,
        "ok": True,
        "when": "2023-11-14 22:13:20.123456789",
        "tags": ["p", "q"],
    }
    assert second == {"text": "b", "n": None, "x": 1e-9, "ok": None, "when": None, "tags": None}
    rows = read_rows(tmp_path / "out.csv", *kinds)
    assert rows[0] == {
        "text": "a",
        "n": "1",
        "x": "12345678.9",
        "ok": "true",
        "when": "2023-11-14 22:13:20.123456789",
        "tags": '["p", "q"]',
    }
    assert rows[1] == {"text": "b", "n": "", "x": "1e-09", "ok": "", "when": "", "tags": ""}


def test_kept_columns_that_change_type_raise_with_the_file(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"

    def writes() -> None:
        with new_table(str(out), "parquet", {"a": "any"}) as table:
            table.write({"a": [1, 2]})
            table.write({"a": ["text", None]})

    with pytest.raises(FileError, match=r"out.parquet: a kept column changes its type"):
        writes()
    assert not out.exists()


def test_compressed_parquet_and_binary_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet.gz").write_bytes(gzip.compress(parquet({"text": [b"rye", "caf\u00e9".encode()]})))
    assert read_rows(tmp_path / "rows.parquet.gz", "text") == [{"text": "rye"}, {"text": "caf\u00e9"}]


def test_long_parquet_rows_are_read_in_small_blocks(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(parquet({"text": ["x" * 1_000_000] * 20}))
    blocks = list(read_blocks([str(tmp_path / "rows.parquet")], ColumnSelection(("text",)), TableOptions(), FailFast()))
    assert len(blocks) >= 5
    assert [place for block in blocks for place in block.numbers] == list(range(1, 21))


def test_json_rows_may_lack_kept_columns(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "id": 1}\n{"text": "b"}\n')
    (block,) = read_blocks(
        [str(tmp_path / "rows.jsonl")], ColumnSelection(("text",), keep=("id",)), TableOptions(), FailFast()
    )
    assert block.cells == {"text": ["a", "b"], "id": [1, None]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", "text,label\na,b\n,b\nragged\n"),
        ("rows.jsonl", '{"text": "a", "label": "b"}\n{"text": "", "label": "b"}\n{\n'),
    ],
)
def test_the_first_of_several_bad_rows_is_reported(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(FileError, match=r"rows\.\w+:[23]: the text is empty"):
        list(labelled_blocks([str(path)], RowQuery(Columns()), TableOptions(), FailFast()))


def test_a_parquet_block_may_have_no_selected_or_valid_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "MAX_ROWS", 4)
    table = {"text": ["a", "b", "c", "d", "", "", "", "", "e"], "label": ["x"] * 9, "split": ["train"] * 8 + ["test"]}
    (tmp_path / "rows.parquet").write_bytes(parquet({**table, "n": list(range(9))}))
    for where, unless in (({"split": ("test",)}, {}), ({}, {"split": ("train",)})):
        query = RowQuery(Columns(), where=where, exclude=unless, keep=("n",))
        found = list(labelled_blocks([str(tmp_path / "rows.parquet")], query, TableOptions(), FailFast()))
        assert [(block.texts, block.rows.column("n").to_pylist()) for block in found] == [
            ([], []),
            ([], []),
            (["e"], [8]),
        ]
    with collect_rejects(tmp_path / "rejects.csv") as rejects:
        query = RowQuery(Columns(), keep=("n",))
        found = list(labelled_blocks([str(tmp_path / "rows.parquet")], query, TableOptions(), rejects))
    assert [block.texts for block in found] == [["a", "b", "c", "d"], [], ["e"]]
    assert rejects.count == 4


SOME_BYTES = pa.array([b"rye", b"caf\xe9", None])
UNUSUAL: dict[str, tuple[Any, list[Any]]] = {
    "map": (pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int8())), [[["a", 1]], [], None]),
    "struct": (
        pa.array(
            [{"t": 1, "x": ["a"]}, {"t": None, "x": None}, None],
            pa.struct([("t", pa.duration("ns")), ("x", pa.list_(pa.string()))]),
        ),
        [{"t": "PT0.000000001S", "x": ["a"]}, {"t": None, "x": None}, None],
    ),
    "list": (
        pa.array([[1, None], [], None], pa.list_(pa.timestamp("ms"))),
        [["1970-01-01 00:00:00.001", None], [], None],
    ),
    "large list": (pa.array([["a"], [], None], pa.large_list(pa.string())), [["a"], [], None]),
    "fixed list": (pa.array([[1, 2], [3, None], None], pa.list_(pa.int8(), 2)), [[1, 2], [3, None], None]),
    "duration": (pa.array([90_061_500, -1500, None], pa.duration("ms")), ["PT90061.5S", "PT-1.5S", None]),
    "half": (pa.array(np.array([1.5, -2], np.float16)), [1.5, -2.0]),
    "decimal": (pa.array([Decimal("1.50"), None], pa.decimal256(50, 2)), ["1.50", None]),
    "dictionary": (pa.array(["x", None, "x"]).dictionary_encode(), ["x", None, "x"]),
    "time": (pa.array([1, None], pa.time64("ns")), ["00:00:00.000000001", None]),
    "zone": (pa.array([0, None], pa.timestamp("ms", "Mars/Base")), ["1970-01-01 00:00:00.000Z", None]),
    "bytes": (SOME_BYTES, ["rye", "caf\udce9", None]),
    "fixed bytes": (pa.array([b"ry", b"\xff\xfe"], pa.binary(2)), ["ry", "\udcff\udcfe"]),
    "large bytes": (SOME_BYTES.cast(pa.large_binary()), ["rye", "caf\udce9", None]),
    "bytes called text": (pa.Array.from_buffers(pa.string(), 3, SOME_BYTES.buffers()), ["rye", "caf\udce9", None]),
    "views": (pa.array(["rye", None, "x" * 20], pa.string_view()), ["rye", None, "x" * 20]),
    "uuid": (
        pa.array([b"0" * 16, None], pa.binary(16)).cast(pa.uuid()),
        ["30303030-3030-3030-3030-303030303030", None],
    ),
    "nothing": (pa.nulls(2), [None, None]),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_every_parquet_type_is_read_kept_and_written(name: str, tmp_path: Path) -> None:
    array, plain = UNUSUAL[name]
    table = pa.table({"text": [f"text {n}" for n in range(len(array))], "x": array})
    pq.write_table(table, tmp_path / "in.parquet")
    with collect_rejects(tmp_path / "rejects.csv") as rejects:
        query = RowQuery(Columns(), labels=False, keep=("x",), where={"text": ("text 0", "text 1")})
        (block,) = labelled_blocks([str(tmp_path / "in.parquet")], query, TableOptions(), rejects)
    assert block.texts == ["text 0", "text 1"]
    written = [
        tell.encode(errors="surrogateescape").decode(errors="backslashreplace") if isinstance(tell, str) else tell
        for tell in plain[:2]
    ]
    assert block.rows.values("x") == written
    for ending in ("parquet", "jsonl", "csv"):
        with new_table(str(tmp_path / f"out.{ending}"), ending, {"x": "any"}) as writer:  # type: ignore[arg-type]
            writer.write({"x": block.rows.column("x")})
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["x"] for line in lines] == written
    if name not in ("nothing", "zone"):
        assert (
            pq.read_table(tmp_path / "out.parquet").column("x").type
            == pq.read_table(tmp_path / "in.parquet").column("x").type
        )
    with collect_rejects(tmp_path / "rejects.csv") as rejects:
        for query in (RowQuery(Columns(("x",)), labels=False, allow_blank=True), RowQuery(Columns(label=("x",)))):
            found = [
                (b.texts, b.labels)
                for b in labelled_blocks([str(tmp_path / "in.parquet")], query, TableOptions(), rejects)
            ]
            assert len(found) == 1
    if "bytes" in name:
        reasons = {row["reason"] for row in read_rows(tmp_path / "rejects.csv", "reason")}
        assert any("is not utf-8 text; save the file as UTF-8 or set `encoding`" in r for r in reasons)
        (block,) = labelled_blocks(
            [str(tmp_path / "in.parquet")],
            RowQuery(Columns(("x",)), labels=False, allow_blank=True),
            TableOptions(encoding="latin-1"),
            FailFast(),
        )
        assert block.texts[1] in ("caf\u00e9", "\u00ff\u00fe")


@given(
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=4)), max_size=8),
    st.integers(0, 3),
)
def test_row_bytes_are_those_of_decoded_values(rows: list[Any], start: int) -> None:
    array = pa.array(rows, pa.list_(pa.string()))
    packed = pa.array(rows, pa.list_(pa.dictionary(pa.int32(), pa.string())))
    expected = [8 + sum(8 + len((text or "").encode()) for text in row or []) for row in rows][start:]
    assert row_bytes(array.slice(start)).tolist() == expected
    known = [8 + sum(8 + len(text.encode()) for text in row or [] if text is not None) for row in rows][start:]
    assert all(row_bytes(packed.slice(start)) >= known)
    assert to_python(packed.slice(start)) == rows[start:]


VIEW = pa.string_view()


@pytest.mark.parametrize(
    ("kind", "wrapped"),
    [
        (VIEW, lambda text: text),
        (pa.list_(VIEW), lambda text: [text]),
        (pa.struct([("a", VIEW)]), lambda text: {"a": text}),
        (pa.list_(VIEW, 1), lambda text: [text]),
    ],
    ids=["text", "list", "struct", "fixed list"],
)
def test_repeated_long_string_views_are_read_at_any_depth(
    kind: Any, wrapped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_BATCH_BYTES", 100_000)
    rows = [wrapped("k" * 3_000)] * 300
    pq.write_table(pa.table({"text": ["a"] * 300, "x": pa.array(rows, kind)}), tmp_path / "rows.parquet")
    blocks = read_blocks([str(tmp_path / "rows.parquet")], ColumnSelection(("text", "x")), TableOptions(), FailFast())
    assert [cell for block in blocks for cell in block.cells["x"]] == rows


@pytest.mark.parametrize("kind", ["text", "list", "nulls"])
def test_highly_compressed_parquet_is_read_in_small_blocks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_BATCH_BYTES", 1_000_000)
    monkeypatch.setattr(blocks_module, "MAX_CHARACTERS", 100_000)
    count = 2_000
    columns = {
        "text": pa.array(["x" * 20_000] * count + ["rye"] * 10),
        "list": pa.array([["x" * 1_000] * 20] * count + [["rye"]] * 10),
        "nulls": pa.array([[None] * 2_000] * count + [[1]] * 10, pa.list_(pa.int8())),
    }
    table = pa.table({"text": ["a"] * (count + 10), "x": columns[kind]})
    pq.write_table(table, tmp_path / "rows.parquet", compression="zstd")
    assert (tmp_path / "rows.parquet").stat().st_size < 20_000
    rows, before = 0, pa.total_allocated_bytes()
    for block in read_blocks(
        [str(tmp_path / "rows.parquet")], ColumnSelection(("text",), ("x",)), TableOptions(), FailFast()
    ):
        assert block.column("x").type == table.schema.field("x").type
        assert pa.total_allocated_bytes() - before < 5_000_000  # the file holds 40,000,000
        rows += len(block)
        last = block.values("x")[-1]
    assert (rows, last) == (count + 10, {"text": "rye", "list": ["rye"], "nulls": [1]}[kind])


def test_parquet_columns_may_have_spaces_and_dots(tmp_path: Path) -> None:
    pq.write_table(pa.table({" text ": ["a"], "x.y": ["b"], "x": ["c"]}), tmp_path / "rows.parquet")
    (block,) = read_blocks(
        [str(tmp_path / "rows.parquet")], ColumnSelection(("text", "x.y"), ("x",)), TableOptions(), FailFast()
    )
    assert [block.values(name) for name in ("text", "x.y", "x")] == [["a"], ["b"], ["c"]]


def test_labels_that_are_objects_raise(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": {"b": 1}}\n')
    with pytest.raises(FileError, match=r":1: the label is an object or a nested list; set `label`"):
        list(labelled_blocks([str(tmp_path / "rows.jsonl")], RowQuery(Columns()), TableOptions(), FailFast()))
    assert labels(Columns(), {"label": [["a"]]}, {"label": [{"a": 1}]}) == [None, None]
    assert labels(Columns(label=("a", "b")), {"a": "x", "b": ["y"]}) == [None]


ODD = [b"\0", b"\xff", b'"', b"\n", b"\r", b",", b"{", b"}", b"\\", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"PAR1", b"#",
       b"sep=;\n", b"NaN", b"\\ud800", b"9" * 5000, b"[" * 2000]  # fmt: skip


def broken(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with a few of them changed, left out, doubled or cut off, or odd ones put in."""
    found = bytearray(data)
    for _ in range(chance.choice([1, 2, 5])):
        place = chance.randrange(len(found) + 1)
        change = chance.randrange(5)
        if change == 0:
            found[place:place] = chance.choice(ODD)
        elif change == 1:
            del found[place : place + chance.choice([1, 50])]
        elif change == 2:
            found[place:place] = found[place : place + chance.choice([5, 100])]
        elif change == 3 and chance.random() < 0.2:
            del found[place:]
        elif place < len(found):
            found[place] = chance.randrange(256)
    return bytes(found)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "csv.gz", "jsonl.zst"])
def test_damaged_files_are_read_or_raise(ending: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    plain = [{"text": f'a "text", {n}', "label": "ab"[n % 2], "n": str(n)} for n in range(40)]
    whole = write_rows(tmp_path / f"rows.{ending}", plain).read_bytes()
    query = RowQuery(Columns(), keep_all=True, where={"n": tuple(map(str, range(30)))})
    read = told = 0
    for _ in range(60):
        (tmp_path / f"rows.{ending}").write_bytes(broken(whole, chance))
        options = TableOptions(encoding=chance.choice(["utf-8", "utf-8", "latin-1", "utf-16", "shift_jis"]))
        try:
            with collect_rejects(tmp_path / "rejects.csv") as rejects:
                blocks = list(labelled_blocks([str(tmp_path / f"rows.{ending}")], query, options, rejects))
                kinds: Any = dict.fromkeys(blocks[0].rows.names if blocks else ["x"], "any")
                with new_table(str(tmp_path / "out.csv"), "csv", kinds) as table:
                    for block in blocks:
                        table.write({name: block.rows.column(name) for name in kinds})
            read += 1
        except HiNetError:
            told += 1
    assert told > 5
    assert read + told == 60


FORMULAS = ("=1+1", "@SUM(A1)", "+cmd('calc')!A0", "-2+3", "\t=1", "\r=1", "\n=1", "\uff1d1", "=", "-", "+a")
PLAIN = ("", "rye", "-1", "-1.5", "+3", "-.5e-3", "-1,5", "-20%", "1=1", "a@b", " =1", "'=1")


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_formulas_are_escaped_on_request_and_numbers_are_not(ending: Any, delimiter: str) -> None:
    kinds: dict[str, CellKind] = {
        "=name": "any",
        "text": "text",
        "steps": "texts",
        "labels": "labels",
        "number": "number",
    }
    cells = [*FORMULAS, *PLAIN]
    columns = {
        "=name": [*cells[:-1], -7],
        "text": cells,
        "steps": [[cell, "x"] for cell in cells],
        "labels": [[cell, "x"] for cell in cells],
        "number": [-0.5] * len(cells),
    }
    written = {}
    for escaped in (False, True):
        stream = io.BytesIO()
        with new_table("x", ending, kinds, escape_formulas=escaped, stream=stream) as writer:
            writer.write(columns)
        text = io.StringIO(stream.getvalue().decode(), newline="")
        written[escaped] = list(csv.reader(text, delimiter=delimiter))
    assert written[False][0][0] == "=name"
    assert written[True][0] == ["'=name", "text", "steps", "labels", "number"]
    rows = zip(cells, written[False][1:], written[True][1:], strict=True)
    for cell, plain, escaped_row in rows:
        mark = "'" if cell in FORMULAS else ""
        assert escaped_row[1] == mark + plain[1] == mark + cell
        joined = "'" if cell.startswith(("=", "@", "+", "-", "\t", "\r", "\n", "\uff1d")) else ""
        assert escaped_row[2:4] == [joined + each for each in plain[2:4]]
        assert escaped_row[4] == "-0.5"
    assert written[True][-1][0] == "-7"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_formulas_are_not_escaped_in_jsonl_and_parquet(ending: Any) -> None:
    written = []
    for escaped in (False, True):
        stream = io.BytesIO()
        with new_table("x", ending, {"text": "text"}, escape_formulas=escaped, stream=stream) as writer:
            writer.write({"text": [*FORMULAS]})
        written.append(stream.getvalue())
    assert written[0] == written[1]


class CountedName(str):
    """A name that counts how often it is compared with another."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_finding_columns_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedName, "comparisons", 0)
    number = 1_000
    names = [CountedName(f"c{column}") for column in range(number)]
    selection = ColumnSelection(tuple(f"c{column}" for column in range(number)))
    assert selection.missing_column(names) == ""
    assert reading_module._cells_by_index(selection, names)([[*range(number)]]) == {f"c{n}": [n] for n in range(number)}
    assert CountedName.comparisons <= 10 * number


def test_a_text_that_is_too_long_is_a_row_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled_module, "MAX_TEXT_BYTES", 20)
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\nshort,a\n{'ä' * 11},b\n")
    with pytest.raises(
        FileError, match=r"rows\.csv:3: the text has 22 bytes, more than .*; split it into several rows"
    ):
        list(labelled_blocks([str(path)], RowQuery(Columns()), TableOptions(), FailFast()))
