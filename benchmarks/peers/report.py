"""Write the tables and plots of the comparison page from committed results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import RESULTS

from peers.catalogue import PEERS
from peers.data import TITLES

ROOT = Path(__file__).parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGE, BEGIN, END = DOCS / "benchmarks.md", "<!-- tables: begin -->", "<!-- tables: end -->"
COLUMNS = {
    "accuracy": "accuracy",
    "hierarchical F1": "hierarchical_f1",
    "macro-F1": "macro_f1",
    "LCA-F1": "lca_f1",
    "calibration error": "calibration_error",
    "training s": "train_seconds",
    "CPU s": "train_cpu_seconds",
    "rows/s": "rows_per_second",
    "one row, ms": "single_row_milliseconds",
    "peak GB": "peak_gb",
    "MB on disk": "megabytes",
    "cold start s": "cold_start_seconds",
}
SHARES = ("accuracy", "hierarchical_f1", "macro_f1", "lca_f1")
SUMMARY = {"hinet": "hinet", "hinet-meaning": "with the extra `meaning`", "hinet-encoder": "with MiniLM"}
PRETRAINED = "with pretrained weights"
COST = "![CPU seconds of training per 1,000 rows, against the number of labels](benchmarks_cost.svg)\n"
NO_RESULTS = "No results are committed yet: `make bench-peers` writes their tables here.\n"


def read_results() -> dict[str, dict[str, Any]]:
    """Return the committed results by data set, in the order of the catalogue."""
    paths = {name: RESULTS / f"peers_{name}.json" for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def tables(results: dict[str, dict[str, Any]]) -> str:
    """Return the generated part of the page."""
    if not results:
        return NO_RESULTS
    sections = (line for name, found in results.items() for line in _section(name, found))
    return f"\n{overview(results)}\n{COST}\n" + "".join(f"{line}\n" for line in sections)


def overview(results: dict[str, dict[str, Any]]) -> str:
    """Return a table of accuracy and hierarchical F1: one line per peer, one column per data set."""
    if not results:
        return NO_RESULTS
    lines = [
        f"| accuracy / hierarchical F1 | {' | '.join(map(_heading, results.items()))} |",
        f"|---|{'---|' * len(results)}",
    ]
    for pretrained in (False, True):
        group = [peer for peer, entry in PEERS.items() if entry.pretrained is pretrained]
        group = [
            peer for peer in group if any("accuracy" in found["results"].get(peer, {}) for found in results.values())
        ]
        if pretrained and group:
            lines.append(f"| *{PRETRAINED}* |{' |' * len(results)}")
        best = [_best(found["results"], group) for found in results.values()]
        for peer in group:
            cells = (
                _pair(found["results"].get(peer, {}), top) for found, top in zip(results.values(), best, strict=True)
            )
            lines.append(f"| {PEERS[peer].title} | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def summary(results: dict[str, dict[str, Any]]) -> str:
    """Return a table of accuracy and hierarchical F1: one line per data set, with the best peer and with hinet."""
    lines = [
        f"| accuracy / hierarchical F1 | best peer | {' | '.join(SUMMARY.values())} |",
        f"|---|---|{'---|' * len(SUMMARY)}",
    ]
    for item in results.items():
        found = item[1]["results"]
        peers = [peer for peer in PEERS if not peer.startswith("hinet") and "accuracy" in found.get(peer, {})]
        best = _best(found, [*peers, *SUMMARY])
        ahead = max(peers, key=lambda peer: found[peer]["accuracy"], default=None)
        cells = ["none finished" if ahead is None else f"{_pair(found[ahead], best)} {PEERS[ahead].title}"]
        cells += [_pair(found.get(peer, {}), best) for peer in SUMMARY]
        lines.append(f"| {_heading(item)} | {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def _heading(item: tuple[str, dict[str, Any]]) -> str:
    name, found = item
    counts = next((row for row in found["results"].values() if "labels" in row), None)
    return TITLES[name] + (f", {counts['labels']:,} labels" if counts else "")


def _best(results: dict[str, Any], group: list[str]) -> float:
    return max((results.get(peer, {}).get("accuracy", 0.0) for peer in group), default=0.0)


def _pair(row: dict[str, Any], best: float) -> str:
    if "accuracy" not in row:
        return f"over {row['limit_seconds']:,.0f} s" if "did_not_finish" in row else "-"
    text = f"{100 * row['accuracy']:.1f} / {100 * row['hierarchical_f1']:.1f}"
    return f"**{text}**" if row["accuracy"] == best else text


def page_with(text: str, page: str) -> str:
    """Return `page` with the text between the markers replaced."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{text}{END}{after}"


