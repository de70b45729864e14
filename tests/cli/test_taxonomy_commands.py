"""The real executable on real files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import PIPE
from typing import get_args

import pytest

from hinet.choices import TaxonomyFormatName
from hinet.taxonomy import FORMATS
from tests.cli.conftest import HINET
from tests.cli.conftest import run_hinet as hinet
from tests.processes import run

GOOD = "node,parent,title\nr,,Everything\na,r,Animals\nb,a,Sheep\nc,a,Cows\nd,r,Plants\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.csv").write_text(GOOD)
    return tmp_path


def test_check_prints_the_summary_and_exits_0(folder: Path) -> None:
    done = hinet("taxonomy", "check", "good.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "good.csv: tree of 5 nodes in 2 levels" in done.stdout
    assert "no errors, 0 warnings" in done.stdout


def test_check_lists_errors_and_exits_2(folder: Path) -> None:
    (folder / "bad.csv").write_text(GOOD + "e,f,\nf,e,\ng,plants,\n")
    done = hinet("taxonomy", "check", "bad.csv", cwd=folder)
    assert done.returncode == 2
    assert "bad.csv:7: cycle of 2: e > f > e (lines 7, 8)" in done.stdout
    assert "bad.csv:9: the parent 'plants' of 'g' is not among the nodes" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_check_prints_json(folder: Path) -> None:
    (folder / "rows.tsv").write_text("text\tlabel\nwool\tb\nmilk\tcows\n")
    done = hinet("taxonomy", "check", "good.csv", "--rows", "rows.tsv", "--json", cwd=folder)
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert report["summary"]["nodes_by_depth"] == {"0": 1, "1": 2, "2": 2}
    assert [(error["path"], error["line"], error["code"]) for error in report["errors"]] == [
        ("rows.tsv", 3, "unknown-label")
    ]
    assert [warning["nodes"] for warning in report["warnings"]] == [["c"], ["d"]]


def test_rows_with_several_labels_and_another_column(folder: Path) -> None:
    (folder / "rows.csv").write_text("text,codes\nwool,b|c\nleaf,d\n")
    done = hinet(
        "taxonomy", "check", "good.csv", "--rows", "rows.csv", "--label", "codes", "--label-sep", "|", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "3 distinct among 3 given" in done.stdout
    missing = hinet("taxonomy", "check", "good.csv", "--rows", "rows.csv", cwd=folder)
    assert missing.returncode == 2
    message = "error: rows.csv:1: no column 'label' among 'text', 'codes'; set --label to another column"
    assert missing.stderr.startswith(message)


def test_warnings_are_truncated_unless_all_are_requested(folder: Path) -> None:
    (folder / "chains.csv").write_text("node,parent\nr,\n" + "".join(f"a{n},r\nb{n},a{n}\n" for n in range(9)))
    assert "… 4 more (--all lists them)" in hinet("taxonomy", "check", "chains.csv", cwd=folder).stdout
    assert hinet("taxonomy", "check", "chains.csv", "--all", cwd=folder).stdout.count("a level without a choice") == 9


def test_show_draws_the_tree(folder: Path) -> None:
    done = hinet("taxonomy", "show", "good.csv", cwd=folder)
    assert done.stdout.splitlines() == [
        "r  Everything",
        "├── a  Animals",
        "│   ├── b  Sheep",
        "│   └── c  Cows",
        "└── d  Plants",
    ]
    assert "├── a  Animals  [2 below]" in hinet("taxonomy", "show", "good.csv", "--depth", 1, cwd=folder).stdout
    assert hinet("taxonomy", "show", "good.csv", "a", "--most", 1, cwd=folder).stdout.splitlines() == [
        "in r",
        "a  Animals",
        "├── b  Sheep",
        "└── … 1 more",
    ]
    unknown = hinet("taxonomy", "show", "good.csv", "Animals", cwd=folder)
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("error: 'Animals' is not in the taxonomy of 5 nodes")


def test_show_handles_deep_trees_and_closed_pipes(folder: Path) -> None:
    (folder / "chain.txt").write_text("".join(f"n{n} n{n + 1}\n" for n in range(5000)))
    done = hinet("taxonomy", "show", "chain.txt", "--depth", 5000, cwd=folder)
    assert done.stdout.count("\n") == 5001
    piped = run(["bash", "-c", f"'{HINET}' taxonomy show chain.txt --depth 5000 | head -1"], cwd=folder)
    assert piped.stdout == "n0\n"
    assert piped.stderr == ""


def test_convert_writes_a_table_that_reads_back(folder: Path) -> None:
    (folder / "paths.txt").write_text("Food > Bread\nFood > Milk\n")
    assert hinet("taxonomy", "convert", "paths.txt", "out.tsv", cwd=folder).returncode == 0
    assert (folder / "out.tsv").read_text() == (
        "node\tparent\ttitle\nFood\t\tFood\nFood > Bread\tFood\tBread\nFood > Milk\tFood\tMilk\n"
    )
    assert hinet("taxonomy", "check", "out.tsv", cwd=folder).returncode == 0


def test_convert_reports_a_file_that_cannot_be_written(folder: Path) -> None:
    done = hinet("taxonomy", "convert", "good.csv", "nowhere/out.tsv", cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere/out.tsv: cannot be written: No such file or directory\n"
    assert sorted(path.name for path in folder.iterdir()) == ["good.csv"]


BAD_FILES = {
    "empty": (b"", ":1: the file is empty"),
    "blank": (b" \n\n", ":1: the file is empty"),
    "binary": (b"node,parent\n\x89PNG\r\n\x1a\n\x00\x00", ":4: NUL byte"),
    "columns": (b"name,above\na,b\n", ":1: no column is called 'parent'"),
    "mixed": (
        b"node,parent,title\na,,x\nb;a;y\n",
        ":3: expected 3 cells separated by comma, got 1: 'b;a;y'; the line seems to use semicolon",
    ),
    "ragged": (b"node,parent\na,\nb,a,c\n", ":3: expected 2 cells separated by comma, got 3"),
    "header alone": (b"node,parent\n", ":1: the table has a header and no rows"),
    "BOM and nothing": (b"\xef\xbb\xbf", ":1: the file is empty"),
    "CR only": (b"node,parent\ra,\rb\xff,a\r", ":3: byte 0xff is not utf-8 text"),
    "arrows in a table": (b"id;above;title\n1;;x\n2;1;a > b\n", ":1: no column is called 'parent'"),
    "odd line of edges": (b"a b\n" * 20 + b"a b c\n", ":21: expected 'parent child', got 3 words"),
    "one word": (b"taxonomy\n", ":1: the format of the hierarchy is not recognised"),
    "all ids empty": (b"node,parent,title\n,,x\n", ":2: the node id is empty"),
    "CRLF": (b"node,parent\r\na,\r\nb,x\r\n", ":3: the parent 'x' of 'b'"),
    "NUL": (b"node,parent\na,\nb\x00,a\n", ":3: NUL byte"),
    "long line": (b"node,parent\na,\n" + b"x" * 10_000_000 + b",a\n", ":3: the line has 10,000,003 characters"),
    "long cell": (b"node,parent\na,\n" + b"x" * 200_000 + b",a\n", ":3: a cell is longer than"),
    "latin-1": ("node,parent\na,\nb\u00e9,a\n".encode("latin-1"), ":3: byte 0xe9 is not utf-8 text"),
    "UTF-16": ("node,parent\na,\n".encode("utf-16"), ":1: is UTF-16 text"),
    "open quote": (b'node,parent\na,\n"b,a\nc,a\n', ':3: a cell opens with " and is never closed'),
    "misplaced quote": (b'node,parent\na,\n"b"c,a\n', ":3: misplaced quote"),
    "two columns alike": (b"node,parent,parent\na,,\n", ":1: two columns are called 'parent'"),
    "prose": (b"once upon a time\nthere was a taxonomy\n", ":1: the format of the hierarchy is not recognised"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_give_one_clear_error(folder: Path, case: str) -> None:
    content, message = BAD_FILES[case]
    (folder / "bad.csv").write_bytes(content)
    done = hinet("taxonomy", "check", "bad.csv", cwd=folder)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert "bad.csv" + message in said
    assert "Traceback" not in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "error: missing.csv: cannot be read: No such file or directory"),
        (["."], "error: .: is a folder; name a file in it"),
        (["good.csv", "--root", "z"], "error: good.csv: the root 'z' is not among the nodes"),
        (["good.csv", "--encoding", "klingon"], "error: unknown encoding 'klingon'"),
        (["good.csv", "--encoding", "rot13"], "error: unknown encoding 'rot13'"),
        (["good.csv", "--format", "json"], "error: good.csv:1: not valid JSON"),
        (["good.csv", "--format", "sql"], "Invalid value for '--format'"),
        (["good.csv", "--sep", ">", "--format", "edges"], "--sep requires --format labels"),
        (["good.csv", "--parent-sep", "|", "--format", "edges"], "require --format table"),
        (["good.csv", "--parent-sep", ""], "must not be empty"),
        (["good.csv", "--rows", "good.csv", "--label", "node", "--label-sep", ""], "--label-sep is empty"),
        (["good.csv", "--delimiter", "ab"], "error: good.csv: a delimiter is one character, got 'ab'"),
        ([], "Missing argument"),
    ],
)
def test_bad_arguments_give_one_clear_error(folder: Path, arguments: list[str], message: str) -> None:
    done = hinet("taxonomy", "check", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_reported(folder: Path) -> None:
    (folder / "good.csv").chmod(0)
    done = hinet("taxonomy", "check", "good.csv", cwd=folder)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr


def test_other_encodings_are_read_when_named(folder: Path) -> None:
    (folder / "latin.csv").write_bytes("node,parent\na,\nb\u00e9,a\n".encode("latin-1"))
    assert "b\u00e9" in hinet("taxonomy", "show", "latin.csv", "--encoding", "latin-1", cwd=folder).stdout
    (folder / "wide.csv").write_bytes("node,parent\na,\nb\u00e9,a\n".encode("utf-16"))
    assert "b\u00e9" in hinet("taxonomy", "show", "wide.csv", "--encoding", "utf-16", cwd=folder).stdout


def test_the_formats_on_the_command_line_are_those_of_the_library() -> None:
    assert get_args(TaxonomyFormatName) == (*FORMATS,)


def test_output_that_cannot_be_written_is_reported(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run([HINET, "taxonomy", "check", "good.csv"], cwd=folder, stdout=full, stderr=PIPE)
    assert done.returncode == 2
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_characters_that_the_terminal_lacks_are_replaced(folder: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run([HINET, "taxonomy", "check", "good.csv"], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert "tree of 5 nodes" in done.stdout


def test_standard_input_and_output(folder: Path) -> None:
    done = run([HINET, "taxonomy", "convert", "-", "-"], input="a b\n", cwd=folder)
    assert done.stdout == "node\tparent\na\t\nb\ta\n"
    assert done.returncode == 0


def test_json_is_json_even_for_unreadable_files(folder: Path) -> None:
    (folder / "bad.csv").write_text("node,parent\na\n")
    done = hinet("taxonomy", "check", "bad.csv", "--json", cwd=folder)
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert (report["ok"], report["errors"][0]["line"], report["summary"]) == (False, 2, None)


def test_lines_without_the_separator_are_reported(folder: Path) -> None:
    (folder / "labels.txt").write_text("Food > Bread\nFood > Milk\n")
    done = hinet("taxonomy", "check", "labels.txt", "--sep", "/", cwd=folder)
    assert "none of the 2 nodes has a parent; are --format and the separator right?" in done.stdout


def test_reading_options_reach_every_command(folder: Path) -> None:
    (folder / "odd.csv").write_text("above;below\n;r\nr;a\nr+a;b\n;lone\n")
    options = ["--node-col", "below", "--parent-col", "above", "--parent-sep", "+", "--root", "r"]
    assert "DAG of 4 nodes in 2 levels" in hinet("taxonomy", "check", "odd.csv", *options, cwd=folder).stdout
    assert hinet("taxonomy", "show", "odd.csv", *options, cwd=folder).stdout.startswith("r\n├── a\n│   └── b\n└── b\n")
    assert hinet("taxonomy", "convert", "odd.csv", "-", *options, cwd=folder).stdout.endswith("b\tr\nb\ta\nlone\t\n")


def test_labels_that_are_not_reachable_from_the_root_are_errors(folder: Path) -> None:
    (folder / "lone.csv").write_text("node,parent\nr,\na,r\nlost,\n")
    (folder / "rows.csv").write_text("label\na\nlost\n")
    done = hinet("taxonomy", "check", "lone.csv", "--root", "r", "--rows", "rows.csv", cwd=folder)
    assert done.returncode == 2
    assert "rows.csv:3: label 'lost' is not reachable from the root" in done.stdout


def test_comments_before_a_table_are_skipped(folder: Path) -> None:
    (folder / "c.csv").write_text("# made by hand\n\nnode,parent\na,\nb,z\n")
    assert "c.csv:5: the parent 'z'" in hinet("taxonomy", "check", "c.csv", cwd=folder).stdout
