"""A running service, and Chromium to open its page; without Chromium all of these tests are skipped."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.model import train, train_tags, write_goods
from tests.processes import run, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HINET = Path(sys.executable).with_name("hinet")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--no-first-run",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WIDE = {"width": 1280, "height": 860}
MAX_WAIT = 20_000  # milliseconds until something that does not appear is an error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if CHROMIUM is None and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="Chromium is not installed: apt-get install chromium"))


@contextmanager
def serving(*arguments: str | Path, command: str = "serve") -> Iterator[str]:
    """Yield the address of a service that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with started([HINET, command, "--port", str(port), *arguments], stderr=PIPE) as process:
        assert process.stderr is not None
        said = list(iter_until(" ready: ", process.stderr))
        try:
            assert process.poll() is None, "".join(said)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def iter_until(last: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines up to the first that contains a text."""
    for line in lines:
        yield line
        if last in line:
            return


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model under three names, `shop` with an evaluation, and `goods`, one of rows and a DAG."""
    folder = tmp_path_factory.mktemp("models")
    shop = train(folder / "shop")
    for name in ("other", "queue"):
        shutil.copytree(shop, folder / name)
    rows = folder / "test.csv"
    rows.write_text("text,label\n" + "".join(f"{text},{node}\n" for text, node in TEST_ROWS), encoding="utf-8")
    evaluated = run([HINET, "evaluate", shop, rows, "--text", "text", "--label", "label", "--keep"])
    assert evaluated.returncode == 0, evaluated.stderr
    table, taxonomy = write_goods(folder)
    columns = ["--text", "title", "--number", "price", "--label", "label", "--taxonomy", taxonomy]
    trained = run([HINET, "train", table, *columns, "--out", folder / "goods", "--quiet"])
    assert trained.returncode == 0, trained.stderr
    return folder


TEST_ROWS = [
    ("dark bread", "rye"), ("rye rolls", "rye"), ("white rolls", "rye"), ("toast", "white"), ("milk", "milk"),
    ("oat drink", "milk"), ("blue cheese", "cheese"), ("cheese knife", "knives"), ("bread knife", "white"),
    ("claw hammer", "hammers"), ("mallet", "hammers"),
    ("screw m7", "screw7"), ("screw m8", "screw9"), ("screw m11", "screw12"), ("قصص", "riwayat"), ("شعر", "riwayat"),
    ("nested crate", "crate16"), ("parcel number3", "box3"), ("parcel number4", "box5"), ("wall bracket", "html"),
]  # fmt: skip


@pytest.fixture(scope="session")
def service(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that keeps feedback and has a review queue."""
    feedback = tmp_path_factory.mktemp("feedback") / "feedback.db"
    named = [f"{name}={models / name}" for name in ("shop", "other", "queue", "goods")]
    with serving(*named, "--feedback", feedback, "--review") as address:
        yield address


@pytest.fixture(scope="session")
def tags_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with a model of several labels per text; another model is damaged."""
    folder = tmp_path_factory.mktemp("tags")
    damaged = shutil.copytree(train_tags(folder / "tags"), folder / "damaged")
    next(damaged.glob("model-*")).write_bytes(b"")
    with serving(damaged, folder / "tags", "--feedback", folder / "feedback.db", "--review") as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=MAX_WAIT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


Open = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open the page at an address; fail if its scripts failed or sent requests to another address."""
    faults: list[str] = []
    contexts = []

    def open_page(address: str, **options: object) -> Page:
        context = browser.new_context(**{"viewport": WIDE, "locale": "en", **options})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(MAX_WAIT)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console", lambda message: faults.append(message.text) if is_fault(message.type, message.text) else None
        )
        page.on("request", lambda asked: None if is_own(asked.url, address) else faults.append(f"asked {asked.url}"))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def is_fault(kind: str, text: str) -> bool:
    """Return whether a console line is an error of the page; refused requests are tested on purpose."""
    return kind in ("error", "warning") and "Failed to load resource" not in text


def is_own(url: str, address: str) -> bool:
    """Return whether a request goes to the service itself; a blob is a file created by the page."""
    host = urlsplit(address).netloc
    return url.startswith((f"http://{host}/", f"blob:http://{host}/"))


def look(page: Page, name: str, *, whole: bool = True) -> None:
    """Save a screenshot, and assert that axe-core finds no serious problem."""
    from axe_playwright_python.sync_playwright import Axe

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)
    found = Axe().run(page).response["violations"]
    serious = [
        f"{fault['id']}: {node['html']} {node['failureSummary']}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
    assert serious == []
