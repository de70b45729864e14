"""``hinet export``: a model as an ONNX graph with a decoder that needs NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hinet.cli.column_options import ColumnChoice, names_columns
from hinet.cli.options import Running, option, runs
from hinet.cli.row_options import RowReading, reads_rows

EXAMPLE = "Example: hinet export model onnx_model --data test.csv"


@runs
@reads_rows
@names_columns
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)],
    folder: Annotated[Path, typer.Argument(help="New folder for the graph.", show_default=False)],
    rows: RowReading,
    named: ColumnChoice,
    running: Running,
    data: Annotated[
        list[str] | None, option("--data", "Labelled rows that tell what the graph's accuracy is; repeat it for more.")
    ] = None,
) -> None:
    """Write the scores of a model as an ONNX graph; needs the extra 'export'."""
    from hinet.classifier.estimator import load_with_manifest
    from hinet.classifier.loaded import LoadedModel
    from hinet.cli.training_rows import read_rows

    rows.check_outputs(data or [], {}, str(folder), model)
    classifier, manifest = load_with_manifest(model)
    classifier.set_params(n_jobs=running.threads)
    if not data:
        typer.echo(str(classifier.export_onnx(folder)))
        return
    loaded = LoadedModel(classifier.fitted_, manifest)
    found = read_rows(data, named.over(loaded.columns), rows, loaded.given_taxonomy, beside=str(folder))
    typer.echo(str(classifier.export_onnx(folder, found.texts, found.labels)))
