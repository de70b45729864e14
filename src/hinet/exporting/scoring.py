"""The computations of models as ONNX operations; scores have the shape (outputs, b).

The weights of a graph are in a separate file, so that size is not limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine import DeepExpert, Groups
from hinet.engine.model.experts import Floats
from hinet.engine.model.groups import LabelSpans
from hinet.ragged import Bools, Ints, offsets_of
from hinet.taxonomy import STOP, Layers

OPSET = 18  # version of the operators
IR_VERSION = 9  # version of the file format, supported by onnxruntime 1.16 and later
MIN_EXTERNAL_BYTES = 1_024  # larger arrays go into the file of weights
ALIGNED = 4_096  # bytes, so that the file can be mapped into memory
NUMBERS = {"float32": 1, "int8": 3, "int64": 7}  # type numbers of ONNX
WEIGHTS = "weights.bin"


class GraphInMaking:
    """Builds a graph; every method that adds an operation returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._arrays: dict[str, NDArray[Any]] = {}

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        """Declare an input; a text in its shape is a variable length."""
        from onnx import helper

        self._inputs.append(helper.make_tensor_value_info(name, NUMBERS[kind], shape))
        return name

    def constant(self, values: Any) -> str:
        """Add an array as int64 or float32; int8 is unchanged. The caller must not modify it."""
        array = np.asarray(values)
        kind: type = np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32
        name = f"constant_{len(self._arrays)}"
        self._arrays[name] = np.asarray(array, np.int8 if array.dtype == np.int8 else kind, order="C")
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add an operation."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add an operation with several results."""
        from onnx import helper

        names = [f"{operator.lower()}_{len(self._nodes)}_{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def zeros(self, shape: str, kind: type = np.float32) -> str:
        """Add an array of zeros with a shape that is known at run time."""
        from onnx import numpy_helper

        return self.add("ConstantOfShape", shape, value=numpy_helper.from_array(np.zeros(1, kind)))

    def write(self, folder: Path, result: str, columns: int) -> None:
        """Write ``model.onnx`` with the output ``log_p`` and its weights."""
        import onnx
        from onnx import helper

        self._nodes.append(helper.make_node("Identity", [result], ["log_p"]))
        output = helper.make_tensor_value_info("log_p", NUMBERS["float32"], ["rows", columns])
        with (folder / WEIGHTS).open("wb") as weights:
            tensors = [_tensor(name, array, weights) for name, array in self._arrays.items()]
        graph = helper.make_graph(self._nodes, "hinet", self._inputs, [output], tensors)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="hinet"
        )
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(path))


