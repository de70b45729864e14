"""A fitted classifier as a folder of plain files: a manifest, the taxonomy, the features, the weights; no pickle.

The manifest lists the files with their sizes and digests. It is written last, by one rename, so that an interrupted
save leaves the old model, or none. Loading reads data, never code, and refuses missing, truncated, edited or swapped
files.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.answers import PredictionOptions
from hinet.classifier.explanation import Explanation, explain_row
from hinet.classifier.fitted import (
    EXAMPLES,
    HELD_OUT,
    TEXTS,
    Examples,
    Fitted,
    RememberedTexts,
    predictor_class,
)
from hinet.classifier.inputs import (
    FrameInput,
    MatrixInput,
    encoder_of,
    private_columns,
    restore_features,
    with_bundled_encoder,
)
from hinet.classifier.labels import LabelCodec, TextStyle
from hinet.classifier.model_folder import (
    FORMAT,
    MANIFEST,
    ModelFiles,
    UpdateCheck,
    check_unchanged,
    damaged,
    new_model,
    open_model,
    switch_manifest,
)
from hinet.classifier.predicted_sets import SetRule
from hinet.classifier.prediction_table import PredictionTable
from hinet.data import Traces
from hinet.data.tables import Columns, RowBlock
from hinet.data.tables.labelled_tables import input_table
from hinet.encoders.meaning import EncoderPlace, TunedInput
from hinet.engine.model.fused import Trust
from hinet.engine.search.predictor import Predictor, Search
from hinet.errors import FileError, HiNetError, LabelError
from hinet.evaluation.risk import Calibration, RiskBound
from hinet.files import decode_text, map_arrays, write_arrays
from hinet.files.delimited import missing_column_message
from hinet.files.schema import check_arrays, indices
from hinet.files.streams import read_to_end
from hinet.parameters import FLAG, PATH, validate_parameters
from hinet.progress import EpochRecord
from hinet.taxonomy import PATH_MARK, Layers, Table, Taxonomy, as_id, path_id
from hinet.taxonomy.draft import TaxonomyFormat

LABEL_NODES = {"label_nodes": indices("labels", below="nodes", rising=True)}
VALUE_KINDS = {"object", *(np.dtype(code).name for code in "?efd" + np.typecodes["AllInteger"])}  # dtypes of labels
MAX_EMPTY_COLUMNS = 1_000  # columns that a table of labels may have beyond the levels of its taxonomy
PLAIN = (bool, int, float)  # types of labels other than text


def save_classifier(
    classifier: Any,
    path: str | Path,
    *,
    half: bool,
    notes: Mapping[str, Any] | None,
    bundle_encoder: bool,
    replaces: str | None,
) -> None:
    """Write a fitted classifier with its parameters, metrics and calibration to a folder, replacing an older model.

    Concurrent saves to a folder are serialized; the last one wins. With ``replaces``, the digest of a manifest, only
    that model is replaced.

    Raises
    ------
    FileError
        If the folder holds other files or another model than ``replaces``, or is not writable.
    """
    from hinet.classifier.parameters import argument, plain_parameters  # not to answer

    folder: Path = argument("path", path)
    half = FLAG.validate("half", half)
    if FLAG.validate("bundle_encoder", bundle_encoder):
        features = with_bundled_encoder(classifier.fitted_.features)
        classifier.fitted_ = replace(classifier.fitted_, features=features)
    fitted: Fitted = classifier.fitted_
    calibration, check = fitted.calibration, fitted.update_check
    described: dict[str, Any] = {
        "engine": fitted.predictor.engine,
        "labels": describe_codec(fitted.codec),
        "features": {"kind": fitted.features.kind, **fitted.features.describe()},
        "training_data": fitted.fingerprint,
        **({} if fitted.set_rule is None else {"set_rule": asdict(fitted.set_rule)}),
        **({} if fitted.predictor.trust is None else {"trust": fitted.predictor.trust._asdict()}),
        "parameters": plain_parameters(classifier),
        "metrics": classifier.metrics_,
        "calibration": None if calibration is None else asdict(calibration),
        "update_check": None if check is None else asdict(check),
        "input_features": getattr(classifier, "n_features_in_", None),
        "history": [asdict(record) for record in classifier.history_],
        "notes": argument("notes", notes) or {},
    }
    fitted.check_file()
    json.dumps(described)  # raises before anything is written
    model, arrays = fitted.predictor.to_arrays(half=half)
    arrays["label_nodes"] = fitted.codec.label_nodes
    for name, rows in ((EXAMPLES, fitted.examples), (HELD_OUT, fitted.held_out)):
        arrays |= {} if rows is None else rows.to_arrays(name)
    arrays |= {} if fitted.remembered is None else fitted.remembered.to_arrays()
    with new_model(folder) as write:
        if replaces is not None:
            check_unchanged(folder, replaces)
        files = {
            "taxonomy": write("taxonomy", fitted.codec.taxonomy.write),
            "features": write("features", lambda file: write_arrays(file, fitted.features.to_arrays())),
            "model": write("model", lambda file: write_arrays(file, arrays)),
        }
        versions = _versions(fitted.predictor.engine)
        switch_manifest(folder, {"format": FORMAT, "versions": versions, "model": model, "files": files, **described})


COLUMNS = "columns"  # note in the manifest with the columns of the training rows


class RowError(HiNetError):
    """A row cannot be read; ``row`` is its index."""

    def __init__(self, row: int, message: str) -> None:
        self.row = row
        super().__init__(message)


@dataclass(frozen=True)
class LoadedModel:
    """A model of texts, or of rows of a table, and its manifest."""

    fitted: Fitted
    manifest: dict[str, Any]

    @property
    def columns(self) -> Columns:
        """The columns of the training rows, or the default ones if they are unknown."""
        noted, features = saved_columns(self.manifest), self.fitted.features
        if isinstance(features, FrameInput) and noted is None:
            kinds = features.columns
            return Columns(kinds.text, number=kinds.number, category=kinds.category, vector=kinds.vector)
        return noted or Columns()

    def checked_columns(self, columns: Columns) -> Columns:
        """Return the columns; raise HiNetError unless each kind has as many as in training."""
        features = self.fitted.features
        if not isinstance(features, FrameInput):
            if columns.is_mixed:
                raise HiNetError("the model reads only texts; leave `number`, `category` and `vector` out")
            return columns
        for kind, names in features.columns.to_dict().items():
            given = getattr(columns, kind)
            if len(given) != len(names):
                trained = ", ".join(names) or "none"
                raise HiNetError(
                    f"the model was trained on {len(names)} columns of `{kind}` ({trained}), got {len(given)}; name as "
                    "many"
                )
        return columns

    def named_as_trained(self, inputs: Any) -> Any:
        """Return a table with the column names of training; texts unchanged."""
        features = self.fitted.features
        return inputs.rename_columns(list(features.columns.names)) if isinstance(features, FrameInput) else inputs

    @property
    def reads_rows(self) -> bool:
        """Whether the model reads the columns of a table, not only a text."""
        return isinstance(self.fitted.features, FrameInput)

    def inputs_of(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return rows by column as inputs, texts or a table; raise RowError for a row that cannot be read."""
        columns = self.columns
        names = columns.inputs if self.reads_rows else columns.text
        for number, row in enumerate(rows):
            for name in names:
                if name not in row:
                    message = missing_column_message(name, list(row))
                    raise RowError(number, f"{message}; null stands for a missing value")
        if self.reads_rows:
            return self._table_of(rows)
        texts = []
        for number, row in enumerate(rows):
            cells = [row[name] for name in names]
            if not all(cell is None or isinstance(cell, str) for cell in cells):
                raise RowError(number, f"expected text in {', '.join(names)}")
            texts.append(" ".join(cell for cell in cells if cell))
        return texts

    def _table_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        columns, widths = self.columns, self.widths(self.columns)

        def table(some: Sequence[Mapping[str, Any]]) -> pa.Table:
            cells = {name: [row[name] for row in some] for name in columns.inputs}
            block = RowBlock("rows", "jsonl", list(range(1, len(some) + 1)), cells, positions=list(range(len(some))))
            return input_table(block, columns, widths)

        try:
            return self.named_as_trained(table(rows))
        except HiNetError:
            for number, row in enumerate(rows):
                try:
                    table([row])
                except HiNetError as reason:
                    raise RowError(number, str(reason)) from None
            raise

    def widths(self, columns: Columns) -> dict[str, int]:
        """Return the length of the vectors of each column."""
        vectors = self.fitted.features.vectors if isinstance(self.fitted.features, FrameInput) else ()
        return {name: vector.width for name, vector in zip(columns.vector, vectors, strict=True)}

    @property
    def given_taxonomy(self) -> Taxonomy | None:
        """The taxonomy that labels must be in; None if it was inferred from the labels."""
        codec = self.fitted.codec
        return None if codec.inferred else codec.taxonomy

    @property
    def risk_bound(self) -> RiskBound | None:
        """The calibrated threshold and its risk, if there is one."""
        return None if self.fitted.calibration is None else self.fitted.calibration.promise

    @property
    def style(self) -> TextStyle:
        """Text form of labels that are paths."""
        separator = self.columns.path_sep
        return TextStyle(PATH_MARK) if separator in (None, PATH_MARK) else TextStyle(separator, separator)

    def table(self, options: PredictionOptions) -> PredictionTable:
        """Return the converter of rows to columns of answers."""
        fitted = self.fitted.restricted(list(options.within) or None, list(options.exclude) or None)
        return PredictionTable(fitted, options, self.style)

    def explain(self, text: str, label: str | None = None, *, most: int) -> Explanation:
        """Explain the best trace of a text, or that of a label, which is written as in the training rows.

        If the model reads the rows of a table, the text is a row as a JSON object.

        Raises
        ------
        HiNetError
            If the model has no such label.
        """
        inputs = self._row(text) if self.reads_rows else [text]
        return explain_row(self.fitted, inputs, None if label is None else self._traces_of(label), most)

    def _row(self, text: str) -> Any:
        """Return a table of one row, given as a JSON object."""
        columns = self.columns
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            names = ", ".join(columns.inputs)
            raise HiNetError(f"the model reads the columns {names}; give a row as JSON, such as {_example(columns)}")
        return self.inputs_of([row])

    def _traces_of(self, label: str) -> Traces:
        codec = self.fitted.codec
        written = self.columns.parse_label([label])
        try:
            if not codec.predictable(codec.truth([written])).all():
                raise HiNetError(
                    f"the model has no label {label!r}: no training row ended there; name one that it predicts"
                )
            return codec.encode([written])
        except LabelError as error:
            raise HiNetError(str(error).removeprefix("row 0: ")) from None


