"""Named arrays in a file that is data and nothing else: safetensors, written all or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hinet.errors import FileError
from hinet.files.atomic import write_bytes

_KINDS: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]], told: Mapping[str, str] | None = None) -> None:
    """Write arrays, and what is ``told`` of them, to a file, one after the other: none is copied as a whole."""
    write_bytes(path, _parts(arrays, dict(told or {})))


def _parts(arrays: Mapping[str, NDArray[Any]], told: dict[str, str]) -> Iterator[Any]:
    """Yield the bytes of a file: the length of its header, the header, and the arrays, the widest numbers first.

    So every array is aligned to its numbers if the header is to the widest, and can be mapped into memory as it is.
    """
    header: dict[str, Any] = {"__metadata__": told} if told else {}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    place = 0
    for name in names:
        array = arrays[name]
        end = place + array.nbytes
        kind = _NAMES[array.dtype.newbyteorder("=")]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C", copy=False)
        yield little.reshape(-1).view(np.uint8).data


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


def map_arrays(path: str | Path, stream: IO[bytes] | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, mapped into memory: read when they are first touched, shared by processes.

    They may be written to, which leaves the file as it is: kernels are compiled for arrays that may. With a ``stream``
    of the file, that is mapped, whatever has the path by now.

    Raises
    ------
    FileError
        If the file is missing, cut off, or no file of arrays.
    """
    try:
        file = np.memmap(path if stream is None else stream, np.uint8, mode="c")
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise FileError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        start = 8 + int.from_bytes(file[:8].tobytes(), "little")
        header = json.loads(file[8:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _mapped(file[start:], told) for name, told in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError):
        raise FileError(path, "the arrays cannot be read; the file is damaged or of another kind") from None


def _mapped(data: NDArray[np.uint8], told: Mapping[str, Any]) -> NDArray[Any]:
    low, high = told["data_offsets"]
    kind = np.dtype(_KINDS[told["dtype"]])
    if not 0 <= low <= high <= len(data) or high - low != kind.itemsize * int(np.prod(told["shape"], dtype=np.int64)):
        raise ValueError
    array = np.ndarray(told["shape"], kind, data.data, low) if high > low else np.empty(told["shape"], kind)
    return array if array.flags.aligned else array.copy()
