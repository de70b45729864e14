"""Models as ONNX graphs, with all that a place without hinet needs to use them."""

from hinet.exporting.export import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
