"""A fitted classifier as a folder of plain files: a manifest, the taxonomy, the features, the weights; no pickle.

Files are named by what they hold and a digest of it. The manifest names them with their sizes and digests, and is
written last, by one rename: whenever a save is broken off, the folder holds the old model whole, or none. Loading reads
data, never code, and refuses files that are missing, cut off, edited or swapped.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import restored
from hinet.classifier.labels import LabelForm
from hinet.engine import FusedModel
from hinet.errors import FileError, HiNetError
from hinet.files import map_arrays, write_arrays, write_bytes
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers, Taxonomy

if TYPE_CHECKING:
    from hinet.network import HiNet

FORMAT = 1
MANIFEST = "manifest.json"
OURS = re.compile(r"(taxonomy|features|model)-[0-9a-f]{16}\.(tsv|safetensors)")  # files that a manifest names
PASSING = re.compile(r"\.+(manifest\.json|(taxonomy|features|model)-[0-9a-f]{8}\.partial\.)[a-z0-9.]*")  # on their way
DIGEST_BYTES = 20


def save_fitted(fitted: Fitted, folder: str | Path, told: Mapping[str, Any], *, half: bool = False) -> None:
    """Write a fitted classifier, and what is ``told`` of it, to a folder; an older model there is replaced.

    Raises
    ------
    FileError
        If the folder holds something else, or cannot be written to.
    """
    folder = Path(folder)
    check_target(folder)
    json.dumps(told)  # what cannot be kept is found before anything is written
    form = fitted.form
    described, arrays = _described_model(fitted, half=half)
    files = [
        _kept(folder, "taxonomy", ".tsv", form.taxonomy.write),
        _kept(folder, "features", ".safetensors", lambda path: write_arrays(path, fitted.features.to_arrays())),
        _kept(folder, "model", ".safetensors", lambda path: write_arrays(path, arrays)),
    ]
    manifest = {
        "format": FORMAT,
        "versions": _versions(fitted.engine),
        "engine": fitted.engine,
        "model": described,
        "labels": _described_form(form),
        "features": {"kind": fitted.features.kind, **fitted.features.describe()},
        "training_data": fitted.fingerprint,
        "files": dict(files),
        **told,
    }
    manifest["blake2b"] = _digest_of_manifest(manifest)
    write_bytes(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    _remove_stale(folder, {told_of["file"] for _, told_of in files})


def load_fitted(folder: str | Path, network: Any = None) -> tuple[Fitted, dict[str, Any]]:
    """Read a fitted classifier from a folder, and its manifest.

    Raises
    ------
    FileError
        If it is no model folder, of another format, or a file is missing, cut off or edited.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        files, told = manifest["files"], manifest["features"]
        with ThreadPoolExecutor(1) as beside:  # the weights are most of the bytes: the rest is read meanwhile
            weights = beside.submit(_checked, folder, "model", files["model"])
            taxonomy = read_taxonomy(folder, manifest)
            path = _checked(folder, "features", files["features"])
            features = restored(told["kind"], map_arrays(path), told)
            arrays = map_arrays(weights.result())
        form = _restored_form(taxonomy, manifest["labels"], arrays.pop("label_nodes"))
        model = _restored_model(form.layers, manifest, arrays, network)
        history = tuple(EpochRecord(**record) for record in manifest.get("history", ()))
    except HiNetError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FileError(folder / MANIFEST, f"the manifest is damaged ({error!r}); save the model again") from None
    return Fitted(features, form, model, history=history, fingerprint=manifest["training_data"]), manifest


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a model folder, of the format this version reads."""
    path = Path(folder) / MANIFEST
    if not path.exists():
        remedy = f"it has no {MANIFEST}, so it is no saved model"
        if not Path(folder).is_dir():
            remedy = "it is a file; name the folder" if Path(folder).exists() else "no such folder"
        raise FileError(folder, f"cannot be loaded: {remedy}")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise FileError(path, f"the manifest cannot be read ({error}); save the model again") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise FileError(path, f"the model has format {found!r}, this version of hinet reads format {FORMAT}")
    if manifest.get("blake2b") != _digest_of_manifest(manifest):
        raise FileError(path, "was changed after the model was saved; copy the folder again or save the model anew")
    return dict(manifest)


def read_taxonomy(folder: str | Path, manifest: Mapping[str, Any]) -> Taxonomy:
    """Return the taxonomy of a saved model."""
    path = _checked(Path(folder), "taxonomy", manifest["files"]["taxonomy"])
    return Taxonomy.from_file(path, format="table", root=manifest["labels"]["root"])


def _digest_of_manifest(manifest: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "blake2b"}
    return hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _described_model(fitted: Fitted, *, half: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    labels = {"label_nodes": fitted.form.label_nodes}
    if isinstance(fitted.model, FusedModel):
        return {"half": half}, fitted.model.to_arrays(half=half) | labels
    if half:
        raise HiNetError("half precision is for models of the fused engine; save this one in full")
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in fitted.model.state_dict().items()}
    return _described_network(fitted.model), arrays | labels


def _described_network(network: HiNet) -> dict[str, Any]:
    from hinet.network import DenseFeatures, SparseBag

    features: dict[str, Any] = {"kind": "own"}
    if isinstance(network.features, (DenseFeatures, SparseBag)):
        kind = "dense" if isinstance(network.features, DenseFeatures) else "sparse"
        features = {"kind": kind, **network.features.shape()}
    return {"features": features, "width": network.head.width, "head": asdict(network.head.settings)}


def _restored_model(
    layers: Layers, manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any
) -> FusedModel | HiNet:
    if manifest["engine"] == "fused":
        return FusedModel.from_arrays(layers, arrays)
    import torch

    from hinet.network import DenseFeatures, HeadSettings, HiNet, SparseBag

    told = manifest["model"]
    shape = dict(told["features"])
    kind = shape.pop("kind")
    if kind == "own" and network is None:
        raise HiNetError("the model was trained with a network of your own; pass it again, as load(path, network=...)")
    features = network if kind == "own" else (DenseFeatures if kind == "dense" else SparseBag)(**shape)
    restored_network = HiNet(features, layers, told["width"], HeadSettings(**told["head"]))
    try:
        restored_network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except RuntimeError as error:
        raise HiNetError(f"the saved weights do not fit the network: {error}") from None
    return restored_network.eval()


def _described_form(form: LabelForm) -> dict[str, Any]:
    taxonomy = form.taxonomy
    values = None
    if form.values is not None:
        values = {"kind": str(form.values.dtype), "values": form.values.tolist()}
    root = taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else None
    return {
        "form": form.form, "number": form.number, "columns": form.columns, "named": form.named,
        "values": values, "root": root,
    }  # fmt: skip


def _restored_form(taxonomy: Taxonomy, told: Mapping[str, Any], label_nodes: NDArray[np.int64]) -> LabelForm:
    layers = Layers.of(taxonomy, [taxonomy.ids[node] for node in label_nodes.tolist()])
    values = told["values"]
    if values is not None:
        values = np.array(values["values"], values["kind"])
    return LabelForm(told["form"], layers, told["number"], told["columns"], told["named"], values)


def _kept(folder: Path, name: str, suffix: str, write: Any) -> tuple[str, dict[str, Any]]:
    """Write a file and give it the name of its contents; return what the manifest says of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be written: {error.strerror}") from None
    passing = folder / f".{name}-{secrets.token_hex(4)}.partial{suffix}"
    write(passing)
    digest = _digest(passing)
    final = folder / f"{name}-{digest[:16]}{suffix}"
    try:
        passing.replace(final)
    except OSError as error:
        raise FileError(final, f"cannot be written: {error.strerror}") from None
    return name, {"file": final.name, "bytes": final.stat().st_size, "blake2b": digest}


