"""Models that can be exported, and the folder: an ONNX graph, the arrays and the code that decode it, and a README."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import singledispatch
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import check_rows
from hinet.engine import FusedModel, Mix, Search
from hinet.errors import HiNetError
from hinet.exporting import scoring
from hinet.exporting.decode import FORMAT
from hinet.exporting.scoring import GraphInMaking
from hinet.extras import require
from hinet.files.atomic import new_folder
from hinet.metrics import accuracy
from hinet.parameters import PATH
from hinet.ragged import offsets_of
from hinet.taxonomy import Layers

EXPORTED = ("deep", "flat")  # experts of a fused model that can be exported
_README = """\
# A hinet model as ONNX

`model.onnx` (its weights are in `weights.bin`) gives the log probability of every {output}; `decode.py`
turns that into traces with the hierarchy in `traces.npz`. Python needs only onnxruntime and NumPy.

{report}

```python
import numpy as np
import onnxruntime

from decode import decode, paths, read

session = onnxruntime.InferenceSession("model.onnx")
arrays = read("traces.npz")
{feed}
(log_p,) = session.run(["log_p"], feed)  # some hundred rows at a time
found = decode(log_p, arrays, k=1)  # found.log_p has the log probability of each trace
best = paths(found, arrays)  # the traces of every row, each a path of ids
```

For texts, give `decode` also `unknown=`, the share of unknown n-grams of each row, which
`HiNetClassifier.unknown_share(texts)` returns. Without it, texts with unknown words seem as certain as others.
"""
_SPARSE_FEED = """\
row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))  # X is a SciPy CSR matrix
feed = {"row": row, "feature": X.indices.astype(np.int64), "value": X.data.astype(np.float32)}
feed["rows"] = np.array(X.shape[0])"""
_DENSE_FEED = """feed = {"x": X.astype(np.float32)}  # X is a matrix of features, a row for each row"""


class Source(ABC):
    """A model of layers that can be exported."""

    layers: Layers
    output = "option among its siblings"  # meaning of a column of the output
    reads_sparse = True
    experts: tuple[str, ...] = ()  # experts in the graph
    left_out: tuple[str, ...] = ()
    in_bits = False  # whether embeddings are quantised

    @abstractmethod
    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every output, (b, outputs)."""

    @abstractmethod
    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows by the exported part and by the whole model."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that decoding needs."""
        layers = self.layers
        return {
            "tree": np.array(layers.is_tree),
            "layer_offsets": layers.layer_offsets,
            "option_offsets": layers.option_offsets,
            "option_neuron": layers.option_neuron,
            "option_parent": layers.option_parent,
            "slope": np.array(1.0),
        }


@singledispatch
def source_of(model: Any) -> Source:
    """Return the source of a model, or raise HiNetError; ``hinet.networks`` registers networks."""
    raise HiNetError(
        f"expected a FusedModel, a HiNet or a FlattenNetwork, got {type(model).__name__}; "
        "export the FusedModel itself, or the network"
    )


