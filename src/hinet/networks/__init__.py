"""Torch networks, optional: feature networks, hierarchical heads, the flat baseline, their training and inference."""

from hinet.extras import require

require("torch", "hinet.networks")

import hinet.networks.exporting  # noqa: F401 - registers the sources of an export
from hinet.encoders.torch_runtime import device_name, is_network
from hinet.networks.graph import NeuronGraph, Targets, downpour, marginals
from hinet.networks.heads import HeadSettings, HierarchicalHead, build_head, default, paper
from hinet.networks.models import DenseFeatures, FlattenNetwork, HiNet, SparseBag, SparseRows, predict_traces
from hinet.networks.training import RowAdagrad, TrainingSettings, train

__all__ = [
    "DenseFeatures",
    "FlattenNetwork",
    "HeadSettings",
    "HiNet",
    "HierarchicalHead",
    "NeuronGraph",
    "RowAdagrad",
    "SparseBag",
    "SparseRows",
    "Targets",
    "TrainingSettings",
    "build_head",
    "default",
    "device_name",
    "downpour",
    "is_network",
    "marginals",
    "paper",
    "predict_traces",
    "train",
]
