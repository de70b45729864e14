"""Tables in, tables out, as ``hinet predict`` answers them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hinet.cli import main
from hinet.data.tables import ColumnSelection, FailFast, TableOptions, new_table, read_blocks
from hinet.serving.settings import Settings
from hinet.serving.tables import TYPES
from tests.serving.conftest import Service, rows, serving

TEXTS = [text for text, _ in rows(60, 3)] + ["", 'ünknown, "quoted"\nlines']
PARAMETERS = {"top": 2, "titles": "true", "levels": "true", "keep": ["id"]}
OPTIONS = ["--top", "2", "--titles", "--levels", "--keep", "id", "--quiet"]


def table(format: str) -> bytes:
    """Return the texts as a table."""
    if format == "jsonl":
        lines = [json.dumps({"id": number, "title": text}) for number, text in enumerate(TEXTS)]
        return "\n".join(lines).encode()
    if format == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.table({"id": list(range(len(TEXTS))), "title": TEXTS}), buffer)
        return buffer.getvalue()
    if format == "xlsx":
        buffer = io.BytesIO()
        with new_table("table", "xlsx", {"id": "any", "title": "any"}, stream=buffer) as written:
            written.write({"id": list(range(len(TEXTS))), "title": TEXTS})
        return buffer.getvalue()
    sep = {"csv": ",", "tsv": "\t"}[format]
    cells = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    return "\n".join([f"id{sep}title", *(f"{number}{sep}{cell}" for number, cell in enumerate(cells))]).encode()


def post(service: Service, content: bytes, format: str = "csv", **parameters: Any) -> Any:
    headers = {"content-type": TYPES[format]}  # type: ignore[index]
    return service.client.post("/v1/classify/file", content=content, params=parameters, headers=headers)


@pytest.mark.parametrize("format", TYPES)
def test_a_table_is_answered_as_by_the_command_line(service: Service, shop: Path, tmp_path: Path, format: str) -> None:
    answer = post(service, table(format), format, **PARAMETERS)
    assert (answer.status_code, answer.headers["hinet-rows"]) == (200, str(len(TEXTS)))
    assert answer.headers["content-type"] == TYPES[format]  # type: ignore[index]
    (tmp_path / f"in.{format}").write_bytes(table(format))
    out = tmp_path / f"out.{format}"
    expected = predicted(shop, tmp_path / f"in.{format}", out)
    if format == "parquet":
        assert pq.read_table(io.BytesIO(answer.content)).equals(pq.read_table(io.BytesIO(expected)))
    elif format == "xlsx":  # a stream has other marks than a file around the same parts
        sheets = [zipfile.ZipFile(io.BytesIO(content)) for content in (answer.content, expected)]
        assert sheets[0].namelist() == sheets[1].namelist()
        assert all(sheets[0].read(name) == sheets[1].read(name) for name in sheets[0].namelist())
    else:
        assert answer.content == expected


def predicted(model: Path, rows: Path, out: Path) -> bytes:
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(model), str(rows), "--out", str(out), *OPTIONS])
    assert not ended.value.code
    return out.read_bytes()


def test_a_large_table_comes_in_parts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.data.tables.blocks.MAX_ROWS", 100)
    content = "title\n" + "".join(f"{text}\n" for text, _ in rows(1_000, 4))
    with service.client.stream(
        "POST", "/v1/classify/file", content=content.encode(), headers={"content-type": "text/csv"}
    ) as answer:
        parts = list(answer.iter_raw())
    lines = b"".join(parts).splitlines()
    assert (len(parts), len(lines)) == (10, 1_001)


@pytest.mark.parametrize(
    ("content", "parameters", "status", "told"),
    [
        (b"name\nrye\n", {}, 422, "title"),
        (b"title\n\xff\xfe\n", {}, 422, "line 2"),
        (b"title,id\nrye,1\nrye\n", {}, 422, "line 3"),
        (b"", {}, 422, "empty"),
        (b"title\n", {}, 422, "no rows"),
        (b"title\nrye\n", {"keep": "price"}, 422, "price"),
        (b"title,label\nrye,1\n", {"keep_all": "true"}, 422, "prefix"),
        (b"title\nrye\n", {"top": "0"}, 422, "top"),
        (b"title\nrye\n", {"tops": "1"}, 422, "tops"),
        (b"title\nrye\n", {"top": "2", "min_confidence": "0.5"}, 422, "min_confidence"),
        (b"title\nrye\n", {"model": "none"}, 404, "none"),
        (b"title\n" + b"x" * 1_001 + b"\n", {}, 413, "line 2"),
        (b"\x1f\x8b\x08title", {}, 415, "compressed"),
        (b"PAR1 no parquet", {"format": "parquet"}, 422, ""),
        (b'{"title": "rye"}\n{"title": ', {"format": "jsonl"}, 422, "line 2"),
        (b"PK\x03\x04 no sheet", {"format": "xlsx"}, 422, "cannot be read as an Excel file"),
        (b"title\nrye\n", {"format": "xlsx"}, 422, "is not an Excel file"),
    ],
)
def test_bad_tables_are_refused_before_anything_is_answered(
    service: Service, content: bytes, parameters: dict[str, str], status: int, told: str
) -> None:
    answer = post(service, content, **parameters)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert told in answer.json()["detail"]
    assert "/tmp" not in answer.text


@pytest.mark.parametrize(("format", "to"), [("csv", "xlsx"), ("xlsx", "csv"), ("jsonl", "parquet")])
def test_an_answer_can_have_another_format(service: Service, tmp_path: Path, format: str, to: str) -> None:
    answer = post(service, table(format), format, to=to, keep=["id"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, TYPES[to])  # type: ignore[index]
    assert answer.headers["content-disposition"] == f'attachment; filename="classified.{to}"'
    same = post(service, table(format), format, keep=["id"])
    assert rows_of(tmp_path / f"answer.{to}", answer.content) == rows_of(tmp_path / f"same.{format}", same.content)
    assert post(service, table(format), format, to="xls").status_code == 422


def rows_of(path: Path, content: bytes) -> list[tuple[str, str]]:
    """Return the ids and labels of an answered table, which is written to a file."""
    path.write_bytes(content)
    (block,) = read_blocks([str(path)], ColumnSelection(("id", "label")), TableOptions(), FailFast())
    return [(str(number), label or "") for number, label in zip(*block.cells.values(), strict=True)]


def test_other_contents_are_refused(service: Service) -> None:
    answer = service.client.post("/v1/classify/file", content=b"a", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


def test_nothing_is_left_on_disk(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for service in serving(Settings({"shop": shop}, max_file=2_000)):
        assert post(service, b"title\nrye\n").status_code == 200
        assert post(service, b"name\nrye\n").status_code == 422
        assert post(service, b"title\n" + b"rye\n" * 1_000).status_code == 413
    assert not list(tmp_path.iterdir())


def test_formulas_are_escaped_on_request(service: Service, shop: Path, tmp_path: Path) -> None:
    content = b"title,price\n=1+1,-3\n@rye,2\n"
    plain = post(service, content, keep_all="true").text.splitlines()
    escaped = post(service, content, keep_all="true", escape_formulas="true").text.splitlines()
    assert [line.split(",")[:2] for line in plain] == [["title", "price"], ["=1+1", "-3"], ["@rye", "2"]]
    assert [line.split(",")[:2] for line in escaped] == [["title", "price"], ["'=1+1", "-3"], ["'@rye", "2"]]
    (tmp_path / "in.csv").write_bytes(content)
    options = ["--out", str(tmp_path / "out.csv"), "--keep-all", "--escape-formulas", "--quiet"]
    with pytest.raises(SystemExit, match="0"):
        main(["predict", str(shop), str(tmp_path / "in.csv"), *options])
    assert (tmp_path / "out.csv").read_text().splitlines() == escaped
