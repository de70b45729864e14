"""A builder of ONNX graphs with their weights in a separate file, so that size is not limited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
