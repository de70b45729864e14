"""The page when something is missing or fails, in dark colours, on a phone, and by keyboard alone."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hinet.classifier.model_folder import read_manifest
from hinet.serving.drift import Counts, ModelKey
from hinet.serving.models import VERSION_DIGITS
from tests.browser.conftest import Open, look, serving
from tests.browser.test_classify import classify, fits, item

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

PHONE = {"width": 360, "height": 740}
FIRST_PAINT = 200_000  # bytes
VIEWS = ("classify", "file", "review", "model")


def test_first_paint_is_small_and_asks_only_the_service(service: str, browser: Browser) -> None:
    page = browser.new_page()
    sizes: dict[str, int] = {}
    page.on("requestfinished", lambda asked: sizes.update({asked.url: sum(asked.sizes().values())}))
    page.goto(service)
    expect(page.get_by_role("treeitem").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    page.close()
    assert {f"{service}/", f"{service}/style.css", f"{service}/js/main.js", f"{service}/v1/models"} <= sizes.keys()
    assert all(url.startswith(f"{service}/") for url in sizes), sizes
    assert sum(sizes.values()) < FIRST_PAINT, sizes


def problem(status: int, title: str, detail: str, **headers: str) -> dict[str, object]:
    """Return how a route answers with a problem."""
    body = json.dumps({"type": "urn:hinet:problem:x", "title": title, "status": status, "detail": detail, "errors": []})
    return {"status": status, "body": body, "content_type": "application/problem+json", "headers": headers}


def test_problem_is_shown_and_can_be_tried_again(service: str, open_page: Open) -> None:
    page = open_page(service)
    answers = [problem(429, "Too many requests", "The service is busy.", **{"Retry-After": "2"})]
    page.route("**/v1/classify", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())
    page.get_by_label("Text", exact=True).fill("rye bread")
    page.get_by_role("button", name="Classify", exact=True).click()
    alert = page.get_by_role("alert").filter(has_text="Too many requests")
    expect(alert).to_contain_text("The service is busy. Try again in 2 s.")
    look(page, "error-problem")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".headline")).to_be_visible()


def test_real_problem_of_the_service_is_shown(service: str, open_page: Open) -> None:
    page = open_page(service)
    text = page.get_by_label("Text", exact=True)
    text.evaluate("area => area.removeAttribute('maxlength')")
    text.fill("rye " * 30_000)
    page.get_by_role("button", name="Classify", exact=True).click()
    expect(page.locator(".note.failed")).to_contain_text("100")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)  # it would fail again
    look(page, "error-too-long", whole=False)


def test_tree_that_cannot_be_loaded_says_so(service: str, open_page: Open) -> None:
    page = open_page(service)
    expect(item(page, "Tools")).to_be_visible()
    page.route("**/v1/taxonomy?*", lambda route: route.fulfill(**problem(503, "Not now", "The request took too long.")))
    item(page, "Tools").locator("> .row").click()
    expect(page.locator(".tree-card").get_by_role("alert")).to_contain_text("The request took too long.")
    expect(item(page, "Tools")).to_have_attribute("aria-expanded", "false")
    look(page, "error-tree")


def test_a_lost_connection_is_shown_and_recovers(service: str, open_page: Open) -> None:
    page = open_page(service)
    expect(item(page, "Tools")).to_be_visible()
    page.context.set_offline(True)
    page.get_by_label("Text", exact=True).fill("rye bread")
    page.get_by_role("button", name="Classify", exact=True).click()
    expect(page.locator("#banner")).to_contain_text("The service does not answer")
    look(page, "offline")
    page.context.set_offline(False)
    expect(page.locator("#banner")).to_be_hidden()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".headline")).to_be_visible()


def test_page_waits_for_models_that_are_loading(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/health")
    starting = [True]

    def models(route: Route) -> None:
        if starting:
            route.fulfill(**problem(503, "Not ready", "models are being loaded"))
        else:
            route.continue_()

    page.route("**/v1/models", models)
    page.goto(service)
    expect(page.get_by_text("The service is loading its models …")).to_be_visible()
    look(page, "loading")
    starting.clear()
    expect(page.get_by_role("treeitem").first).to_be_visible()


def test_service_without_feedback_and_with_a_token(models: Path, tmp_path: Path, open_page: Open) -> None:
    token = "a token of these tests"
    (tmp_path / "tokens").write_text(sha256(token.encode()).hexdigest(), encoding="utf-8")
    with serving(f"shop={models / 'other'}", "--token-file", tmp_path / "tokens") as address:
        page = open_page(address)
        expect(page.get_by_role("dialog", name="A token is required")).to_be_visible()
        look(page, "token")
        page.get_by_role("textbox", name="Token").fill(token)
        page.keyboard.press("Enter")
        classify(page, "rye bread")
        expect(page.get_by_text("Feedback is off.")).to_be_visible()
        expect(page.get_by_role("button", name="Accept rye")).to_have_count(0)
        look(page, "feedback-off")
        page.get_by_role("tab", name="Review").click()
        expect(page.get_by_text("There is no review queue")).to_be_visible()
        look(page, "review-off")
        page.get_by_role("tab", name="Model").click()
        expect(page.get_by_text("No evaluation was kept")).to_be_visible()
        docs = open_page(f"{address}/docs#get-v1-models")
        docs.get_by_role("button", name="Send").click()
        docs.get_by_role("textbox", name="Token").fill(token)
        docs.keyboard.press("Enter")
        expect(docs.locator("details[open] .reply")).to_contain_text('"name": "shop"')


def test_dark_by_the_system_and_by_the_switch(service: str, open_page: Open) -> None:
    page = open_page(service, color_scheme="dark")
    assert is_dark(page)
    classify(page, "bread knife zyzzyva")
    look(page, "dark-classify")
    page.get_by_role("tab", name="Model").click()
    expect(page.get_by_role("heading", name="Most confused")).to_be_visible()
    look(page, "dark-model")
    switch = page.get_by_role("button", name="Dark colours")
    expect(switch).to_have_attribute("aria-pressed", "true")
    switch.click()
    assert not is_dark(page)
    page.reload()
    expect(page.get_by_role("button", name="Dark colours")).to_have_attribute("aria-pressed", "false")
    assert not is_dark(page)


def is_dark(page: Page) -> bool:
    red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    return int(red) < 64


@pytest.mark.parametrize("view", VIEWS)
def test_phone(service: str, open_page: Open, view: str) -> None:
    page = open_page(f"{service}/#{view}", viewport=PHONE, has_touch=True)
    expect(page.locator(f"#{view} .card, #{view} .drop").first).to_be_visible()
    if view == "classify":
        classify(page, "bread knife")
    if view == "review":
        expect(page.locator("#review .busy")).to_have_count(0)
    if view == "model":
        expect(page.get_by_role("heading", name="Most confused")).to_be_visible()
    assert fits(page)
    look(page, f"phone-{view}")


def test_keyboard_alone(service: str, open_page: Open) -> None:
    page = open_page(service)
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.type("dark rye bread")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".explanation[data-done]")).to_be_visible()
    page.keyboard.press("Tab")  # away from the text, where letters are letters
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(item(page, "Rye bread")).to_be_focused()
    look(page, "keyboard-tree", whole=False)
    last = page.locator("[role=treeitem][aria-level='1']").last  # the least probable branch
    keys = {
        "ArrowDown": item(page, "White bread"),
        "ArrowLeft": item(page, "Bread"),
        "End": last,
        "Home": item(page, "Food"),
    }
    for key, focused in keys.items():
        page.keyboard.press(key)
        expect(focused).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(item(page, "Food")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Home")
    page.keyboard.type("tool")
    expect(item(page, "Tools")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(item(page, "Hammers")).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.type("ham")
    expect(item(page, "Hammers")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".tray .name")).to_have_text(["Tools", "Hammers"])
    assert page.locator(".tree [tabindex='0']").count() == 1
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="This is the right answer")).to_be_focused()
    with page.expect_response("**/v1/feedback") as response:
        page.keyboard.press("Enter")
    assert response.value.request.post_data_json["nodes"] == ["hammers"]


def test_tabs_and_help_by_keyboard(service: str, open_page: Open) -> None:
    page = open_page(service)
    expect(item(page, "Tools")).to_be_visible()
    page.get_by_role("tab", name="Classify").focus()
    for name in ("File", "Review", "Model", "Classify"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    page.keyboard.type("gm")
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    look(page, "help", whole=False)
    page.get_by_label("Single keys work as shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_hidden()


def test_focus_can_be_seen_everywhere(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "bread knife")
    page.locator("body").click(position={"x": 5, "y": 400})
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        where, outline = page.evaluate(
            """() => {
                const element = document.activeElement;
                const box = element.matches("[role=treeitem]") ? element.firstElementChild : element;
                return [element.outerHTML.slice(0, 80), getComputedStyle(box).outlineStyle];
            }"""
        )
        if "<body" in where:
            break
        seen.add(where)
        assert outline != "none", where
    assert len(seen) > 20


def test_texts_that_changed_are_shown(models: Path, tmp_path: Path, open_page: Open) -> None:
    counts = Counts(tmp_path / "feedback.db")
    version = read_manifest(models / "shop")["blake2b"][:VERSION_DIGITS]
    for day, share in (("2026-01-01", 0.9), ("2026-01-02", 0.9), ("2026-01-03", 0.3)):
        for signal in ("known_words", "confidence"):
            counts.add(ModelKey("shop", version), day, signal, np.full(600, share))
    counts.flush()
    counts.close()
    with serving(f"shop={models / 'shop'}", "--feedback", tmp_path / "feedback.db") as address:
        page = open_page(f"{address}/#model")
        expect(page.get_by_text("The texts no longer look like the first ones")).to_be_visible()
        expect(page.get_by_text("Known words: 91% on average in the first days, 31% now")).to_be_visible()
        expect(page.get_by_role("region", name="Texts by day").get_by_role("row")).to_have_count(4)
        look(page, "model-texts")
        dark = open_page(f"{address}/#model", viewport=PHONE, color_scheme="dark")
        expect(dark.get_by_text("The texts no longer look like the first ones")).to_be_visible()
        look(dark, "model-texts-phone")
