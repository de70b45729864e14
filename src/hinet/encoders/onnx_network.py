"""The transformer of an encoder in onnxruntime: token ids to pooled token vectors, without torch.

With 8 bits, every token is scaled by its own largest value and every column of a matrix by that column's, and sums of
products are whole numbers. So the vector of a text does not depend on other texts. Weights have 7 bits: on processors
without VNNI, the sum of two products of 8 bits would overflow 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.encoders.sources import Precision, reason_of
from hinet.errors import HiNetError, quoted
from hinet.files import map_arrays
from hinet.parameters import resolve_threads

FAMILIES = ("bert", "camembert", "roberta", "xlm-roberta")  # they differ in the number of their first position
OPERATORS, VERSION = 21, 10  # versions of the ONNX operators and format
WEIGHT_LEVELS = 63  # 7 bits
SMALLEST = 1e-12  # scale of a token whose values are all 0
GELU_LOWEST, GELU_ZERO = 0.17, 24  # GELU is at least -0.17, so that most of the 256 levels are above 0

_CONTRIBUTED = "com.microsoft"
_WORDS = "embeddings.word_embeddings.weight"

Floats = NDArray[np.float32]
Weights = Mapping[str, NDArray[Any]]


class OnnxNetwork:
    """The transformer and the pooling of an encoder in onnxruntime."""

    device = "cpu"
    tokenizer: Any = None  # a tokenizers.Tokenizer, if the network was loaded from a folder

    def __init__(self, weights: Weights, config: Mapping[str, Any], pooling: str, precision: Precision) -> None:
        """Build a network.

        Raises
        ------
        HiNetError
            If its architecture is not supported; the message starts with the reason.
        """
        import onnxruntime

        _check_supported(config, pooling)
        self.precision = precision
        start = next((name.removesuffix(_WORDS) for name in weights if name.endswith(_WORDS)), "")
        arrays = {name.removeprefix(start): array for name, array in weights.items() if name.startswith(start)}
        try:
            first = 0 if config["model_type"] == "bert" else int(config["pad_token_id"]) + 1
            self._words = arrays[_WORDS].astype(np.float32, copy=False)
            self._positions = (
                arrays["embeddings.position_embeddings.weight"][first:]
                + arrays["embeddings.token_type_embeddings.weight"][0]
            ).astype(np.float32)
            graph = _Graph(arrays, precision == "int8").network(config, pooling)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1  # threads run batches side by side
            # Further optimisations would fuse the addition and scaling of rows to a slower operator.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # missing arrays, or anything that the library raises for values that do not fit
            raise HiNetError(f"its weights do not fit its configuration ({reason_of(error)})") from None
        self.width = int(self._words.shape[1])
        self.max_tokens = len(self._positions)

    @classmethod
    def load(cls, folder: Path, precision: Precision) -> OnnxNetwork:
        """Return the network of an encoder's folder; raise HiNetError with the reason if it is not supported."""
        from tokenizers import Tokenizer

        try:
            modules = _modules(folder)
            if [*modules] not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
                raise HiNetError(f"onnxruntime does not support its modules {', '.join(modules)}")
            inner = folder / modules["Transformer"]
            tokens = _read_json(inner / "tokenizer_config.json").get("model_max_length")
            longest = _read_json(inner / "sentence_bert_config.json").get("max_seq_length") or tokens
            tokenizer = Tokenizer.from_file(str(inner / "tokenizer.json"))
            path = inner / "model.safetensors"
            with path.open("rb") as stream:
                weights, _ = map_arrays(path, stream)
            pooling = _pooling(_read_json(folder / modules["Pooling"] / "config.json"))
            network = cls(weights, _read_json(inner / "config.json"), pooling, precision)
            network.max_tokens = max(1, min(int(longest or network.max_tokens), network.max_tokens))
        except HiNetError:
            raise
        except Exception as error:  # a missing file, or anything that the libraries raise for a damaged one
            raise HiNetError(f"its files cannot be read ({reason_of(error)})") from None
        network.tokenizer = tokenizer
        return network

    def pooled(
        self, batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], threads: int | None
    ) -> Iterator[Floats]:
        """Yield the vectors of each batch of token ids without padding, (b, width)."""
        count = resolve_threads(threads)
        if count == 1:
            yield from map(self._run, batches)
            return
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(self._run, batches)

    def _run(self, batch: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Floats:
        ids, _ = batch
        embedded = self._words[ids] + self._positions[: ids.shape[1]]
        vectors: Floats = self._session.run(None, {"embedded": embedded})[0]
        return vectors


def _modules(folder: Path) -> dict[str, str]:
    """Return the modules of an encoder with their folders; a Hugging Face model has mean pooling."""
    path = folder / "modules.json"
    if not path.is_file():
        return {"Transformer": "", "Pooling": ""}
    listed = json.loads(path.read_text(encoding="utf-8"))
    return {module["type"].rpartition(".")[2]: module["path"] for module in listed}


def _pooling(config: Mapping[str, Any]) -> str:
    flags = {"pooling_mode_mean_tokens": True} | dict(config)
    active = [name.removeprefix("pooling_mode_") for name, value in flags.items() if value and "_mode_" in name]
    return str(config.get("pooling_mode") or {"mean_tokens": "mean", "cls_token": "cls"}.get("+".join(active)))


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, or nothing if there is no such file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _check_supported(config: Mapping[str, Any], pooling: str) -> None:
    """Raise HiNetError if a configuration is not that of a BERT with a supported pooling."""
    for name, supported in (
        ("model_type", FAMILIES), ("hidden_act", ("gelu",)), ("position_embedding_type", ("absolute", None)),
    ):  # fmt: skip
        if config.get(name) not in supported:
            raise HiNetError(f"onnxruntime does not support its {name} {quoted(str(config.get(name)))}")
    if pooling not in ("mean", "cls"):
        raise HiNetError(f"onnxruntime does not support its pooling by {pooling}")


class _Tokens(NamedTuple):
    """Names of the values of some tokens and, if these have 8 bits, of their scales and of the level of 0."""

    values: str
    scale: str = ""
    zero_point: str = ""


@dataclass
class _Graph:
    """A graph under construction; methods return the name of the value that they add."""

    arrays: Weights
    is_int8: bool
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def network(self, config: Mapping[str, Any], pooling: str) -> bytes:
        """Return the graph from embedded tokens, (b, tokens, width), to pooled vectors, (b, width)."""
        from onnx import TensorProto, helper

        epsilon, heads, width = (config[name] for name in ("layer_norm_eps", "num_attention_heads", "hidden_size"))
        rows = self._normalised("embedded", "embeddings.LayerNorm", epsilon)
        for number in range(config["num_hidden_layers"]):
            rows = self._layer(rows, f"encoder.layer.{number}.", heads, epsilon)
        if pooling == "mean":
            pooled = self._add("ReduceMean", rows, self._constant(np.array([1])), keepdims=0)
        else:
            pooled = self._add("Gather", rows, self._constant(np.array(0)), axis=1)
        graph = helper.make_graph(
            self.nodes, "encoder",
            [helper.make_tensor_value_info("embedded", TensorProto.FLOAT, ["rows", "tokens", width])],
            [helper.make_tensor_value_info(pooled, TensorProto.FLOAT, ["rows", width])], self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", OPERATORS), helper.make_opsetid(_CONTRIBUTED, 1)]
        content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=VERSION).SerializeToString()
        return content

    def _layer(self, rows: str, name: str, heads: int, epsilon: float) -> str:
        parts = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
        tokens = self._tokens(rows)
        products = [self._product(tokens, part) for part in parts]
        bias = self._constant(np.concatenate([self._array(f"{part}.bias") for part in parts]))
        mixed = self._add("MultiHeadAttention", *products, bias, domain=_CONTRIBUTED, num_heads=heads)
        rows = self._residual(self._tokens(mixed), rows, f"{name}attention.output.", epsilon)
        inner = self._product(self._tokens(rows), f"{name}intermediate.dense")
        bias = self._constant(self._array(f"{name}intermediate.dense.bias"))
        inner = self._add("BiasGelu", inner, bias, domain=_CONTRIBUTED)
        return self._residual(self._tokens(inner, is_gelu=True), rows, f"{name}output.", epsilon)

    def _residual(self, tokens: _Tokens, rows: str, name: str, epsilon: float) -> str:
        """Add a dense layer of some tokens to rows, and normalise the sum."""
        bias = self._constant(self._array(f"{name}dense.bias"))
        dense = self._add("Add", self._product(tokens, f"{name}dense"), bias)
        return self._normalised(self._add("Add", dense, rows), f"{name}LayerNorm", epsilon)

    def _normalised(self, rows: str, name: str, epsilon: float) -> str:
        scale, bias = (self._constant(self._array(f"{name}.{part}")) for part in ("weight", "bias"))
        return self._add("LayerNormalization", rows, scale, bias, axis=-1, epsilon=epsilon)

    def _tokens(self, rows: str, *, is_gelu: bool = False) -> _Tokens:
        """Return rows as the input of a product; with 8 bits, each token has a scale of its own."""
        if not self.is_int8:
            return _Tokens(rows)
        zero = GELU_ZERO if is_gelu else 128
        last = self._constant(np.array([-1]))
        largest = self._add("ReduceMax", rows if is_gelu else self._add("Abs", rows), last, keepdims=1)
        least = GELU_LOWEST * (255 - zero) / zero if is_gelu else SMALLEST
        largest = self._add("Max", largest, self._constant(np.float32(least)))
        scale = self._add("Mul", largest, self._constant(np.float32(1 / (255 - zero))))
        levels = self._add("Mul", rows, self._add("Reciprocal", scale))
        zero_point = self._constant(np.uint8(zero))
        levels = self._add("QuantizeLinear", levels, self._constant(np.float32(1)), zero_point)
        return _Tokens(levels, scale, zero_point)

    def _product(self, tokens: _Tokens, name: str) -> str:
        """Multiply tokens by a matrix, without its bias."""
        matrix = self._array(f"{name}.weight").T
        if not tokens.scale:
            return self._add("MatMul", tokens.values, self._constant(matrix))
        scales = np.maximum(np.abs(matrix).max(axis=0) / WEIGHT_LEVELS, SMALLEST).astype(np.float32)
        levels = self._constant(np.round(matrix / scales).astype(np.int8))
        zeros = self._constant(np.zeros(len(scales), np.int8))
        one = self._constant(np.float32(1))
        product = self._add(
            "MatMulIntegerToFloat", tokens.values, levels, one, self._constant(scales), tokens.zero_point, zeros,
            domain=_CONTRIBUTED,
        )  # fmt: skip
        return self._add("Mul", product, tokens.scale)

    def _array(self, name: str) -> Floats:
        return self.arrays[name].astype(np.float32)

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def _constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name
