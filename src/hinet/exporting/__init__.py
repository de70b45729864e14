"""Models as ONNX graphs, with a decoder that runs without hinet."""

from hinet.exporting.export import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
