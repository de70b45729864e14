"""Predictions and explanations as HTML, which notebooks show, and as pandas frames.

All text is escaped, and colours are those of the page or readable on light and dark ones; there are no scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from hinet.extras import require

MAX_HTML_ROWS = 20
_BAR = "display:inline-block;height:0.7em;margin-right:0.4em;border-radius:2px;background:"
_FOR, _AGAINST = "rgba(46,160,103,0.8)", "rgba(221,90,80,0.8)"
_MAX_BAR = 6.0  # em


def frame(columns: Sequence[str], rows: list[tuple[Any, ...]]) -> Any:
    """Return rows as a pandas DataFrame; HiNetError says what to install if pandas is missing."""
    require("pandas", "to_frame()")
    import pandas

    return pandas.DataFrame(rows, columns=columns)


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def probability_cell(probability: float) -> str:
    """Return a probability as a bar and a number."""
    return _bar(probability, _FOR) + f"{probability:.3f}"


def push_cell(push: float, largest: float) -> str:
    """Return what pushed to a node, or away from it, as a bar and a number with its sign."""
    return _bar(abs(push) / largest if largest else 0.0, _FOR if push >= 0 else _AGAINST) + f"{push:+.3f}"


def steps_cell(steps: Sequence[str], probabilities: Sequence[float]) -> str:
    """Return the steps of a trace, each with the probability down to there."""
    parts = (f"{escape(step)} <small>{p:.3f}</small>" for step, p in zip(steps, probabilities, strict=True))
    return " &rsaquo; ".join(parts)


def label_text(label: Any) -> str:
    """Return a label as escaped text, a path with its steps."""
    steps = [step for step in label if step != ""] if isinstance(label, tuple) else [label]
    return " &rsaquo; ".join(escape(str(step)) for step in steps)


def _bar(share: float, colour: str) -> str:
    return f'<span style="{_BAR}{colour};width:{_MAX_BAR * min(max(share, 0.0), 1.0):.2f}em"></span>'