def _checked(folder: Path, name: str, told: Mapping[str, Any]) -> Path:
    """Return the path of a file that is whole: of the size and digest the manifest names."""
    path = folder / str(told["file"])
    if path.parent != folder:
        raise FileError(folder / MANIFEST, f"the file of {name} lies outside of the folder: {told['file']!r}")
    if not path.is_file():
        raise FileError(path, f"is missing; the model needs its {name}: copy the whole folder again")
    if path.stat().st_size != told["bytes"]:
        raise FileError(path, f"has {path.stat().st_size:,} bytes instead of {told['bytes']:,}; copy the folder again")
    if _digest(path) != told["blake2b"]:
        raise FileError(path, "was changed after the model was saved; copy the folder again or save the model anew")
    return path


def check_target(folder: Path) -> None:
    """Raise FileError if a model cannot be saved to a folder, for what is there."""
    above = next(path for path in folder.absolute().parents if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise FileError(folder, f"cannot be written: {above} is no folder that may be written to")
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "is a file; name a folder to save the model in")
    if folder.is_dir():
        names = [path.name for path in folder.iterdir()]
        others = [
            name for name in names if name != MANIFEST and not OURS.fullmatch(name) and not PASSING.fullmatch(name)
        ]
        if others:
            raise FileError(folder, f"holds other files ({others[0]!r}); name a new folder, or one of a saved model")
        if MANIFEST in names:
            read_manifest(folder)


def _remove_stale(folder: Path, wanted: set[str]) -> None:
    """Remove what earlier models, or a save that was broken off, left behind."""
    for path in folder.iterdir():
        stale = OURS.fullmatch(path.name) and path.name not in wanted
        if stale or PASSING.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=DIGEST_BYTES)).hexdigest()


def _versions(engine: str) -> dict[str, str]:
    from hinet import __version__

    versions = {"hinet": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if engine == "torch":
        import torch

        versions["torch"] = torch.__version__
    return versions
