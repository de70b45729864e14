"""Torch modules: feature networks, hierarchical heads, the Flatten Network."""

from hinet.network.features import DenseFeatures, SparseBag, SparseRows
from hinet.network.graph import NeuronGraph
from hinet.network.heads import HeadSettings, HierarchicalHead, build_head, default, paper
from hinet.network.models import FlattenNetwork, HiNet
from hinet.network.targets import TargetBatch, Targets

__all__ = [
    "DenseFeatures",
    "FlattenNetwork",
    "HeadSettings",
    "HiNet",
    "HierarchicalHead",
    "NeuronGraph",
    "SparseBag",
    "SparseRows",
    "TargetBatch",
    "Targets",
    "build_head",
    "default",
    "paper",
]
