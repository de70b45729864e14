"""Results of a search: the best settings, a table of all trials, and a plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from hinet.classifier.parameters import write_settings
from hinet.errors import counted
from hinet.files.atomic import write_text
from hinet.tuning.search import Tuning
from hinet.tuning.space import text_of
from hinet.tuning.trials import SEARCH, Trial

__all__ = ["SEARCH", "SETTINGS", "TABLE", "gains", "plot", "table_of", "write_results"]

SETTINGS, TABLE = "settings.json", "trials.csv"


def write_results(tuning: Tuning, folder: str | Path) -> None:
    """Write the best settings and the table of trials to a folder."""
    best = tuning.best
    summary = {
        "metric": tuning.metric,
        "score": round(best.score, 5),
        "default_score": round(best.default_score, 5),
        "error_of_gain": round(best.error, 5),
        "splits": best.splits,
        "trials": len(tuning.trials),
        "seconds": round(tuning.seconds, 1),
    }
    write_settings(Path(folder) / SETTINGS, tuning.settings, summary)
    write_text(Path(folder) / TABLE, table_of(tuning))


def gains(tuning: Tuning) -> Iterator[tuple[Trial, float | None]]:
    """Yield trials with their gain over the defaults on the same rows; None if these were not tried there."""
    defaults = {(trial.share, trial.split): trial.score for trial in tuning.trials if not trial.changes}
    for trial in tuning.trials:
        score = defaults.get((trial.share, trial.split))
        yield trial, None if score is None else trial.score - score


def table_of(tuning: Tuning) -> str:
    """Return all trials as CSV, one row per trial and one column per parameter, empty for its default."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [*tuning.space.values]
    columns = ["trial", "settings", "share", "split", "rows", tuning.metric, "gain", "seconds", "total_seconds"]
    writer.writerow([*columns, *names])
    totals = accumulate(trial.seconds for trial in tuning.trials)
    for (trial, gain), total in zip(gains(tuning), totals, strict=True):
        writer.writerow(
            [
                trial.number,
                text_of(trial.changes),
                f"{trial.share:.4g}",
                trial.split + 1,
                trial.rows,
                f"{trial.score:.5f}",
                "" if gain is None else f"{gain:+.5f}",
                f"{trial.seconds:.2f}",
                f"{total:.2f}",
                *(_cell(trial.changes, name) for name in names),
            ]
        )
    return stream.getvalue()


def _cell(changes: dict[str, Any], name: str) -> str:
    return text_of({name: changes[name]}).partition("=")[2] if name in changes else ""


def plot(tuning: Tuning, path: str | Path) -> None:
    """Plot the gain of all trials against the seconds of the search; needs matplotlib."""
    from hinet.evaluation.plots import plot_search

    totals = accumulate(trial.seconds for trial in tuning.trials)
    points = [
        (total, trial.share, 100 * gain, text_of(trial.changes))
        for (trial, gain), total in zip(gains(tuning), totals, strict=True)
        if gain is not None and trial.changes
    ]
    best = tuning.best
    title = f"{tuning.metric} of {counted(len(tuning.trials), 'trial')}"
    plot_search(points, (text_of(best.changes), 100 * best.value, 100 * best.error), path, title)
