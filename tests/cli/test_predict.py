"""``hinet predict`` and ``hinet evaluate``: every format in and out, in order, and nothing half-written."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import os
import resource
import shutil
import signal
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from hinet import HiNetClassifier, Taxonomy, load
from hinet.classifier import prediction_table
from hinet.classifier.prediction_table import PredictionOutput
from hinet.data.tables import LabelledBlock
from hinet.metrics import hierarchical_f1
from tests.cli.conftest import HINET, products, run_hinet, run_inside, write_products
from tests.processes import run


def rows_of(text: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def expected(shop: Path, count: int, seed: int) -> list[str]:
    return load(shop / "model").predict([title for _, title, _ in products(count, seed)]).tolist()


def test_predictions_are_those_of_python_with_trace_and_probability(shop: Path) -> None:
    done = run_hinet("predict", "model", "new_products.csv", cwd=shop)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert list(rows[0]) == ["label", "trace", "probability"]
    traces = load(shop / "model").predict_traces([title for _, title, _ in products(20, 2)])
    for row, (best,) in zip(rows, traces, strict=True):
        assert row["label"] == best.label
        assert row["trace"] == " > ".join(best.steps)
        assert float(row["probability"]) == pytest.approx(best.probability, abs=1e-5)
    assert "20 rows in" in done.stderr
    assert run_hinet("predict", "model", "new_products.csv", "--quiet", cwd=shop).stderr == ""


def test_predictions_stay_within_branches(shop: Path) -> None:
    model, titles = load(shop / "model"), [title for _, title, _ in products(20, 2)]
    top = model.taxonomy_.ids[model.taxonomy_.tops[0]]
    done = run_hinet("predict", "model", "new_products.csv", "--within", top, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert [row["label"] for row in rows_of(done.stdout)] == model.predict(titles, within=top).tolist()
    refused = run_hinet("predict", "model", "new_products.csv", "--within", top, "--exclude", top, cwd=shop)
    assert refused.returncode == 2
    assert "no label is left by --within and --exclude" in refused.stderr


def test_several_traces_levels_titles_and_kept_columns(shop: Path) -> None:
    asked = ["--top", 2, "--levels", "--titles", "--keep", "id"]
    done = run_hinet("predict", "model", "new_products.csv", *asked, cwd=shop)
    rows = rows_of(done.stdout)
    assert [row["id"] for row in rows] == [str(n) for n in range(20)]
    for row in rows:
        assert float(row["probability"]) >= float(row["probability_2"])
        assert row["label"] != row["label_2"]
        assert row["title"] == f"The {row['label']} itself"
        assert [row["level_1"], row["level_2"]] == row["trace"].split(" > ")
        assert 2 / 3 <= float(row["known_words"]) + 1e-5 <= 1 + 1e-5  # some words such as item7 are unknown
        assert float(row["level_1_probability"]) >= float(row["level_2_probability"]) - 1e-5
    clash = run_hinet("predict", "model", "test.csv", "--keep", "category", "--prefix", "cate", "--keep-all", cwd=shop)
    assert clash.returncode == 0, clash.stderr
    (shop / "clash.csv").write_text("title,label\nrye,x\n")
    clash = run_hinet("predict", "model", "clash.csv", "--keep-all", cwd=shop)
    assert clash.returncode == 2
    assert "a kept column has the name of the new column 'label'; set --prefix" in clash.stderr


def test_the_best_labels_of_a_dag_are_different_and_those_of_python(tmp_path: Path) -> None:
    edges = [(None, "food"), (None, "gift"), ("food", "rye"), ("gift", "rye"), ("food", "milk"), ("gift", "tv")]
    texts, labels = ["dark bread", "white cow", "screen inches", "dark crust"], ["rye", "milk", "tv", "rye"]
    classifier = HiNetClassifier(Taxonomy.from_edges(edges), width=8, members=1, epochs=5).fit(texts * 5, labels * 5)
    classifier.save(tmp_path / "model")
    asked = ["predict", "model", "--decoding", "label", "--top", 3]
    done = run_hinet(*asked, cwd=tmp_path, stdin="\n".join(texts) + "\n")
    assert done.returncode == 0, done.stderr
    for row, best in zip(rows_of(done.stdout, "\t"), classifier.predict_labels(texts, 3), strict=True):
        assert {row["label"], row["label_2"], row["label_3"]} == {*labels}
        for mark, label in zip(("", "_2", "_3"), best, strict=True):
            assert (row[f"label{mark}"], row[f"trace{mark}"]) == (label.label, " > ".join(label.trace.steps))
            assert float(row[f"probability{mark}"]) == pytest.approx(label.probability, abs=1e-4)
    done = run_hinet(*asked, "--min-confidence", 0.5, cwd=tmp_path, stdin="dark\n")
    assert done.returncode == 2
    assert "leave" in done.stderr


def as_format(shop: Path, name: str) -> Path:
    """Write the new products in a format."""
    table = pa_csv.read_csv(shop / "new_products.csv")
    path = shop / name
    text = (shop / "new_products.csv").read_bytes()
    if name.startswith("rows.tsv"):
        text = text.replace(b",", b"\t")
    if name.startswith("rows.jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    if name.endswith(".parquet"):
        pq.write_table(table, path)
        return path
    packed = {"gz": gzip.compress, "xz": lzma.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
    path.write_bytes(packed.get(name.rpartition(".")[2], bytes)(text))
    return path


FORMATS = ["rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet", "rows.csv.gz", "rows.tsv.xz", "rows.jsonl.gz"]


def read_out(data: bytes, name: str) -> list[dict[str, Any]]:
    if name.endswith(".parquet"):
        return pq.read_table(io.BytesIO(data)).to_pylist()
    if "jsonl" in name:
        return [json.loads(line) for line in data.decode().splitlines()]
    return rows_of(data.decode(), "\t" if "tsv" in name else ",")


@pytest.mark.parametrize("name", FORMATS)
def test_rows_come_and_go_in_their_format_through_files_and_pipes(name: str, shop: Path) -> None:
    path = as_format(shop, name)
    wanted = expected(shop, 20, 2)
    out = f"out.{name.removeprefix('rows.').removesuffix('.gz').removesuffix('.xz')}"
    done = run_hinet("predict", "model", path.name, "--out", out, cwd=shop)
    assert done.returncode == 0, done.stderr
    assert [row["label"] for row in read_out((shop / out).read_bytes(), out)] == wanted
    piped = run([HINET, "predict", "model", "-q"], cwd=shop, input=path.read_bytes(), text=False)
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == (shop / out).read_bytes()


def test_plain_lines_are_texts(shop: Path) -> None:
    done = run_hinet("predict", "model", "-q", cwd=shop, stdin="dark bread\nwhite litre\n")
    assert [row["label"] for row in rows_of(done.stdout, "\t")] == ["rye", "milk"]
    done = run_hinet("predict", "model", "--text", "name", cwd=shop, stdin="dark bread\n")
    assert done.returncode == 2
    assert "error: -:1: no column 'name' among 'dark bread'" in done.stderr


def test_many_rows_keep_their_order_over_blocks_and_files(shop: Path) -> None:
    write_products(shop / "a.csv", 9_000, seed=3)
    write_products(shop / "b.csv", 500, seed=4)
    done = run_hinet("predict", "model", "a.csv", "b.csv", "--keep", "id", "--out", "out.jsonl", cwd=shop)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (shop / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [str(n) for n in [*range(9_000), *range(500)]]
    assert [row["label"] for row in rows] == expected(shop, 9_000, 3) + expected(shop, 500, 4)


def test_files_with_other_columns_are_refused_where_all_are_kept(shop: Path) -> None:
    (shop / "a.csv").write_text("id,title\n1,dark bread\n")
    (shop / "b.csv").write_text("title,id\nwhite litre,2\n")
    (shop / "c.csv").write_text("title,id,more\nwhite litre,2,x\n")
    both = run_hinet("predict", "model", "a.csv", "b.csv", "--keep-all", cwd=shop)
    assert [(row["id"], row["title"]) for row in rows_of(both.stdout)] == [("1", "dark bread"), ("2", "white litre")]
    other = run_hinet("predict", "model", "a.csv", "c.csv", "--keep-all", "--out", "out.csv", cwd=shop)
    assert other.returncode == 2
    assert "c.csv: the files differ in the column 'more'" in other.stderr
    assert not (shop / "out.csv").exists()
    none = run_hinet("predict", "model", "a.csv", "--where", "id=7", "--out", "out.csv", cwd=shop)
    assert none.returncode == 2
    assert "there are no rows to predict" in none.stderr
    assert not (shop / "out.csv").exists()


def test_inputs_are_not_overwritten_and_wrong_extensions_are_reported(shop: Path) -> None:
    before = (shop / "test.csv").read_bytes()
    for arguments, message in (
        (["test.csv", "--out", "./test.csv"], "--out is an input file, which would be overwritten"),
        (["test.csv", "--out", "out.arff"], "out.arff: ARFF is not written"),
        (["dark bread"], "no such file; pass a text through standard input"),
    ):
        done = run_hinet("predict", "model", *arguments, cwd=shop)
        assert done.returncode == 2
        assert message in done.stderr
    assert (shop / "test.csv").read_bytes() == before
    assert not (shop / "out.arff").exists()


def test_min_confidence_predicts_inner_nodes_or_nothing(shop: Path) -> None:
    texts = "dark white\nnothing known at all\ndark bread crust loaf\n"
    sure = rows_of(run_hinet("predict", "model", "--min-confidence", 0.7, cwd=shop, stdin=texts).stdout, "\t")
    python = load(shop / "model").predict(texts.splitlines(), min_confidence=0.7).tolist()
    assert [row["label"] or None for row in sure] == python
    assert "food" in python
    assert None in python
    for wrong, message in (
        ("calibrated", "this model has no calibrated threshold; train with --risk"),
        ("2", "expected a number above 0 and at most 1"),
    ):
        done = run_hinet("predict", "model", "--min-confidence", wrong, cwd=shop, stdin=texts)
        assert done.returncode == 2
        assert message in done.stderr


BAD_FILES = {
    "latin-1": (
        "bad.csv",
        "title,category\nrye,rye\ncaf\u00e9,rye\n".encode("latin-1"),
        "bad.csv:3: byte 0xe9 is not utf-8",
    ),
    "ragged": ("bad.csv", b"title,category\nrye,rye\nmilk\n", "bad.csv:3: expected 2 cells separated by comma, got 1"),
    "columns": (
        "bad.csv",
        b"name,category\nrye,rye\n",
        "bad.csv:1: no column 'title' among 'name', 'category'; set --text to another column",
    ),
    "label": (
        "bad.csv",
        b"title,category\nx,rye\nx,ryes\n",
        "bad.csv:3: label 'ryes' is not in the taxonomy of 6 nodes; did you mean 'rye'?",
    ),
    "header": (
        "bad.csv",
        "titre\u00e9,category\nx,rye\n".encode("latin-1"),
        "bad.csv:1: in the header, byte 0xe9 is not utf-8 text; save the file as UTF-8 or set --enc",
    ),
    "50 MB": (
        "bad.csv",
        b"title,category\nx,rye\n" + b"y" * 50_000_000 + b",rye\n",
        "bad.csv:3: the line is longer than",
    ),
    "no rows": ("bad.csv", b"title,category\n", "bad.csv: the file has no rows"),
    "nothing": ("bad.csv", b"", "bad.csv:1: the file is empty"),
    "folder": (".", b"", ".: is a folder; name a file in it"),
    "missing": ("none.csv", b"", "none.csv: cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_invalid_files_end_every_command_with_one_clear_line(
    name: str, shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    file, content, message = BAD_FILES[name]
    if name not in ("folder", "missing"):
        Path(file).write_bytes(content)
    before = sorted(path.name for path in shop.iterdir())
    train = ["train", file, "--text", "title", "--label", "category", "--taxonomy", "categories.csv", "--out", "new"]
    predict = ["predict", "model", file, "--out", "out.csv", "--text", "title"]
    for command in (train, ["evaluate", "model", file], *([predict] if name != "label" else [])):
        assert run_inside(*command) == 2
        said = capsys.readouterr().err
        assert f"error: {message}" in said
        assert "Traceback" not in said
    assert sorted(path.name for path in shop.iterdir()) == before


def test_blank_lines_of_a_table_are_reported(shop: Path) -> None:
    (shop / "blank.csv").write_text('title\n\n"dark\n\nbread"\n\n\nwhite litre\n\n')
    done = run_hinet("predict", "model", "blank.csv", "--out", "out.csv", cwd=shop)
    assert len(rows_of((shop / "out.csv").read_text())) == 2
    assert "3 blank lines are not rows and have no predictions\n" in done.stderr  # the last line is not counted
    (shop / "blank.csv").write_text("title\ndark bread\nwhite litre\n\n")
    assert "blank" not in run_hinet("predict", "model", "blank.csv", "--out", "out.csv", cwd=shop).stderr


def test_invalid_rows_are_skipped_on_request(shop: Path) -> None:
    (shop / "mixed.csv").write_text("title,category\ndark bread,rye\nragged\n,rye\nwhite litre,milk\nx,unknown\n")
    done = run_hinet("predict", "model", "mixed.csv", "--on-error", "skip", "--out", "out.csv", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert "1 row was skipped; the reasons are in out.csv.rejects.csv" in done.stderr
    assert "1 row has no text: its prediction is blank" in done.stderr
    rows = rows_of((shop / "out.csv").read_text())
    assert [(row["line"], row["label"]) for row in rows[:3]] == [("2", "rye"), ("4", ""), ("5", "milk")]
    rejects = rows_of((shop / "out.csv.rejects.csv").read_text())
    assert [row["place"] for row in rejects] == ["line 3"]
    judged = run_hinet("evaluate", "model", "mixed.csv", "--on-error", "skip", "--rejects", "r.csv", "--json", cwd=shop)
    assert json.loads(judged.stdout)["rows"] == 2
    assert "label 'unknown' is not in the taxonomy" in rows_of((shop / "r.csv").read_text())[2]["reason"]


def test_evaluate_gives_the_figures_of_the_library(shop: Path) -> None:
    done = run_hinet("evaluate", "model", "test.csv", "--json", "--plot", "report.svg", cwd=shop)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    classifier = load(shop / "model")
    texts, labels = [title for _, title, _ in products(80, 1)], [label for _, _, label in products(80, 1)]
    assert found["rows"] == 80
    assert found["accuracy"] == pytest.approx(classifier.score(texts, labels))
    f1 = hierarchical_f1(labels, classifier.predict(texts).tolist(), taxonomy=classifier.taxonomy_)
    assert found["hierarchical_f1"] == pytest.approx(f1)
    assert len(found["level_accuracy"]) == len(found["level_calibration_error"]) == 2
    picture = (shop / "report.svg").read_text()
    assert picture.startswith("<?xml")
    table = run_hinet("evaluate", "model", "test.csv", cwd=shop).stdout
    assert f"{100 * found['accuracy']:.1f}%" in table


def test_failed_writes_are_reported_and_leave_no_file(shop: Path) -> None:
    done = run_hinet("predict", "model", "test.csv", "--out", "/dev/full", cwd=shop)
    assert done.returncode == 2
    assert "error: /dev/full: cannot be written: No space left on device" in done.stderr
    done = run_hinet("predict", "model", "test.csv", "--out", "nowhere/out.csv", cwd=shop)
    assert done.returncode == 2
    assert "error: nowhere/out.csv: cannot be written: No such file or directory" in done.stderr
    with Path("/dev/full").open("wb") as full:
        to_full = run([HINET, "predict", "model", "test.csv"], cwd=shop, stdout=full, stderr=PIPE)
    assert to_full.returncode == 2
    assert "error: the output cannot be written: No space left on device" in to_full.stderr
    assert "Traceback" not in to_full.stderr


def limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_disk_that_fills_up_leaves_the_old_file_whole(shop: Path) -> None:
    write_products(shop / "a.csv", 9_000, seed=3)
    (shop / "out.csv").write_text("old")
    before = sorted(path.name for path in shop.iterdir())
    command = [HINET, "predict", "model", "a.csv", "--out", "out.csv"]
    done = run(command, cwd=shop, preexec_fn=limit_files)
    assert done.returncode == 2
    assert "error: out.csv: cannot be written: File too large" in done.stderr
    assert (shop / "out.csv").read_text() == "old"
    assert sorted(path.name for path in shop.iterdir()) == before


@pytest.mark.parametrize(
    ("signal_error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)], ids=["Ctrl-C", "SIGTERM"]
)
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("out.csv", "interrupted after 1 row; out.csv was not written. To keep finished rows, write them to --out -\n"),
        ("-", "interrupted after 1 row; the output is incomplete\n"),
    ],
)
def test_an_interrupted_prediction_says_what_was_written(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    signal_error: BaseException,
    code: int,
    out: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("title\ndark bread\nstop\n")
    Path("out.csv").write_text("old")
    columns = PredictionOutput.columns

    def interrupted(output: PredictionOutput, block: LabelledBlock) -> Any:
        if block.texts == ["stop"]:
            raise signal_error
        return columns(output, block)

    monkeypatch.setattr("hinet.data.tables.blocks.MAX_ROWS", 1)
    monkeypatch.setattr(PredictionOutput, "columns", interrupted)
    assert run_inside("predict", trained / "model", "rows.csv", "--out", out, "-q") == code
    written = capfd.readouterr()
    assert written.err.startswith(message)
    assert written.out.count("\n") == (2 if out == "-" else 0)  # the header and a row
    assert Path("out.csv").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "out.csv"}


@pytest.mark.parametrize(("raised", "rows"), [(SystemError("result with an exception set"), 0), (None, 1)])
def test_ctrl_c_in_compiled_code_is_not_lost(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    raised: Exception | None,
    rows: int,
) -> None:
    Path(tmp_path, "rows.csv").write_text("title\ndark bread\nrye bread\n")
    columns = PredictionOutput.columns

    def interrupted(output: PredictionOutput, block: LabelledBlock) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if raised is not None:
                raise raised from None
        return columns(output, block)

    monkeypatch.setattr("hinet.data.tables.blocks.MAX_ROWS", 1)
    monkeypatch.setattr(PredictionOutput, "columns", interrupted)
    assert run_inside("predict", trained / "model", tmp_path / "rows.csv", "-q") == 130
    assert capfd.readouterr().err.startswith(f"interrupted after {rows} row")


def test_a_closed_pipe_is_not_an_error(shop: Path) -> None:
    write_products(shop / "a.csv", 20_000, seed=3)
    command = f"{HINET} predict model a.csv -q | head -1; echo ${{PIPESTATUS[0]}}"
    done = run(["bash", "-c", command], cwd=shop)
    assert done.stdout == f"label,trace,probability\n{128 + signal.SIGPIPE}\n"
    assert done.stderr == ""


def test_explain_and_inspect_agree_with_python(shop: Path) -> None:
    found = json.loads(run_hinet("explain", "model", "dark bread", "--json", cwd=shop).stdout)
    python = load(shop / "model").explain("dark bread", most=5)
    assert found["trace"]["label"] == python.trace.label == "rye"
    assert [step["chosen"] for step in found["steps"]] == [step.chosen for step in python.steps]
    assert found["unknown_words"] == []
    other = run_hinet("explain", "model", "dark Okapi bread", "--label", "milk", cwd=shop).stdout
    assert "unknown words: okapi" in other
    assert "food > milk" in other
    assert "The milk itself" in other
    for wrong, message in (("milks", "did you mean 'milk'?"), ("food", "the model has no label 'food'")):
        done = run_hinet("explain", "model", "x", "--label", wrong, cwd=shop)
        assert done.returncode == 2
        assert message in done.stderr
    shown = run_hinet("inspect", "model", "--plot", "curve.png", cwd=shop)
    assert "columns     text title; label category" in shown.stdout
    assert "tree of 6 nodes" in shown.stdout
    assert (shop / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run_hinet("inspect", "model", "--json", cwd=shop).stdout)["taxonomy"]["nodes"] == 6
    assert "no such folder" in run_hinet("inspect", "none", cwd=shop).stderr


def test_inspect_refuses_a_damaged_model(shop: Path) -> None:
    weights = next(Path(shutil.copytree(shop / "model", shop / "damaged")).glob("model-*"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    for damaged, message in ((data, "was changed after the model was saved"), (data[:1000], "has 1,000 bytes instead")):
        weights.write_bytes(damaged)
        done = run_hinet("inspect", "damaged", cwd=shop)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def lose_nothing(shop: Path, capsys: pytest.CaptureFixture[str], *commands: list[str]) -> list[str]:
    """Run commands that must be refused and change no file; return their messages."""
    before = {path: path.read_bytes() for path in sorted(shop.rglob("*")) if path.is_file()}
    said = []
    for command in commands:
        code = run_inside(*command)
        said.append(capsys.readouterr().err)
        assert code == 2, (command, said)
        assert {path: path.read_bytes() for path in sorted(shop.rglob("*")) if path.is_file()} == before, command
    return said


def test_no_option_writes_over_what_is_read_or_over_another_result(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    (shop / "mixed.csv").write_text("title,category\ndark bread,rye\nragged\nwhite litre,milk\n")
    (shop / "link.csv").symlink_to("mixed.csv")
    (shop / "out.csv.rejects.csv").write_text("title\ndark bread\nrag,ged\n")
    (shop / "picture.png").write_bytes((shop / "mixed.csv").read_bytes())
    skip = ["--on-error", "skip", "--rejects"]
    train = ["train", "mixed.csv", "--text", "title", "--label", "category", "--out", "new", "--epochs", "1"]
    lost = "is an input file, which would be overwritten"
    told = lose_nothing(
        shop,
        capsys,
        ["predict", "model", "mixed.csv", "--out", "out.csv", *skip, "mixed.csv"],
        ["predict", "model", "mixed.csv", "--out", "out.csv", *skip, "link.csv"],
        ["predict", "model", "link.csv", "--out", "out.csv", *skip, str(shop / "x" / ".." / "mixed.csv")],
        ["predict", "model", "out.csv.rejects.csv", "--text", "title", "--out", "out.csv", "--on-error", "skip"],
        ["evaluate", "model", "mixed.csv", *skip, "./mixed.csv"],
        ["evaluate", "model", "picture.png", "--format", "csv", "--plot", "picture.png"],
        [*train, *skip, "mixed.csv"],
        [*train, "--valid", "test.csv", *skip, "test.csv"],
        [*train, "--taxonomy", "categories.csv", *skip, "categories.csv"],
        ["export", "model", "onnx", "--data", "mixed.csv", *skip, "mixed.csv"],
        ["compare", "test.csv", "--text", "title", "--label", "category", "--out", "test.csv"],
        ["taxonomy", "convert", "categories.csv", "./categories.csv"],
    )
    for said in told:
        assert lost in said, said
    told = lose_nothing(
        shop,
        capsys,
        ["predict", "model", "mixed.csv", "--out", "out.csv", *skip, "./out.csv"],
        ["evaluate", "model", "mixed.csv", "--plot", "r.png", *skip, "r.png"],
        [*train, "--plot", "r.png", *skip, "r.png"],
        ["compare", "test.csv", "--text", "title", "--label", "category", "--out", "r.png", "--plot", "r.png"],
    )
    for said in told:
        assert "are the same file, so one result would be overwritten; name another file" in said
    told = lose_nothing(
        shop,
        capsys,
        ["predict", "model", "mixed.csv", "--out", "out.csv", *skip, "model/manifest.json"],
        ["predict", "model", "mixed.csv", "--out", "model/out.csv"],
        ["predict", "model", "mixed.csv", "--out", "model/out.png", "--to", "csv"],
        ["evaluate", "model", "mixed.csv", "--plot", "model/r.png"],
        ["inspect", "model", "--plot", "model/r.png"],
        [*train, *skip, "new/rejects.csv"],
        [*train, *skip, "new.checkpoint/rejects.csv"],
    )
    for said in told:
        assert "in the folder" in said
    (shop / "loop").symlink_to("loop")
    (said,) = lose_nothing(shop, capsys, ["predict", "model", "mixed.csv", "--out", "loop"])
    assert "loop: is a link to itself; name another file" in said
    (said,) = lose_nothing(shop, capsys, ["predict", "model", "mixed.csv", "--out", "out.csv", *skip, "-"])
    assert "--rejects cannot be standard output" in said


def predict_inside(*arguments: object) -> None:
    assert run_inside("predict", "model", *arguments) == 0


def test_rows_without_a_text_keep_their_place_with_a_blank_answer(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    (shop / "in.txt").write_text("dark bread\n\n  \nwhite litre\n")
    predict_inside("in.txt")
    said = capsys.readouterr()
    assert [row["label"] for row in rows_of(said.out, "\t")] == ["rye", "", "", "milk"]
    assert "2 rows have no text: their predictions are blank" in said.err
    pq.write_table(pa.table({"title": ["", None, "dark bread"], "id": [1, 2, 3]}), shop / "in.parquet")
    asked = ["--keep", "id", "--top", 2, "--levels", "--titles", "--out", "out.parquet"]
    predict_inside("in.parquet", *asked)
    first, second, third = pq.read_table(shop / "out.parquet").to_pylist()
    assert [first["id"], second["id"], third["id"]] == [1, 2, 3]
    assert {value for name, value in (first | second).items() if name != "id"} == {None}
    assert (third["label"], third["level_1"]) == ("rye", "food")
    (shop / "in.txt").write_text("\n\n")
    predict_inside("in.txt", "-q")
    assert rows_of(capsys.readouterr().out, "\t") == [{"label": "", "trace": "", "probability": ""}] * 2


def test_a_missing_column_is_reported_with_its_option(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    train = ["train", "test.csv", "--label", "category", "--out", "new"]
    told = lose_nothing(
        shop,
        capsys,
        ["predict", "model", "test.csv", "--text", "words"],
        ["predict", "model", "test.csv", "--keep", "words"],
        ["predict", "model", "test.csv", "--where", "words=x"],
        ["evaluate", "model", "test.csv", "--label", "words"],
        [*train, "--text", "words"],
        [*train, "--text", "title", "--valid-where", "words=x"],
        [*train, "--text", "title", "--text", "id", "--label", "words"],
    )
    options = ["--text", "--keep", "--where", "--label", "--text", "--valid-where", "--label"]
    for said, option in zip(told, options, strict=True):
        columns = "no column 'words' among 'id', 'title', 'category'"
        assert said.endswith(f"error: test.csv:1: {columns}; set {option} to another column\n"), said


def test_invalid_file_names_are_reported_before_any_work(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    (shop / "latin.csv").write_bytes("title,cat\u00e9gorie\ndark bread,rye\n".encode("latin-1"))
    typed = b"cat\xe9gorie".decode("utf-8", "surrogateescape")  # input of a terminal in Latin-1, as Python decodes it
    train = ["train", "latin.csv", "--text", "title", "--out", "new"]
    told = lose_nothing(
        shop,
        capsys,
        ["predict", "model", "latin.csv", "--keep-all"],
        [*train, "--label", "cat\u00e9gorie"],
        [*train, "--label", typed],
        ["predict", "model", "test.csv", "--prefix", typed],
        ["explain", "model", typed],
    )
    assert "latin.csv:1: in the header, byte 0xe9 is not utf-8 text" in told[0]
    assert all("--encoding" in said for said in told[:3]), told
    assert all("is not valid text" in said for said in told[2:]), told
    predict_inside("latin.csv", "--keep-all", "--encoding", "latin-1")
    assert list(rows_of(capsys.readouterr().out)[0])[:2] == ["title", "cat\u00e9gorie"]
    predict_inside("latin.csv")  # the column is not read


def test_a_table_has_no_more_columns_than_answers_and_comes_in_parts(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    monkeypatch.setattr(prediction_table, "MAX_CELLS", 100)
    pq.write_table(pa_csv.read_csv("test.csv"), "test.parquet")
    for file in ("test.csv", "test.parquet"):
        predict_inside(file, "--top", 1_000_000, "--keep", "id", "--to", "csv")
        said = capsys.readouterr()
        assert "--top 1,000,000 is more than the model has: all 4 are given" in said.err
        rows = rows_of(said.out)
        assert list(rows[0])[-1] == "probability_4"
        assert [row["id"] for row in rows] == [str(n) for n in range(80)]
        assert [row["label"] for row in rows] == expected(shop, 80, 1)


def test_closed_streams_are_reported(shop: Path) -> None:
    for command, message in (
        ("predict model <&-", "error: -: standard input is closed; read from a file"),
        ("predict model test.csv >&-", "error: -: standard output is closed; write to a file"),
    ):
        done = run(["bash", "-c", f"{HINET} {command}"], cwd=shop)
        assert done.returncode == 2
        assert done.stderr == f"{message}\n"
    assert run(["bash", "-c", f"{HINET} predict model test.csv --out a.csv >&- 2>&- <&-"], cwd=shop).returncode == 0
    assert len(rows_of((shop / "a.csv").read_text())) == 80


def test_several_results_may_go_to_dev_null(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop)
    (shop / "mixed.csv").write_text("title,category\ndark bread,rye\nragged\n")
    nowhere = ["--out", "/dev/null", "--to", "csv", "--rejects", "/dev/null"]
    predict_inside("mixed.csv", "--on-error", "skip", *nowhere)


def test_rows_without_a_known_word_are_reported_once(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    (shop / "unknown.csv").write_text("title\ndark bread\n  \nqqq\nwhite litre\n7 $ &\n")
    predict_inside("unknown.csv", "--out", "out.csv")
    said = capsys.readouterr().err
    assert "warning: 2 rows have no word that the model knows, the first at unknown.csv, line " in said
    predict_inside("unknown.csv", "--out", "out.csv", "-q")
    assert capsys.readouterr().err == ""


def test_min_df_decides_which_words_are_features(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop)
    (shop / "few.csv").write_text("text,label\nrye bread,a\nrye loaf,a\nwhole milk,b\nskimmed milk,b\n")
    command = ["train", "few.csv", "--epochs", 1, "-q", "--out", "few"]
    for options, least in (([], 1), (["--min-df", 2], 2), (["--min-df", 2, "--stream"], 2), (["--stream"], 1)):
        assert run_inside(*command, *options) == 0
        manifest = json.loads((shop / "few" / "manifest.json").read_text())
        assert manifest["features"]["settings"]["min_df"] == least
    capsys.readouterr()
    assert run_inside(*command, "--min-df", 9) == 2
    assert "no feature is in at least 9 of the 4 training texts; lower --min-df" in capsys.readouterr().err
