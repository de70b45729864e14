"""Optional packages, and how to install them."""

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
}  # the extra that installs each package


def require(package: str, what: str) -> None:
    """Raise HiNetError with the command to install a package if ``what`` needs it and it is missing."""
    if find_spec(package) is None:
        install = f"'hinet[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        raise HiNetError(f"{what} needs {package}; install it with: pip install {install}")
