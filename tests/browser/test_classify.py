"""Classify a text: the answer, its place in the tree, and its words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Open, look
from tests.browser.model import DEPTH, HOSTILE_TITLE, LONG_TITLE, WIDE
from tests.browser.test_views import drop

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def classify(page: Page, text: str) -> None:
    """Type a text, and wait for the answer and its words."""
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Classify", exact=True).click()
    expect(page.locator(".explanation[data-done]")).to_be_visible()


def percents(rows: Locator) -> list[float]:
    """Return the percentages in the order they are shown."""
    return [float(text.strip("<>%")) for text in rows.locator(".percent").all_inner_texts()]


def item(page: Page, title: str) -> Locator:
    """Return the item of the tree with a title."""
    return page.get_by_role("treeitem", name=re.compile(f"^{re.escape(title)}(,|$)"))


def test_before_the_first_text(service: str, open_page: Open) -> None:
    page = open_page(service)
    expect(page.get_by_text("No answer yet")).to_be_visible()
    expect(page.get_by_role("treeitem")).to_have_count(6)
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    look(page, "classify-empty")


def test_answer_is_a_trace_with_falling_probabilities(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "dark rye bread")
    expect(page.locator(".headline h2")).to_have_text("Rye bread rye")
    steps = page.get_by_role("list", name="Steps from the top down")
    assert [row.split("\n")[0] for row in steps.locator(".step .what").all_inner_texts()] == [
        "Food food",
        "Bread bread",
        "Rye bread rye",
    ]
    shown = percents(steps)
    assert shown == sorted(shown, reverse=True)
    look(page, "classify-answer")


def test_example_is_classified(service: str, open_page: Open) -> None:
    page = open_page(service)
    example = page.locator(".examples button").first
    text = example.inner_text()
    example.click()
    expect(page.locator(".headline")).to_be_visible()
    expect(page.get_by_label("Text", exact=True)).to_have_value(text)


def test_words_are_marked(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "rye bread 🍞 zyzzyva")
    words = page.locator(".words")
    expect(words).to_have_text("rye bread 🍞 zyzzyva")
    expect(words.locator(".unknown")).to_have_text(["🍞", "zyzzyva"])  # the first has two UTF-16 units
    assert "rye" in words.locator("mark.for").all_inner_texts()
    page.get_by_text("What each word adds").click()
    expect(page.locator(".pushes li").first).to_be_visible()
    page.locator(".step").nth(0).click()
    expect(page.locator(".explanation h3")).to_have_text("Why “Food”?")
    look(page, "classify-words")


def test_tree_shows_siblings_with_probabilities_and_expands(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "dark rye bread")
    for title in ("Rye bread", "White bread", "Milk", "Cheese", "Tools"):
        expect(item(page, title).locator("> .row .percent")).to_have_text(re.compile(r"^[<>]?[\d.]+%$"))
    expect(item(page, "Rye bread")).to_have_attribute("aria-selected", "true")
    tools = item(page, "Tools")
    expect(tools).to_have_attribute("aria-expanded", "false")
    tools.locator("> .row").click()
    expect(item(page, "Hammers")).to_be_visible()
    expect(tools).to_have_attribute("aria-expanded", "true")
    look(page, "tree-expanded")
    tools.locator("> .row").click()
    expect(item(page, "Hammers")).to_be_hidden()


def test_wide_node_comes_in_pages(service: str, open_page: Open) -> None:
    page = open_page(service)
    item(page, "Screws").locator("> .row").click()
    screws = page.get_by_role("treeitem", name=re.compile(r"^Screw M\d+"))
    expect(screws).to_have_count(50)
    page.get_by_text("Show 50 more of 70").click()
    expect(screws).to_have_count(100)
    look(page, "tree-pages", whole=False)
    page.get_by_text("Show 20 more").click()
    expect(screws).to_have_count(WIDE)
    assert len({*screws.locator("> .row .what").all_inner_texts()}) == WIDE


def test_siblings_of_an_answer_in_a_wide_node_come_once(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "screw m77")
    expect(page.locator(".headline h2")).to_have_text("Screw M77 screw77")
    screws = page.get_by_role("treeitem", name=re.compile(r"^Screw M\d+"))
    for _ in range(WIDE):
        if not page.locator(".tree .more:has-text('more of')").count():
            break
        before = screws.count()
        page.locator(".tree .more").first.click()
        expect(screws).not_to_have_count(before)
    page.locator(".tree ul .more").first.click()
    expect(screws).to_have_count(WIDE)


@pytest.mark.parametrize("query", ["pumpernickel", "rye bread", "rye"])
def test_search_finds_by_synonym_title_and_id(service: str, open_page: Open, query: str) -> None:
    page = open_page(service)
    search = page.get_by_role("searchbox", name="Search the taxonomy")
    search.fill(query)
    match = page.locator(".match").first
    expect(match).to_contain_text("Rye bread")
    if query == "pumpernickel":
        expect(match).to_contain_text("also called pumpernickel")
        look(page, "tree-search")
    match.click()
    expect(item(page, "Rye bread")).to_be_focused()
    expect(page.locator(".tray .name")).to_have_text(["Food", "Bread", "Rye bread"])


def test_search_without_a_match_says_so(service: str, open_page: Open) -> None:
    page = open_page(service)
    page.get_by_role("searchbox").fill("nowhere")
    expect(page.get_by_text("Nothing found")).to_be_visible()
    look(page, "tree-search-empty")
    page.get_by_role("searchbox").press("Escape")
    expect(page.get_by_role("treeitem").first).to_be_visible()


def test_slider_shows_where_the_trace_stops(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "bread bracket")
    shown = percents(page.get_by_role("list", name="Steps from the top down").locator(".step"))
    slider = page.get_by_role("slider", name="Required confidence")
    stops, between = [], round(sum(shown) / len(shown))  # shares are rounded: ask for none of them
    for asked in (1, 50, between, 90, 100):
        slider.fill(str(asked))
        kept = page.locator(".trace li:not(.beyond) .step").count()
        assert kept == sum(share >= asked for share in shown), (asked, shown)
        stops.append(kept)
        if asked == between:
            look(page, "classify-slider")
    assert stops == sorted(stops, reverse=True)
    assert stops[0] > stops[-1]
    expect(page.locator(".stop-line")).to_contain_text("there is no answer")


def test_other_traces_can_be_shown(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "bread knife")
    others = page.locator(".others .other")
    expect(others).to_have_count(5)
    shown = percents(page.locator(".others"))
    assert shown == sorted(shown, reverse=True)
    title = others.nth(1).locator(".what > .name").inner_text()
    others.nth(1).click()
    expect(page.locator(".headline h2")).to_contain_text(title)
    expect(others.nth(1)).to_be_focused()
    expect(page.locator(".tree [aria-selected=true] > .row")).to_contain_text(title)
    rye = item(page, "Rye bread").locator("> .row .percent")  # a step of another trace
    expect(rye).to_have_text(re.compile(r"^[\d.]+%$"))
    expect(page.locator(".explanation[data-done]")).to_be_visible()
    look(page, "classify-runner-up")


def test_titles_are_text(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "wall bracket")
    expect(page.locator(".headline h2")).to_contain_text(HOSTILE_TITLE)
    assert page.locator("main img, main b").count() == 0
    assert "broken" not in page.title()
    look(page, "classify-hostile-title")


def test_right_to_left(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "رواية تاريخية 1984 rye")
    for place in (".headline .name", ".words", "textarea", ".tree .on-trace .name"):
        assert page.locator(place).first.evaluate("element => getComputedStyle(element).direction") == "rtl", place
    look(page, "right-to-left")


def test_deep_tree_and_long_titles_fit(service: str, open_page: Open) -> None:
    for name, width in (("wide", 1280), ("phone", 360)):
        page = open_page(service, viewport={"width": width, "height": 740})
        classify(page, "nested crate")
        expect(page.locator(".tree .on-trace")).to_have_count(DEPTH)
        assert fits(page)
        assert page.locator(".tree-scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
        widths = page.locator(".tree .on-trace > .row > .what").evaluate_all("all => all.map(each => each.clientWidth)")
        assert min(widths) > 80
        look(page, f"deep-tree-{name}")
        classify(page, "paring knife")
        expect(page.locator(".headline h2")).to_contain_text(LONG_TITLE)
        assert fits(page)
        assert page.locator(".tree-scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
        look(page, f"long-titles-{name}")


def fits(page: Page) -> bool:
    """Return whether the page has no horizontal overflow."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_accept_is_kept(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "dark rye bread")
    with page.expect_response("**/v1/feedback") as response:
        page.get_by_role("button", name="Accept rye").click()
    assert response.value.status == 201
    assert response.value.request.post_data_json == {
        "model": "shop", "text": "dark rye bread", "verdict": "accept", "nodes": ["rye"], "predicted": ["rye"],
    }  # fmt: skip
    expect(page.get_by_text("Accepted. It is kept for training.").first).to_be_visible()
    expect(page.get_by_role("button", name="Accept rye")).to_have_count(0)
    look(page, "feedback-accepted")


