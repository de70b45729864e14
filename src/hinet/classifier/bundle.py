"""A fitted classifier as a folder of plain files: a manifest, the taxonomy, the features, the weights; no pickle.

The manifest lists the files with their sizes and digests. It is written last, by one rename, so that an interrupted
save leaves the old model, or none. Loading reads data, never code, and refuses missing, truncated, edited or swapped
files.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import EXAMPLES, HELD_OUT, Examples, Fitted, UpdateCheck, predictor_class
from hinet.classifier.inputs import MatrixInput, encoder_of, private_columns, restore_features, with_bundled_encoder
from hinet.classifier.labels import LabelCodec, TextStyle
from hinet.classifier.model_folder import (
    FORMAT,
    MANIFEST,
    ModelFiles,
    check_unchanged,
    damaged,
    new_model,
    open_model,
    switch_manifest,
)
from hinet.classifier.predicted_sets import SetRule
from hinet.classifier.remembered import TEXTS, RememberedTexts
from hinet.data import Traces
from hinet.encoders.meaning import EncoderPlace, TunedInput
from hinet.engine.fused_search import Search
from hinet.engine.model.fused import Trust
from hinet.engine.search.predictor import Predictor
from hinet.errors import FileError, HiNetError
from hinet.files import decode_text, map_arrays, write_arrays
from hinet.files.schema import check_arrays, indices
from hinet.files.streams import read_to_end
from hinet.parameters import FLAG, PATH, validate_parameters
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers, Table, Taxonomy, as_id, path_id
from hinet.taxonomy.draft import TaxonomyFormat

LABEL_NODES = {"label_nodes": indices("labels", below="nodes", rising=True)}
VALUE_KINDS = {"object", *(np.dtype(code).name for code in "?efd" + np.typecodes["AllInteger"])}  # dtypes of labels
MAX_EMPTY_COLUMNS = 1_000  # columns that a table of labels may have beyond the levels of its taxonomy
PLAIN = (bool, int, float)  # types of labels other than text


def save_fitted(
    fitted: Fitted,
    folder: str | Path,
    metadata: Mapping[str, Any],
    *,
    half: bool = False,
    replaces: str | None = None,
) -> None:
    """Write a fitted classifier and its ``metadata`` to a folder, replacing an older model.

    Concurrent saves to a folder are serialized; the last one wins. With ``replaces``, the digest of a manifest, only
    that model is replaced.

    Raises
    ------
    FileError
        If the folder holds other files or another model than ``replaces``, or is not writable.
    """
    folder = Path(folder)
    fitted.check_file()
    json.dumps(metadata)  # raises before anything is written
    codec = fitted.codec
    description, arrays = fitted.predictor.to_arrays(half=half)
    arrays["label_nodes"] = codec.label_nodes
    for name, rows in ((EXAMPLES, fitted.examples), (HELD_OUT, fitted.held_out)):
        arrays |= {} if rows is None else rows.to_arrays(name)
    arrays |= {} if fitted.remembered is None else fitted.remembered.to_arrays()
    with new_model(folder) as write:
        if replaces is not None:
            check_unchanged(folder, replaces)
        files = {
            "taxonomy": write("taxonomy", codec.taxonomy.write),
            "features": write("features", lambda path: write_arrays(path, fitted.features.to_arrays())),
            "model": write("model", lambda path: write_arrays(path, arrays)),
        }
        manifest = {
            "format": FORMAT,
            "versions": _versions(fitted.predictor.engine),
            "engine": fitted.predictor.engine,
            "model": description,
            "labels": describe_codec(codec),
            "features": {"kind": fitted.features.kind, **fitted.features.describe()},
            "training_data": fitted.fingerprint,
            "files": files,
            **({} if fitted.set_rule is None else {"set_rule": asdict(fitted.set_rule)}),
            **({} if fitted.predictor.trust is None else {"trust": fitted.predictor.trust._asdict()}),
            **metadata,
        }
        switch_manifest(folder, manifest)


def save_classifier(
    classifier: Any,
    path: str | Path,
    *,
    half: bool,
    notes: Mapping[str, Any] | None,
    bundle_encoder: bool,
    replaces: str | None,
) -> None:
    """Write a fitted classifier with its parameters, metrics and calibration to a folder."""
    from hinet.classifier.parameters import NOTES, plain_parameters  # not to answer

    path, half = PATH.validate("path", path), FLAG.validate("half", half)
    if FLAG.validate("bundle_encoder", bundle_encoder):
        features = with_bundled_encoder(classifier.fitted_.features)
        classifier.fitted_ = replace(classifier.fitted_, features=features)
    calibration, check = (getattr(classifier, name, None) for name in ("calibration_", "update_check_"))
    metadata = {
        "parameters": plain_parameters(classifier),
        "metrics": classifier.metrics_,
        "calibration": None if calibration is None else asdict(calibration),
        "update_check": None if check is None else asdict(check),
        "input_features": getattr(classifier, "n_features_in_", None),
        "history": [asdict(record) for record in classifier.history_],
        "notes": NOTES.validate("notes", {} if notes is None else notes),
    }
    save_fitted(classifier.fitted_, path, metadata, half=half, replaces=replaces)


def load_fitted(
    folder: str | Path, network: Any = None, *, mapped: bool = True, encoder: EncoderPlace | None = None
) -> tuple[Fitted, dict[str, Any]]:
    """Read a fitted classifier and its manifest, both of the same save, from a folder.

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
            fitted = _loaded(files, network, mapped)
        except HiNetError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
            raise damaged(files.folder / MANIFEST, repr(error)) from None
    if encoder is not None:
        own = encoder_of(fitted.features)
        if own is None:
            raise HiNetError("the model has no external encoder; leave `encoder` out")
        own.use(encoder)
    return fitted, files.manifest


