"""Excel files are read as tables of rows and as hierarchies; other archives raise."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from hinet import FileError, HiNetError, Taxonomy, extras, memory
from hinet.data.tables import Columns, ColumnSelection, FailFast, RowQuery, TableOptions, labelled_blocks, read_blocks
from hinet.data.tables.writing import output_format
from hinet.files import delimited
from hinet.files.delimited import EXCEL
from tests.cli.conftest import run_inside

ROWS: list[list[Any]] = [
    ["title", "price", "label", "day"],
    ["rye bread", 4.5, "bread", datetime(2026, 1, 2)],
    [],
    ["whole milk", None, 110, date(2026, 1, 3)],
    [7, 1, "car", None],
]


def write_sheet(path: Path, rows: Iterable[Sequence[Any]]) -> Path:
    """Write an Excel file; the second of its sheets is not read."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("other").append(["not", "read"])
    book.save(path)
    return path


def test_rows_are_read_from_the_first_sheet(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "rows.xlsx", ROWS)
    selection = ColumnSelection(("title", "label"), read_all=True)
    (block,) = read_blocks([str(path)], selection, TableOptions(), FailFast())
    assert block.cells["title"] == ["rye bread", "whole milk", 7]
    assert block.cells["day"] == ["2026-01-02", "2026-01-03", None]
    assert (block.numbers, block.unit) == ([2, 4, 5], "row")
    path.rename(tmp_path / "rows")  # recognised by its first bytes
    (labelled,) = labelled_blocks(
        [str(tmp_path / "rows")], RowQuery(Columns(("title",), number=("price",))), TableOptions(), FailFast()
    )
    assert labelled.labels == ["bread", "110", "car"]
    assert labelled.texts == ["rye bread", "whole milk", "7"]
    assert labelled.table is not None
    assert labelled.table.column("price").to_pylist() == [4.5, None, 1.0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, ["toy", 1, None, None]], r"rows\.xlsx: row 6: the row has no label"),
        (
            [*ROWS, ["toy", 1, "car", None, "more"]],
            r"rows\.xlsx: row 6: expected 4 cells, got 5, the last 'more'; name",
        ),
        ([["name", "label"], ["toy", "car"]], r"rows\.xlsx:1: no column 'title' among 'name', 'label'"),
        ([["a", "a"]], r"rows\.xlsx:1: two columns are called 'a'"),
        ([], r"rows\.xlsx: the first sheet is empty"),
    ],
)
def test_errors_name_the_row_of_the_sheet(tmp_path: Path, rows: list[list[Any]], message: str) -> None:
    path = write_sheet(tmp_path / "rows.xlsx", rows)
    with pytest.raises(FileError, match=message):
        list(labelled_blocks([str(path)], RowQuery(Columns(("title",))), TableOptions(), FailFast()))


def test_a_hierarchy_has_the_rows_of_the_sheet_as_lines(tmp_path: Path) -> None:
    rows = [["code", "parent", "title"], [1, None, "Food"], [], [11, 1, "Bread"]]
    taxonomy = Taxonomy.from_file(write_sheet(tmp_path / "codes.xlsx", rows))
    assert taxonomy.titles == ("Food", "Bread")
    assert taxonomy.parents("11") == ("1",)
    with pytest.raises(HiNetError, match=r"codes\.xlsx:5: .*'9'"):
        Taxonomy.from_file(write_sheet(tmp_path / "codes.xlsx", [*rows, [12, 9, "Milk"]]))
    with pytest.raises(FileError, match="is an Excel file, which holds a table; leave `format` out"):
        Taxonomy.from_file(tmp_path / "codes.xlsx", format="edges")
    with pytest.raises(FileError, match=r"codes\.xlsx:2: expected 1 cells, got 2"):
        Taxonomy.from_file(write_sheet(tmp_path / "codes.xlsx", [["parent"], ["a", "b"]]))


def test_other_archives_and_zip_bombs_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openpyxl")
    query = RowQuery(Columns(("title",)))
    path = tmp_path / "rows.xlsx"
    for content, message in (
        (EXCEL + b"no archive", "cannot be read as an Excel file"),
        (b"title,label\n", r"is not an Excel file \(\.xlsx\)"),
    ):
        path.write_bytes(content)
        with pytest.raises(FileError, match=message):
            list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no sheet")
    with pytest.raises(FileError, match="cannot be read as an Excel file"):
        Taxonomy.from_file(path)
    write_sheet(path, ROWS)
    monkeypatch.setattr(memory, "total_memory", lambda: 8_000)
    with pytest.raises(FileError, match="unpacks to more than there is memory for"):
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))
    monkeypatch.undo()
    monkeypatch.setattr(delimited, "MAX_ROWS", 3)
    with pytest.raises(FileError, match="the sheet has more than 3 rows"):
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0")
    for read in (
        Taxonomy.from_file,
        lambda path: list(read_blocks([path], ColumnSelection(("a",)), TableOptions("csv"), FailFast())),
    ):
        with pytest.raises(FileError, match=r"is an old Excel file \(\.xls\); save it as \.xlsx or as CSV"):
            read(str(path))


def test_the_package_to_install_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.xlsx"
    path.write_bytes(EXCEL)
    monkeypatch.setattr(extras, "find_spec", lambda package: None)
    for command in (["train", path, "--text", "title", "--out", tmp_path / "model"], ["taxonomy", "check", path]):
        assert run_inside(*command) == 2
        error = "error: an Excel file needs openpyxl; install it with: pip install 'hinet[excel]'\n"
        assert capsys.readouterr().err == error


def test_excel_is_not_written() -> None:
    with pytest.raises(FileError, match=r"Excel is not written; use \.csv"):
        output_format("out.xlsx", None, "csv")
    assert output_format("-", None, "xlsx") == "csv"
