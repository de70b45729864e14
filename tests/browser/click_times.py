"""How long the tree takes to answer a click, on ICD-10-CM: ``python -m tests.browser.click_times``."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser.conftest import CHROMIUM, HINET, QUIET, WIDE, serving
from tests.processes import run

CLICK = """async (clicks) => {
    let seed = 1;
    const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
    const times = [];
    while (times.length < clicks) {
        const all = [...document.querySelectorAll(".tree [aria-expanded=false]")];
        const closed = all.filter((item) => item.offsetParent);
        if (!closed.length) break;
        const item = closed[Math.floor(random() * closed.length)];
        const start = performance.now();
        item.firstElementChild.click();
        while (!item.querySelector("[role=group] > [role=treeitem]")) await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - start);
    }
    return [times, document.querySelectorAll(".tree [role=treeitem]").length];
}"""


def measure(model: Path, clicks: int) -> dict[str, float]:
    """Open nodes of the tree at random, and return how long it took until their children were painted."""
    from playwright.sync_api import sync_playwright

    with serving(f"icd={model}") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
        page.goto(address)
        page.get_by_role("treeitem").first.wait_for()
        times, shown = page.evaluate(CLICK, clicks)
        browser.close()
    ordered = sorted(times)
    return {
        "clicks": len(times),
        "nodes_shown_at_the_end": shown,
        "median_ms": round(statistics.median(times), 1),
        "p99_ms": round(ordered[int(0.99 * (len(times) - 1))], 1),
        "longest_ms": round(ordered[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="folder of a model; by default one of ICD-10-CM is trained")
    parser.add_argument("--clicks", type=int, default=300)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        model = given.model or Path(folder) / "icd"
        if given.model is None:
            run([HINET, "demo", "--quiet", "--save", model], stdout=None).check_returncode()
        print(json.dumps(measure(model, given.clicks), indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