class FusedSource(Source):
    """A fused model, of which some experts can be exported."""

    def __init__(self, model: FusedModel) -> None:
        self.model, self.layers, self.part = model, model.layers, exported_part(model)
        self.experts = _active_experts(self.part)
        self.left_out = tuple(name for name in _active_experts(model) if name not in self.experts)
        self.in_bits = any(getattr(self.part.experts, name).is_quantised for name in self.experts)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that decoding needs."""
        arrays = super().arrays() | {"slope": np.array(self.model.odds_scale)}
        if self.model.trust is not None:  # rate, power and number of labels
            arrays["trust"] = np.array([*self.model.trust, self.layers.ends.sum()], np.float64)
        return arrays

    def log_p(self, graph: GraphInMaking) -> str:
        """Add the log probability of every option, (b, options)."""
        model, rows = self.part, scoring.sparse_input(graph)
        if model.merged is not None:
            numbers = graph.add("Gather", graph.constant(model.merged), rows.feature)
            rows = rows._replace(feature=numbers)  # features with the same number add up
        deep, flat, logits = model.experts.deep, model.experts.flat, ""
        if model.mix.deep:
            weight = np.float32(model.mix.deep)
            hidden = scoring.bag(graph, rows, deep)
            logits = scoring.linear(graph, hidden, weight * deep.output_weights(), weight * deep.bias)
        if model.mix.flat:
            labels = scoring.linear(graph, scoring.bag(graph, rows, flat), flat.output_weights(), flat.bias)
            options = scoring.pooled(graph, self.layers, model.experts.spans, labels)
            pooled = graph.add("Gather", options, graph.constant(model.groups.row_options()))
            pooled = graph.add("Mul", pooled, graph.constant(np.float32(model.mix.flat)))
            logits = graph.add("Add", logits, pooled) if logits else pooled
        return scoring.transposed(graph, scoring.normalised(graph, model.groups, logits, rows.feature))

    def both_traces(self, rows: Any, threads: int | None) -> tuple[Traces, Traces]:
        """Return the best traces of rows by the exported part and by the whole model."""
        return Search(self.part, threads).traces(rows).traces, Search(self.model, threads).traces(rows).traces


source_of.register(FusedModel)(FusedSource)


def exported_part(model: FusedModel) -> FusedModel:
    """Return a fused model with only the experts that can be exported, which get the weights of the others.

    Raises
    ------
    HiNetError
        If no expert can be exported.
    """
    exportable = np.array([name in EXPORTED for name in Mix._fields])
    mix = np.where(exportable, model.experts.mix, 0)
    if not mix.any():
        raise HiNetError(
            "the model has neither a deep nor a flat expert, and others cannot be exported; train a deep one"
        )
    shared = (mix * (model.experts.mix.sum() / mix.sum())).astype(np.float32)
    return replace(model, experts=model.experts._replace(mix=shared)).without_memory()


def _active_experts(model: FusedModel) -> tuple[str, ...]:
    """Return the experts with a weight in the mix."""
    return tuple(name for name, weight in model.mix._asdict().items() if weight)


@dataclass(frozen=True)
class Exported:
    """The result of an export; its text is a report.

    Attributes
    ----------
    folder : Path
        The exported folder.
    experts, left_out : tuples of names
        The experts of a fused model in the graph, and those left out; empty for a network.
    in_bits : bool
        Whether embeddings in the graph are quantised, as in a trained model; it computes in single precision.
    accuracy, accuracy_of_model : floats, or None without validation rows
        Accuracy of the graph and of the whole model.
    """

    folder: Path
    experts: tuple[str, ...]
    left_out: tuple[str, ...]
    in_bits: bool = False
    accuracy: float | None = None
    accuracy_of_model: float | None = None

    def __str__(self) -> str:
        held = (
            f"The graph contains the {' and '.join(self.experts)} expert." if self.experts else "The graph is complete."
        )
        if self.left_out:
            held += f" Left out: {', '.join(self.left_out)}; the others get their weight."
        if self.in_bits:
            held += " Embeddings are in 8 bits, as in the model."
        if self.accuracy is None or self.accuracy_of_model is None:
            return held
        return f"{held}\nAccuracy {self.accuracy:.2%}, of the whole model {self.accuracy_of_model:.2%}."


def export_onnx(
    model: Any,
    folder: str | Path,
    rows: Any = None,
    traces: Traces | None = None,
    threads: int | None = None,
) -> Exported:
    """Write a model to a new folder as an ONNX graph, with a decoder that needs only NumPy.

    A graph for sparse rows reads ``row``, ``feature`` and ``value`` of each entry and the number of ``rows``; a graph
    for dense rows reads the matrix ``x``. Its output ``log_p`` has one column per option of the layers, the log
    probability in its sibling group, or one per label for the flat network.

    Parameters
    ----------
    model : FusedModel, HiNet or FlattenNetwork
        From a fused model the deep and the flat expert are exported, see ``exported_part``. A network must have a
        SparseBag, DenseFeatures or a sequence of linear modules and activations below the default head, or be flat.
    folder : path
        Must not exist yet, or be empty.
    rows, traces : validation rows and their true traces, optional
        For the accuracy of the graph and of the whole model in the report.
    threads : int, optional
        Number of threads to compute this accuracy; by default, and with -1, one per core.

    Raises
    ------
    HiNetError
        If onnx is not installed, or the model has parts that cannot be exported.
    FileError
        If the folder cannot be written; nothing of it is left then.
    """
    require("onnx", "the export")
    folder = PATH.validate("folder", folder)
    source = source_of(model)
    if (rows is None) != (traces is None):
        raise HiNetError("validation needs both rows and their true traces; one of them is missing")
    if rows is not None and traces is not None:
        check_rows(rows, len(traces))
    with new_folder(folder) as unfinished:
        graph, arrays = GraphInMaking(), arrays_of(source)
        log_p = source.log_p(graph)
        columns = len(arrays["label_offsets"]) - 1 if "label_offsets" in arrays else len(arrays["option_neuron"])
        graph.write(unfinished, log_p, columns)
        np.savez(unfinished / "traces.npz", **dict[str, Any](arrays))
        decoder = files("hinet.exporting").joinpath("decode.py").read_bytes()
        (unfinished / "decode.py").write_bytes(decoder)
        right = (
            () if traces is None else (accuracy(traces, predicted) for predicted in source.both_traces(rows, threads))
        )
        exported = Exported(Path(folder), source.experts, source.left_out, source.in_bits, *right)
        feed = _SPARSE_FEED if source.reads_sparse else _DENSE_FEED
        (unfinished / "README.md").write_text(_README.format(output=source.output, report=exported, feed=feed), "utf-8")
    return exported


def arrays_of(source: Source) -> dict[str, NDArray[Any]]:
    """Return the arrays that decoding needs."""
    ids = [node.encode() for node in source.layers.taxonomy.ids]
    return {
        "format": np.array(FORMAT),
        "ids": np.frombuffer(b"".join(ids), np.uint8),
        "id_offsets": offsets_of(np.array([len(node) for node in ids], np.int64)),
        "node": source.layers.node,
        **source.arrays(),
    }
