"""The other views: a table, the review queue, the model."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from tests.browser.conftest import Open, look

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

TABLE = 'number,title,note\n1,"dark rye bread, sliced",=1+1\n2,whole milk,"two\nlines"\n3,claw hammer,c\n'


def drop(page: Page, name: str, content: bytes) -> None:
    """Drop a file on the page."""
    data = page.evaluate_handle(
        """([name, letters]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(letters)], name));
            return data;
        }""",
        [name, list(content)],
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})


def test_table_is_dropped_classified_and_downloaded(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/#file")
    expect(page.get_by_text("Drop a table here")).to_be_visible()
    look(page, "file-empty")
    drop(page, "products.csv", TABLE.encode())
    page.get_by_label("Column of the texts").select_option("title")
    look(page, "file-options")
    page.get_by_role("button", name="Classify the table").click()
    expect(page.get_by_role("heading", name="3 rows classified")).to_be_visible()
    look(page, "file-done")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download classified_products.csv").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert [row["number"] for row in rows] == ["1", "2", "3"]
    assert [row["predicted_label"] for row in rows] == ["rye", "milk", "hammers"]
    assert rows[1]["note"] == "two\nlines"
    assert rows[0]["note"] == "'=1+1"  # what a spreadsheet would compute


def test_progress_counts_rows(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/#file")
    page.evaluate(
        """() => {
            window.seen = [];
            new MutationObserver(() => {
                const bar = document.querySelector("progress");
                if (bar?.max > 1) window.seen.push([bar.value, bar.max]);
            }).observe(document.querySelector("#file"), { subtree: true, childList: true, characterData: true });
        }"""
    )
    lines = "".join(f'{{"text": "rye bread {number}"}}\n' for number in range(20_000))
    drop(page, "rows.jsonl", lines.encode())
    page.get_by_role("button", name="Classify the table").click()
    expect(page.get_by_role("heading", name="20,000 rows classified")).to_be_visible()
    seen = page.evaluate("window.seen")
    assert seen[-1] == [20_000, 20_000]
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.pdf", b"%PDF", "neither .csv, .tsv, .jsonl, .parquet nor .xlsx"),
        ("rows.csv", b"", "has no rows"),
        ("rows.jsonl", b"{broken\n", "rows.jsonl: line 1 is not a JSON object"),
    ],
)
def test_other_files_are_refused(service: str, open_page: Open, name: str, content: bytes, message: str) -> None:
    page = open_page(f"{service}/#file")
    expect(page.locator(".drop")).to_be_visible()
    drop(page, name, content)
    expect(page.get_by_role("alert").filter(has_text=message)).to_be_visible()
    look(page, f"file-refused-{name.replace('.', '-')}")


def test_an_excel_file_comes_back_as_one(service: str, open_page: Open, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("text", "code"), ("dark rye bread", "0111"), ("=1+1", 7)):
        book.active.append(row)
    book.active["A3"].data_type = "s"
    book.save(tmp_path / "rows.xlsx")
    page = open_page(f"{service}/#file")
    expect(page.locator(".drop")).to_be_visible()
    drop(page, "rows.xlsx", (tmp_path / "rows.xlsx").read_bytes())
    expect(page.get_by_label("Format of the answer")).to_have_value("xlsx")
    expect(page.get_by_label("Safe to open in a spreadsheet")).to_be_disabled()
    look(page, "file-excel")
    page.get_by_role("button", name="Classify the table").click()
    link = page.get_by_role("link", name="Download classified_rows.xlsx")
    with page.expect_download() as saved:
        link.click()
    saved.value.save_as(tmp_path / "out.xlsx")
    header, first, second = openpyxl.load_workbook(tmp_path / "out.xlsx").active.iter_rows()
    assert [cell.value for cell in header][:3] == ["text", "code", "predicted_label"]
    assert [cell.value for cell in first][:3] == ["dark rye bread", "0111", "rye"]
    assert [(cell.value, cell.data_type) for cell in second][:2] == [("=1+1", "s"), (7, "n")]
    page.get_by_role("button", name="Other options").click()
    page.get_by_label("Format of the answer").select_option("csv")
    page.get_by_role("button", name="Classify the table").click()
    expect(page.get_by_role("link", name="Download classified_rows.csv")).to_be_visible()


def test_bad_row_is_named(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/#file")
    expect(page.locator(".drop")).to_be_visible()
    drop(page, "rows.jsonl", b'{"text": "rye"}\n{"text": 5}\n{"text": \n')
    page.get_by_role("alert").filter(has_text="line 3 is not a JSON object").wait_for()
    drop(page, "rows.csv", b"text,b\nrye,1\nmilk,2,3,4\n")
    page.get_by_role("button", name="Classify the table").click()
    expect(page.get_by_role("alert").filter(has_text=re.compile("line 3|:3"))).to_be_visible()
    expect(page.get_by_role("heading", name="The table cannot be classified")).to_be_visible()
    look(page, "file-bad-row")
    page.get_by_role("button", name="Back to the options").click()
    expect(page.get_by_role("button", name="Classify the table")).to_be_visible()


def ask(service: str, text: str) -> None:
    """Classify a text with the model of the review tests, so that it enters the queue."""
    body = json.dumps({"model": "queue", "text": text}).encode()
    with urlopen(Request(f"{service}/v1/classify", body, {"Content-Type": "application/json"}), timeout=30) as answer:
        assert answer.status == 200


def open_review(service: str, open_page: Open) -> Page:
    page = open_page(service)
    page.get_by_role("combobox", name="Model").select_option("queue")
    page.get_by_role("tab", name="Review").click()
    return page


def test_review_by_keyboard(service: str, open_page: Open) -> None:
    page = open_review(service, open_page)
    expect(page.get_by_text("Nothing to review")).to_be_visible()
    look(page, "review-empty")
    for text in ("cheese bread", "bread knife", "milk hammer", "قصص nested milk"):
        ask(service, text)
    page.get_by_role("button", name="Look again").click()
    text = page.locator(".queue-text")
    expect(page.get_by_text("1 of 4 to review")).to_be_visible()
    expect(text).to_have_text("قصص nested milk")  # the least sure
    expect(page.locator(".queue .hint")).to_have_text(re.compile("1 to 3: a trace.*a accept.*c correct"))
    expect(page.locator(".explanation h3")).to_have_attribute("title", re.compile("."))  # whole, where it is cut off
    look(page, "review")
    first = text.inner_text()
    page.locator("body").press("j")
    expect(page.get_by_text("2 of 4 to review")).to_be_visible()
    page.keyboard.press("k")
    expect(text).to_have_text(first)
    with page.expect_response("**/v1/feedback") as accepted:
        page.keyboard.press("a")
    assert accepted.value.status == 201
    expect(page.get_by_text("1 of 3 to review, 1 done")).to_be_visible()
    with page.expect_response("**/v1/feedback") as skipped:
        page.keyboard.press("s")
    assert skipped.value.request.post_data_json["verdict"] == "skip"
    expect(page.get_by_text("1 of 2 to review, 2 done")).to_be_visible()
    page.keyboard.press("c")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("hammers")
    expect(page.locator(".match")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("treeitem", name="Hammers, hammers")).to_be_focused()
    page.keyboard.press("Tab")
    with page.expect_response("**/v1/feedback") as corrected:
        page.keyboard.press("Enter")
    assert corrected.value.request.post_data_json["nodes"] == ["hammers"]
    expect(page.get_by_text("1 of 1 to review, 3 done")).to_be_visible()
    expect(text).to_have_text(re.compile("bread"))  # the surest
    page.keyboard.press("2")
    expect(page.locator(".headline .eyebrow")).to_have_text("Trace 2")
    page.keyboard.press("s")
    expect(page.get_by_text("All done")).to_be_visible()
    expect(page.locator(".tree .percent")).to_have_count(0)
    expect(page.get_by_role("treeitem")).to_have_count(6)
    look(page, "review-done")


def test_model_view_shows_the_evaluation(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/#model")
    expect(page.get_by_role("heading", name="Evaluation")).to_be_visible()
    for title in ("Accuracy by level", "Calibration", "Coverage", "Where the errors are", "Most confused"):
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    assert page.locator(".levels li").count() == 16
    assert page.locator("svg.plot .dot").count() > 2
    rows = page.request.get(f"{service}/v1/models/shop").json()["evaluation"]["rows"]
    expect(page.get_by_text(f"of {rows} rows wrong")).to_be_visible()  # includes branches without errors
    look(page, "model")
    page.locator(".branches button").first.click()
    expect(page.get_by_role("button", name="One level up")).to_be_visible()
    look(page, "model-branch", whole=False)
    page.get_by_role("button", name="One level up").click()
    expect(page.get_by_role("heading", name="All branches")).to_be_visible()
    page.get_by_text("As a table").first.click()
    expect(page.get_by_role("columnheader", name="confidence").first).to_be_visible()


def test_model_without_an_evaluation_says_how_to_keep_one(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/#model")
    page.get_by_role("combobox", name="Model").select_option("other")
    expect(page.get_by_text("No evaluation was kept")).to_be_visible()
    look(page, "model-no-evaluation")
