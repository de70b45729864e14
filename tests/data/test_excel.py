"""Excel files are read as tables of rows and as hierarchies; other archives raise."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from hinet import FileError, HiNetError, Taxonomy, extras, parameters
from hinet.data.tables import (
    Columns,
    ColumnSelection,
    FailFast,
    RowQuery,
    TableOptions,
    labelled_blocks,
    read_blocks,
    writing,
)
from hinet.data.tables.writing import CellKind, new_table, output_format
from hinet.files import sheets
from hinet.files.sheets import EXCEL
from tests.cli.conftest import run_inside

openpyxl = pytest.importorskip("openpyxl")

ROWS: list[list[Any]] = [
    ["title", "price", "label", "day"],
    ["rye bread", 4.5, "bread", datetime(2026, 1, 2)],
    [],
    ["whole milk", None, 110, date(2026, 1, 3)],
    [7, 1, "car", None],
]


def write_sheet(path: Path, rows: Iterable[Sequence[Any]]) -> Path:
    """Write an Excel file; the second of its sheets is not read."""
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
    monkeypatch.setattr(parameters, "total_memory", lambda: 8_000)
    with pytest.raises(FileError, match="unpacks to more than there is memory for"):
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))
    monkeypatch.undo()
    monkeypatch.setattr(sheets, "MAX_ROWS", 3)
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


def cells_of(path: Path) -> list[tuple[Any, ...]]:
    sheet = openpyxl.load_workbook(path).worksheets[0]
    return [tuple(cell.value for cell in row) for row in sheet.iter_rows()]


KINDS: dict[str, CellKind] = {"text": "text", "labels": "labels", "share": "number", "row": "integer", "kept": "any"}
COLUMNS: dict[str, list[Any]] = {
    "text": ['rye <&> "bread"', " two  blanks \r\nline", "\x00\x1f bell", None],
    "labels": [["bread", "milk"], ["0111"], [], None],
    "share": [0.123456789, 1.0, None, float("nan")],
    "row": [1, 2, 3, 4],
    "kept": ["007", 4.5, True, 2**60],
}


def test_cells_are_written_with_their_types(tmp_path: Path) -> None:
    out = tmp_path / "out.xlsx"
    for _ in range(2):
        with new_table(str(out), "xlsx", KINDS) as table:
            table.write({name: cells[:3] for name, cells in COLUMNS.items()})
            table.write({name: cells[3:] for name, cells in COLUMNS.items()})
        content = out.read_bytes()
    assert cells_of(out) == [
        ("text", "labels", "share", "row", "kept"),
        ('rye <&> "bread"', "bread|milk", 0.123457, 1, "007"),
        (" two  blanks \r\nline", "0111", 1, 2, 4.5),
        ("\ufffd\ufffd bell", None, None, 3, True),
        (None, None, None, 4, str(2**60)),
    ]
    assert out.read_bytes() == content  # reproducible
    (block,) = read_blocks([str(out)], ColumnSelection(("text", "kept")), TableOptions(), FailFast())
    assert block.cells["kept"] == ["007", 4.5, True, str(2**60)]


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-2+3", "@SUM(A1)", '=HYPERLINK("http://a.example")', "\t=1"])
def test_formulas_are_inert(tmp_path: Path, formula: str) -> None:
    out = tmp_path / "out.xlsx"
    with new_table(str(out), "xlsx", {formula: "any", "text": "text", "labels": "labels"}) as table:
        table.write({formula: [formula], "text": [formula], "labels": [[formula]]})
    sheet = openpyxl.load_workbook(out).worksheets[0]
    cells = [cell for row in sheet.iter_rows() for cell in row if cell.value != "text" and cell.value != "labels"]
    assert [(cell.value, cell.data_type) for cell in cells] == [(formula, "s")] * 4
    with zipfile.ZipFile(out) as archive:
        assert b"<f>" not in archive.read("xl/worksheets/sheet1.xml")


@pytest.mark.parametrize(("columns", "letters"), [(1, "A"), (27, "AA"), (703, "AAA"), (16_384, "XFD")])
def test_columns_have_letters(tmp_path: Path, columns: int, letters: str) -> None:
    out = tmp_path / "out.xlsx"
    with new_table(str(out), "xlsx", {f"c{number}": "any" for number in range(columns)}):
        pass
    assert openpyxl.load_workbook(out).worksheets[0][f"{letters}1"].value == f"c{columns - 1}"


def test_what_a_sheet_cannot_hold_raises_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.xlsx"
    with new_table(str(out), "xlsx", {"text": "text"}) as table:
        table.write({"text": ["a" * 40_000]})
    assert cells_of(out)[1][0] == "a" * 32_766 + "…"
    out.unlink()
    with (
        pytest.raises(FileError, match=r"out\.xlsx: the label 'a\|b' has the separator"),
        new_table(str(out), "xlsx", {"labels": "labels"}) as table,
    ):
        table.write({"labels": [["a|b"]]})
    monkeypatch.setattr(writing, "MAX_ROWS", 2)
    with (
        pytest.raises(FileError, match=r"out\.xlsx: a sheet of Excel has at most 2 rows; write CSV"),
        new_table(str(out), "xlsx", {"text": "text"}) as table,
    ):
        table.write({"text": ["a", "b"]})
    monkeypatch.setattr(writing, "MAX_BYTES", 1_000)
    with (
        pytest.raises(FileError, match="the sheet has more than 2 GB"),
        new_table(str(out), "xlsx", {"text": "text"}) as table,
    ):
        table.write({"text": ["a" * 2_000]})
    with (
        pytest.raises(FileError, match="16,385 columns are more than the 16,384 of Excel"),
        new_table(str(out), "xlsx", {f"c{number}": "any" for number in range(16_385)}),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_the_format_follows_the_name_of_the_output() -> None:
    assert output_format("out.xlsx", None, "csv") == "xlsx"
    assert output_format("out", None, "xlsx") == "xlsx"
    assert output_format("-", None, "xlsx") == "csv"  # a terminal shows it
    assert output_format("-", "xlsx", "csv") == "xlsx"


def test_numbers_that_are_shown_with_leading_zeros_are_codes(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["title", "label"])
    shown_as = ((111, "0000"), (111, "General"), (12_345, "0000"), (1.5, "00"), ("0111", "General"), (1, "0" * 100_000))
    for number, shown in shown_as:
        book.active.append(["rye", number])
        book.active.cell(book.active.max_row, 2).number_format = shown
    book.save(tmp_path / "rows.xlsx")
    query = RowQuery(Columns(("title",)))
    (block,) = labelled_blocks([str(tmp_path / "rows.xlsx")], query, TableOptions(), FailFast())
    assert block.labels == ["0111", "111", "12345", "1.5", "0111", "1"]


def repacked(path: Path, name: str, content: bytes) -> Path:
    """Replace or add a part of an Excel file."""
    with zipfile.ZipFile(path) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, data in {**parts, name: content}.items():
            archive.writestr(part, data)
    return path


def test_files_that_unpack_to_too_much_raise_before_they_are_read(tmp_path: Path) -> None:
    query = RowQuery(Columns(("title",), label=()), labels=False)
    path = write_sheet(tmp_path / "rows.xlsx", ROWS)
    with pytest.raises(FileError, match=r"unpacks to [\d,]+ bytes, more than 1,000; save it as CSV, or in parts"):
        list(labelled_blocks([str(path)], query, TableOptions(max_unpacked=1_000), FailFast()))
    repacked(path, "xl/styles.xml", b"<styleSheet>" + b"<xf/>" * 1_000_000 + b"</styleSheet>")
    assert path.stat().st_size < 50_000
    with pytest.raises(FileError, match=r"its part 'xl/styles\.xml' unpacks to more than 1,048,576 bytes"):
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))


@pytest.mark.parametrize(
    ("part", "content", "reason"),
    [
        ("xl/worksheets/sheet1.xml", b"<worksheet><sheetData><row>" + b"<c/>" * 200_000, "has a row of more than"),
        ("xl/sharedStrings.xml", b"<x:sst xmlns:x='y'><x:si>" + b"<x:t/>" * 200_000, "has a row of more than"),
        ("xl/worksheets/sheet1.xml", b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaaaa'>]><worksheet/>", "has a DOCTYPE"),
        ("xl/charts/any", "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaaaa'>]><worksheet/>".encode("utf-16"), "has a DOCTYPE"),
    ],
)  # fmt: skip
def test_parts_that_would_grow_in_memory_raise(tmp_path: Path, part: str, content: bytes, reason: str) -> None:
    path = repacked(write_sheet(tmp_path / "rows.xlsx", ROWS), part, content)
    query = RowQuery(Columns(("title",), label=()), labels=False)
    with pytest.raises(FileError, match=f"its part '{part}' {reason}"):
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))


def test_a_workbook_among_the_parts_with_rows_may_not_be_large(tmp_path: Path) -> None:
    path = write_sheet(tmp_path / "rows.xlsx", ROWS)
    with zipfile.ZipFile(path) as archive:
        types = archive.read("[Content_Types].xml").replace(b"/xl/workbook.xml", b"/xl/worksheets/book.xml")
    repacked(path, "[Content_Types].xml", types)
    repacked(path, "xl/worksheets/book.xml", b"<workbook>" + b"<a/>" * 300_000 + b"</workbook>")
    query = RowQuery(Columns(("title",), label=()), labels=False)
    with pytest.raises(FileError, match=r"its part 'xl/worksheets/book\.xml' unpacks to more than 1,048,576 bytes"):
        list(labelled_blocks([str(path)], query, TableOptions(), FailFast()))


def test_damaged_content_types_raise(tmp_path: Path) -> None:
    path = repacked(write_sheet(tmp_path / "rows.xlsx", ROWS), "[Content_Types].xml", b"<Types><Override")
    with pytest.raises(FileError, match="cannot be read as an Excel file"):
        list(labelled_blocks([str(path)], RowQuery(Columns(("title",))), TableOptions(), FailFast()))


class Stopped(Exception):  # noqa: N818 as the service stops, not for an error of the file
    pass


@pytest.mark.parametrize("part", ["xl/sharedStrings.xml", "xl/worksheets/sheet1.xml"])
def test_reading_can_be_stopped_within_a_part(tmp_path: Path, part: str) -> None:
    content = {
        "xl/sharedStrings.xml": b"<sst>" + b"<si><t>a</t></si>" * 2_000_000 + b"</sst>",
        "xl/worksheets/sheet1.xml": b"<worksheet><sheetData>"
        + b"<row><c/></row>" * 2_000_000
        + b"</sheetData></worksheet>",
    }[part]
    path = repacked(write_sheet(tmp_path / "rows.xlsx", ROWS), part, content)
    reads: list[int] = []

    def stop() -> None:
        reads.append(1)
        if len(reads) == 30:
            raise Stopped

    query = RowQuery(Columns(("title",), label=()), labels=False)
    with pytest.raises(Stopped):
        list(labelled_blocks([str(path)], query, TableOptions(on_read=stop), FailFast()))
