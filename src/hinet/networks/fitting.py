"""Building a network for the rows of a classifier, with our feature network or the user's, and training it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hinet.data import Traces
from hinet.data.matrices import is_sparse
from hinet.encoders.torch_runtime import torch_threads
from hinet.engine import EngineSettings, ValidationRows
from hinet.engine.settings import plan_memory
from hinet.errors import HiNetError
from hinet.metrics import accuracy
from hinet.networks.batches import row_batch
from hinet.networks.features import DROPOUT, WIDTH, DenseFeatures, SparseBag
from hinet.networks.heads import HeadSettings, default
from hinet.networks.loop import TrainingSettings, train
from hinet.networks.models import HiNet
from hinet.networks.predict import predict_traces
from hinet.networks.targets import Targets
from hinet.progress import EpochRecord, Progress

MIN_STEPS = 400  # of the loop on few rows
MAX_EPOCHS = 200
DENSE_DROPOUT = 0.1
DENSE_RATE = 3e-3
FEW_PRODUCTS = 50_000_000  # multiplications a batch: fewer are slower on several threads than on one


def network_for(rows: Any, traces: Traces, settings: EngineSettings, network: nn.Module | None) -> HiNet:
    """Return an untrained network for such rows, with a copy of the user's ``own`` features if there are any."""
    torch.manual_seed(settings.seed)
    features, width = _feature_network(rows, len(traces.layers.option_neuron), settings, network)
    strength = settings.prior_strength
    return HiNet(
        features, traces.layers, width, default() if strength is None else HeadSettings(prior_strength=strength)
    )


def train_network(
    network: HiNet,
    rows: Any,
    traces: Traces,
    settings: EngineSettings,
    *,
    sample_weight: NDArray[np.float64] | None,
    valid: ValidationRows | None = None,
    device: str | None,
    progress: Progress | None,
) -> tuple[EpochRecord, ...]:
    """Train a network in place, by what settings of the fused engine are also those of a network; return the history.

    Without a ``device``, on a GPU if there is one.
    """
    usual = TrainingSettings()
    loop = TrainingSettings(
        epochs=settings.deep_epochs or _epochs_for(len(traces), usual.batch, usual.epochs),
        dense_rate=usual.dense_rate if is_sparse(rows) else DENSE_RATE,
        patience=settings.patience,
        seed=settings.seed,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    with torch_threads(settings.threads or (1 if parameters * loop.batch < FEW_PRODUCTS else None)):
        history = train(
            network,
            rows,
            Targets(traces),
            loop,
            sample_weight=sample_weight,
            validate=None if valid is None else lambda: accuracy(valid.traces, predict_traces(network, valid.rows)),
            progress=progress,
        )
    return tuple(history)


def _feature_network(
    rows: Any, outputs: int, settings: EngineSettings, network: nn.Module | None
) -> tuple[nn.Module, int]:
    """Return the feature network and how many units its layer has."""
    if network is not None:
        features = copy.deepcopy(network).eval()
        return features, _units(features, rows)
    width = settings.width or WIDTH
    plan_memory(features=rows.shape[1], outputs=outputs, width=width).check(settings.memory_limit)
    if is_sparse(rows):
        dropout = DROPOUT if settings.dropout is None else settings.dropout
        return SparseBag(rows.shape[1], width, dropout=dropout), width
    dropout = DENSE_DROPOUT if settings.dropout is None else settings.dropout
    return DenseFeatures(rows.shape[1], (width,), dropout=dropout), width


def _units(features: nn.Module, rows: Any) -> int:
    """Return how many units a feature network gives for rows, or raise HiNetError if it cannot read them."""
    try:
        with torch.no_grad():
            layer = features(row_batch(rows, 0, 1, "cpu"))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise HiNetError(f"network: it cannot read a batch of rows of {rows.shape[1]:,} features: {error}") from error
    if not isinstance(layer, torch.Tensor):
        raise HiNetError(f"network: expected a tensor (rows, units) for a batch of rows, got {type(layer).__name__}")
    if layer.ndim != 2:
        raise HiNetError(f"the network gives {layer.ndim} axes for a batch of rows; expected (rows, units)")
    return int(layer.shape[1])


def _epochs_for(rows: int, batch: int, usual: int) -> int:
    """Return enough epochs for a network to learn from few rows."""
    batches = -(-rows // batch)
    return min(MAX_EPOCHS, max(usual, -(-MIN_STEPS // batches)))
