"""Torch networks, optional: feature networks, hierarchical heads, the flat baseline, their training and inference."""

from hinet.extras import require

require("torch", "hinet.networks")

from hinet.encoders.torch_runtime import device_name, is_network, torch_threads
from hinet.networks.exporting import FlatSource, HiNetSource
from hinet.networks.features import DenseFeatures, SparseBag, SparseRows
from hinet.networks.graph import NeuronGraph
from hinet.networks.heads import HeadSettings, HierarchicalHead, build_head, default, paper
from hinet.networks.inference import Marginals, best_traces_to, downpour, forward, marginals
from hinet.networks.models import FlattenNetwork, HiNet, predict_traces
from hinet.networks.targets import TargetBatch, Targets
from hinet.networks.training import RowAdagrad, TrainingSettings, train

__all__ = [
    "DenseFeatures",
    "FlatSource",
    "FlattenNetwork",
    "HeadSettings",
    "HiNet",
    "HiNetSource",
    "HierarchicalHead",
    "Marginals",
    "NeuronGraph",
    "RowAdagrad",
    "SparseBag",
    "SparseRows",
    "TargetBatch",
    "Targets",
    "TrainingSettings",
    "best_traces_to",
    "build_head",
    "default",
    "device_name",
    "downpour",
    "forward",
    "is_network",
    "marginals",
    "paper",
    "predict_traces",
    "torch_threads",
    "train",
]
