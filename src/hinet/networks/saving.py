"""Networks as plain values and arrays, and back."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, TypedDict

import torch
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.files import check_plain
from hinet.files.schema import FINITE, LARGEST, Schema, check_arrays, floats
from hinet.networks.features import DenseFeatures, SparseBag
from hinet.networks.heads import HeadSettings
from hinet.networks.models import HiNet
from hinet.taxonomy import Layers


class SparseShape(TypedDict):
    """Arguments of a sparse bag."""

    kind: Literal["sparse"]
    features: int
    width: int
    dropout: float
    linear_share: float


class DenseShape(TypedDict):
    """Arguments of the perceptron for dense rows."""

    kind: Literal["dense"]
    features: int
    widths: list[int]
    dropout: float


class OwnShape(TypedDict):
    """The user's own module, which must be given again."""

    kind: Literal["own"]


class NetworkShape(TypedDict):
    """Description of a network; ``head`` has the fields of ``HeadSettings``."""

    features: SparseShape | DenseShape | OwnShape
    width: int
    head: dict[str, Any]


def described_network(network: HiNet) -> dict[str, Any]:
    """Return the description of a network as plain values."""
    features: dict[str, Any] = {"kind": "own"}
    if isinstance(network.features, (DenseFeatures, SparseBag)):
        kind = "dense" if isinstance(network.features, DenseFeatures) else "sparse"
        features = {"kind": kind, **network.features.shape()}
    return {"features": features, "width": network.head.width, "head": asdict(network.head.settings)}


def check_network(metadata: Mapping[str, Any]) -> None:
    """Raise HiNetError unless plain values describe a network."""
    check_plain(metadata, NetworkShape, "model")
    check_plain(metadata["head"], HeadSettings, "model.head")
    for name in ("dropout", "linear_share"):
        if not 0 <= metadata["features"].get(name, 0) <= 1:
            raise HiNetError(f"model.features.{name} is {metadata['features'][name]}, expected a share from 0 to 1")


def restored_network(
    layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network_features: Any
) -> HiNet:
    """Return the network of this description and these weights; ``network_features`` is the user's own module, if any.

    Raises
    ------
    HiNetError
        If description, weights and taxonomy do not fit together. Nothing is built before the shapes agree.
    """
    shape = dict(metadata["features"])
    _check_weights(arrays, metadata, shape)
    kind = shape.pop("kind")
    features = network_features if kind == "own" else (DenseFeatures if kind == "dense" else SparseBag)(**shape)
    network = HiNet(features, layers, metadata["width"], HeadSettings(**metadata["head"]))
    for name, tensor in network.state_dict().items():
        if name in arrays and f"torch.{arrays[name].dtype}" != str(tensor.dtype):
            raise HiNetError(f"the array {name!r} has type {arrays[name].dtype}, the network expects {tensor.dtype}")
    try:
        network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except (RuntimeError, TypeError) as error:
        raise HiNetError(f"the saved weights do not fit the network: {error}") from None
    return network.eval()


def _check_weights(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    """Raise HiNetError unless all weights are finite and those of the features have the described shapes."""
    schema: Schema = {}
    if shape["kind"] == "sparse":
        schema = {"features.weight": floats(shape["features"], shape["width"]), "features.bias": floats(shape["width"])}
        width = shape["width"]
    elif shape["kind"] == "dense":
        schema = _dense_schema(shape, len(arrays))
        width = [shape["features"], *shape["widths"]][-1]
    else:
        width = metadata["width"]
    check_arrays(arrays, schema, {})
    read = next((name for name in ("head.weight", "head.from_features.0") if name in arrays), None)
    if read is None or arrays[read].ndim != 2 or not metadata["width"] == width == arrays[read].shape[1] > 0:
        raise HiNetError(f"the weights do not fit the network: the head does not read {metadata['width']:,} units")
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            largest = FINITE if shape["kind"] == "own" else LARGEST
            check_arrays({name: array}, {name: floats(*array.shape, low=-largest, high=largest)}, {})


def _dense_schema(shape: Mapping[str, Any], arrays: int) -> Schema:
    if 2 * len(shape["widths"]) > arrays:
        raise HiNetError(f"{len(shape['widths']):,} feature layers are described, and there are {arrays:,} arrays")
    sizes = list(itertools.pairwise([shape["features"], *shape["widths"]]))
    named = [f"features.layers.{3 * number}" for number in range(len(sizes))]
    pairs = list(zip(named, sizes, strict=True))
    weights = {f"{name}.weight": floats(after, before) for name, (before, after) in pairs}
    return weights | {f"{name}.bias": floats(after) for name, (_, after) in pairs}
