"""The page that documents the endpoints, with forms to try them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

from tests.browser.conftest import Open, look
from tests.browser.test_states import PHONE

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def endpoint(page: Page, name: str) -> Locator:
    """Open an endpoint and return its card."""
    card = page.locator(f"details[id='{name}']")
    card.locator("> summary").click()
    return card


def test_every_endpoint_is_documented(service: str, open_page: Open) -> None:
    with urlopen(f"{service}/openapi.json", timeout=60) as answer:
        paths = json.load(answer)["paths"]
    page = open_page(f"{service}/docs")
    expect(page.locator(".endpoint")).to_have_count(sum(map(len, paths.values())))
    look(page, "docs")
    shown = [line.split()[:2] for line in page.locator(".endpoint > summary").all_inner_texts()]
    assert sorted(shown) == sorted([method.upper(), path] for path, methods in paths.items() for method in methods)
    card = endpoint(page, "post-v1-classify")
    expect(card.locator(".schema").first).to_contain_text("min_confidence")
    card.get_by_text("list of Result", exact=True).click()
    expect(card.locator(".schema").nth(1)).to_contain_text("unknown_words")
    look(page, "docs-classify")


def test_a_request_is_tried(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/docs#post-v1-classify")  # an address opens its endpoint
    card = page.locator("details[id='post-v1-classify']")
    card.get_by_label("Body").fill('{"text": "dark rye bread", "model": "shop"}')
    expect(card.locator(".curl")).to_contain_text("dark rye bread")
    card.get_by_role("button", name="Send").click()
    expect(card.locator(".reply")).to_contain_text('"label": "rye"')
    look(page, "docs-tried")
    card.get_by_label("Body").fill('{"txt": "rye"}')
    card.get_by_role("button", name="Send").click()
    expect(card.locator(".reply")).to_contain_text("did you mean 'text'?")
    model = endpoint(page, "get-v1-models-name")
    model.get_by_label("name").fill("goods")
    model.get_by_role("button", name="Send").click()
    expect(model.locator(".reply")).to_contain_text('"is_tree": false')
    table = endpoint(page, "post-v1-classify-file")
    table.get_by_label("Content-Type").select_option("text/csv")
    table.get_by_label("Body").fill("title\ndark rye bread\n")
    table.get_by_label("text", exact=True).fill("title")
    table.get_by_role("button", name="Send").click()
    expect(table.locator(".reply")).to_contain_text("label,trace,probability")
    table.get_by_label("Or a file").set_input_files(
        {"name": "rows.csv", "mimeType": "text/csv", "buffer": b"title\nwhole milk\n"}
    )
    expect(table.locator(".curl")).to_contain_text("--data-binary '@rows.csv'")
    table.get_by_label("to", exact=True).fill("xlsx")
    table.get_by_role("button", name="Send").click()
    expect(table.get_by_role("link", name=re.compile("Download the answer"))).to_be_visible()


def test_it_fits_a_phone_in_the_dark(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/docs#get-v1-taxonomy", viewport=PHONE, color_scheme="dark")
    expect(page.locator("details[open] .schema").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    look(page, "docs-phone")
