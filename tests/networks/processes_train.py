"""One of several processes that train a network together, started by a test: rank, number of processes, folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import distributed

from hinet import Layers, Taxonomy, Traces
from hinet.networks import DenseFeatures, FlattenNetwork, HiNet, SparseBag, Targets, TrainingSettings, default, train

LABELS = ["a", "c", "d", "e", "f"]
ROWS, FEATURES = 33, 30  # the last batch has one row, so that a process has none
SETTINGS = TrainingSettings(epochs=3, batch=16, sparse_rate=2.0, dense_rate=5e-3)


def trained(kind: str) -> dict[str, np.ndarray]:
    """Return the weights of a network after some steps."""
    edges = [("r", "a"), ("r", "b"), ("b", "c"), ("b", "d"), ("d", "e"), ("d", "f"), ("a", "f")]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=LABELS)
    random = np.random.default_rng(0)
    dense = (random.random((ROWS, FEATURES)) < 0.2).astype(np.float32)
    labels = [LABELS[number] for number in random.integers(len(LABELS), size=ROWS)]
    targets = Targets(Traces.encode(layers, labels))
    torch.manual_seed(7)
    is_dense = kind == "dense"
    features = DenseFeatures(FEATURES, (16,), dropout=0.0) if is_dense else SparseBag(FEATURES, 16, dropout=0.0)
    if kind == "flatten":
        network: HiNet | FlattenNetwork = FlattenNetwork.for_targets(features, 16, targets)
    else:
        network = HiNet(features, layers, 16, default())
    weights = random.random(ROWS) + 0.5
    history = train(network, dense if is_dense else sp.csr_array(dense), targets, SETTINGS, sample_weight=weights)
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return {**state, "costs": np.array([record.cost for record in history])}


KINDS = ("sparse", "dense", "flatten")

if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    for kind in KINDS:
        np.savez(folder / f"{kind}-{rank}.npz", **trained(kind))
    distributed.destroy_process_group()
