"""The fused model as torch modules: its experts in full passes over all options, for gradients and for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data.matrices import SparseMatrix
from hinet.engine import DeepExpert, FusedModel, WideExpert
from hinet.engine.model.experts import LabelWeights
from hinet.engine.model.groups import LabelSpans
from hinet.errors import HiNetError
from hinet.networks.graph import NeuronGraph
from hinet.networks.heads import HeadSettings, SiblingHead, segment_logsumexp
from hinet.networks.models import HiNet, SparseBag, SparseRows
from hinet.ragged import positions
from hinet.taxonomy import Layers
from tests.engine.set_head import SetHead

MIN_SQUARE = 1e-12  # minimum squared length of a row


class SparseOutputs(nn.Module):
    """Sparse rows times a sparse matrix: a weight for each stored pair of feature and output, never densified."""

    offsets: Tensor  # (f + 1,) the pairs of each feature
    output: Tensor  # (pairs,)

    def __init__(self, matrix: sp.csr_array) -> None:
        super().__init__()
        self.outputs = int(matrix.shape[1])
        self.register_buffer("offsets", torch.tensor(matrix.indptr, dtype=torch.int64), persistent=False)
        self.register_buffer("output", torch.tensor(matrix.indices, dtype=torch.int64), persistent=False)
        self.weight = nn.Parameter(torch.tensor(matrix.data))  # (pairs,)

    def forward(self, rows: SparseRows) -> Tensor:
        """Return the sum over the features of each row, (outputs, b)."""
        counts = self.offsets.diff()[rows.indices]  # (nnz,) pairs of each feature
        entry = torch.repeat_interleave(counts)  # (m,) over the pairs of all features of all rows
        within = torch.arange(len(entry), device=entry.device) - (counts.cumsum(0) - counts)[entry]
        pair = self.offsets[rows.indices][entry] + within
        values = rows.values.to(self.weight.dtype)[entry] * self.weight[pair]
        place = self.output[pair] * len(rows) + row_of_entries(rows)[entry]
        return values.new_zeros(self.outputs * len(rows)).index_add(0, place, values).view(self.outputs, len(rows))


class WideHead(SparseOutputs):
    """The wide expert: a weight for each feature and option that were seen together, and a bias for each option."""

    def __init__(self, matrix: sp.csr_array, bias: Tensor) -> None:
        super().__init__(matrix)
        self.bias = nn.Parameter(bias)  # (output rows,)

    @classmethod
    def of(cls, expert: WideExpert) -> WideHead:
        """Return the module of an expert."""
        return cls(wide_matrix(expert), torch.tensor(expert.bias))

    def forward(self, rows: SparseRows) -> Tensor:
        """Return the logits of every option that has rivals, (output rows, b)."""
        return super().forward(rows) + self.bias[:, None]


class PrototypeHead(SparseOutputs):
    """The prototypes of labels: the cosine of a row to the mean row of each label, times that row's length."""

    @classmethod
    def of(cls, prototypes: LabelWeights, labels: int) -> PrototypeHead:
        """Return the module of some prototypes."""
        shape = (len(prototypes.offsets) - 1, labels)
        return cls(sp.csr_array((prototypes.value, prototypes.label, prototypes.offsets), shape=shape))

    def forward(self, rows: SparseRows) -> Tensor:
        """Return the scaled cosine to every label, (labels, b)."""
        square = rows.values.new_zeros(len(rows)).index_add(0, row_of_entries(rows), rows.values.square())
        return super().forward(rows) * square.clamp(min=MIN_SQUARE).rsqrt().to(self.weight.dtype)


class FlatHead(nn.Module):
    """The flat expert: a sparse bag below the logits of all labels."""

    def __init__(self, expert: DeepExpert) -> None:
        super().__init__()
        self.features = _bag(expert)
        self.weight = nn.Parameter(torch.tensor(expert.output_weights()))  # (labels, k)
        self.bias = nn.Parameter(torch.tensor(expert.bias))

    def forward(self, rows: SparseRows) -> Tensor:
        """Return the logits of every label, (labels, b)."""
        return torch.addmm(self.bias[:, None], self.weight, self.features(rows).T)


class LabelPool(nn.Module):
    """Scores of labels as those of options: the log of the summed exponentials of the labels below an option."""

    label: Tensor  # (m,) the labels below each option, one option after the other
    sizes: Tensor  # (output rows,)

    def __init__(self, spans: LabelSpans, options: NDArray[np.int64]) -> None:
        super().__init__()
        first, sizes = spans.first[options], (spans.last - spans.first)[options]
        self.register_buffer("label", torch.from_numpy(positions(first, sizes)), persistent=False)
        self.register_buffer("sizes", torch.from_numpy(sizes), persistent=False)

    def forward(self, scores: Tensor) -> Tensor:
        """Turn the scores of labels, (labels, b), into those of options that have rivals, (output rows, b)."""
        return segment_logsumexp(scores[self.label], self.sizes)