def _loaded(files: ModelFiles, network: Any, mapped: bool) -> Fitted:
    manifest = files.manifest
    with ThreadPoolExecutor(1) as pool:  # checks the weights, most of the bytes, while the rest is read
        weights = pool.submit(files.checked, "model")
        taxonomy = _taxonomy(files)
        with naming_file(files.path("features")):
            path, stream = files.path("features"), files.checked("features")
            features = restore_features(manifest["features"], map_arrays(path, stream)[0], manifest["input_features"])
        arrays, file = map_arrays(files.path("model"), weights.result(), mapped=mapped)
    with naming_file(files.path("model")):
        check_arrays(arrays, LABEL_NODES, {"nodes": len(taxonomy)})
        kept = {name: arrays.pop(name) for name in [*arrays] if name.partition(".")[0] in (EXAMPLES, HELD_OUT)}
        texts = {name: arrays.pop(name) for name in [*arrays] if name.partition(".")[0] == TEXTS}
    with naming_file(files.folder / MANIFEST):
        codec = restore_codec(taxonomy, manifest["labels"], arrays.pop("label_nodes"))
        described = manifest.get("set_rule")
        if (described is None) != (codec.sets is None):
            raise HiNetError("models of rows with several labels have thresholds, and other models have none")
        rule = None if described is None else SetRule.restored(described)
    predictor = _restored_predictor(files, codec.layers, arrays, network)
    width = manifest["input_features"] if isinstance(features, MatrixInput) else features.count
    with naming_file(files.path("model")):
        if predictor.features not in (None, width):
            raise HiNetError(f"it reads {predictor.features:,} features, and rows have {width}")
        compared = predictor.model.experts.neighbours.private_columns if isinstance(predictor, Search) else 0
        if compared != private_columns(features):
            raise HiNetError(f"it compares {compared:,} columns, and rows have {private_columns(features):,} for that")
        examples, held_out = (
            None if width is None else Examples.pop_from(kept, name, features=width, nodes=len(taxonomy))
            for name in (EXAMPLES, HELD_OUT)
        )
    history = tuple(EpochRecord(**record) for record in manifest.get("history", ()))
    with naming_file(files.path("model")):
        remembered = RememberedTexts.restored(texts)
    return Fitted(
        features, codec, predictor, history, manifest["training_data"], examples, held_out, file, rule, remembered
    )


def load_classifier(
    kind: type[Any],
    path: str | Path,
    network: Any = None,
    *,
    mapped: bool = True,
    encoder: EncoderPlace | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the classifier of class ``kind`` that was saved to a folder, and the manifest of the same save."""
    from hinet.classifier.parameters import RULES, restored_calibration, restored_parameters  # not to answer

    path = PATH.validate("path", path)
    FLAG.validate("mapped", mapped)
    network, encoder = RULES["network"].validate("network", network), RULES["encoder"].validate("encoder", encoder)
    try:
        fitted, manifest = load_fitted(path, network, mapped=mapped, encoder=encoder)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    with naming_file(Path(path) / MANIFEST):
        features = fitted.features
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
        if manifest["calibration"] is not None:
            loaded._set_calibration(restored_calibration(manifest["calibration"]))
        if manifest.get("update_check") is not None:
            loaded.update_check_ = UpdateCheck.restored(manifest["update_check"])
    return loaded, manifest


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