def _tensor(name: str, array: NDArray[Any], weights: Any) -> Any:
    """Return an ONNX tensor: small arrays inline, others as a reference to the file of weights."""
    from onnx import TensorProto, numpy_helper

    if array.nbytes < MIN_EXTERNAL_BYTES:
        return numpy_helper.from_array(array, name)
    start = -(-weights.tell() // ALIGNED) * ALIGNED
    weights.write(bytes(start - weights.tell()))
    array.astype(array.dtype.newbyteorder("<"), copy=False).tofile(weights)
    tensor = TensorProto(name=name, data_type=NUMBERS[array.dtype.name], dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": WEIGHTS, "offset": start, "length": array.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


class PaddedRows(NamedTuple):
    """Sparse rows padded with zeros to the length of the longest one."""

    feature: str  # (b, longest)
    value: str  # (b, 1, longest)


def sparse_input(graph: GraphInMaking) -> PaddedRows:
    """Declare sparse rows as inputs: ``row``, ``feature`` and ``value`` of each entry, in any order, and ``rows``.

    Sums by scattering would be shorter, but ScatterND of onnxruntime adds in several threads without a lock, and
    ScatterElements takes ten times as long.
    """
    row, feature = graph.input("row", "int64", ["entries"]), graph.input("feature", "int64", ["entries"])
    value, rows = graph.input("value", "float32", ["entries"]), graph.input("rows", "int64", [])
    zero, one, axis = graph.constant(0), graph.constant(1), graph.constant([0])
    entries = graph.add("Shape", row)
    count = graph.add("Unsqueeze", rows, axis)  # (1,)
    row, order = graph.add_several("TopK", 2, row, entries, axis=0, largest=0, sorted=1)
    ones = graph.add("Expand", one, entries)
    lengths = graph.add("ScatterElements", graph.zeros(count, np.int64), row, ones, axis=0, reduction="add")
    longest = graph.add("ReduceMax", graph.add("Concat", lengths, axis, axis=0), keepdims=1)  # (1,), 0 without rows
    first = graph.add(
        "Gather", graph.add("CumSum", lengths, zero, exclusive=1), row
    )  # (entries,) first entry of its row
    within = graph.add("Sub", graph.add("Range", zero, graph.add("Squeeze", entries, axis), one), first)
    place = graph.add("Add", graph.add("Mul", row, longest), within)
    cells = graph.add("Mul", count, longest)
    padded = []
    shapes = [[count, longest], [count, graph.constant([1]), longest]]
    for values, kind, shape in zip((feature, value), (np.int64, np.float32), shapes, strict=True):
        sorted_values = graph.add("Gather", values, order)
        flat = graph.add("ScatterElements", graph.zeros(cells, kind), place, sorted_values, axis=0)
        padded.append(graph.add("Reshape", flat, graph.add("Concat", *shape, axis=0), allowzero=1))
    return PaddedRows(*padded)


def bag(graph: GraphInMaking, rows: PaddedRows, expert: DeepExpert) -> str:
    """Return the hidden units of a deep expert, (b, k); quantised embeddings stay quantised."""
    embedded = graph.add("Gather", graph.constant(expert.embedding), rows.feature)  # (b, longest, k)
    value = rows.value
    if expert.is_quantised:
        embedded = graph.add("Cast", embedded, to=NUMBERS["float32"])
        scale = graph.add("Gather", graph.constant(expert.embedding_scale), rows.feature)  # (b, longest)
        value = graph.add("Mul", value, graph.add("Unsqueeze", scale, graph.constant([1])))
    summed = graph.add("Squeeze", graph.add("MatMul", value, embedded), graph.constant([1]))  # (b, k)
    return graph.add(
        "PRelu", graph.add("Add", summed, graph.constant(expert.embedding_bias)), graph.constant(expert.negative_slope)
    )


def linear(graph: GraphInMaking, hidden: str, weight: Floats, bias: Floats) -> str:
    """Return outputs that read the feature layer, (outputs, b)."""
    return graph.add("Gemm", graph.constant(weight), hidden, graph.constant(bias[:, None]), transB=1)


def pooled(graph: GraphInMaking, layers: Layers, spans: LabelSpans, scores: str) -> str:
    """Turn the scores of the labels of a tree, (labels, b), into those of options, (options, b).

    The score of an option is the log-sum-exp of the labels below it, computed by layer, upwards.
    """
    bounds = layers.option_offsets[layers.layer_offsets].tolist()
    parts: list[str] = []
    below: list[str] = []  # sums of the groups in the layer below
    for layer in reversed(range(layers.height + 1)):
        start, end = bounds[layer], bounds[layer + 1]
        target = layers.option_neuron[start:end]
        stops = np.flatnonzero(target == STOP)
        source = target - layers.layer_offsets[layer + 1] + len(stops)
        source[stops] = np.arange(len(stops))
        ending = [graph.add("Gather", scores, graph.constant(spans.first[start + stops]))] if len(stops) else []
        here = graph.add("Gather", _side_by_side(graph, ending + below), graph.constant(source))
        parts.insert(0, here)
        sizes = np.diff(layers.option_offsets[layers.layer_offsets[layer] : layers.layer_offsets[layer + 1] + 1])
        below = [_group_logsumexp(graph, here, sizes)]
    return _side_by_side(graph, parts)


def normalised(graph: GraphInMaking, groups: Groups, logits: str, batch_first: str) -> str:
    """Turn the logits of output rows, (rows, b), into ``log p`` of every option, (options, b).

    The first dimension of ``batch_first`` is the number of rows.
    """
    sizes = np.diff(groups.first_row)
    options = np.full(len(groups.option_neuron), groups.rows)  # options without siblings share one row of zeros
    options[groups.row_options()] = np.arange(groups.rows)
    batch = graph.add("Shape", batch_first, start=0, end=1)
    certain = graph.zeros(graph.add("Concat", graph.constant([1]), batch, axis=0))  # (1, b)
    if not groups.rows:
        return graph.add("Gather", certain, graph.constant(options))
    free = sizes[sizes > 0]
    totals = _group_logsumexp(graph, logits, free)
    log_p = graph.add("Sub", logits, graph.add("Gather", totals, graph.constant(np.repeat(np.arange(len(free)), free))))
    return graph.add("Gather", graph.add("Concat", log_p, certain, axis=0), graph.constant(options))


def transposed(graph: GraphInMaking, scores: str) -> str:
    """Return transposed scores, (b, outputs)."""
    return graph.add("Transpose", scores, perm=[1, 0])


def _group_logsumexp(graph: GraphInMaking, scores: str, sizes: Ints) -> str:
    """Return the log-sum-exp of runs of rows of these sizes, (groups, b).

    Runs of about the same size are gathered into one block with the next power of two as its width.
    """
    starts = offsets_of(sizes)[:-1]
    width = 2 ** np.ceil(np.log2(sizes)).astype(np.int64)
    parts, order = [], []
    for wide in np.unique(width).tolist():
        chosen = np.flatnonzero(width == wide)
        order.append(chosen)
        within = np.arange(wide)
        real = within < sizes[chosen, None]  # (groups, wide); padding repeats the first row with weight 0
        index = graph.constant(starts[chosen, None] + np.where(real, within, 0))
        block = graph.add("Gather", scores, index)  # (groups, wide, b)
        parts.append(
            _block_logsumexp(graph, block, real) if wide > 1 else graph.add("Squeeze", block, graph.constant([1]))
        )
    position = np.argsort(np.concatenate(order))
    return graph.add("Gather", _side_by_side(graph, parts), graph.constant(position))


def _block_logsumexp(graph: GraphInMaking, block: str, real: Bools) -> str:
    axis = graph.constant([1])
    top = graph.add("ReduceMax", block, axis, keepdims=1)  # (groups, 1, b)
    shares = graph.add("Exp", graph.add("Sub", block, top))
    if not real.all():
        shares = graph.add("Mul", shares, graph.constant(real[:, :, None].astype(np.float32)))
    total = graph.add("Log", graph.add("ReduceSum", shares, axis, keepdims=1))
    return graph.add("Squeeze", graph.add("Add", total, top), axis)


def _side_by_side(graph: GraphInMaking, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=0)
