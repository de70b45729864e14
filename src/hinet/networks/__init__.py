"""Torch networks, optional: feature networks, hierarchical heads, the flat baseline, their training and inference."""

from hinet.extras import require

require("torch", "hinet.networks")

import hinet.networks.exporting  # noqa: F401 - registers the sources of an export
from hinet.encoders.torch_runtime import device_name as device_name
from hinet.encoders.torch_runtime import is_network as is_network
from hinet.networks.graph import NeuronGraph as NeuronGraph
from hinet.networks.graph import Targets as Targets
from hinet.networks.graph import downpour as downpour
from hinet.networks.graph import marginals as marginals
from hinet.networks.heads import HeadSettings as HeadSettings
from hinet.networks.heads import HierarchicalHead as HierarchicalHead
from hinet.networks.heads import build_head as build_head
from hinet.networks.heads import default as default
from hinet.networks.heads import paper as paper
from hinet.networks.models import DenseFeatures as DenseFeatures
from hinet.networks.models import FlattenNetwork as FlattenNetwork
from hinet.networks.models import HiNet as HiNet
from hinet.networks.models import SparseBag as SparseBag
from hinet.networks.models import SparseRows as SparseRows
from hinet.networks.models import predict_traces as predict_traces
from hinet.networks.training import RowAdagrad as RowAdagrad
from hinet.networks.training import TrainingSettings as TrainingSettings
from hinet.networks.training import train as train
