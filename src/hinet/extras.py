"""Optional packages, and how to install them."""

from __future__ import annotations

from importlib.util import find_spec

from hinet.errors import HiNetError

_EXTRAS = {
    "torch": "torch",
    "onnxruntime": "encoder",
    "sentence_transformers": "fine-tuning",
    "onnx": "export",
    "matplotlib": "plot",
    "openpyxl": "excel",
    "pyoxigraph": "ontology",
    "fastapi": "serve",
    "uvicorn": "serve",
    "mcp": "mcp",
    "ray": "cluster",
}  # the extra that installs each package


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return find_spec(package) is not None


def require(package: str, what: str) -> None:
    """Raise HiNetError with the command to install a package if ``what`` needs it and it is missing."""
    if not is_installed(package):
        install = f"'hinet[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        raise HiNetError(f"{what} needs {package}; install it with: pip install {install}")
