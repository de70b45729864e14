"""The folder of a saved model: files named by their digests, a manifest that names them, and its schema.

A save locks the folder. It writes new files, replaces the manifest by one rename, and then removes files that the
manifest does not name. So the files of a manifest exist as long as the manifest does: a reader that misses one has read
an old manifest, and reads the new one. Files that are open stay readable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NotRequired, TypedDict

from hinet.classifier.predicted_sets import SetRule
from hinet.data.text import TextSettings
from hinet.engine.model.fused import Trust
from hinet.errors import FileError, HiNetError, counted
from hinet.evaluation.risk import Calibration
from hinet.files import LOCK, PROBE_PREFIX, check_plain, check_writable, locked, read_bounded, write_bytes
from hinet.progress import EpochRecord

FORMAT = 1
MANIFEST = "manifest.json"
EVALUATION = "evaluation.json"  # metrics of the model on some rows; not part of the model
DIGEST_BYTES = 20
FILES = {"taxonomy": ".tsv", "features": ".safetensors", "model": ".safetensors"}  # files of a model and their suffixes
OURS = re.compile(r"(taxonomy|features|model)-[0-9a-f]{16}\.(tsv|safetensors)")  # names that a manifest may contain
TEMPORARY = re.compile(
    rf"\.+((manifest|evaluation)\.json|(taxonomy|features|model)-[0-9a-f]{{8}}\.partial\.)[a-z0-9.]*"
    rf"|{re.escape(PROBE_PREFIX)}[0-9a-f]+"
)  # files that exist only during a save or a check, and may be removed
FOREIGN = re.compile(rf"{re.escape(LOCK)}|\.nfs\w+")  # files of other processes, which must stay
MAX_MANIFEST_BYTES = 1 << 28  # more than a million labels of 200 bytes each
MAX_TRIES = 100  # attempts to open a model that is being replaced

_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]")  # half characters, which cannot be written alone
_CHANGED = "was changed after the model was saved; copy the folder again or save the model again"


MAX_LOSS = 0.002  # maximum loss of the score in an update without a warning


@dataclass(frozen=True)
class UpdateCheck:
    """The score of rows that a model keeps, before and after an update.

    Attributes
    ----------
    metric : {"accuracy", "micro_f1"}
        The metric; micro-F1 for sets of labels.
    before, after : float
        The score.
    rows : int
        The number of rows.
    held_out : bool
        Whether they are validation rows. Otherwise they are training rows that the update left out.
    """

    metric: Literal["accuracy", "micro_f1"]
    before: float
    after: float
    rows: int
    held_out: bool

    @classmethod
    def restored(cls, metadata: Mapping[str, Any]) -> UpdateCheck:
        """Return the check that a manifest holds, or raise HiNetError if its values are out of range."""
        check_plain(metadata, cls, "update_check")
        check = cls(**metadata)
        if not (0 <= check.before <= 1 and 0 <= check.after <= 1 and check.rows > 0):
            raise HiNetError(f"update_check should have scores from 0 to 1 of some rows, got {dict(metadata)}")
        return check

    @property
    def has_lost(self) -> bool:
        """Whether the score fell by more than 0.2 points."""
        return self.before - self.after > MAX_LOSS

    def __str__(self) -> str:
        name = {"accuracy": "accuracy", "micro_f1": "micro-F1"}[self.metric]
        kind = "validation" if self.held_out else "training"
        rows = counted(self.rows, f"kept {kind} row")
        return f"{name} {100 * self.before:.1f}% before and {100 * self.after:.1f}% after, on {rows}"

    @property
    def warning(self) -> str:
        """The warning about a loss."""
        return f"the update made old rows worse: {self}; train again with all rows to avoid that"


@dataclass(frozen=True)
class FileEntry:
    """A file of the model; its name contains its digest."""

    file: str
    bytes: int
    blake2b: str


@dataclass(frozen=True)
class FileEntries:
    """The files of a model."""

    taxonomy: FileEntry
    features: FileEntry
    model: FileEntry


class LabelValues(TypedDict):
    """Plain labels, with the name of their dtype."""

    kind: str
    values: list[Any]  # booleans, numbers of any size and texts


@dataclass(frozen=True)
class StyleEntry:
    """How paths are written as text; see :class:`hinet.classifier.labels.TextStyle`."""

    mark: str
    between: str
    spelled: dict[str, str]


class LabelEntry(TypedDict):
    """How labels are written; see :class:`hinet.classifier.labels.LabelCodec`."""

    form: Literal["plain", "ids", "paths", "table", "text"]
    number: bool
    columns: int
    named: bool
    values: LabelValues | None
    root: str | None
    rooted: bool
    style: StyleEntry | None
    wrote: dict[str, list[str]]
    typed: dict[str, Any]
    sets: NotRequired[Literal["closed", "deepest", "any"] | None]


class EncoderShapeEntry(TypedDict):
    """An encoder in the files of the model; see :class:`hinet.encoders.text_encoder.EncoderShape`."""

    family: str
    config: dict[str, str | int | float | bool | None]
    pooling: Literal["mean", "cls"]
    prompt: str
    longest: int
    precision: NotRequired[Literal["int8", "float32"]]


class EncoderEntry(TypedDict):
    """A frozen encoder; see :class:`hinet.encoders.meaning.EncoderVectors`."""

    source: str
    fingerprint: str
    width: int
    bundled: NotRequired[EncoderShapeEntry]


class PackagedEntry(TypedDict):
    """Static vectors of an installed package; see :mod:`hinet.encoders.token_vectors`."""

    package: str
    fingerprint: str
    width: NotRequired[int]  # number of first columns that are used; all if missing


class MeaningEntry(TypedDict):
    """Vectors of texts: from an encoder, or static ones, in the file of features or in a package."""

    encoder: EncoderEntry | None
    vectors: NotRequired[PackagedEntry]
    private: NotRequired[bool]


class FrameText(TypedDict):
    """The text columns of a table."""

    settings: TextSettings
    texts: int
    meaning: NotRequired[MeaningEntry]


class TextEntry(FrameText):
    """Rows are texts."""

    kind: Literal["text"]


class TunedEncoder(EncoderShapeEntry):
    """A fine-tuned encoder, and the encoder that training started from."""

    source: str


class TunedEntry(TypedDict):
    """Rows are texts, read by a fine-tuned encoder."""

    kind: Literal["text"]
    tuned: TunedEncoder


class MatrixEntry(TypedDict):
    """Rows are numbers, in columns that may have names."""

    kind: Literal["sparse", "dense"]
    columns: list[str]


class FrameColumns(TypedDict):
    """The columns of a table by kind."""

    text: list[str]
    number: list[str]
    category: list[str]
    vector: list[str]


class FrameEntry(TypedDict):
    """Rows of a table; see :class:`hinet.classifier.inputs.FrameInput`."""

    kind: Literal["frame"]
    columns: FrameColumns
    categories: dict[str, list[str]]
    text: FrameText | None


class RowEntry(TypedDict):
    """Size of a training set; titles of labels used as training rows are counted separately."""

    rows: int
    labels: int
    titles: NotRequired[int]


class TrainingEntry(RowEntry):
    """The last training set, and all earlier ones in order."""

    before: NotRequired[list[RowEntry]]


class MetricEntry(TypedDict):
    """Metrics of the model on some rows."""

    rows: int
    accuracy: float
    hierarchical_f1: float
    micro_f1: NotRequired[float]  # this and the following are metrics of sets
    hierarchical_set_f1: NotRequired[float]
    exact_match: NotRequired[float]


class TrustEntry(TypedDict):
    """Trust in texts with unknown words; see :class:`hinet.engine.model.fused.Trust`."""

    rate: float
    power: float


class Manifest(TypedDict):
    """Contents of a manifest; see :func:`hinet.classifier.saved_model.save_classifier`."""

    format: int
    blake2b: str
    versions: dict[str, str]
    engine: Literal["fused", "torch"]
    model: dict[str, Any]
    labels: LabelEntry
    features: TextEntry | TunedEntry | MatrixEntry | FrameEntry
    training_data: TrainingEntry
    files: FileEntries
    parameters: dict[str, Any]
    metrics: dict[str, MetricEntry]
    calibration: Calibration | None
    update_check: NotRequired[UpdateCheck | None]
    set_rule: NotRequired[SetRule | None]
    trust: NotRequired[TrustEntry | None]
    input_features: int | None
    history: NotRequired[list[EpochRecord]]
    notes: NotRequired[dict[str, Any]]


def parse_manifest(path: Path, data: bytes) -> dict[str, Any]:
    """Return the manifest in a file; raise FileError if this version cannot read it."""
    try:
        manifest = json.loads(data)
        digest = digest_of_manifest(manifest) if isinstance(manifest, dict) else ""
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"the manifest cannot be read ({error}); save the model again") from None
    saved_format = manifest.get("format") if isinstance(manifest, dict) else None
    if type(saved_format) is not int or saved_format != FORMAT:
        raise FileError(path, f"the model has format {saved_format!r}, this version of hinet reads format {FORMAT}")
    if manifest.get("blake2b") != digest:
        raise FileError(path, _CHANGED)
    try:
        check_plain(manifest, Manifest, "manifest")
        if manifest.get("set_rule") is not None:
            SetRule.restored(manifest["set_rule"])
        if manifest.get("trust") is not None:
            Trust.restored(manifest["trust"])
        if _SURROGATES.search(data):
            json.dumps(manifest, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise damaged(path, "it holds half of a character") from None
    except HiNetError as error:
        raise damaged(path, error) from None
    return dict(manifest)


def trainings_of(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of the first training and of every update, in order."""
    last = manifest["training_data"]
    return [*last.get("before", ()), last]


