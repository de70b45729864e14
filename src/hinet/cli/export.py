"""``hinet export``: a model as an ONNX graph with a decoder in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hinet.cli.column_options import ColumnOptions, column_options
from hinet.cli.options import EncoderFolder, ModelFolder, RunOptions, option, thread_options
from hinet.cli.row_options import RowOptions, row_options

EXAMPLE = "hinet export model onnx_model --data test.csv"


@thread_options
@row_options
@column_options
def export(
    model: ModelFolder,
    folder: Annotated[Path, typer.Argument(help="New folder for the graph.", show_default=False)],
    rows: RowOptions,
    column_options: ColumnOptions,
    run: RunOptions,
    data: Annotated[
        list[str] | None, option("Labelled rows to measure the accuracy of the graph with; repeatable.")
    ] = None,
    encoder: EncoderFolder = None,
) -> None:
    """Export a model as an ONNX graph; needs the extra 'export'."""
    from hinet.classifier.estimator import load_with_manifest
    from hinet.classifier.loaded import LoadedModel
    from hinet.cli.training_rows import read_rows

    rows.check_outputs(data or [], {}, str(folder), model)
    classifier, manifest = load_with_manifest(model, encoder)
    classifier.set_params(n_jobs=run.threads)
    if not data:
        typer.echo(str(classifier.export_onnx(folder)))
        return
    loaded = LoadedModel(classifier.fitted_, manifest)
    columns = loaded.checked_columns(column_options.with_defaults(loaded.columns))
    labelled = read_rows(data, columns, rows, loaded.given_taxonomy, str(folder))
    typer.echo(str(classifier.export_onnx(folder, loaded.named_as_trained(labelled.inputs), labelled.labels)))
