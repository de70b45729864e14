"""A fitted classifier as a folder of plain files: a manifest, the taxonomy, the features, the weights; no pickle.

The manifest names the files with their sizes and digests, and is written last, by one rename: whenever a save is broken
off, the folder holds the old model whole, or none. Loading reads data, never code, and refuses files that are missing,
cut off, edited or swapped.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.examples import Examples
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import restored
from hinet.classifier.labels import LabelForm
from hinet.classifier.manifest import FORMAT, MANIFEST, damaged
from hinet.classifier.model_folder import ModelFiles, new_model, open_model, switch_manifest
from hinet.classifier.text_paths import TextStyle
from hinet.data import Traces
from hinet.engine import FusedModel
from hinet.errors import HiNetError
from hinet.files import checked_text, map_arrays, write_arrays
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers, Table, Taxonomy

if TYPE_CHECKING:
    from hinet.network import HiNet


def save_fitted(fitted: Fitted, folder: str | Path, told: Mapping[str, Any], *, half: bool = False) -> None:
    """Write a fitted classifier, and what is ``told`` of it, to a folder; an older model there is replaced.

    Several may save to a folder at once, one after the other; the last one stays.

    Raises
    ------
    FileError
        If the folder holds something else, or cannot be written to.
    """
    folder = Path(folder)
    json.dumps(told)  # what cannot be kept is found before anything is written
    form = fitted.form
    described, arrays = _described_model(fitted, half=half)
    with new_model(folder) as keep:
        files = {
            "taxonomy": keep("taxonomy", form.taxonomy.write),
            "features": keep("features", lambda path: write_arrays(path, fitted.features.to_arrays())),
            "model": keep("model", lambda path: write_arrays(path, arrays)),
        }
        manifest = {
            "format": FORMAT,
            "versions": _versions(fitted.engine),
            "engine": fitted.engine,
            "model": described,
            "labels": _described_form(form),
            "features": {"kind": fitted.features.kind, **fitted.features.describe()},
            "training_data": fitted.fingerprint,
            "files": files,
            **told,
        }
        switch_manifest(folder, manifest)


def load_fitted(folder: str | Path, network: Any = None) -> tuple[Fitted, dict[str, Any]]:
    """Read a fitted classifier from a folder, and its manifest; all is of one save, whoever saves meanwhile.

    Raises
    ------
    FileError
        If it is no model folder, of another format, or a file is missing, cut off or edited.
    """
    with open_model(folder) as files:
        try:
            return _loaded(files, network), files.manifest
        except HiNetError:
            raise
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise damaged(files.folder / MANIFEST, repr(error)) from None


def _loaded(files: ModelFiles, network: Any) -> Fitted:
    manifest = files.manifest
    told = manifest["features"]
    with ThreadPoolExecutor(1) as beside:  # the weights are most of the bytes: the rest is read meanwhile
        weights = beside.submit(files.checked, "model")
        taxonomy = _taxonomy(files)
        features = restored(told["kind"], map_arrays(files.path("features"), files.checked("features")), told)
        arrays = map_arrays(files.path("model"), weights.result())
    form = _restored_form(taxonomy, manifest["labels"], arrays.pop("label_nodes"))
    examples = Examples.pop_from(arrays, len(taxonomy))
    model = _restored_model(form.layers, manifest, arrays, network)
    history = tuple(EpochRecord(**record) for record in manifest.get("history", ()))
    return Fitted(features, form, model, None, history, manifest["training_data"], examples)


def read_description(folder: str | Path) -> tuple[dict[str, Any], Taxonomy]:
    """Return the manifest and the taxonomy of a saved model, without its weights."""
    with open_model(folder) as files:
        return files.manifest, _taxonomy(files)


def _taxonomy(files: ModelFiles) -> Taxonomy:
    path, stream = files.path("taxonomy"), files.checked("taxonomy")
    stream.seek(0)
    draft = Table().parse(path, checked_text(path, stream.read()))
    root = files.manifest["labels"]["root"]
    found = Taxonomy.from_draft(draft, source=str(path), root=root)
    return found.under_virtual_root() if root is None else found  # a table does not say where a sole top node stands


def _described_model(fitted: Fitted, *, half: bool) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    labels = {"label_nodes": fitted.form.label_nodes}
    if fitted.examples is not None:
        labels |= fitted.examples.to_arrays()
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
        "values": values, "root": root, "rooted": form.rooted,
        "style": None if form.style is None else asdict(form.style), "wrote": form.wrote,
    }  # fmt: skip


def _restored_form(taxonomy: Taxonomy, told: Mapping[str, Any], label_nodes: NDArray[np.int64]) -> LabelForm:
    layers = Layers.of(taxonomy, [taxonomy.ids[node] for node in label_nodes.tolist()])
    values = told["values"]
    if values is not None:
        values = np.array(values["values"], values["kind"])
    style = None if told.get("style") is None else TextStyle(**told["style"])
    if (told["form"] == "text") != bool(style and style.mark):
        raise ValueError("paths as text need a mark to be cut at, and other labels have none")
    rooted = told.get("rooted", told["named"] and told["root"] is not None)  # older models: the shared top is the root
    wrote = {label: tuple(path) for label, path in told.get("wrote", {}).items()}
    if any(path[-1:] != (label,) for label, path in wrote.items()):
        raise ValueError("a path leads to another label than that it was written for")
    Traces.along(layers, list(wrote.values()))  # raises where one leads nowhere
    return LabelForm(
        told["form"], layers, told["number"], told["columns"], told["named"], values, rooted, style, wrote
    )  # fmt: skip


def _versions(engine: str) -> dict[str, str]:
    from hinet import __version__

    versions = {"hinet": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if engine == "torch":
        import torch

        versions["torch"] = torch.__version__
    return versions
