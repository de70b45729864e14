"""``hinet demo``: train, evaluate and predict on the built-in ICD-10-CM data set."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.options import RunOptions, option

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from hinet import HiNetClassifier
    from hinet.classifier import Trace
    from hinet.data.datasets import Icd10cm
    from hinet.encoders.token_vectors import TokenVectors

PHRASES = (
    "heart attack",
    "broken left wrist after a fall",
    "baby born too early",
    "bitten by a dog",
    "burnt my hand with hot water",
    "can't sleep at night",
    "high blood pressure",
    "stomach ulcer that bleeds",
    "lost hearing in the right ear",
    "allergic to peanuts",
)
UNSURE = 0.5  # an answer with a lower probability is more likely wrong than right
_MAX_TITLE = 44  # characters


def demo(
    run: RunOptions,
    out: Annotated[Path | None, option("Folder for the trained model (default: not saved).", "--out", "--save")] = None,
    vectors: Annotated[
        bool,
        option("Use vectors distilled from all-MiniLM-L6-v2 instead of those of the extra 'meaning'.", "--vectors"),
    ] = False,
    rows: Annotated[int | None, option("Train on this number of rows only, to see results sooner.", min=1)] = None,
) -> None:
    """Train on the built-in ICD-10-CM data set, evaluate on test rows, and classify some everyday phrases.

    Words that no training row has are understood if the extra 'meaning' is installed.

    Example: hinet demo --out icd_model
    """
    from rich.console import Console

    from hinet import HiNetClassifier
    from hinet.classifier.model_folder import check_target
    from hinet.cli.taxonomy import summary_lines
    from hinet.data import load_icd10cm
    from hinet.encoders.token_vectors import PACKAGED, is_installed
    from hinet.engine.compiling import compile_for_training
    from hinet.ragged import evenly_spaced
    from hinet.taxonomy.check import summarise

    if out is not None:
        check_target(out)
    source = _distilled(run) if vectors else PACKAGED if is_installed() else None
    compile_for_training()
    console = Console(highlight=False)
    with console.status("reading ICD-10-CM"):
        icd = load_icd10cm()
    for line in summary_lines("ICD-10-CM", summarise(icd.taxonomy)):
        typer.echo(line)
    train = icd.train if rows is None else icd.train.take(evenly_spaced(len(icd.train), rows))
    labels = len({*train.labels})
    typer.echo(
        f"  rows        {len(train):,} train, {len(icd.valid):,} valid, {len(icd.test):,} test; {labels:,} labels"
    )
    classifier = HiNetClassifier(
        icd.taxonomy, vectors=source, random_state=run.seed, n_jobs=run.threads, verbose=not run.quiet
    )
    start = time.perf_counter()
    classifier.fit(train.texts, train.labels, valid=(icd.valid.texts, icd.valid.labels))
    classifier.calibrate()
    console.print(_evaluation_table(classifier, icd, time.perf_counter() - start))
    for phrase, (best,) in zip(PHRASES, classifier.predict_traces(PHRASES), strict=True):
        console.print(_trace_text(phrase, best, icd.taxonomy))
    if out is not None:
        classifier.save(out)
        typer.echo(f"saved to {out}")


def _distilled(run: RunOptions) -> TokenVectors:
    """Return static vectors of the packaged encoder."""
    from tempfile import TemporaryDirectory

    from hinet.encoders import Encoder, distill, packaged_encoder, read_vectors
    from hinet.progress import progress_for_terminal

    folder = packaged_encoder()
    run.message("distilling word vectors from all-MiniLM-L6-v2")
    with TemporaryDirectory() as work:
        progress = progress_for_terminal("vectors", quiet=run.quiet)
        distill(Encoder.load(folder, threads=run.threads), Path(work, "vectors"), progress=progress)
        return read_vectors(Path(work, "vectors"))


def _evaluation_table(classifier: HiNetClassifier, icd: Icd10cm, seconds: float) -> Table:
    """Return the metrics of the classifier on test rows as a table."""
    import numpy as np

    from hinet.cli.evaluate import evaluation_figures, figures_table
    from hinet.evaluation.evaluation import Evaluation

    start = time.perf_counter()
    found = classifier.predict_traces(icd.test.texts).found
    speed = len(icd.test) / (time.perf_counter() - start)
    right = np.array(found.traces.decode()) == np.array(icd.test.labels)
    evaluation = Evaluation(icd.taxonomy, [(label,) for label in icd.test.labels], found, right)
    figures = evaluation_figures(evaluation, classifier.fitted_.predictor.outputs, speed)
    figures["training, features and calibration included"] = f"{seconds:.1f} s"
    return figures_table(figures, len(evaluation))


def _trace_text(phrase: str, trace: Trace, taxonomy: Any) -> Text:
    """Return a trace as lines, each step with its probability, coloured from green to red."""
    from rich.text import Text

    lines = Text(f"\n{phrase}", style="bold")
    lines.append("  unsure\n" if trace.probability < UNSURE else "\n", style="yellow")
    for depth, (step, probability) in enumerate(zip(trace.steps, trace.probabilities, strict=True)):
        title = taxonomy.titles[taxonomy.position(step)]
        title = title if len(title) <= _MAX_TITLE else title[: _MAX_TITLE - 1] + "…"
        colour = "green" if probability > 0.8 else "yellow" if probability > 0.4 else "red"
        lines.append(f"{'  ' * depth}{probability:6.2f}  ", style=colour)
        lines.append(f"{step}  ", style="not bold cyan")
        lines.append(f"{title}\n", style="not bold")
    return lines
