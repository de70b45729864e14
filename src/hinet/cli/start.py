"""``hinet start``: a labelling project, from a taxonomy and rows without labels to a model."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import RunOptions, ThreadedRun, option
from hinet.cli.serve import NAME, ServiceOptions, run_service
from hinet.cli.table_options import ColumnOptions, RowOptions, TextColumns, check_text_column
from hinet.errors import FileError, HiNetError, counted, quoted
from hinet.extras import require
from hinet.serving.settings import Settings

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.labelling.folder import ProjectFolder

_FROM = "File of the hierarchy, see 'hinet taxonomy check', or the folder of a project to continue."
_ROWS = "File of rows without labels; repeatable. Rows that the project has already are not added again."
_OUT = "Folder for a new project."
_SEVERAL = "Rows of a new project may have several labels."
_VECTORS = (
    "Static vectors of words for a new project: as for 'hinet train', or 'none' (default: those of the extra 'meaning' "
    "if it is installed)."
)

ProjectService = Annotated[ServiceOptions, "host", "port", "allowed_host", "token_file", "log_requests"]


def start(
    source: Annotated[Path, typer.Argument(help=_FROM, show_default=False)],
    service: ProjectService,
    run: ThreadedRun,
    column_options: TextColumns,
    rows: RowOptions,
    out: Annotated[Path | None, option(_OUT)] = None,
    data: Annotated[list[str] | None, option(_ROWS, "--rows")] = None,
    several: Annotated[bool, option(_SEVERAL, "--several")] = False,
    vectors: Annotated[str | None, option(_VECTORS)] = None,
) -> None:
    """Label rows and train a model with them, in the browser: the row most worth a label comes next.

    Example: hinet start codes.csv --rows unlabelled.csv --text description --out project

    The first model learns from the taxonomy alone. Every label counts at once for similar rows, and the model in
    project/models/current is retrained in the background. To continue later, give the folder: hinet start project. The
    page is at the address itself; docs/labelling.md lists the endpoints.
    """
    require("fastapi", "serve")
    require("uvicorn", "serve")
    from hinet.labelling.folder import ProjectFolder, is_project
    from hinet.labelling.store import LabelStore

    tokens = service.tokens
    if is_project(source):
        for name, is_given in (("--out", out), ("--several", several), ("--vectors", vectors)):
            if is_given:
                raise HiNetError(f"{name} is for a new project, and {source} is one already; leave it out")
        folder = ProjectFolder(source)
        folder.settings()
        if data:
            texts = _read_texts(data, rows, column_options, str(source))
            with folder.locked(), closing(LabelStore.open(folder.database)) as store:
                _report_rows(store.add_texts(texts).added, len(texts), run)
    else:
        folder = _new_project(source, out, data or [], rows, column_options, several, vectors, run)
    _check_name(folder)
    with folder.locked():
        _train_first(folder, run)
    settings = Settings(
        {}, host=service.host, port=service.port, tokens=tokens, project=folder.path,
        allowed_hosts=tuple(service.allowed_host or ()), threads=run.threads, log_requests=service.log_requests,
    )  # fmt: skip
    run_service(settings, run)


def _new_project(
    source: Path,
    out: Path | None,
    data: list[str],
    rows: RowOptions,
    column_options: ColumnOptions,
    several: bool,
    vectors: str | None,
    run: RunOptions,
) -> ProjectFolder:
    from hinet import Taxonomy
    from hinet.encoders.token_vectors import PACKAGED
    from hinet.labelling.folder import ProjectFolder, ProjectSettings, check_new, create_project

    if source.is_dir():
        raise FileError(source, "is not a labelling project; give the file of a hierarchy and --out, or a project")
    if out is None:
        raise HiNetError("--out is missing; name a new folder for the project")
    rows.check_outputs([*data, source], {"--out": out}, str(out))
    check_new(out)
    _check_name(ProjectFolder(out))
    taxonomy = Taxonomy.from_file(source)
    run.message(f"{source}: {taxonomy}"[:500])
    texts = _read_texts(data, rows, column_options, str(out))
    vectors = vectors or "auto"
    if vectors not in ("auto", "none", PACKAGED) and Path(vectors).exists():
        vectors = str(Path(vectors).resolve())
    settings = ProjectSettings(several=several, vectors=None if vectors == "none" else vectors)
    folder, different = create_project(out, taxonomy, texts, settings)
    _report_rows(different, len(texts), run)
    with folder.locked():
        try:
            _train_first(folder, run)
        except HiNetError:  # such as of a taxonomy without titles
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
    return folder


def _check_name(folder: ProjectFolder) -> None:
    if not NAME.fullmatch(folder.name):
        raise FileError(folder.path, "cannot name a model; use letters, digits, '-', '_' and '.' in the folder's name")


def _report_rows(added: int, given: int, run: RunOptions) -> None:
    if given:
        again = f"; {counted(given - added, 'other has/others have')} the text of another row" if given > added else ""
        run.message(f"{counted(added, 'row')} to label{again}")


def _read_texts(data: list[str], rows: RowOptions, column_options: ColumnOptions, output: str) -> list[str]:
    """Return the texts of rows, or raise FileError for an invalid row."""
    from hinet.data.tables import Columns, RowQuery, labelled_blocks

    columns, texts = column_options.with_defaults(Columns()), list[str]()
    if not column_options.text:
        for path in data:
            check_text_column(path, rows.options, ())
    query = RowQuery(columns, labels=False, where=rows.conditions, explicit=bool(column_options.text))
    with rows.row_errors(output) as row_errors:
        for block in labelled_blocks(data, query, rows.options, row_errors):
            for number, text in zip(block.rows.numbers, block.texts, strict=True):
                if "\0" in text:
                    reason = f"{quoted(text)} has a NUL character, which is invalid in CSV files; remove it"
                    row_errors.add(block.rows.path, number, reason, text, block.rows.unit)
                else:
                    texts.append(text)
    return texts


def _train_first(folder: ProjectFolder, run: RunOptions) -> None:
    """Train the first model of a folder that is locked, unless it has one."""
    from hinet.labelling.training import train_first

    if folder.has_model:
        return
    run.message("training on the taxonomy alone")
    began = time.perf_counter()
    train_first(folder)
    run.message(f"trained in {time.perf_counter() - began:.1f} s")
