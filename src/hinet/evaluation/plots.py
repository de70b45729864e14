"""Figures, drawn with matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hinet.errors import HiNetError
from hinet.evaluation.comparison import Outcome


def plot_comparison(outcomes: Sequence[Outcome], title: str, path: str | Path) -> None:
    """Draw accuracy and hierarchical F1 of every model, and its accuracy level by level."""
    plt = _pyplot()
    models = list(dict.fromkeys(outcome.model for outcome in outcomes))
    figure, (bars, lines) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    places = np.arange(len(models))
    for number, (name, label) in enumerate((("accuracy", "accuracy"), ("hierarchical_f1", "hierarchical F1"))):
        values = [[100 * getattr(o, name) for o in outcomes if o.model == model] for model in models]
        means, spreads = [np.mean(v) for v in values], [np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values]
        drawn = bars.bar(places + 0.4 * number - 0.2, means, 0.38, yerr=spreads, label=label, capsize=3)
        bars.bar_label(drawn, fmt="%.1f", fontsize=8, padding=2)
    bars.set_xticks(places, models, rotation=20 if len(models) > 3 else 0, ha="right" if len(models) > 3 else "center")
    bars.set_ylabel("%")
    bars.set_ylim(0, 108)
    bars.legend(loc="upper left", fontsize=8, ncols=2)
    for model in models:
        levels = np.mean([o.level_accuracy for o in outcomes if o.model == model], axis=0)
        lines.plot(np.arange(1, len(levels) + 1), 100 * levels, marker="o", label=model)
    lines.set_xlabel("level")
    lines.set_ylabel("accuracy at the level, %")
    lines.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    lines.set_ylim(0, 100)
    lines.legend(fontsize=8)
    figure.suptitle(title)
    _save(figure, path)
    plt.close(figure)


def plot_parameters(curve: Mapping[str, Sequence[int]], title: str, path: str | Path) -> None:
    """Draw the number of output parameters against the height of a dense hierarchy, a line for each model."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6, 4), constrained_layout=True)
    for name, values in curve.items():
        if name != "height":
            axes.plot(curve["height"], values, marker="o", label=name)
    axes.set_yscale("log")
    axes.set_xlabel("height h")
    axes.set_ylabel("parameters of the output layers")
    axes.legend()
    figure.suptitle(title)
    _save(figure, path)
    plt.close(figure)


def require_matplotlib() -> None:
    """Raise HiNetError with the remedy if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise HiNetError("plots need matplotlib; install it with: pip install 'hinet[plot]'")


def _pyplot() -> Any:
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: str | Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise HiNetError(f"{path}: the plot cannot be saved: {error}") from None
