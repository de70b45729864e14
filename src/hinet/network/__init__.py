"""Torch modules: feature networks, hierarchical heads, the Flatten Network, the fused model."""

from hinet.network.features import DenseFeatures, SparseBag, SparseRows
from hinet.network.fused import FusedNetwork, WideHead, from_fused, to_fused
from hinet.network.graph import NeuronGraph
from hinet.network.heads import HeadSettings, HierarchicalHead, build_head, default, paper
from hinet.network.models import FlattenNetwork, HiNet
from hinet.network.targets import TargetBatch, Targets
from hinet.network.threads import torch_threads

__all__ = [
    "DenseFeatures",
    "FlattenNetwork",
    "FusedNetwork",
    "HeadSettings",
    "HiNet",
    "HierarchicalHead",
    "NeuronGraph",
    "SparseBag",
    "SparseRows",
    "TargetBatch",
    "Targets",
    "WideHead",
    "build_head",
    "default",
    "from_fused",
    "paper",
    "to_fused",
    "torch_threads",
]