def write() -> None:
    """Write the tables into the page and the README, and the plots next to the page."""
    results = read_results()
    PAGE.write_text(page_with(tables(results), PAGE.read_text()))
    README.write_text(page_with(summary(results), README.read_text()))
    for name, found in results.items():
        plot(found["results"], TITLES[name], DOCS / f"benchmarks_{name}.svg")
        print(f"wrote the table and plot of {name}")
    plot_cost(results, DOCS / "benchmarks_cost.svg")


def _section(name: str, found: dict[str, Any]) -> Iterator[str]:
    results = found["results"]
    yield f"\n## {TITLES[name]}\n"
    counts = next((row for row in results.values() if "labels" in row), None)
    if counts:
        rows = f"{counts['train_rows']:,} training rows, {counts['test_rows']:,} test rows"
        yield f"{counts['labels']:,} labels, {rows}.\n"
    yield f"![accuracy against training time](benchmarks_{name}.svg)\n"
    yield f"| | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    known = [peer for peer in PEERS if peer in results]
    for pretrained in (False, True):
        group = [peer for peer in known if PEERS[peer].pretrained is pretrained]
        best = _best(results, group)
        if pretrained and group:
            yield f"| *{PRETRAINED}* |{' |' * len(COLUMNS)}"
        for peer in group:
            yield _row(PEERS[peer].title, results[peer], best)
    commits = sorted({row.get("commit", found["commit"]) for row in results.values()})
    threads = sorted({row["threads"] for row in results.values() if "threads" in row})
    yield (
        f"\n{'Commit' if len(commits) == 1 else 'Commits'} {', '.join(commits)}, Python {found['python']}, "
        f"{found['cores']} cores of {found['processor']}, "
        f"threads: {', '.join(map(str, threads))}. Settings: "
        + "; ".join(f"{PEERS[peer].title} {_settings(results[peer])}" for peer in known if _settings(results[peer]))
        + "."
    )


def _row(title: str, row: dict[str, Any], best: float) -> str:
    if "did_not_finish" in row:
        return f"| {title} | did not finish in {row['limit_seconds']:,.0f} s |{' |' * (len(COLUMNS) - 1)}"
    if "failed" in row:
        return f"| {title} | failed: {row['error']} |{' |' * (len(COLUMNS) - 1)}"
    cells = [_cell(key, row.get(key)) for key in COLUMNS.values()]
    if row["accuracy"] == best:
        cells[0] = f"**{cells[0]}**"
    return f"| {title} | {' | '.join(cells)} |"


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key in SHARES:
        return f"{100 * value:.1f}"
    if key == "calibration_error":
        return f"{value:.3f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _settings(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.get("settings", {}).items())


def plot(results: dict[str, Any], title: str, path: Path) -> None:
    """Plot accuracy against training time, one point per peer; the same results give the same bytes."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "hinet"
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    measured = [peer for peer in PEERS if "accuracy" in results.get(peer, {})]
    for number, peer in enumerate(sorted(measured, key=lambda peer: results[peer]["train_seconds"])):
        ours = peer.startswith("hinet")
        point = results[peer]["train_seconds"], 100 * results[peer]["accuracy"]
        axes.plot(*point, "D" if ours else "o", color="C3" if ours else "C1" if PEERS[peer].pretrained else "C0")
        offset = 3 if number % 2 else -9  # alternates, so that fewer names overlap
        axes.annotate(PEERS[peer].title, point, textcoords="offset points", xytext=(5, offset), fontsize=8)
    axes.set(xscale="log", xlabel="seconds of training, features included", ylabel="accuracy, percent", title=title)
    axes.margins(x=0.2, y=0.1)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def plot_cost(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot CPU seconds of training per 1,000 rows against the number of labels, one point per data set."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "hinet"
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for peer, entry in PEERS.items():
        rows = [found["results"].get(peer, {}) for found in results.values()]
        points = sorted(
            (row["labels"], 1e3 * row["train_cpu_seconds"] / row["train_rows"]) for row in rows if "labels" in row
        )
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), "D" if peer.startswith("hinet") else "o", label=entry.title)
    axes.set(xscale="log", yscale="log", xlabel="labels", ylabel="CPU seconds of training for 1,000 rows")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