def test_correct_by_picking_in_the_tree(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "toast with rye")
    page.get_by_role("button", name="Correct …").click()
    expect(page.get_by_role("searchbox")).to_be_focused()
    item(page, "White bread").locator("> .row").click()
    look(page, "feedback-correcting")
    with page.expect_response("**/v1/feedback") as response:
        page.get_by_role("button", name="This is the right answer").click()
    sent = response.value.request.post_data_json
    assert response.value.status == 201
    assert (sent["verdict"], sent["nodes"]) == ("correct", ["white"])
    expect(page.locator(".kept")).to_contain_text("Corrected to white")


def test_answers_lie_within_a_branch(service: str, open_page: Open) -> None:
    page = open_page(service)
    classify(page, "bread knife")
    item(page, "Food").locator("> .row").click()
    page.get_by_role("button", name="Answer only in this branch").press("Enter")
    remove = page.get_by_role("button", name="Remove: Only in food")
    expect(remove).to_be_focused()
    expect(page.locator(".limits")).to_contain_text("Probabilities are conditional")
    steps = page.get_by_role("list", name="Steps from the top down")
    expect(steps.locator(".step").first).to_have_accessible_name("Food food 100%")
    expect(page.locator(".others .other")).to_have_count(4)  # all labels of the branch
    assert sum(percents(page.locator(".others"))) == pytest.approx(100, abs=2)
    expect(item(page, "Tools")).to_be_visible()  # the tree can still be browsed
    expect(page.locator(".explanation[data-done]")).to_be_visible()
    look(page, "classify-within")

    page.reload()  # the address has the branch, and its title is loaded again
    expect(page.locator(".limits li")).to_contain_text("Only in Food")
    item(page, "Food").locator("> .row > .twist").click()
    item(page, "Bread").locator("> .row").click()
    page.get_by_role("button", name="Never in this branch").click()
    classify(page, "bread knife")
    assert {*page.locator(".others .other .what > code").all_inner_texts()} == {"milk", "cheese"}

    remove.press("Enter")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    expect(page.locator(".limits li")).to_contain_text("Not in Bread")
    expect(page.locator(".headline h2")).to_contain_text(LONG_TITLE)
    page.get_by_role("button", name="Remove: Not in bread").click()
    expect(page.locator(".limits")).to_be_hidden()
    assert page.evaluate("location.search") == ""


