"""The folder of a labelling project: taxonomy, settings, database and models."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hinet.classifier.model_folder import MANIFEST
from hinet.errors import FileError, HiNetError, quoted
from hinet.files import check_plain, write_bytes
from hinet.labelling.store import LabelStore
from hinet.taxonomy import Taxonomy

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
SETTINGS, TAXONOMY, DATABASE, LOCK = "project.json", "taxonomy.csv", "project.db", "project.lock"
NODE_SEP = "|"  # between several labels in exported tables
MAX_SETTINGS_BYTES = 1 << 16


@dataclass(frozen=True)
class ProjectSettings:
    """The choices made when the project began."""

    format: int = FORMAT
    several: bool = False  # whether a row may have several labels
    vectors: str | None = "auto"  # parameter of HiNetClassifier
    seed: int = 0


@dataclass(frozen=True)
class ProjectFolder:
    """The files of a project."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the project, and of its model."""
        return self.path.resolve().name

    @property
    def taxonomy(self) -> Path:
        """The hierarchy."""
        return self.path / TAXONOMY

    @property
    def database(self) -> Path:
        """Rows and labels."""
        return self.path / DATABASE

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "models" / "current"

    @property
    def has_model(self) -> bool:
        """Whether a model was trained."""
        return (self.model / MANIFEST).is_file()

    def settings(self) -> ProjectSettings:
        """Return the settings; raise FileError if this is not the folder of a project of this version."""
        path = self.path / SETTINGS
        if not path.is_file():
            raise FileError(self.path, "is not a labelling project; 'hinet start codes.csv --out FOLDER' makes one")
        try:
            with path.open("rb") as stream:
                values = json.loads(stream.read(MAX_SETTINGS_BYTES))
            version = values.get("format", FORMAT) if isinstance(values, dict) else FORMAT
            if version == FORMAT:
                check_plain(values, ProjectSettings, "settings")
                return ProjectSettings(**values)
        except (ValueError, TypeError, HiNetError) as error:
            raise FileError(path, f"is damaged: {error}") from None
        reason = f"has the format {quoted(str(version))}, and this version of hinet reads {FORMAT}"
        raise FileError(path, f"{reason}; install the version of hinet that wrote it")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, or raise FileError if another process has it; a killed process releases it."""
        file = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise FileError(
                        self.path, "another 'hinet start' uses this project; open its page, or stop it first"
                    ) from None
                except OSError:  # the file system has no locks
                    pass
            yield
        finally:
            os.close(file)


def is_project(path: Path) -> bool:
    """Return whether a folder is that of a project."""
    return (path / SETTINGS).is_file()


def create_project(
    path: Path, taxonomy: Taxonomy, texts: Sequence[str], settings: ProjectSettings
) -> tuple[ProjectFolder, int]:
    """Make the folder of a project; the last rename makes it one. Return it and the number of different texts.

    Raises
    ------
    FileError
        If there is something at the path already.
    HiNetError
        If rows may have several labels and a node has their separator.
    """
    check_new(path)
    if settings.several and (unclear := next((node for node in taxonomy.ids if NODE_SEP in node), None)):
        raise HiNetError(f"node {quoted(unclear)} has {NODE_SEP!r}, which separates several labels; rename it")
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    partial.mkdir(parents=True)
    try:
        folder = ProjectFolder(partial)
        taxonomy.write(folder.taxonomy)
        with closing(LabelStore.open(folder.database)) as store:
            rows = store.add_texts(texts).added
        write_bytes(partial / SETTINGS, json.dumps(asdict(settings), indent=2).encode() + b"\n")
        if path.is_dir():
            _move(partial, path)
        else:
            try:
                partial.rename(path)
            except OSError:
                check_new(path)
                raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return ProjectFolder(path), rows


def _move(partial: Path, path: Path) -> None:
    """Move the files of a project to an empty folder, which may be the current one; the settings come last."""
    with ProjectFolder(path).locked():
        if is_project(path):
            check_new(path)
        for file in sorted(partial.iterdir(), key=lambda file: file.name == SETTINGS):
            file.rename(path / file.name)
    partial.rmdir()


def check_new(path: Path) -> None:
    """Raise FileError unless a project can be made at a path."""
    if is_project(path):
        raise FileError(path, f"is a project already; continue it: hinet start {path}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileError(path, "exists already and is not a project; name a new folder")
