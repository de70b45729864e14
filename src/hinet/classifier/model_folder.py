"""The folder of a saved model: files named by their contents, and a manifest that names them.

A save holds the lock of the folder. It writes new files, then replaces the manifest by one rename, then removes files
that the manifest does not name. So all files of a manifest exist as long as it does. A reader that finds one missing
has read an old manifest, and reads the new one. Files that a reader has opened stay as they are for it.
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
from hinet.engine.model.trust import Trust
from hinet.errors import FileError, HiNetError, counted
from hinet.evaluation.risk import RiskBound
from hinet.files import LOCK, PROBE_PREFIX, check_plain, check_writable, locked, read_bounded, write_bytes
from hinet.progress import EpochRecord

FORMAT = 1
MANIFEST = "manifest.json"
DIGEST_BYTES = 20

_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]")  # halves of characters, which alone cannot be written


@dataclass(frozen=True)
class FileEntry:
    """A file of the model, by a name that tells its contents."""

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
    """Plain labels, with the name of the dtype they had."""

    kind: str
    values: list[Any]  # truth values, numbers of any size and texts


@dataclass(frozen=True)
class StyleEntry:
    """How paths are written as text; see :class:`hinet.classifier.label_rows.TextStyle`."""

    mark: str
    between: str
    spelled: dict[str, str]


class LabelEntry(TypedDict):
    """How labels are written."""

    form: Literal["plain", "ids", "paths", "table", "text"]
    number: bool
    columns: int
    named: bool
    values: LabelValues | None
    root: str | None
    rooted: NotRequired[bool]
    style: NotRequired[StyleEntry | None]
    wrote: NotRequired[dict[str, list[str]]]
    typed: NotRequired[dict[str, Any]]  # what nodes were written as, by id, where that was a number or truth value
    sets: NotRequired[Literal["closed", "deepest", "any"] | None]


class SetRuleEntry(TypedDict):
    """Which labels a row is answered with; see :class:`hinet.classifier.predicted_sets.SetRule`."""

    thresholds: list[float]
    best_always: bool
    objective: Literal["micro_f1", "macro_f1"] | float | None
    rows: int


class EncoderShapeEntry(TypedDict):
    """An encoder in the files of the model; see :class:`hinet.encoders.text_encoder.EncoderShape`."""

    family: str
    config: dict[str, str | int | float | bool | None]
    pooling: Literal["mean", "cls"]
    prompt: str
    longest: int


class EncoderEntry(TypedDict):
    """The encoder that texts are read by; see :class:`hinet.encoders.meaning.EncoderVectors`."""

    source: str
    fingerprint: str
    width: int
    bundled: NotRequired[EncoderShapeEntry]


class MeaningEntry(TypedDict):
    """Vectors of texts: those of an encoder, or static ones, which are in the file of features."""

    encoder: EncoderEntry | None


class TextEntry(TypedDict):
    """Rows are texts."""

    kind: Literal["text"]
    settings: TextSettings
    texts: int
    meaning: NotRequired[MeaningEntry]


class TunedEncoder(EncoderShapeEntry):
    """A fine-tuned encoder, and the one that training started from."""

    source: str


class TunedEntry(TypedDict):
    """Rows are texts that a fine-tuned encoder reads."""

    kind: Literal["text"]
    tuned: TunedEncoder


class MatrixEntry(TypedDict):
    """Rows are numbers, in columns that may have names."""

    kind: Literal["sparse", "dense"]
    columns: list[str]


class FrameText(TypedDict):
    """The texts among the columns of rows."""

    settings: TextSettings
    texts: int
    meaning: NotRequired[MeaningEntry]


class FrameColumns(TypedDict):
    """The columns of rows by kind."""

    text: list[str]
    number: list[str]
    category: list[str]
    vector: list[str]


class FrameEntry(TypedDict):
    """Rows are those of a table; see :class:`hinet.classifier.inputs.FrameInput`."""

    kind: Literal["frame"]
    columns: FrameColumns
    categories: dict[str, list[str]]
    text: FrameText | None


class RowEntry(TypedDict):
    """What the training rows can be recognised by; titles of labels that were trained on are counted apart."""

    rows: int
    labels: int
    titles: NotRequired[int]


class TrainingEntry(RowEntry):
    """What the rows of the last training can be recognised by, and before it those of all others, the first first."""

    before: NotRequired[list[RowEntry]]


class MetricEntry(TypedDict):
    """How the model did on some rows."""

    rows: int
    accuracy: float
    hierarchical_f1: float
    micro_f1: NotRequired[float]  # of sets of labels, as the next two
    hierarchical_set_f1: NotRequired[float]
    exact_match: NotRequired[float]


class CalibrationEntry(TypedDict):
    """What calibration found; see :class:`hinet.classifier.calibration.Calibration`."""

    temperature: float
    error_before: float
    error_after: float
    rows: int
    promise: RiskBound | None
    scaled: NotRequired[bool]


class UpdateEntry(TypedDict):
    """What the last update cost; see :class:`hinet.classifier.update_check.UpdateCheck`."""

    metric: Literal["accuracy", "micro_f1"]
    before: float
    after: float
    rows: int
    held_out: bool


class TrustEntry(TypedDict):
    """How far texts with unknown words are trusted; see :class:`hinet.engine.model.trust.Trust`."""

    rate: float
    power: float


class Manifest(TypedDict):
    """All that a manifest holds; see :func:`hinet.classifier.bundle.save_fitted`."""

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
    calibration: CalibrationEntry | None
    update_check: NotRequired[UpdateEntry | None]
    set_rule: NotRequired[SetRuleEntry | None]
    trust: NotRequired[TrustEntry | None]
    input_features: int | None
    history: NotRequired[list[EpochRecord]]
    notes: NotRequired[dict[str, Any]]


def parse_manifest(path: Path, data: bytes) -> dict[str, Any]:
    """Return the manifest that a file holds, or raise FileError if this version cannot use it."""
    try:
        manifest = json.loads(data)
        digest = digest_of_manifest(manifest) if isinstance(manifest, dict) else ""
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"the manifest cannot be read ({error}); save the model again") from None
    saved_format = manifest.get("format") if isinstance(manifest, dict) else None
    if type(saved_format) is not int or saved_format != FORMAT:
        raise FileError(path, f"the model has format {saved_format!r}, this version of hinet reads format {FORMAT}")
    if manifest.get("blake2b") != digest:
        raise FileError(path, "was changed after the model was saved; copy the folder again or save the model anew")
    try:
        manifest = _with_list_of_trainings(manifest)
        check_plain(manifest, Manifest, "manifest")
        if manifest.get("set_rule") is not None:
            SetRule.restored(manifest["set_rule"])
        if manifest.get("trust") is not None:
            Trust.restored(manifest["trust"])
        _check_text(manifest, data)
    except HiNetError as error:
        raise damaged(path, error) from None
    return dict(manifest)


def _with_list_of_trainings(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with earlier trainings as a list, the first first; older models have each within the next."""
    training = manifest.get("training_data")
    if not isinstance(training, dict) or not isinstance(training.get("before"), dict):
        return manifest
    before = training["before"]
    trainings: list[Any] = []
    while isinstance(before, dict):
        trainings.insert(0, {name: value for name, value in before.items() if name != "before"})
        before = before.get("before")
    if before is not None:
        trainings.insert(0, before)  # which is no training, and is told as such
    return {**manifest, "training_data": {**training, "before": trainings}}


