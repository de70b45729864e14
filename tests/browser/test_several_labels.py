"""The page with a model that gives several labels per text."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.browser.conftest import Open, look
from tests.browser.test_classify import classify
from tests.browser.test_views import drop

pytest.importorskip("playwright")
from playwright.sync_api import expect


def test_all_labels_are_shown_explained_and_accepted(tags_service: str, open_page: Open) -> None:
    page = open_page(tags_service)
    expect(page.get_by_text("Model damaged cannot be loaded")).to_be_visible()
    classify(page, "rye bread and toy car")
    expect(page.locator(".headline")).to_contain_text("Most probable of 2 labels")
    expect(page.locator(".tree .on-trace > .row .name")).to_have_text(["food", "bread", "toys", "cars"])
    assert {label.split()[0] for label in page.locator(".labels li").all_inner_texts()} == {"bread", "cars"}
    expect(page.locator(".rival")).to_contain_text("without a rival")
    expect(page.get_by_label("Required confidence")).to_have_count(0)  # a trace of a set does not stop earlier
    look(page, "several-labels")
    page.locator(".other").nth(1).click()
    expect(page.locator(".explanation[data-done]")).to_be_visible()
    expect(page.locator(".rival")).to_contain_text("without a rival")
    page.locator(".other").nth(0).click()
    page.get_by_role("button", name="Accept all 2").click()
    expect(page.locator(".kept")).to_have_text("Accepted. It is kept for training.")


def test_several_nodes_are_picked_as_the_right_answer(tags_service: str, open_page: Open) -> None:
    page = open_page(tags_service)
    classify(page, "white bread")
    for node in ("milk", "cars"):
        page.get_by_label("Search the taxonomy").fill(node)
        page.locator(".match").first.click()
        page.get_by_role("button", name="Add to the right answer").click()
    look(page, "several-labels-correct")
    page.get_by_role("button", name="Send 2").click()
    expect(page.locator(".kept")).to_contain_text("Corrected to milk, cars.")


def test_a_table_has_all_labels_of_a_row(tags_service: str, open_page: Open) -> None:
    page = open_page(f"{tags_service}/#file")
    drop(page, "rows.csv", b"text\nrye bread and toy car\nwhole milk\n")
    expect(page.get_by_text("Every step with its probability")).to_have_count(0)
    look(page, "several-labels-file")
    page.get_by_role("button", name="Classify the table").click()
    expect(page.get_by_role("heading", name="2 rows classified")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert [{*row["label"].split("|")} for row in rows] == [{"bread", "cars"}, {"milk"}]


def test_review_and_model_views_show_several_labels(tags_service: str, open_page: Open) -> None:
    page = open_page(tags_service)
    classify(page, "an odd thing")
    page.goto(f"{tags_service}/#review")
    expect(page.locator(".queue-text")).to_have_text("an odd thing")
    expect(page.locator("#review .explanation[data-done]")).to_be_visible()
    look(page, "several-labels-review")
    page.goto(f"{tags_service}/#model")
    expect(page.locator(".figures").first).to_be_visible()
    look(page, "several-labels-model")