class FusedNetwork(nn.Module):
    """A fused model as one module: every expert scores every option; an expert without weight in the mix is not asked.

    ``features`` and ``head`` are the deep expert, named as in :class:`~hinet.networks.HiNet`.
    """

    def __init__(self, model: FusedModel) -> None:
        super().__init__()
        experts = model.experts
        self.layers = model.layers
        self.mix = model.mix
        self._model = model
        self.features = _bag(experts.deep)
        self.head = _head(model.layers, experts.deep, 1.0)
        self.wide = WideHead.of(experts.wide)
        self.flat = FlatHead(experts.flat)
        self.prototypes = PrototypeHead.of(experts.prototypes, len(experts.spans.neuron))
        self.margin = PrototypeHead.of(experts.margin, len(experts.spans.neuron))
        self.margin_bias = torch.tensor(experts.margin.bias)
        self.pool = LabelPool(experts.spans, model.groups.row_options())

    @classmethod
    def of(cls, model: FusedModel) -> FusedNetwork:
        """Return the module of a model, with weights of its own."""
        return cls(model)

    @property
    def graph(self) -> NeuronGraph:
        """The layers as tensors."""
        return self.head.graph

    def logits(self, rows: Any) -> Tensor:
        """Return the mixed logits of every option that has rivals, (output rows, b)."""
        rows = self._read(rows)
        logits = self.head.bias.new_zeros(len(self.head.bias), len(rows))
        if self.mix.deep:
            logits = logits + self.mix.deep * self.head.logits(self.features(rows))
        if self.mix.wide:
            logits = logits + self.mix.wide * self.wide(rows)
        if self.mix.flat:
            logits = logits + self.mix.flat * self.pool(self.flat(rows))
        if self.mix.prototypes:
            logits = logits + self.mix.prototypes * self.pool(self.prototypes(rows))
        if self.mix.margin:
            logits = logits + self.mix.margin * self.pool(self.margin(rows) + self.margin_bias[:, None])
        return logits

    def _read(self, rows: Any) -> Any:
        """Return rows with the features that the experts know."""
        if self._model.merged is None:
            return rows
        indptr = np.append(rows.offsets.cpu().numpy(), len(rows.indices))
        matrix = SparseMatrix(
            indptr, rows.indices.cpu().numpy(), rows.values.cpu().numpy(), np.zeros((len(indptr) - 1, 0), np.float32)
        )
        read = self._model.read(matrix)
        device, indices = rows.values.device, read.indices.astype(np.int64)
        parts = (torch.from_numpy(part).to(device) for part in (indices, read.indptr[:-1], read.data))
        return SparseRows(*parts)

    def option_scores(self, rows: Any) -> Tensor:
        """Return ``log p(option | parent)`` of every option, (options, b)."""
        return self.head.normalised(self.logits(rows))


def to_fused(network: HiNet) -> FusedModel:
    """Return a network of a sparse bag and a sibling head as a fused model of one deep expert.

    Raises
    ------
    HiNetError
        If the network has other features or another head.
    """
    features, head = network.features, network.head
    if not isinstance(features, SparseBag) or not isinstance(head, SiblingHead):
        raise HiNetError(
            "the fused model reads a SparseBag below a head with wiring 'skip' and normalisation 'parent'; "
            f"got {type(features).__name__} and {type(head).__name__}"
        )
    slope = torch.arange(features.width) < features.linear_units
    tensors = {
        "features.weight": features.weight,
        "features.bias": features.bias,
        "features.slope": slope,
        "head.weight": head.option_weight,
        "head.bias": head.bias,
    }
    return FusedModel.from_arrays(network.layers, _copied(tensors))


def from_fused(model: FusedModel) -> HiNet:
    """Return a fused model of one deep expert as a network; its weight in the mix goes into the head.

    Raises
    ------
    HiNetError
        If the model asks other experts too: those are in :class:`FusedNetwork`.
    """
    others = [name for name, weight in model.mix._asdict().items() if weight and name != "deep"]
    if others:
        raise HiNetError(
            f"the model has a {others[0]} expert besides the deep one; FusedNetwork.of(model) has them all"
        )
    deep = model.experts.deep
    if model.merged is not None:
        deep = deep._replace(
            embedding=deep.embeddings(model.merged), embedding_scale=np.ones(model.features, np.float32)
        )
    network = HiNet(_bag(deep), model.layers, deep.width, HeadSettings())
    network.head = _head(model.layers, deep, model.mix.deep)
    return network


def row_of_entries(rows: SparseRows) -> Tensor:
    """Return the row of every stored value, (nnz,)."""
    end = rows.offsets.new_tensor([len(rows.indices)])
    return torch.repeat_interleave(torch.cat([rows.offsets, end]).diff())


def _bag(expert: DeepExpert) -> SparseBag:
    linear = int(expert.negative_slope.sum())  # they come first
    bag = SparseBag(0, expert.width, dropout=0.0, linear_share=linear / max(expert.width, 1))
    bag.weight = nn.Parameter(torch.tensor(expert.embeddings()))
    bag.bias = nn.Parameter(torch.tensor(expert.embedding_bias))
    return bag


def _head(layers: Layers, expert: DeepExpert, scale: float) -> SiblingHead:
    kind = SetHead if layers.multilabel else SiblingHead
    head = kind(layers, expert.width, HeadSettings())
    head.weight = nn.Parameter(torch.tensor(expert.output_weights()) * scale)
    head.bias = nn.Parameter(torch.tensor(expert.bias) * scale)
    return head


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def wide_matrix(expert: WideExpert) -> sp.csr_array:
    """Return the weights of a wide expert as a sparse matrix, (features, rows)."""
    rank = np.repeat(expert.feature, np.diff(expert.weight_offsets))
    shape = (int(expert.feature_rank.max(initial=-1)) + 1, len(expert.bias))
    weights = expert.weights
    return sp.csr_array((weights["weight"], (rank, weights["row"])), shape=shape)[expert.feature_rank]