def training_text(training: Mapping[str, Any]) -> str:
    """Return the size of a training set as text.

    >>> training_text({"rows": 14_698, "titles": 1_006, "labels": 1_010})
    '14,698 rows and 1,006 titles with 1,010 labels'
    >>> training_text({"rows": 0, "titles": 2_121, "labels": 1_010})
    'no rows, only 2,121 texts of the taxonomy with 1,010 labels'
    """
    if not training["rows"]:
        texts = counted(training.get("titles", 0), "text")
        return f"no rows, only {texts} of the taxonomy with {counted(training['labels'], 'label')}"
    titles = f" and {counted(training['titles'], 'title')}" if training.get("titles") else ""
    return f"{counted(training['rows'], 'row')}{titles} with {counted(training['labels'], 'label')}"


def updates_text(updates: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of updates and their rows as text."""
    rows = counted(sum(update["rows"] for update in updates), "row")
    if len(updates) == 1:
        return f"once, with {rows} of {counted(updates[0]['labels'], 'label')}"
    return f"{len(updates):,} times, with {rows} in all"


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return the metrics of a model as text: of its sets of labels, if it predicts sets, and of the first label."""
    set_metrics = {"micro_f1": "micro-F1", "hierarchical_set_f1": "hierarchical F1", "exact_match": "exact match"}
    shares = [f"{title} {100 * metrics[name]:.1f}%" for name, title in set_metrics.items() if name in metrics]
    first = f"accuracy {100 * metrics['accuracy']:.1f}%, hierarchical F1 {100 * metrics['hierarchical_f1']:.1f}%"
    return f"sets: {', '.join(shares)}; first label: {first}" if shares else first


def damaged(path: Path, reason: object) -> FileError:
    """Return the error for a manifest that contradicts itself or the files."""
    return FileError(path, f"the manifest is damaged ({reason}); save the model again")


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with its digest."""
    return {**manifest, "blake2b": digest_of_manifest(manifest)}


def digest_of_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest without its own entry for the digest."""
    rest = {name: value for name, value in manifest.items() if name != "blake2b"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


@contextmanager
def new_model(folder: Path) -> Iterator[Callable[[str, Callable[[Path], None]], dict[str, Any]]]:
    """Lock a folder for a save, and yield a function that writes a file and returns its entry in the manifest.

    At the end, files that the current manifest does not name are removed: those of the older model or, if the save
    failed, those already written.

    Raises
    ------
    FileError
        If the folder holds other files, or is not writable.
    """
    check_target(folder)
    is_new = not folder.exists()
    try:
        with locked(folder):
            try:
                yield partial(_write_file, folder)
            finally:
                _remove_stale(folder)
    except OSError as error:
        raise FileError(folder, f"cannot be written: {error.strerror or error}") from None
    finally:
        if is_new:
            with suppress(OSError):  # it stays unless it is empty
                folder.rmdir()


def switch_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest, so that the files it names are the model from now on."""
    data = json.dumps(sealed(manifest), indent=1, ensure_ascii=False).encode()
    parse_manifest(folder / MANIFEST, data)  # a manifest that cannot be loaded is not saved
    write_bytes(folder / MANIFEST, data)


def check_unchanged(folder: Path, digest: str) -> None:
    """Raise FileError unless a folder still holds the model whose manifest has this digest."""
    if not (folder / MANIFEST).is_file() or read_manifest(folder)["blake2b"] != digest:
        raise FileError(folder, "was replaced by another process in the meantime; nothing was saved: run this again")


def check_target(folder: Path) -> None:
    """Raise FileError if a folder holds other files than those of a model, or is not writable."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "is a file; name a folder to save the model in")
    if folder.is_dir():
        names = [path.name for path in folder.iterdir()]
        known = (OURS, TEMPORARY, FOREIGN)
        ours = (MANIFEST, EVALUATION)
        others = [name for name in names if name not in ours and not any(kind.fullmatch(name) for kind in known)]
        if others:
            raise FileError(folder, f"holds other files ({others[0]!r}); name a new folder, or one of a saved model")
        if MANIFEST in names:
            read_manifest(folder)
    check_writable(folder)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a model folder; raise FileError if this version cannot read it."""
    folder, path = Path(folder), Path(folder) / MANIFEST
    if not path.is_file():
        remedy = f"it has no {MANIFEST}, so it is not a saved model; name the folder that a model was saved to"
        if not folder.is_dir():
            remedy = "it is a file; name the folder" if folder.exists() else "no such folder"
        raise FileError(folder, f"cannot be loaded: {remedy}")
    try:
        return parse_manifest(path, read_bounded(path, MAX_MANIFEST_BYTES))
    except OSError as error:
        raise FileError(path, f"the manifest cannot be read ({error}); save the model again") from None


@dataclass(frozen=True)
class ModelFiles:
    """The manifest of a saved model and its files, open for reading."""

    folder: Path
    manifest: dict[str, Any]
    streams: Mapping[str, IO[bytes]]

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / str(self.manifest["files"][name]["file"])

    def checked(self, name: str) -> IO[bytes]:
        """Return the stream of a file; raise FileError unless it has the size and digest in the manifest."""
        entry, stream = self.manifest["files"][name], self.streams[name]
        size = os.fstat(stream.fileno()).st_size
        if size != entry["bytes"]:
            raise FileError(self.path(name), f"has {size:,} bytes instead of {entry['bytes']:,}; copy the folder again")
        if digest_of(stream) != entry["blake2b"]:
            raise FileError(self.path(name), _CHANGED)
        return stream


@contextmanager
def open_model(folder: str | Path) -> Iterator[ModelFiles]:
    """Yield the manifest and the open files of a saved model, all of one save, even if it is replaced meanwhile.

    Raises
    ------
    FileError
        If it is not a model folder, or a file is missing.
    """
    folder, tries = Path(folder), 0
    with ExitStack() as stack:
        while True:
            manifest = read_manifest(folder)
            try:
                streams = {name: stack.enter_context(_open(folder, name, manifest)) for name in FILES}
                break
            except FileNotFoundError as error:  # the model was replaced, or it is damaged
                stack.close()
                tries += 1
                if tries == MAX_TRIES:
                    name = next(name for name in FILES if manifest["files"][name]["file"] == Path(error.filename).name)
                    message = f"is missing; the model needs its {name}: copy the whole folder again"
                    raise FileError(error.filename, message) from None
        yield ModelFiles(folder, manifest, streams)


def _open(folder: Path, name: str, manifest: Mapping[str, Any]) -> IO[bytes]:
    file = str(manifest["files"][name]["file"])
    if not OURS.fullmatch(file):
        raise FileError(folder / MANIFEST, f"the file of {name} is outside of the folder: {file!r}")
    path = folder / file
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # one call: the file may be removed at any moment
            raise FileError(path, "is not a file; copy the whole folder again")
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None


def _write_file(folder: Path, name: str, write: Callable[[Path], None]) -> dict[str, Any]:
    """Write a file, name it by its digest, and return its entry in the manifest."""
    temporary = folder / f".{name}-{secrets.token_hex(4)}.partial{FILES[name]}"
    write(temporary)
    with temporary.open("rb") as stream:
        digest = digest_of(stream)
    final = folder / f"{name}-{digest[:16]}{FILES[name]}"
    temporary.replace(final)
    return {"file": final.name, "bytes": final.stat().st_size, "blake2b": digest}


def _remove_stale(folder: Path) -> None:
    """Remove model files that the current manifest does not name; the folder must be locked."""
    wanted = set()
    if (folder / MANIFEST).is_file():
        wanted = {entry["file"] for entry in read_manifest(folder)["files"].values()}
    for path in folder.iterdir():
        stale = OURS.fullmatch(path.name) and path.name not in wanted
        if stale or TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # if an open file cannot be removed, the next save removes it
                path.unlink()


def digest_of(stream: IO[bytes]) -> str:
    """Return the digest of all bytes of a file."""
    stream.seek(0)
    return hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=DIGEST_BYTES)).hexdigest()  # type: ignore[arg-type]


def keep_evaluation(folder: Path, digest: str, figures: Mapping[str, Any]) -> None:
    """Write the evaluation of the model whose manifest has this digest, replacing an older one."""
    values = {"model": digest, "evaluation": figures}
    write_bytes(folder / EVALUATION, json.dumps(values, indent=1, ensure_ascii=False).encode())


def read_evaluation(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the saved evaluation of the model whose manifest has this digest, or None.

    Raises
    ------
    FileError
        If the file cannot be read.
    """
    path = folder / EVALUATION
    try:
        values = json.loads(read_bounded(path, MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(path, f"the evaluation cannot be read ({error}); evaluate the model again") from None
    if not isinstance(values, dict) or values.get("model") != digest:  # it belongs to another model
        return None
    return dict(values["evaluation"])
