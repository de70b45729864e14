"""Named arrays in a file that is data and nothing else: safetensors, written all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.errors import FileError
from hinet.files.atomic import write_bytes


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]], told: Mapping[str, str] | None = None) -> None:
    """Write arrays, and what is ``told`` of them, to a file."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_bytes(path, save(whole, dict(told or {})))


def read_arrays(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the arrays of a file and what is told of them.

    Raises
    ------
    FileError
        If the file is missing, cut off, or no file of arrays.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
            return arrays, dict(file.metadata() or {})
    except SafetensorError as error:
        raise FileError(path, f"the arrays cannot be read ({error}); the file is damaged or of another kind") from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
