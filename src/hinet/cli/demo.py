"""``hinet demo``: the whole job on the built-in ICD-10-CM set: train, evaluate, predict, and show the traces."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.options import Running, option, runs

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from hinet import HiNetClassifier
    from hinet.classifier import Trace
    from hinet.data.icd10cm import Icd10cm

EXAMPLE = "Example: hinet demo --save icd_model"
PHRASES = (
    "typhoid fever with pneumonia",
    "type 2 diabetes with kidney damage",
    "broken left wrist after a fall",
    "burn of the right hand from hot water",
    "baby born too early",
    "bitten by a dog",
)
_TITLE = 44  # characters of a title that are shown


@runs
def demo(
    running: Running,
    save: Annotated[str | None, option("--save", "Also save the trained model to this folder.")] = None,
) -> None:
    """Train on the built-in ICD-10-CM set, judge the model on test rows, and classify a handful of phrases."""
    from rich.console import Console

    from hinet import HiNetClassifier
    from hinet.cli.taxonomy import summary_lines
    from hinet.data import load_icd10cm
    from hinet.engine.compiling import compile_for_training
    from hinet.taxonomy.check import summarise

    compile_for_training()
    console = Console(highlight=False)
    with console.status("reading ICD-10-CM"):
        icd = load_icd10cm()
    for line in summary_lines("ICD-10-CM", summarise(icd.taxonomy)):
        typer.echo(line)
    labels = len({*icd.train.labels})
    typer.echo(
        f"  rows        {len(icd.train):,} train, {len(icd.valid):,} valid, {len(icd.test):,} test; {labels:,} labels"
    )
    classifier = HiNetClassifier(
        icd.taxonomy, random_state=running.seed, n_jobs=running.threads, verbose=not running.quiet
    )
    start = time.perf_counter()
    classifier.fit(icd.train.texts, icd.train.labels, valid=(icd.valid.texts, icd.valid.labels))
    classifier.calibrate()
    console.print(_judged(classifier, icd, time.perf_counter() - start))
    for phrase, (best,) in zip(PHRASES, classifier.predict_traces(PHRASES), strict=True):
        console.print(_drawn(phrase, best, icd.taxonomy))
    if save is not None:
        classifier.save(save)
        typer.echo(f"saved to {save}")


def _judged(classifier: HiNetClassifier, icd: Icd10cm, seconds: float) -> Table:
    """Return how the classifier does on test rows, as a table."""
    import numpy as np

    from hinet.cli.evaluate import judgement_table
    from hinet.evaluation.judgement import Judgement

    start = time.perf_counter()
    found = classifier.predict_traces(icd.test.texts).found
    speed = len(icd.test) / (time.perf_counter() - start)
    right = np.array(found.traces.decode()) == np.array(icd.test.labels)
    judgement = Judgement(icd.taxonomy, [(label,) for label in icd.test.labels], found, right)
    table = judgement_table(judgement, classifier.fitted_.model, speed)
    table.add_row("training, features and calibration included", f"{seconds:.1f} s")
    return table


def _drawn(phrase: str, trace: Trace, taxonomy: Any) -> Text:
    """Return a trace as lines, each step with its probability, from green to red as it falls."""
    from rich.text import Text

    lines = Text(f"\n{phrase}\n", style="bold")
    for depth, (step, probability) in enumerate(zip(trace.steps, trace.probabilities, strict=True)):
        title = taxonomy.titles[taxonomy.position(step)]
        shown = title if len(title) <= _TITLE else title[: _TITLE - 1] + "…"
        colour = "green" if probability > 0.8 else "yellow" if probability > 0.4 else "red"
        lines.append(f"{'  ' * depth}{probability:6.2f}  ", style=colour)
        lines.append(f"{step}  ", style="not bold cyan")
        lines.append(f"{shown}\n", style="not bold")
    return lines