def test_restriction_holds_for_tables_and_is_refused_if_nothing_is_left(service: str, open_page: Open) -> None:
    page = open_page(f"{service}/?model=other&within=tools&exclude=tools#classify")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("other")
    page.get_by_label("Text", exact=True).fill("bread")
    page.get_by_role("button", name="Classify", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="exclude")).to_be_visible()
    page.get_by_role("button", name="Remove: Not in tools").click()
    page.get_by_role("tab", name="File").click()
    expect(page.locator("#file .limits li")).to_contain_text("Only in Tools")
    drop(page, "rows.csv", b"text\nwhite bread\n")
    page.get_by_role("button", name="Classify the table").click()
    expect(page.get_by_role("heading", name="1 row classified")).to_be_visible()
    assert page.locator("#file td").nth(1).inner_text() in {"knives", "hammers", "html"}
    page.get_by_role("combobox", name="Model").select_option("shop")
    expect(page.locator("#file .limits")).to_be_hidden()


def test_model_is_chosen_by_name(service: str, open_page: Open) -> None:
    page = open_page(service)
    page.get_by_role("combobox", name="Model").select_option("other")
    expect(page.get_by_text("No answer yet")).to_be_visible()
    with page.expect_request("**/v1/classify") as request:
        classify(page, "whole milk")
    assert request.value.post_data_json["model"] == "other"
    page.reload()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("other")


def test_rows_and_a_dag_with_a_root_of_its_own(service: str, open_page: Open) -> None:
    page = open_page(service)
    page.get_by_role("combobox", name="Model").select_option("goods")
    expect(page.get_by_role("treeitem")).to_have_count(2)
    page.get_by_role("textbox", name="title").fill("red wine")
    page.get_by_role("textbox", name="price").fill("150")
    with page.expect_request("**/v1/classify") as request:
        page.get_by_role("button", name="Classify", exact=True).click()
    assert request.value.post_data_json["rows"] == [{"title": "red wine", "price": 150}]
    expect(page.locator(".headline h2")).to_have_text("Dear wine dear")
    expect(page.locator(".pushes li").first).to_contain_text("price")
    look(page, "classify-row")
    page.get_by_role("searchbox").fill("dear")
    page.locator(".match").first.click()
    expect(page.locator(".tray .name").last).to_have_text("Dear wine")
    assert "All goods" not in page.locator(".tree").inner_text()
    with page.expect_response("**/v1/feedback") as response:
        page.get_by_role("button", name="This is the right answer").click()
    assert response.value.status == 201
    assert response.value.request.post_data_json["row"] == {"title": "red wine", "price": 150}
