"""The manifest of a saved model: what it must hold, and the digest that tells whether it was changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from hinet.classifier.predicted_sets import SetRule
from hinet.data.text import TextSettings
from hinet.engine.model.trust import Trust
from hinet.errors import FileError, HiNetError, counted
from hinet.evaluation.risk import RiskBound
from hinet.files import check_plain
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
    """How paths are written as text; see :class:`hinet.classifier.text_paths.TextStyle`."""

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
    """An encoder in the files of the model; see :class:`hinet.networks.text_encoder.EncoderShape`."""

    family: str
    config: dict[str, str | int | float | bool | None]
    pooling: Literal["mean", "cls"]
    prompt: str
    longest: int


class EncoderEntry(TypedDict):
    """The encoder that texts are read by; see :class:`hinet.classifier.meaning.EncoderVectors`."""

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
