"""Measure the web page in Chromium with an ICD-10-CM model: size of the first paint, and response time of the tree.

python benchmarks/page.py [--clicks 300]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from measure import save
from serve import prepare, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WINDOW = {"width": 1280, "height": 860}
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


def measure(address: str, clicks: int) -> dict[str, Any]:
    """Open nodes of the tree at random, and return the times until their children were painted."""
    from playwright.sync_api import sync_playwright

    sizes: list[int] = []

    def count(request: Any) -> None:
        sizes.append(sum(request.sizes().values()))

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=WINDOW)  # type: ignore[arg-type]
        page.on("requestfinished", count)
        page.goto(address)
        page.get_by_role("treeitem").first.wait_for()
        page.wait_for_load_state("networkidle")
        first_paint = {"requests": len(sizes), "kilobytes": round(sum(sizes) / 1e3, 1)}
        times, shown = page.evaluate(CLICK, clicks)
        browser.close()
    ordered = sorted(times)
    clicked = {
        "clicks": len(times),
        "nodes_shown_at_the_end": shown,
        "median_ms": round(statistics.median(times), 1),
        "p99_ms": round(ordered[int(0.99 * (len(times) - 1))], 1),
        "longest_ms": round(ordered[-1], 1),
    }
    return {"first_paint": first_paint, "clicks": clicked}


def main() -> None:
    if CHROMIUM is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clicks", type=int, default=300)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        with serving(Path(name), warm=False) as service:
            results = measure(service.address, asked.clicks)
    print(results)
    save("page", results)


if __name__ == "__main__":
    main()
