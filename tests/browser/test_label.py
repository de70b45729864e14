"""Label the rows of a project: by keyboard, in two browsers, with a lost connection, and what the labels show."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.browser.conftest import Open, look, serving
from tests.browser.model import HOSTILE_TITLE
from tests.browser.pool import N_ROWS, pool_rows, titles, write_pool
from tests.browser.test_classify import classify, fits
from tests.browser.test_states import PHONE, problem
from tests.processes import wait_until

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

RIGHT = dict(pool_rows())
TITLES = titles()
SECONDS = 30  # time limit of a request
TRAINING = 240_000  # milliseconds until a training that does not end is an error, on a busy machine
TRAINED = re.compile(r"The model was trained on \d+ labels")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a project of 2,000 nodes and 500 rows."""
    folder = tmp_path_factory.mktemp("labelling")
    taxonomy, rows = write_pool(folder)
    given = [taxonomy, "--rows", rows, "--text", "description", "--out", folder / "project"]
    with serving(*given, command="start") as address:
        yield address


def asked(address: str, path: str, body: object = None) -> Any:
    """Return what the service answers."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{address}/v1/project{path}", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=SECONDS) as response:
        return json.load(response)


def labels_of(address: str, annotator: str) -> list[Any]:
    """Return the labels and skips of a person, the newest first."""
    items: list[Any] = asked(address, f"/labels?{urlencode({'annotator': annotator, 'limit': 100})}")["items"]
    return items


def enter(page: Page, name: str) -> None:
    """Give a name, and wait for the first row."""
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    expect(page.locator(".suggestion").first).to_be_visible()


def text_of(page: Page) -> str:
    """Return the text of the row."""
    return page.locator(".label-text").inner_text()


def best(page: Page) -> list[str]:
    """Return the titles of the answers."""
    return page.locator(".suggestion .title > .name").all_inner_texts()


def label_by_keys(page: Page, node: str) -> None:
    """Label the row with the right key, or search its label; wait for the next row."""
    text, title = text_of(page), TITLES[node]
    titles = best(page)
    if title in titles:
        page.keyboard.press(str(1 + titles.index(title)))
    else:
        search_by_keys(page, title)
    expect(page.locator(".label-text")).not_to_have_text(text)
    expect(page.locator(".suggestion").first).to_be_visible()


def search_by_keys(page: Page, title: str) -> None:
    """Label the row with what a search finds first."""
    page.keyboard.press("/")
    expect(page.get_by_label("Search the taxonomy")).to_be_focused()
    page.keyboard.type(title)
    expect(page.locator(".match").first).to_contain_text(title)
    page.keyboard.press("Enter")


def add_texts(page: Page, *texts: str) -> None:
    """Add texts, which come next."""
    page.get_by_label("Add texts by hand").fill("\n".join(texts))
    page.get_by_role("button", name="Add and label them next").click()
    expect(page.locator(".label-text")).to_have_text(texts[0])
    expect(page.locator(".suggestion").first).to_be_visible()


def test_thirty_rows_by_keyboard_and_the_model_is_retrained(project: str, open_page: Open) -> None:
    page = open_page(project)
    refused: list[str] = []
    page.on("response", lambda response: refused.append(response.url) if response.status >= 400 else None)
    page.on("requestfailed", lambda request: refused.append(request.url))
    expect(page.get_by_role("tab", name="Label")).to_have_attribute("aria-selected", "true")
    look(page, "label-name")
    enter(page, "Ada")
    expect(page.locator(".progress-state .big")).to_have_text(re.compile(f"of {N_ROWS} rows"))
    look(page, "label-first")
    done = asked(project, "")["labelled"]
    texts = []
    for _ in range(30):
        texts.append(text_of(page))
        label_by_keys(page, RIGHT[texts[-1]])
    assert len({*texts}) == 30
    expect(page.locator(".progress-state .big strong")).to_have_text(str(done + 30))
    accuracy = asked(project, "/progress")["accuracy"]
    assert 0 < accuracy["value"] < 1  # some answers were corrected
    expect(page.locator(".progress-figures .big-percent")).to_have_text(f"{accuracy['value']:.0%}")
    expect(page.get_by_role("img", name=re.compile("^Accuracy by the number of labels"))).to_be_visible()
    look(page, "label-thirty")
    page.reload()  # the name is kept
    expect(page.locator(".suggestion").first).to_be_visible()
    label_by_keys(page, RIGHT[text_of(page)])
    expect(page.locator(".training")).to_contain_text(TRAINED, timeout=TRAINING)
    label_by_keys(page, RIGHT[text_of(page)])
    wait_until(lambda: len(labels_of(project, "Ada")) == 32)
    given = labels_of(project, "Ada")
    assert {item["text"] for item in given} >= {*texts}
    assert all([label["node"] for label in item["nodes"]] == [RIGHT[item["text"]]] for item in given)
    assert refused == []


def test_correction_changes_the_next_answer_and_undo_takes_it_back(project: str, open_page: Open) -> None:
    page = open_page(project)
    enter(page, "Cem")
    first, second, third = (f"zumbrel quonset grelk of lot {number}" for number in (1, 2, 3))
    title = "Rubber sailing scales"
    add_texts(page, first, second, third)
    before = best(page)
    assert title not in before
    search_by_keys(page, title)
    expect(page.locator(".label-text")).to_have_text(second)
    expect(page.locator(".suggestion .title > .name").first).to_have_text(title)
    expect(page.locator(".suggestion .known").first).to_contain_text(first)
    look(page, "label-corrected")
    page.keyboard.press("u")
    expect(page.locator(".label-text")).to_have_text(first)
    expect(page.locator(".suggestion .title > .name").first).to_be_visible()
    assert title not in best(page)
    page.keyboard.press("s")
    expect(page.locator(".label-text")).to_have_text(second)
    expect(page.locator(".suggestion .title > .name").first).to_be_visible()
    assert title not in best(page)
    history = [item["text"] for item in labels_of(project, "Cem") if not item["skip"]]
    assert first not in history


def test_two_browsers_never_get_the_same_row(project: str, open_page: Open) -> None:
    lent: dict[str, list[int]] = {"Eve": [], "Fay": []}
    pages = {}

    def note(name: str, response: Response) -> None:
        if response.url.endswith("/v1/project/next") and response.ok:
            lent[name] += [row["id"] for row in response.json()["rows"] if row["reason"] != "second"]

    for name in lent:
        page = pages[name] = open_page(f"{project}/health")
        page.on("response", lambda response, name=name: note(name, response))
        page.goto(project)
        enter(page, name)
    shown: dict[str, list[str]] = {name: [] for name in pages}
    for _ in range(8):
        for name, page in pages.items():
            if "second opinion" not in page.locator(".label-row .eyebrow").inner_text():
                shown[name].append(text_of(page))
            label_by_keys(page, RIGHT[text_of(page)])
    assert not {*shown["Eve"]} & {*shown["Fay"]}
    assert len(lent["Eve"]) > 8
    assert not {*lent["Eve"]} & {*lent["Fay"]}


def test_label_that_cannot_be_sent_is_kept(project: str, open_page: Open) -> None:
    page = open_page(project)
    enter(page, "Gus")
    kept = text_of(page)
    busy = problem(503, "Not now", "The disk is full.")
    page.route("**/v1/project/labels", lambda route: route.fulfill(**busy))
    page.keyboard.press("1")
    expect(page.locator(".label-text")).not_to_have_text(kept)  # the next row comes all the same
    alert = page.get_by_role("alert").filter(has_text="1 label is not stored yet")
    expect(alert).to_contain_text("The disk is full.")
    look(page, "label-unsent")
    with page.expect_request("**/v1/project/labels"):
        alert.get_by_role("button", name="Send now").click()
    page.unroute("**/v1/project/labels")
    expect(alert).to_have_count(0)  # it is sent again by itself
    assert labels_of(project, "Gus")[0]["text"] == kept

    closed = text_of(page)
    page.route("**/v1/project/labels", lambda route: route.abort())
    page.keyboard.press("1")
    expect(alert).to_be_visible()
    page.reload()
    expect(alert).to_be_visible()
    page.unroute("**/v1/project/labels")
    expect(alert).to_have_count(0)
    expect(page.locator(".suggestion").first).to_be_visible()
    assert labels_of(project, "Gus")[0]["text"] == closed

    refused = text_of(page)
    wrong = problem(422, "A field is invalid", "The node is unknown.")
    page.route("**/v1/project/labels", lambda route: route.fulfill(**wrong))
    page.keyboard.press("1")
    page.get_by_role("alert").filter(has_text="was refused").get_by_role("button", name="Label it again").click()
    expect(page.locator(".label-text")).to_have_text(refused)


def test_disagreement_is_settled_and_tables_are_downloaded(project: str, open_page: Open) -> None:
    formula, other = asked(project, "/rows", {"texts": ["=1+1 scales", "two opinions"]})["ids"]
    for name, row, node in (("Ada", other, "1.1.1"), ("Bob", other, "2.2.2"), ("Ada", formula, "1.8.1")):
        asked(project, "/labels", {"annotator": name, "id": row, "nodes": [node]})
    page = open_page(project)
    enter(page, "Hal")
    row = page.locator(".disagreements > li").filter(has_text="two opinions")
    expect(row).to_contain_text("Bob")
    look(page, "label-disagreement")
    row.get_by_role("button", name=TITLES["2.2.2"]).click()
    expect(row).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("button", name="labels.csv").click()
    lines = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert {line["text"]: line["label"] for line in lines}["two opinions"] == "2.2.2"
    assert "'=1+1 scales" in {line["text"] for line in lines}  # what a spreadsheet would compute
    with page.expect_download() as download:
        page.get_by_role("button", name="history.csv").click()
    history = Path(download.value.path()).read_text(encoding="utf-8")
    assert "settle" in history
    assert "'=1+1 scales" in history


def test_by_touch_on_a_phone_with_a_hostile_text_and_name(project: str, open_page: Open) -> None:
    page = open_page(project, viewport=PHONE, has_touch=True, color_scheme="dark")
    enter(page, HOSTILE_TITLE[:100])
    add_texts(page, HOSTILE_TITLE)
    assert fits(page)
    look(page, "phone-label")
    page.get_by_role("button", name="Note", exact=False).tap()
    page.get_by_label("Note, kept with the label").fill(HOSTILE_TITLE)
    page.locator(".suggestion").nth(1).tap()
    expect(page.locator(".label-text")).not_to_have_text(HOSTILE_TITLE)
    expect(page.locator(".last")).to_contain_text(HOSTILE_TITLE[:60])
    wait_until(lambda: labels_of(project, HOSTILE_TITLE[:100]))
    (given,) = labels_of(project, HOSTILE_TITLE[:100])
    assert [given["text"], given["note"]] == [HOSTILE_TITLE, HOSTILE_TITLE]
    page.get_by_role("button", name="Undo").tap()
    expect(page.locator(".label-text")).to_have_text(HOSTILE_TITLE)
    assert page.title().startswith("Label")


def test_views_of_a_project_and_a_new_name(project: str, open_page: Open) -> None:
    page = open_page(project)
    enter(page, "Jon")
    expect(page.get_by_role("tab", name="Review")).to_be_hidden()
    page.keyboard.type("gc")
    classify(page, "steel knives for the kitchen")
    page.get_by_role("link", name="Label").last.click()
    page.get_by_role("button", name="Change the name").click()
    page.get_by_label("Name").fill("Kim")
    page.keyboard.press("Enter")
    label_by_keys(page, RIGHT[text_of(page)])
    page.keyboard.press("?")
    look(page, "label-help", whole=False)
    wait_until(lambda: labels_of(project, "Kim"))
    assert [len(labels_of(project, name)) for name in ("Jon", "Kim")] == [0, 1]


def test_several_labels_are_chosen_and_confirmed(project: str, open_page: Open) -> None:
    page = open_page(f"{project}/health")
    sent: list[dict[str, Any]] = []

    def several(route: Any) -> None:
        route.fulfill(json={**route.fetch().json(), "several": True})

    page.route("**/v1/project", several)
    page.route("**/v1/project/labels", lambda route: (sent.append(route.request.post_data_json), route.abort()))
    page.goto(project)
    enter(page, "Ida")
    chosen = [page.locator(".suggestion code").nth(index).inner_text() for index in (0, 2)]
    confirm = page.get_by_role("button", name="Confirm")
    expect(confirm).to_be_disabled()
    for key in "123":
        page.keyboard.press(key)
    page.keyboard.press("2")  # once more: not chosen
    search_by_keys(page, "Glass music lamps")
    expect(page.locator(".label .chips li")).to_have_count(3)
    expect(page.locator(".suggestion").nth(2)).to_have_attribute("aria-pressed", "true")
    look(page, "label-several")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").first).to_be_visible()
    [glass] = [node for node, title in TITLES.items() if title == "Glass music lamps"]
    assert sent[0]["nodes"] == [*chosen, glass]
