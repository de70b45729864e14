"""A torch network as a predictor: its answers, saving, and further training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import nn

from hinet.data import Traces
from hinet.data.matrices import is_sparse
from hinet.engine import EngineSettings, ValidationRows
from hinet.engine.search.predictor import Predictor, RowParts
from hinet.errors import HiNetError
from hinet.networks.contributions import NetworkContributions
from hinet.networks.features import DenseFeatures, SparseBag
from hinet.networks.fitting import network_for, train_network
from hinet.networks.saving import check_network, described_network, restored_network
from hinet.networks.search import NetworkSearch
from hinet.networks.transfer import carried_network, teach_network
from hinet.progress import EpochRecord, Progress
from hinet.taxonomy import Layers


@dataclass(frozen=True)
class NetworkPredictor(NetworkSearch, Predictor):
    """A network and its answers."""

    engine = "torch"
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)

    @classmethod
    def trained(
        cls,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        *,
        network: nn.Module | None = None,
        device: str | None = None,
        sample_weight: NDArray[np.float64] | None = None,
        valid: ValidationRows | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train a network on rows; the feature ``network`` may be the user's own."""
        whole = network_for(rows, traces, settings, network)
        history = train_network(
            whole, rows, traces, settings, sample_weight=sample_weight, valid=valid, device=device, progress=progress
        )
        return cls(whole, settings.threads, history)

    @property
    def features(self) -> int | None:
        """Number of features of a row; None for a feature network of the user's own."""
        features = self.model.features
        return int(features.shape()["features"]) if isinstance(features, (DenseFeatures, SparseBag)) else None

    @property
    def outputs(self) -> int:
        """Number of options, all of which are scored."""
        return len(self.layers.option_neuron)

    @property
    def nbytes(self) -> int:
        """Bytes that the weights take."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())

    def scaled(self, factor: float, odds_scale: float | None = None) -> Self:
        """Return the same with all logits multiplied by ``factor``; its feature network is shared."""
        assert odds_scale in (None, 1.0)
        scaled = copy.copy(self.model)
        scaled._modules = {**self.model._modules, "head": copy.deepcopy(self.model.head)}
        with torch.no_grad():
            for parameter in scaled.head.parameters():
                parameter.mul_(factor)
        return replace(self, model=scaled)

    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""
        features = row.indices.astype(np.int64) if is_sparse(row) else np.arange(row.shape[1])
        return RowParts(NetworkContributions(self.model, row), features)

    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what is kept on disk: plain values that describe the network, and its weights."""
        if half:
            raise HiNetError("half precision is for models of the fused engine; save this one in full")
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self.model.state_dict().items()}
        return described_network(self.model), arrays

    @classmethod
    def check_described(cls, metadata: Mapping[str, Any]) -> None:
        """Raise HiNetError unless plain values are those that a network is built from."""
        check_network(metadata)

    @classmethod
    def require_network(cls, metadata: Mapping[str, Any], network: Any) -> None:
        """Raise HiNetError if the features are a network of the user's own, which is not given."""
        if metadata["features"]["kind"] == "own" and network is None:
            raise HiNetError(
                "the model was trained with a network of your own; pass it again, as load(path, network=...)"
            )

    @classmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the network of some layers that was kept as these values and weights, or raise HiNetError."""
        return cls(restored_network(layers, metadata, arrays, network))

    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the same knowledge over other layers; ``came_from`` gives the old node of each new one, or -1."""
        return replace(self, model=carried_network(self.model, layers, came_from))

    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a network whose output rows that learn were fitted to targets of options on rows."""
        taught = copy.deepcopy(self.model)
        teach_network(taught, learns, targets, rows)
        return replace(self, model=taught)

    def continued(
        self,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        *,
        sample_weight: NDArray[np.float64] | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return a network that has learned from more rows, over the same layers."""
        unmoved = np.append(np.arange(len(self.layers.taxonomy)), -1)
        network = carried_network(self.model, traces.layers, unmoved)
        history = train_network(
            network, rows, traces, settings, sample_weight=sample_weight, valid=None, device=device, progress=progress
        )
        return replace(self, model=network, history=history)
