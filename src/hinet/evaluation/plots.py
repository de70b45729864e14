"""Plots with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hinet.errors import HiNetError
from hinet.evaluation.comparison import Outcome
from hinet.evaluation.evaluation import RANKS, Evaluation, SetEvaluation
from hinet.extras import require
from hinet.metrics import PrecisionRecall
from hinet.metrics.probability import BINS
from hinet.metrics.sets import Ranking
from hinet.progress import EpochRecord

MAX_TOPS = 15  # top nodes whose errors are plotted
MAX_NAME = 26  # maximum characters of a node's title


def plot_comparison(outcomes: Sequence[Outcome], title: str, path: str | Path) -> None:
    """Plot accuracy and hierarchical F1 of every model, and its accuracy by level."""
    plt = import_pyplot()
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
    bars.legend(loc="upper left", ncols=2)
    for model in models:
        levels = np.mean([o.level_accuracy for o in outcomes if o.model == model], axis=0)
        lines.plot(np.arange(1, len(levels) + 1), 100 * levels, marker="o", label=model)
    lines.set(xlabel="level", ylabel="accuracy at the level, %", ylim=(0, 100))
    lines.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    lines.legend()
    save_plot(figure, title, path)


def plot_history(history: Sequence[EpochRecord], path: str | Path, title: str = "training") -> None:
    """Plot the cost of every expert by epoch, and the validation accuracy if there is one."""
    plt = import_pyplot()
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
            axes.legend()
    save_plot(figure, title, path)


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
    plt = import_pyplot()
    figure, ((levels, reliability), (coverage, errors)) = plt.subplots(2, 2, figsize=(11, 8.5), constrained_layout=True)
    _draw_shares(levels, evaluation.report.level_accuracy, "accuracy at the level, %", "accuracy by level")
    _draw_reliability(reliability, evaluation)
    _draw_coverage(coverage, evaluation)
    _draw_errors(errors, evaluation)
    save_plot(figure, title, path)


def plot_set_evaluation(evaluation: SetEvaluation, path: str | Path, title: str) -> None:
    """Plot F1 by level and labels per row and, if known, the first ranks and precision against recall."""
    plt = import_pyplot()
    ranking, curve = evaluation.ranking, evaluation.curve
    rows = 1 + (ranking is not None or curve is not None)
    figure, panels = plt.subplots(rows, 2, figsize=(11, 4.25 * rows), squeeze=False, constrained_layout=True)
    levels, counts, *others = panels.ravel()
    _draw_shares(levels, evaluation.f1_by_level, "F1 of the nodes at the level, %", "F1 by level")
    _draw_label_counts(counts, evaluation)
    if ranking is not None:
        _draw_ranks(others.pop(0), ranking)
    if curve is not None:
        _draw_curve(others.pop(0), curve)
    for axes in others:
        axes.set_axis_off()
    save_plot(figure, title, path)


def _draw_label_counts(axes: Any, evaluation: SetEvaluation) -> None:
    """Draw the distribution of the number of true and predicted labels per row."""
    counts = {"true": evaluation.true_counts, "predicted": evaluation.predicted_counts}
    size = int(max(numbers.max() for numbers in counts.values())) + 1
    for number, (name, numbers) in enumerate(counts.items()):
        axes.bar(np.arange(size) + 0.4 * number - 0.2, np.bincount(numbers, minlength=size), 0.38, label=name)
    axes.set(xlabel="labels of a row", ylabel="rows", title="labels per row")
    axes.legend()


def _draw_ranks(axes: Any, ranking: Ranking) -> None:
    for number, (name, metric) in enumerate((("precision", ranking.precision), ("nDCG", ranking.ndcg))):
        shares = [100 * metric(k) for k in RANKS]
        container = axes.bar(np.arange(len(RANKS)) + 0.4 * number - 0.2, shares, 0.38, label=name)
        axes.bar_label(container, fmt="%.1f", fontsize=8, padding=2)
    axes.set_xticks(range(len(RANKS)), [str(k) for k in RANKS])
    axes.set(xlabel="k", ylabel="%", ylim=(0, 108), title="the first k labels")
    axes.legend()


def _draw_curve(axes: Any, curve: PrecisionRecall) -> None:
    axes.plot(100 * curve.recall, 100 * curve.precision, label=f"AU(PRC) {curve.area:.3f}")
    axes.set(xlabel="recall, %", ylabel="precision, %", xlim=(0, 100), ylim=(0, 100), title="all nodes pooled")
    axes.legend()


def _draw_shares(axes: Any, by_level: Sequence[float], name: str, title: str) -> None:
    """Draw a bar with the share of each level."""
    shares = [100 * share for share in by_level]
    container = axes.bar(range(1, len(shares) + 1), shares, 0.6)
    axes.bar_label(container, fmt="%.1f", fontsize=8, padding=2)
    axes.set_xticks(range(1, len(shares) + 1))
    axes.set(xlabel="level", ylabel=name, ylim=(0, 108), title=title)


def _draw_reliability(axes: Any, evaluation: Evaluation) -> None:
    """Draw the share of correct answers against their confidence, with bars for the share of rows."""
    bins = evaluation.reliability()
    left = [int(each.confidence * BINS) / BINS for each in bins]
    axes.bar(left, [each.share for each in bins], 1 / BINS, align="edge", color="0.85", label="share of rows")
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1)
    label = f"right; calibration error {evaluation.calibration_error:.3f}"
    axes.plot([each.confidence for each in bins], [each.accuracy for each in bins], marker="o", label=label)
    axes.set(xlabel="confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1), title="reliability")
    axes.legend(loc="upper left")


def _draw_coverage(axes: Any, evaluation: Evaluation) -> None:
    curve = evaluation.coverage
    axes.plot(100 * curve.coverage, 100 * curve.risk)
    axes.set(
        xlabel="coverage: answered rows, most confident first, %",
        ylabel="risk: wrong answers, %",
        xlim=(0, 100),
        ylim=(0, None),
        title="risk against coverage",
    )


def _draw_errors(axes: Any, evaluation: Evaluation) -> None:
    """Draw the wrong rows of the top nodes with most errors, by the depth of agreement with the true label."""
    groups = evaluation.errors_by_top()[:MAX_TOPS]
    left = np.zeros(len(groups))
    names = [group.top if len(group.top) <= MAX_NAME else group.top[: MAX_NAME - 1] + "…" for group in groups]
    for depth in range(max((len(group.by_agreement) for group in groups), default=0)):
        counts = np.array([group.by_agreement[depth] for group in groups])
        if counts.any():
            label = f"right to level {depth}" if depth else "wrong from the top"
            axes.barh(range(len(groups)), counts, left=left, label=label)
            left += counts
    axes.set_yticks(range(len(groups)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="wrong rows, by the last level that is right", title="errors by top node")
    if groups:
        axes.legend()


def import_pyplot() -> Any:
    """Return matplotlib's pyplot, set to draw without a screen."""
    require("matplotlib", "a plot")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"legend.fontsize": 8, "axes.titlesize": 10})
    return plt


def save_plot(figure: Any, title: str, path: str | Path) -> None:
    """Write a figure with a title to a file."""
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise HiNetError(f"{path}: the plot cannot be saved: {error}") from None
    finally:
        import_pyplot().close(figure)
