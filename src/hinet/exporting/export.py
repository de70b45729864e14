"""A model as a folder: its graph, the arrays that decoding needs, the code that decodes, and how to use them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import check_rows
from hinet.engine import DeepExpert, FusedModel, Groups, Mix, Search
from hinet.errors import HiNetError
from hinet.exporting import scoring
from hinet.exporting.decode import FORMAT
from hinet.exporting.graph import GraphInMaking, require_onnx
from hinet.files import new_folder
from hinet.metrics import accuracy
from hinet.network import FlattenNetwork, HiNet, SparseBag, torch_threads
from hinet.network.heads import SiblingHead
from hinet.parameters import PATH
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Layers
from hinet.training import predict_traces

Model: TypeAlias = FusedModel | HiNet | FlattenNetwork
EXPORTED = ("deep", "flat")  # the experts that a graph can hold

_README = """\
# A hinet model as ONNX

`model.onnx` (its weights are in `weights.bin`) gives the log probability of every {output}; `decode.py`
turns that into traces with what `traces.npz` knows of the hierarchy. Python needs onnxruntime and NumPy only.

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
best = paths(found, arrays)  # for every row its traces, each a path of ids
```
"""
_SPARSE_FEED = """\
row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))  # X is a SciPy CSR matrix
feed = {"row": row, "feature": X.indices.astype(np.int64), "value": X.data.astype(np.float32)}
feed["rows"] = np.array(X.shape[0])"""
_DENSE_FEED = """feed = {"x": X.astype(np.float32)}  # X is a matrix of features, a row for each row"""


@dataclass(frozen=True)
class Exported:
    """What was exported, and what that costs; as a text, a report.

    Attributes
    ----------
    folder : Path
        Where it is.
    experts, left_out : tuples of names
        The experts of a fused model that the graph holds, and those it leaves out; none of a network.
    accuracy, accuracy_of_model : floats, or None without validation rows
        The share of rows whose label is right, by the graph and by the whole model.
    in_bits : bool
        Whether the graph holds embeddings in 8 bits, as a trained model does; it computes in single precision.
    """

    folder: Path
    experts: tuple[str, ...]
    left_out: tuple[str, ...]
    accuracy: float | None = None
    accuracy_of_model: float | None = None
    in_bits: bool = False

    def __str__(self) -> str:
        held = f"The graph holds the {' and '.join(self.experts)} expert." if self.experts else "The graph is whole."
        if self.left_out:
            held += f" Left out: {', '.join(self.left_out)}; the others count for more instead."
        if self.in_bits:
            held += " Embeddings are in 8 bits, as in the model."
        if self.accuracy is None or self.accuracy_of_model is None:
            return held
        return f"{held}\nAccuracy {self.accuracy:.2%}, of the whole model {self.accuracy_of_model:.2%}."


def export_onnx(
    model: Model,
    folder: str | Path,
    rows: Any = None,
    traces: Traces | None = None,
    threads: int | None = None,
) -> Exported:
    """Write a model to a new folder as an ONNX graph, with a decoder that needs NumPy alone.

    The graph of sparse rows reads ``row``, ``feature`` and ``value`` of each entry and the number of ``rows``, that of
    dense rows the matrix ``x``. Its output ``log_p`` has a column for each option of the layers, the log probability in
    its sibling group, or for each label of the flat network.

    Parameters
    ----------
    model : FusedModel, HiNet or FlattenNetwork
        Of a fused model the deep and the flat expert are exported, see :func:`exported_part`. A network has a
        SparseBag, DenseFeatures or a sequence of linear modules and activations below our default head, or is flat.
    folder : path
        Must not exist yet, or be empty.
    rows, traces : validation rows and their true traces, optional
        For the accuracy of the graph and of the whole model in the report.
    threads : int, optional
        That find this accuracy; by default, and with -1, one for each core.

    Raises
    ------
    HiNetError
        If onnx is not installed, or the model has parts that cannot be exported.
    FileError
        If the folder cannot be written; then there is nothing of it.
    """
    require_onnx()
    folder = PATH.checked("folder", folder)
    if not isinstance(model, (FusedModel, HiNet, FlattenNetwork)):
        raise HiNetError(
            f"a FusedModel, a HiNet or a FlattenNetwork can be exported, got {type(model).__name__}; "
            "export the FusedModel itself, or the network"
        )
    if (rows is None) != (traces is None):
        raise HiNetError("validation needs both rows and their true traces; one of them is missing")
    if rows is not None and traces is not None:
        check_rows(rows, len(traces))
    with new_folder(folder) as unfinished:
        part = exported_part(model) if isinstance(model, FusedModel) else model
        graph, arrays = GraphInMaking(), arrays_of(model)
        log_p = _fused(graph, part) if isinstance(part, FusedModel) else _network(graph, part)
        columns = len(arrays["label_offsets"]) - 1 if "label_offsets" in arrays else len(arrays["option_neuron"])
        graph.write(unfinished, log_p, columns)
        np.savez(unfinished / "traces.npz", **dict[str, Any](arrays))
        decoder = files("hinet.exporting").joinpath("decode.py").read_bytes()
        (unfinished / "decode.py").write_bytes(decoder)
        experts = _asked(part)
        left_out = tuple(name for name in _asked(model) if name not in experts)
        in_bits = isinstance(part, FusedModel) and any(getattr(part.experts, name).is_quantised for name in experts)
        judged = _accuracies(part, model, rows, traces, threads)
        exported = Exported(Path(folder), experts, left_out, *judged, in_bits)
        (unfinished / "README.md").write_text(_readme(model, exported), "utf-8")
    return exported


def exported_part(model: FusedModel) -> FusedModel:
    """Return a fused model of those experts that a graph can hold; the weights of the others in the mix go to them.

    Raises
    ------
    HiNetError
        If none of them is used.
    """
    kept = np.array([name in EXPORTED for name in Mix._fields])
    mix = np.where(kept, model.experts.mix, 0)
    if not mix.any():
        raise HiNetError(
            "the model asks neither a deep nor a flat expert, and no other can be exported; train a deep one"
        )
    shared = (mix * (model.experts.mix.sum() / mix.sum())).astype(np.float32)
    return replace(model, experts=model.experts._replace(mix=shared))


def arrays_of(model: Model) -> dict[str, NDArray[Any]]:
    """Return what decoding needs to know of the hierarchy, as named arrays."""
    layers = model.layers
    ids = [node.encode() for node in layers.taxonomy.ids]
    arrays: dict[str, NDArray[Any]] = {
        "format": np.array(FORMAT),
        "ids": np.frombuffer(b"".join(ids), np.uint8),
        "id_offsets": offsets_of(np.array([len(node) for node in ids], np.int64)),
        "node": layers.node,
    }
    if isinstance(model, FlattenNetwork):
        return arrays | _label_traces(layers, model.label_nodes.cpu().numpy())
    return arrays | {
        "tree": np.array(layers.is_tree),
        "layer_offsets": layers.layer_offsets,
        "option_offsets": layers.option_offsets,
        "option_neuron": layers.option_neuron,
        "option_parent": layers.option_parent,
        "slope": np.array(model.slope if isinstance(model, FusedModel) else 1.0),
    }


def _label_traces(layers: Layers, labels: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return a trace of each label, the first of those that it has."""
    traces = Traces.of_nodes(layers, labels)
    neurons, lengths = gather(traces.neurons, traces.offsets, traces.row_offsets[:-1])
    return {"label_offsets": offsets_of(lengths), "label_neurons": neurons}


def _fused(graph: GraphInMaking, model: FusedModel) -> str:
    rows, (experts, mix) = scoring.sparse_input(graph), (model.experts, model.mix)
    if model.merged is not None:
        rows = scoring.merged(graph, rows, model.merged)
    logits, hidden = [], ""
    if mix.flat:
        hidden = scoring.bag(graph, rows, experts.flat)
        labels = scoring.linear(graph, hidden, experts.flat.output_weights(), experts.flat.bias)
        options = scoring.pooled(graph, model.layers, experts.spans, labels)
        said = graph.add("Gather", options, graph.constant(model.groups.row_options()))
        logits.append(graph.add("Mul", said, graph.constant(np.float32(mix.flat))))
    if mix.deep:
        hidden = scoring.bag(graph, rows, experts.deep)
        outputs = experts.deep.output_weights(), experts.deep.bias
        weight, bias = (np.float32(mix.deep) * part for part in outputs)
        logits.append(scoring.linear(graph, hidden, weight, bias))
    both = logits[0] if len(logits) == 1 else graph.add("Add", *logits)
    return _transposed(graph, scoring.normalised(graph, model.groups, both, hidden))


def _network(graph: GraphInMaking, network: HiNet | FlattenNetwork) -> str:
    features = network.features
    if isinstance(features, SparseBag):
        hidden = scoring.bag(graph, scoring.sparse_input(graph), _expert_of(features))
    else:
        hidden = scoring.perceptron(graph, features)
    if isinstance(network, FlattenNetwork):
        weight, bias = scoring.array_of(network.weight), scoring.array_of(network.bias)
        return graph.add("LogSoftmax", _transposed(graph, scoring.linear(graph, hidden, weight, bias)), axis=1)
    head = network.head
    if not isinstance(head, SiblingHead):
        raise HiNetError(
            "the export knows heads with wiring 'skip' and normalisation 'parent', the default; "
            f"got {head.settings.wiring!r} and {head.settings.normalisation!r}"
        )
    logits = scoring.linear(graph, hidden, scoring.array_of(head.option_weight), scoring.array_of(head.bias))
    return _transposed(graph, scoring.normalised(graph, Groups.of(network.layers), logits, hidden))


def _expert_of(features: SparseBag) -> DeepExpert:
    """Return a sparse bag as the inputs of an expert that has no outputs."""
    outputs = np.zeros((0, features.width), np.float32)
    slope = (np.arange(features.width) < features.linear_units).astype(np.float32)
    weight, bias = scoring.array_of(features.weight), scoring.array_of(features.bias)
    return DeepExpert.of(weight, bias, outputs, np.zeros(0, np.float32), slope)


def _transposed(graph: GraphInMaking, scores: str) -> str:
    return graph.add("Transpose", scores, perm=[1, 0])


def _asked(model: Model) -> tuple[str, ...]:
    """Return the experts that a fused model asks."""
    return (
        tuple(name for name, weight in model.mix._asdict().items() if weight) if isinstance(model, FusedModel) else ()
    )


def _accuracies(
    part: Model,
    model: Model,
    rows: Any,
    traces: Traces | None,
    threads: int | None,
) -> tuple[float | None, float | None]:
    """Return the accuracy of what is exported and of the whole model."""
    if traces is None:
        return None, None
    with torch_threads(threads):
        of_part, of_model = (
            accuracy(
                traces,
                Search(one, threads).traces(rows).traces if isinstance(one, FusedModel) else predict_traces(one, rows),
            )
            for one in (part, model)
        )
    return of_part, of_model


def _readme(model: Model, exported: Exported) -> str:
    sparse = isinstance(model, FusedModel) or isinstance(model.features, SparseBag)
    return _README.format(
        output="label" if isinstance(model, FlattenNetwork) else "option among its siblings",
        report=exported,
        feed=_SPARSE_FEED if sparse else _DENSE_FEED,
    )