def _example(columns: Columns) -> str:
    """Return an example row as JSON."""
    values = {"text": "…", "number": 12.5, "category": "…", "vector": None}
    return json.dumps(
        {name: value for kind, value in values.items() for name in getattr(columns, kind)}, ensure_ascii=False
    )


def saved_columns(manifest: Mapping[str, Any]) -> Columns | None:
    """Return the columns noted in a manifest."""
    noted = manifest.get("notes", {}).get(COLUMNS)
    return None if noted is None else Columns.from_dict(noted)


def meaning_entry(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entry of the vectors of texts in a manifest, if there is one."""
    features = manifest["features"]
    text = features["text"] if features["kind"] == "frame" else features
    entry: Mapping[str, Any] | None = (text or {}).get("meaning")
    return entry


def read_model(
    folder: str | Path, network: Any = None, *, mapped: bool = True, encoder: EncoderPlace | None = None
) -> LoadedModel:
    """Read a model and its manifest, both of the same save, from a folder.

    ``mapped`` maps weights into memory. ``encoder`` is the current place of the model's encoder, if it has one.

    Raises
    ------
    FileError
        If it is not a model folder of this format, or a file is missing, truncated, edited or invalid; the message
        names the file and the array.
    HiNetError
        If ``encoder`` is not the encoder of training; the message has both fingerprints.
    """
    with open_model(folder) as files:
        try:
            fitted = _read_fitted(files, network, mapped)
        except HiNetError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
            raise damaged(files.folder / MANIFEST, repr(error)) from None
    if encoder is not None:
        own = encoder_of(fitted.features)
        if own is None:
            raise HiNetError("the model has no external encoder; leave `encoder` out")
        own.use(encoder)
    return LoadedModel(fitted, files.manifest)


def _read_fitted(files: ModelFiles, network: Any, mapped: bool) -> Fitted:
    manifest = files.manifest
    with ThreadPoolExecutor(1) as pool:  # checks the weights, most of the bytes, while the rest is read
        weights = pool.submit(files.checked, "model")
        taxonomy = _taxonomy(files)
        with naming_file(files.path("features")):
            path, stream = files.path("features"), files.checked("features")
            features = restore_features(manifest["features"], map_arrays(path, stream)[0], manifest["input_features"])
        arrays, file = map_arrays(files.path("model"), weights.result(), mapped=mapped)
    width = manifest["input_features"] if isinstance(features, MatrixInput) else features.count
    with naming_file(files.path("model")):
        check_arrays(arrays, LABEL_NODES, {"nodes": len(taxonomy)})
        saved = {name: pop_arrays(arrays, name) for name in (EXAMPLES, HELD_OUT, TEXTS)}
    with naming_file(files.folder / MANIFEST):
        codec = restore_codec(taxonomy, manifest["labels"], arrays.pop("label_nodes"))
        described = manifest.get("set_rule")
        if (described is None) != (codec.sets is None):
            raise HiNetError("models of rows with several labels have thresholds, and other models have none")
        rule = None if described is None else SetRule.restored(described)
        calibration, check = manifest["calibration"], manifest.get("update_check")
        calibration = None if calibration is None else restored_calibration(calibration)
        check = None if check is None else UpdateCheck.restored(check)
    predictor = _restored_predictor(files, codec.layers, arrays, network)
    with naming_file(files.path("model")):
        if predictor.features not in (None, width):
            raise HiNetError(f"it reads {predictor.features:,} features, and rows have {width}")
        compared = predictor.model.experts.neighbours.private_columns if isinstance(predictor, Search) else 0
        if compared != private_columns(features):
            raise HiNetError(f"it compares {compared:,} columns, and rows have {private_columns(features):,} for that")
        examples, held_out = (
            Examples.restored(saved[name], name, features=width, nodes=len(taxonomy)) for name in (EXAMPLES, HELD_OUT)
        )
        remembered = RememberedTexts.restored(saved[TEXTS])
    history = tuple(EpochRecord(**record) for record in manifest.get("history", ()))
    return Fitted(
        features, codec, predictor, history, manifest["training_data"], examples, held_out, file, rule, remembered,
        calibration, check,
    )  # fmt: skip


def restored_calibration(metadata: dict[str, Any]) -> Calibration:
    """Return the calibration of plain values that the manifest schema allows; raise HiNetError if out of range."""
    risk_bound = metadata["promise"]
    values = {**metadata, **(risk_bound or {})}.values()
    finite = all(math.isfinite(each) for each in values if isinstance(each, int | float))
    if not finite or metadata["temperature"] <= 0:
        raise HiNetError("calibration has numbers that are not finite, or a temperature that is not above 0")
    return Calibration(**{**metadata, "promise": None if risk_bound is None else RiskBound(**risk_bound)})


def pop_arrays(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Remove the arrays whose names start with a prefix and a dot, and return them."""
    return {name: arrays.pop(name) for name in [*arrays] if name.startswith(f"{prefix}.")}


def load_classifier(
    kind: type[Any],
    path: str | Path,
    network: Any = None,
    *,
    mapped: bool = True,
    encoder: EncoderPlace | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the classifier of class ``kind`` that was saved to a folder, and the manifest of the same save."""
    from hinet.classifier.parameters import RULES, restored_parameters  # not to answer

    path = PATH.validate("path", path)
    FLAG.validate("mapped", mapped)
    network, encoder = RULES["network"].validate("network", network), RULES["encoder"].validate("encoder", encoder)
    try:
        model = read_model(path, network, mapped=mapped, encoder=encoder)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    fitted, features, manifest = model.fitted, model.fitted.features, model.manifest
    with naming_file(Path(path) / MANIFEST):
        meaning = features if isinstance(features, TunedInput) else getattr(features, "meaning", None)
        try:
            parameters = restored_parameters(manifest["parameters"], fitted.codec.taxonomy, meaning)
            loaded = kind(**parameters, network=network)
            validate_parameters(loaded, {name: rule for name, rule in RULES.items() if name != "device"})
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            if isinstance(error, HiNetError):
                raise
            raise HiNetError(f"its parameters are damaged ({error!r})") from None
        loaded._set_fitted(fitted.with_threads(loaded.n_jobs))
        loaded.metrics_ = manifest["metrics"]
        if manifest["input_features"] is not None:
            loaded.n_features_in_ = manifest["input_features"]
        if isinstance(features, MatrixInput) and features.columns:
            loaded.feature_names_in_ = np.array(features.columns, object)
    return loaded, manifest


def load_model(
    path: str | Path, threads: int | None, *, mapped: bool = True, encoder: EncoderPlace | None = None
) -> LoadedModel:
    """Load a model of texts or tables from a folder; ``encoder`` is the current place of its encoder.

    Unless ``mapped``, the whole model is read into memory, and its files may change.
    """
    model = read_model(path, mapped=mapped, encoder=encoder)
    if model.fitted.features.kind not in ("text", "frame"):
        raise FileError(path, "the model reads rows of numbers, which tables of text cannot give; use it from Python")
    return replace(model, fitted=model.fitted.with_threads(threads))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add the name of a file to errors about its contents."""
    try:
        yield
    except FileError:
        raise
    except HiNetError as error:
        raise FileError(path, f"cannot be used: {error}; copy the folder again or save the model again") from None


def _restored_predictor(
    files: ModelFiles, layers: Layers, arrays: Mapping[str, NDArray[Any]], network: Any
) -> Predictor:
    manifest = files.manifest
    kind, metadata, trust = predictor_class(manifest["engine"]), manifest["model"], manifest.get("trust")
    with naming_file(files.folder / MANIFEST):
        kind.check_described(metadata)
    kind.require_network(metadata, network)
    with naming_file(files.path("model")):
        predictor = kind.restored(layers, metadata, arrays, network)
    if trust is None:
        return predictor
    with naming_file(files.folder / MANIFEST):
        if not predictor.can_scale_odds:
            raise HiNetError("trust is for trees of the fused engine with one label per row; this is another model")
        return predictor.with_trust(Trust.restored(trust))


def read_description(folder: str | Path) -> tuple[dict[str, Any], Taxonomy]:
    """Return the manifest and the taxonomy of a saved model after checking the digests of all its files."""
    with open_model(folder) as files:
        for name in files.streams.keys() - {"taxonomy"}:  # the taxonomy is checked when it is read
            files.checked(name)
        return files.manifest, _taxonomy(files)


def _taxonomy(files: ModelFiles) -> Taxonomy:
    path, stream = files.path("taxonomy"), files.checked("taxonomy")
    stream.seek(0)
    draft = Table().parse(path, decode_text(path, read_to_end(path, stream, TaxonomyFormat.memory_per_byte)))
    root = files.manifest["labels"]["root"]
    taxonomy = Taxonomy.from_draft(draft, source=str(path), root=root)
    return taxonomy.under_virtual_root() if root is None else taxonomy  # a single top node need not be the root


def describe_codec(codec: LabelCodec) -> dict[str, Any]:
    """Return the codec of labels, without its taxonomy and labels, as plain values for JSON."""
    taxonomy = codec.taxonomy
    values = None
    if codec.values is not None:
        values = {"kind": str(codec.values.dtype), "values": codec.values.tolist()}
    style = None
    if codec.style is not None:
        spelled = {path_id(steps): text for steps, text in codec.style.spelled.items()}
        style = {**asdict(codec.style), "spelled": spelled}
    root = taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else None
    return {
        "form": codec.kind, "number": codec.number, "columns": codec.columns, "named": codec.named_steps,
        "values": values, "root": root, "rooted": codec.from_root,
        "style": style, "wrote": codec.first_paths, "typed": dict(codec.typed_values),
        **({} if codec.sets is None else {"sets": codec.sets}),
    }  # fmt: skip


def restore_codec(taxonomy: Taxonomy, metadata: Mapping[str, Any], label_nodes: NDArray[np.int64]) -> LabelCodec:
    """Return the codec of a description, or raise HiNetError if its values contradict each other."""
    kind, named, sets = metadata["form"], metadata["named"], metadata.get("sets")
    if not 0 <= metadata["columns"] <= taxonomy.height + MAX_EMPTY_COLUMNS:
        raise HiNetError(f"labels of {metadata['columns']:,} columns, in a taxonomy of {taxonomy.height:,} levels")
    if (kind == "plain") != (metadata["values"] is not None) or (named and kind in ("plain", "ids")):
        raise HiNetError(f"labels of the form {kind!r} contradict the other values of the manifest")
    layers = Layers.of(taxonomy, [taxonomy.ids[node] for node in label_nodes.tolist()], multilabel=sets is not None)
    values = None if metadata["values"] is None else _restored_values(taxonomy, **metadata["values"])
    style = None
    if (described := metadata["style"]) is not None:
        style = TextStyle(described["mark"], described["between"]).with_labels(described["spelled"].values())
    if (kind == "text") != bool(style and style.mark):
        raise HiNetError("paths as text need a mark to split at, and other labels must not have one")
    first_paths = {label: tuple(path) for label, path in metadata["wrote"].items()}
    if any(path[-1:] != (label,) for label, path in first_paths.items()):
        raise HiNetError("a path does not lead to the label it was written for")
    Traces.along(layers, list(first_paths.values()))  # raises if a path is not in the taxonomy
    texts = taxonomy.titles if named else taxonomy.ids
    for node, value in metadata["typed"].items():
        if type(value) not in PLAIN or node not in taxonomy or as_id(value) != texts[taxonomy.position(node)]:
            raise HiNetError(f"node {node!r} cannot be written as {value!r}")
    codec = LabelCodec(
        kind, layers, metadata["number"], metadata["columns"], named, values, metadata["rooted"], style, first_paths,
        metadata["typed"], sets,
    )  # fmt: skip
    if codec.number:
        try:
            codec.decode(codec.label_nodes)
        except ValueError as error:
            raise HiNetError(f"labels should be whole numbers, and are not: {error}") from None
    return codec


def _restored_values(taxonomy: Taxonomy, kind: str, values: list[Any]) -> NDArray[Any]:
    """Return plain labels as they were: the names of the nodes, or the numbers that these stand for."""
    if kind not in VALUE_KINDS:
        raise HiNetError(f"labels of the unknown kind {kind!r}")
    expected = {"O": (str, *PLAIN), "b": (bool,), "f": (float,)}.get(np.dtype(kind).kind, (int,))
    if {*map(type, values)} - {*expected}:
        raise HiNetError(f"labels should be of the kind {kind!r} and are not")
    try:
        labels = np.array(values, kind)
    except OverflowError as error:
        raise HiNetError(f"labels should be of the kind {kind!r} and are not: {error}") from None
    if [as_id(value) for value in labels.tolist()] != list(taxonomy.ids):
        raise HiNetError("the labels differ from the nodes of the taxonomy")
    return labels


def _versions(engine: str) -> dict[str, str]:
    from hinet import __version__

    versions = {"hinet": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if engine == "torch":
        versions["torch"] = version("torch")
    return versions
