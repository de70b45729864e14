"""Draw the figures of the documentation as SVG files in ``docs/figures``.

All are illustrations with invented probabilities, except the curve of few rows, which shows committed results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "figures"
INK, FAINT, BEST, OTHER, STOP = "#1f2430", "#9aa3b2", "#3949ab", "#eef0f7", "#fff3d6"

TIMES = "\N{MULTIPLICATION SIGN}"

Place = tuple[float, float]

# The network of all figures: the options of each node with their probabilities; "stop" ends the trace.
OPTIONS = {
    "": {"Food": 0.7, "Toys": 0.3},
    "Food": {"Bread": 0.6, "Milk": 0.25, "stop": 0.15},
    "Toys": {"Car": 0.9, "stop": 0.1},
    "Bread": {"Rye": 0.5, "White": 0.2, "stop": 0.3},
    "Milk": {"stop": 1.0},
    "Car": {"stop": 1.0},
    "Rye": {"stop": 1.0},
    "White": {"stop": 1.0},
}
LAYERS = [["Food", "Toys"], ["Bread", "Milk", "Car"], ["Rye", "White"]]
PARENT = {child: parent for parent, options in OPTIONS.items() for child in options if child != "stop"}


def poured() -> dict[str, float]:
    """Return the downpour score of each node: in a tree, the product of the options that lead to it."""
    scores = {"": 1.0}
    for layer in LAYERS:
        for node in layer:
            scores[node] = scores[PARENT[node]] * OPTIONS[PARENT[node]][node]
    return scores


def stops() -> dict[str, float]:
    """Return the score of the trace that ends at each node."""
    scores = poured()
    return {node: scores[node] * OPTIONS[node]["stop"] for node in scores if "stop" in OPTIONS[node]}


class Drawing:
    """The elements of an SVG file, from back to front."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height = width, height
        self.parts = [
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
        ]

    def line(self, start: Place, end: Place, *, best: bool = False, dashed: bool = False) -> None:
        """Add a line between two points."""
        colour, width = (BEST, 3) if best else (FAINT, 1.2)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        points = f'x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"'
        self.parts.append(f'<line {points} stroke="{colour}" stroke-width="{width}"{dash}/>')

    def box(self, centre: Place, text: str, *, fill: str = OTHER, best: bool = False, width: int = 74) -> None:
        """Add a labelled box."""
        x, y, colour = centre[0] - width / 2, centre[1] - 14, BEST if best else FAINT
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width}" height="28" rx="6" fill="{fill}" stroke="{colour}" '
            f'stroke-width="{2.5 if best else 1}"/>'
        )
        self.text((centre[0], centre[1] + 5), text, bold=best)

    def text(
        self, spot: Place, text: str, *, size: int = 13, bold: bool = False, start: bool = False, faint: bool = False
    ) -> None:
        """Add a line of text, centred or left-aligned."""
        anchor, weight = "start" if start else "middle", ' font-weight="600"' if bold else ""
        colour = "#5b6475" if faint else INK
        self.parts.append(
            f'<text x="{spot[0]:g}" y="{spot[1]:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{weight}>'
            f"{escape(text)}</text>"
        )

    def write(self, name: str) -> None:
        """Write the file."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
        body = "\n".join(self.parts)
        (FOLDER / name).write_text(f'{head} font-family="system-ui, sans-serif">\n{body}\n</svg>\n', encoding="utf-8")


def draw_trace() -> None:
    """Draw a text and its trace through a tree."""
    drawing = Drawing(
        760, 250, "A text, its trace in the tree with the probability of every step, and the words behind it"
    )
    places = {
        "Goods": (60, 125), "Food": (215, 75), "Toys": (215, 200), "Bread": (400, 45), "Milk": (400, 110),
        "Car": (400, 200), "Rye": (590, 25), "White": (590, 75),
    }  # fmt: skip
    edges = [("Goods", "Food"), ("Goods", "Toys"), ("Food", "Bread"), ("Food", "Milk"), ("Toys", "Car"),
             ("Bread", "Rye"), ("Bread", "White")]  # fmt: skip
    best = {"Goods": "", "Food": "0.98", "Bread": "0.95", "Rye": "0.91"}
    for start, end in edges:
        drawing.line(places[start], places[end], best=end in best)
    for node, place in places.items():
        drawing.box(place, node, best=node in best, width=86)
        if best.get(node):
            drawing.text((place[0] + 64, place[1] + 5), best[node], bold=True)
    drawing.text((490, 160), "“dark rye loaf, sliced”", size=16, bold=True, start=True)
    drawing.text((490, 190), "why Rye and not White:", start=True, faint=True)
    drawing.text((490, 212), "rye +2.1 · dark +0.6 · loaf +0.1", start=True, faint=True)
    drawing.write("trace.svg")


def _places(left: float, right: float) -> dict[str, Place]:
    columns = [left + (right - left) * index / 2 for index in range(3)]
    rows = {"Food": 80, "Toys": 172, "Bread": 60, "Milk": 116, "Car": 172, "Rye": 40, "White": 90}
    return {node: (columns[index], rows[node]) for index, layer in enumerate(LAYERS) for node in layer}


def draw_layers() -> None:
    """Draw the hierarchy as layers of neurons with stop neurons."""
    drawing = Drawing(
        760, 290, "The hierarchy as layers of neurons: edges join consecutive layers, each with a stop neuron"
    )
    places = {"": (60.0, 130.0)} | _places(200, 520)
    ends = {2: (360.0, 245.0), 3: (520.0, 245.0), 4: (680.0, 245.0)}
    for node, options in OPTIONS.items():
        for option in options:
            depth = 1 + next((index + 1 for index, layer in enumerate(LAYERS) if node in layer), 0)
            end = ends[depth] if option == "stop" else places[option]
            drawing.line(places[node], end, dashed=option == "stop")
    for node, place in places.items():
        drawing.box(place, node or "features", fill="#e3e6f5" if not node else OTHER)
    for place in ends.values():
        drawing.box(place, "stop", fill=STOP)
    for index, x in enumerate((200, 360, 520, 680)):
        drawing.text((x, 280), f"layer {index + 1}", faint=True)
    drawing.write("layers.svg")


def draw_downpour() -> None:
    """Draw downpour layer by layer: the score of every neuron, then the best stop, traced back."""
    drawing = Drawing(760, 660, "Downpour, step by step: scores flow down, the best stop is traced back")
    scores, ended = poured(), stops()
    winner = max(ended, key=ended.__getitem__)
    titles = [
        "1. Layer 1: a score is the probability of the option.",
        f"2. Layer 2: the score above times the option. Stops score too: Food 0.7 {TIMES} 0.15.",
        f"3. All stops compared: {winner} wins with {ended[winner]:.2f}; greedy descent: Rye with {ended['Rye']:.2f}.",
    ]
    for step, title in enumerate(titles):
        top = 218 * step
        places = {node: (x, y + top + 20) for node, (x, y) in _places(80, 450).items()}
        drawing.text((20, top + 24), title, bold=True, start=True)
        trace = {winner, PARENT[winner]} if step == 2 else set()
        for node, parent in PARENT.items():
            if parent and any(node in layer for layer in LAYERS[: step + 1]):
                start, end = places[parent], places[node]
                drawing.line(start, end, best=node in trace)
                middle = (0.4 * start[0] + 0.6 * end[0], 0.4 * start[1] + 0.6 * end[1] - 5)
                drawing.text(middle, f"{TIMES} {OPTIONS[parent][node]:g}", size=11, faint=True)
        for depth, layer in enumerate(LAYERS):
            for node in layer:
                drawing.box(places[node], node, best=node in trace, fill=OTHER if depth <= step else "#fff")
                if depth <= step:
                    drawing.text(
                        (places[node][0], places[node][1] + 28), f"{scores[node]:.3g}", size=12, bold=node in trace
                    )
        if step:
            shown = [node for node in ended if step == 2 or node in LAYERS[0]]
            for index, node in enumerate(shown):
                y = top + 58 + 20 * index
                drawing.text(
                    (570, y),
                    f"stop at {node}: {ended[node]:.3g}",
                    start=True,
                    bold=step == 2 and node == winner,
                    size=12,
                )
    drawing.write("downpour.svg")


def draw_coverage() -> None:
    """Draw the share of wrong answers against the share of rows answered, with a threshold."""
    drawing = Drawing(560, 300, "Risk against coverage: the more rows are answered, the more answers are wrong")
    left, bottom, width, height = 70.0, 240.0, 440.0, 190.0

    def risk(coverage: float) -> float:
        return 0.3 * coverage**4 + 0.01 * coverage

    def place(coverage: float, share: float) -> Place:
        return left + width * coverage, bottom - height * share / 0.35

    drawing.line((left, bottom), (left + width, bottom))
    drawing.line((left, bottom), (left, bottom - height))
    points = [place(step / 60, risk(step / 60)) for step in range(61)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawing.parts.append(f'<polyline points="{path}" fill="none" stroke="{BEST}" stroke-width="3"/>')
    chosen = _where(risk, 0.05)
    mark = place(chosen, 0.05)
    drawing.line((left, mark[1]), mark, dashed=True)
    drawing.line((mark[0], bottom), mark, dashed=True)
    drawing.parts.append(f'<circle cx="{mark[0]:.1f}" cy="{mark[1]:.1f}" r="6" fill="{BEST}"/>')
    drawing.text((mark[0] - 90, mark[1] - 14), "the threshold for a risk", bold=True)
    drawing.text((left + width / 2, 280), "coverage: share of rows answered, most confident first", faint=True)
    drawing.text((20, 26), "risk: share of wrong answers", start=True, faint=True)
    drawing.text((left - 14, mark[1] + 5), "risk", faint=True)
    drawing.text((mark[0], bottom + 18), "answered", faint=True)
    drawing.write("coverage.svg")


SIZES = ("0", "100", "300", "1000", "3000", "all")
CURVES = {  # method of benchmarks/few_rows.py: name, colour
    "encoder": ("hinet, MiniLM", "#3949ab"),
    "box": ("hinet, extra meaning", "#00897b"),
    "words": ("hinet, words", "#8e9bd6"),
    "nearest": ("MiniLM, nearest", "#e65100"),
    "logistic": ("MiniLM, logistic regression", "#c2185b"),
    "svm": ("LinearSVC", "#6d4c41"),
    "fasttext": ("fastText", "#9aa3b2"),
}


def draw_few_rows() -> None:
    """Draw accuracy and the share of right phrases against the number of rows, for NAICS."""
    results = json.loads((ROOT / "benchmarks" / "results" / "few_rows.json").read_text())["results"]
    drawing = Drawing(
        760, 340, "Accuracy and right first answers to everyday phrases by number of training rows, NAICS"
    )
    for left, name, title in ((50.0, "accuracy", "test rows right"), (420.0, "phrases", "everyday phrases right")):
        bottom, width, height = 270.0, 290.0, 210.0
        drawing.text((left + width / 2, 36), title, bold=True)
        for share in (0.0, 0.2, 0.4, 0.6, 0.8):
            level = bottom - height * share / 0.85
            drawing.line((left, level), (left + width, level), dashed=share > 0)
            drawing.text((left - 18, level + 4), f"{share:.0%}", size=11, faint=True)
        for step, size in enumerate(SIZES):
            drawing.text((left + width * step / 5, bottom + 18), size, size=11, faint=True)
        for method, (_, colour) in CURVES.items():
            shares = [(step, results.get(f"naics, {size}, {method}", {}).get(name)) for step, size in enumerate(SIZES)]
            points = [
                (left + width * step / 5, bottom - height * share / 0.85) for step, share in shares if share is not None
            ]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            drawing.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    for number, (label, colour) in enumerate(CURVES.values()):
        x, y = 30 + 185 * (number % 4), 308 + 18 * (number // 4)
        drawing.parts.append(f'<rect x="{x}" y="{y - 9}" width="14" height="4" fill="{colour}"/>')
        drawing.text((x + 20, y - 3), label, size=11, start=True)
    drawing.write("few_rows.svg")


def _where(function: Callable[[float], float], value: float) -> float:
    """Return the argument between 0 and 1 at which an increasing function has a value."""
    low, high = 0.0, 1.0
    while high - low > math.ulp(1.0) * 8:
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return low


def main() -> None:
    """Draw all figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in (draw_trace, draw_layers, draw_downpour, draw_coverage, draw_few_rows):
        draw()


if __name__ == "__main__":
    main()
