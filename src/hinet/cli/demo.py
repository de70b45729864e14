"""``hinet demo``: the built-in ICD-10-CM set, from taxonomy to rows."""

from __future__ import annotations

import typer

_SAMPLE_ROWS = 8


def demo() -> None:
    """Show the built-in ICD-10-CM set: the shape of its taxonomy and sample rows with their traces."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hinet.cli.taxonomy import summary_lines
    from hinet.data import Traces, load_icd10cm
    from hinet.taxonomy import Layers
    from hinet.taxonomy.check import summarise

    console = Console(highlight=False)
    with console.status("reading ICD-10-CM"):
        icd = load_icd10cm()
    for line in summary_lines("ICD-10-CM", summarise(icd.taxonomy)):
        typer.echo(line)
    labels = sorted({*icd.train.labels})
    layers = Layers.of(icd.taxonomy, ends=labels)
    typer.echo(
        f"  rows        {len(icd.train):,} train, {len(icd.valid):,} valid, {len(icd.test):,} test; "
        f"{len(labels):,} labels; {len(layers.option_neuron):,} allowed edges"
    )
    sample = icd.test.take(np.linspace(0, len(icd.test) - 1, _SAMPLE_ROWS).astype(int))
    table = Table("text", "trace", title="sample rows", title_justify="left", show_lines=True)
    for text, paths in zip(sample.texts, Traces.encode(layers, sample.labels).paths(), strict=True):
        table.add_row(Text(text), Text(" > ".join(paths[0])))
    console.print(table)