def trainings_of(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what is known of the rows of the first training, and then of those of every update."""
    last = manifest["training_data"]
    return [*last.get("before", ()), last]


def training_text(training: Mapping[str, Any]) -> str:
    """Return what a model was trained on.

    >>> training_text({"rows": 14_698, "titles": 1_006, "labels": 1_010})
    '14,698 rows and 1,006 titles with 1,010 labels'
    """
    titles = f" and {counted(training['titles'], 'title')}" if training.get("titles") else ""
    return f"{counted(training['rows'], 'row')}{titles} with {counted(training['labels'], 'label')}"


def updates_text(updates: Sequence[Mapping[str, Any]]) -> str:
    """Return how often a model was trained on more rows, and on how many."""
    rows = counted(sum(update["rows"] for update in updates), "row")
    if len(updates) == 1:
        return f"once, with {rows} of {counted(updates[0]['labels'], 'label')}"
    return f"{len(updates):,} times, with {rows} in all"


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Return how the model did on some rows: by its sets of labels, if it answers with them, and by the first label."""
    of_sets = {"micro_f1": "micro-F1", "hierarchical_set_f1": "hierarchical F1", "exact_match": "exact match"}
    shares = [f"{title} {100 * metrics[name]:.1f}%" for name, title in of_sets.items() if name in metrics]
    first = f"accuracy {100 * metrics['accuracy']:.1f}%, hierarchical F1 {100 * metrics['hierarchical_f1']:.1f}%"
    return f"sets: {', '.join(shares)}; first label: {first}" if shares else first


def damaged(path: Path, reason: object) -> FileError:
    """Return the error for a manifest that contradicts itself or the files."""
    return FileError(path, f"the manifest is damaged ({reason}); save the model again")


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with its digest."""
    return {**manifest, "blake2b": digest_of_manifest(manifest)}


def digest_of_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of all that a manifest holds but the digest itself."""
    rest = {name: value for name, value in manifest.items() if name != "blake2b"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _check_text(manifest: Mapping[str, Any], data: bytes) -> None:
    if _SURROGATES.search(data):
        try:
            json.dumps(manifest, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HiNetError("it holds half of a character") from None


FILES = {"taxonomy": ".tsv", "features": ".safetensors", "model": ".safetensors"}  # with their endings
OURS = re.compile(r"(taxonomy|features|model)-[0-9a-f]{16}\.(tsv|safetensors)")  # files that a manifest names
PASSING = re.compile(
    rf"\.+((manifest|evaluation)\.json|(taxonomy|features|model)-[0-9a-f]{{8}}\.partial\.)[a-z0-9.]*"
    rf"|{re.escape(PROBE_PREFIX)}[0-9a-f]+"
)  # on their way, or there for a moment; whoever makes a trial does not mind that it is gone
EVALUATION = "evaluation.json"  # how the model did on some rows; not part of it
MOMENTARY = re.compile(rf"{re.escape(LOCK)}|\.nfs\w+")  # of others at work, not to touch
MAX_MANIFEST_BYTES = 1 << 28  # a million labels of 200 bytes each take less
MAX_TRIES = 100  # to open a model that is replaced all the time


@contextmanager
def new_model(folder: Path) -> Iterator[Callable[[str, Callable[[Path], None]], dict[str, Any]]]:
    """Hold the lock of a folder for a save, and yield what writes a file of it and returns what a manifest says of it.

    At the end all files are removed that the manifest in place does not name: those of the older model, or, if the
    save failed, those that were written already.

    Raises
    ------
    FileError
        If the folder holds something else, or cannot be written to.
    """
    check_target(folder)
    is_new = not folder.exists()
    try:
        with locked(folder):
            try:
                yield partial(_kept, folder)
            finally:
                _remove_stale(folder)
    except OSError as error:
        raise FileError(folder, f"cannot be written: {error.strerror or error}") from None
    finally:
        if is_new:
            with suppress(OSError):  # only if nothing is in it
                folder.rmdir()


def switch_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Put a manifest in the place of the one before: the files it names are the model from now on."""
    data = json.dumps(sealed(manifest), indent=1, ensure_ascii=False).encode()
    parse_manifest(folder / MANIFEST, data)  # what could not be loaded is not saved either
    write_bytes(folder / MANIFEST, data)


def check_unchanged(folder: Path, digest: str) -> None:
    """Raise FileError unless a folder still holds the model whose manifest has this digest."""
    if not (folder / MANIFEST).is_file() or read_manifest(folder)["blake2b"] != digest:
        raise FileError(folder, "was replaced by another process in the meantime; nothing was saved: run this again")


def check_target(folder: Path) -> None:
    """Raise FileError if a model cannot be saved to a folder, for what is there or because nothing can be written."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "is a file; name a folder to save the model in")
    if folder.is_dir():
        names = [path.name for path in folder.iterdir()]
        known = (OURS, PASSING, MOMENTARY)
        ours = (MANIFEST, EVALUATION)
        others = [name for name in names if name not in ours and not any(kind.fullmatch(name) for kind in known)]
        if others:
            raise FileError(folder, f"holds other files ({others[0]!r}); name a new folder, or one of a saved model")
        if MANIFEST in names:
            read_manifest(folder)
    check_writable(folder)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a model folder, of the format this version reads."""
    return parse_manifest(Path(folder) / MANIFEST, _manifest_bytes(Path(folder)))


@dataclass(frozen=True)
class ModelFiles:
    """The manifest of a saved model and its files, open for reading."""

    folder: Path
    manifest: dict[str, Any]
    streams: Mapping[str, IO[bytes]]

    def path(self, name: str) -> Path:
        """Return the path that a file had when it was opened."""
        return self.folder / str(self.manifest["files"][name]["file"])

    def checked(self, name: str) -> IO[bytes]:
        """Return the stream of a file that is whole: of the size and digest that the manifest names."""
        entry, stream = self.manifest["files"][name], self.streams[name]
        size = os.fstat(stream.fileno()).st_size
        if size != entry["bytes"]:
            raise FileError(self.path(name), f"has {size:,} bytes instead of {entry['bytes']:,}; copy the folder again")
        if digest_of(stream) != entry["blake2b"]:
            raise FileError(
                self.path(name), "was changed after the model was saved; copy the folder again or save the model anew"
            )
        return stream


@contextmanager
def open_model(folder: str | Path) -> Iterator[ModelFiles]:
    """Yield the manifest and the files of a saved model, all of one save, whoever saves another meanwhile.

    Raises
    ------
    FileError
        If it is no model folder, or a file of it is missing.
    """
    with ExitStack() as stack:
        yield _open_files(Path(folder), stack)


def _open_files(folder: Path, stack: ExitStack) -> ModelFiles:
    data, manifest = b"", {}
    for tries in range(1, MAX_TRIES + 1):
        latest = _manifest_bytes(folder)
        if latest != data:
            data, manifest = latest, parse_manifest(folder / MANIFEST, latest)
        with ExitStack() as opened:
            try:
                streams = {name: opened.enter_context(_open(folder, name, manifest)) for name in FILES}
            except FileNotFoundError as error:  # the model was replaced, or it is damaged
                if tries == MAX_TRIES:
                    name = next(name for name in FILES if manifest["files"][name]["file"] == Path(error.filename).name)
                    message = f"is missing; the model needs its {name}: copy the whole folder again"
                    raise FileError(error.filename, message) from None
                continue
            stack.enter_context(opened.pop_all())
            return ModelFiles(folder, manifest, streams)
    raise AssertionError


def _open(folder: Path, name: str, manifest: Mapping[str, Any]) -> IO[bytes]:
    file = str(manifest["files"][name]["file"])
    if not OURS.fullmatch(file):
        raise FileError(folder / MANIFEST, f"the file of {name} lies outside of the folder: {file!r}")
    path = folder / file
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # looked at once: it may be gone a moment later
            raise FileError(path, "is no file; copy the whole folder again")
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None


def _manifest_bytes(folder: Path) -> bytes:
    path = folder / MANIFEST
    if not path.is_file():
        remedy = f"it has no {MANIFEST}, so it is no saved model; name the folder that a model was saved to"
        if not folder.is_dir():
            remedy = "it is a file; name the folder" if folder.exists() else "no such folder"
        raise FileError(folder, f"cannot be loaded: {remedy}")
    try:
        return read_bounded(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise FileError(path, f"the manifest cannot be read ({error}); save the model again") from None


def _kept(folder: Path, name: str, write: Callable[[Path], None]) -> dict[str, Any]:
    """Write a file and give it the name of its contents; return what the manifest says of it."""
    temporary = folder / f".{name}-{secrets.token_hex(4)}.partial{FILES[name]}"
    write(temporary)
    with temporary.open("rb") as stream:
        digest = digest_of(stream)
    final = folder / f"{name}-{digest[:16]}{FILES[name]}"
    temporary.replace(final)
    return {"file": final.name, "bytes": final.stat().st_size, "blake2b": digest}


def _remove_stale(folder: Path) -> None:
    """Remove all files of models that the manifest in place does not name; the lock must be held."""
    wanted = set()
    if (folder / MANIFEST).is_file():
        wanted = {entry["file"] for entry in read_manifest(folder)["files"].values()}
    for path in folder.iterdir():
        stale = OURS.fullmatch(path.name) and path.name not in wanted
        if stale or PASSING.fullmatch(path.name):
            with suppress(OSError):  # where a file that a reader has open cannot be removed, the next save does it
                path.unlink()


def digest_of(stream: IO[bytes]) -> str:
    """Return the digest of all bytes of a file."""
    stream.seek(0)
    return hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=DIGEST_BYTES)).hexdigest()  # type: ignore[arg-type]


def keep_evaluation(folder: Path, digest: str, figures: Mapping[str, Any]) -> None:
    """Write the figures of the model whose manifest has this digest; they replace older ones."""
    values = {"model": digest, "evaluation": figures}
    write_bytes(folder / EVALUATION, json.dumps(values, indent=1, ensure_ascii=False).encode())


def read_evaluation(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the figures that were kept for the model whose manifest has this digest, or None.

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
    if not isinstance(values, dict) or values.get("model") != digest:  # that of another model
        return None
    return dict(values["evaluation"])
