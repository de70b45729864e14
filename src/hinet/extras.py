"""Packages that only some of hinet needs: what asks for one says how to install it."""

from __future__ import annotations

from importlib.util import find_spec

from hinet.errors import HiNetError

_EXTRAS = {
    "torch": "torch",
    "sentence_transformers": "encoder",
    "onnx": "export",
    "matplotlib": "plot",
    "openpyxl": "excel",
    "pyoxigraph": "ontology",
    "fastapi": "serve",
    "uvicorn": "serve",
    "ray": "cluster",
}  # which extra brings a package


def require(package: str, what: str) -> None:
    """Raise HiNetError with the remedy if a package that something needs is not installed."""
    if find_spec(package) is None:
        install = f"'hinet[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        raise HiNetError(f"{what} needs {package}; install it with: pip install {install}")
