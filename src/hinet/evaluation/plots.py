"""Plots with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hinet.errors import HiNetError
from hinet.evaluation.comparison import Outcome
from hinet.evaluation.evaluation import Evaluation
from hinet.extras import require
from hinet.progress import EpochRecord

BINS = 15  # of the reliability diagram
MAX_TOPS = 15  # top nodes whose errors are plotted
LONGEST_NAME = 26  # characters of a node's title


def plot_comparison(outcomes: Sequence[Outcome], title: str, path: str | Path) -> None:
    """Plot accuracy and hierarchical F1 of every model, and its accuracy by level."""
    plt = _pyplot()
    models = list(dict.fromkeys(outcome.model for outcome in outcomes))
    figure, (bars, lines) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    positions = np.arange(len(models))
    for number, (name, label) in enumerate((("accuracy", "accuracy"), ("hierarchical_f1", "hierarchical F1"))):
        values = [[100 * getattr(o, name) for o in outcomes if o.model == model] for model in models]
        means, spreads = [np.mean(v) for v in values], [np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values]
        container = bars.bar(positions + 0.4 * number - 0.2, means, 0.38, yerr=spreads, label=label, capsize=3)
        bars.bar_label(container, fmt="%.1f", fontsize=8, padding=2)
    bars.set_xticks(
        positions, models, rotation=20 if len(models) > 3 else 0, ha="right" if len(models) > 3 else "center"
    )
    bars.set(ylabel="%", ylim=(0, 108))
    bars.legend(loc="upper left", fontsize=8, ncols=2)
    for model in models:
        levels = np.mean([o.level_accuracy for o in outcomes if o.model == model], axis=0)
        lines.plot(np.arange(1, len(levels) + 1), 100 * levels, marker="o", label=model)
    lines.set(xlabel="level", ylabel="accuracy at the level, %", ylim=(0, 100))
    lines.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    lines.legend(fontsize=8)
    _save(figure, title, path)


def plot_history(history: Sequence[EpochRecord], path: str | Path, title: str = "training") -> None:
    """Plot the cost of every expert by epoch, and the validation accuracy if there is one."""
    plt = _pyplot()
    has_scores = any(record.valid_score is not None for record in history)
    figure, panels = plt.subplots(
        1, 1 + has_scores, figsize=(5.5 * (1 + has_scores), 4), squeeze=False, constrained_layout=True
    )
    costs = panels[0][0]
    for part, records in _curves(history).items():
        costs.plot([r.epoch for r in records], [r.cost for r in records], marker="o", markersize=3, label=part)
        scores = [(r.epoch, 100 * r.valid_score) for r in records if r.valid_score is not None]
        if scores:
            panels[0][1].plot(*zip(*scores, strict=True), marker="o", markersize=3, label=part)
    for axes, name in zip(panels[0], ("training cost", "validation accuracy, %"), strict=False):
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
        if axes.lines:
            axes.legend(fontsize=8)
    _save(figure, title, path)


def _curves(history: Sequence[EpochRecord]) -> dict[str, list[EpochRecord]]:
    """Return the epochs of each expert in order, without experts of a single epoch if others have more."""
    longest = max((record.epochs for record in history), default=0)
    parts = dict.fromkeys(record.part for record in history if record.epochs > 1 or longest == 1)
    return {
        part or "network": sorted((r for r in history if r.part == part), key=lambda record: record.epoch)
        for part in parts
    }


def plot_evaluation(evaluation: Evaluation, path: str | Path, title: str) -> None:
    """Plot accuracy by level, reliability, risk against coverage, and errors by top node."""
    plt = _pyplot()
    figure, ((levels, reliability), (coverage, errors)) = plt.subplots(2, 2, figsize=(11, 8.5), constrained_layout=True)
    _draw_levels(levels, evaluation)
    _draw_reliability(reliability, evaluation)
    _draw_coverage(coverage, evaluation)
    _draw_errors(errors, evaluation)
    _save(figure, title, path)


def _draw_levels(axes: Any, evaluation: Evaluation) -> None:
    shares = [100 * share for share in evaluation.report.level_accuracy]
    container = axes.bar(range(1, len(shares) + 1), shares, 0.6)
    axes.bar_label(container, fmt="%.1f", fontsize=8, padding=2)
    axes.set_xticks(range(1, len(shares) + 1))
    axes.set(xlabel="level", ylabel="accuracy at the level, %", ylim=(0, 108))
    axes.set_title("accuracy by level", fontsize=10)


def _draw_reliability(axes: Any, evaluation: Evaluation) -> None:
    """Draw the share of right answers against their confidence, with bars for the share of rows."""
    bins = np.clip((evaluation.confidence * BINS).astype(int), 0, BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    used = counts > 0
    mean_confidence = np.bincount(bins, evaluation.confidence, BINS)[used] / counts[used]
    right = np.bincount(bins, evaluation.right, BINS)[used] / counts[used]
    axes.bar((np.arange(BINS) + 0.5) / BINS, counts / counts.sum(), 1 / BINS, color="0.85", label="share of rows")
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1)
    axes.plot(mean_confidence, right, marker="o", label=f"right; calibration error {evaluation.calibration_error:.3f}")
    axes.set(xlabel="confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=8, loc="upper left")
    axes.set_title("reliability", fontsize=10)


def _draw_coverage(axes: Any, evaluation: Evaluation) -> None:
    curve = evaluation.coverage
    axes.plot(100 * curve.coverage, 100 * curve.risk)
    axes.set(
        xlabel="coverage: answered rows, most confident first, %",
        ylabel="risk: wrong answers, %",
        xlim=(0, 100),
        ylim=(0, None),
    )
    axes.set_title("risk against coverage", fontsize=10)


def _draw_errors(axes: Any, evaluation: Evaluation) -> None:
    """Draw the wrong rows of the top nodes with most errors, by their depth of agreement with the true label."""
    groups = evaluation.errors_by_top()[:MAX_TOPS]
    left = np.zeros(len(groups))
    names = [group.top if len(group.top) <= LONGEST_NAME else group.top[: LONGEST_NAME - 1] + "…" for group in groups]
    for depth in range(max((len(group.by_agreement) for group in groups), default=0)):
        counts = np.array([group.by_agreement[depth] for group in groups])
        if counts.any():
            axes.barh(
                range(len(groups)),
                counts,
                left=left,
                label=f"right to level {depth}" if depth else "wrong from the top",
            )
            left += counts
    axes.set_yticks(range(len(groups)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("wrong rows, by the last level that is right")
    axes.set_title("errors by top node", fontsize=10)
    if groups:
        axes.legend(fontsize=8)


def _pyplot() -> Any:
    require("matplotlib", "a plot")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, title: str, path: str | Path) -> None:
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise HiNetError(f"{path}: the plot cannot be saved: {error}") from None
    finally:
        _pyplot().close(figure)
