"""Named arrays in safetensors files, written atomically."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hinet.errors import FileError, HiNetError
from hinet.files.atomic import write_bytes
from hinet.files.schema import check_plain

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


def write_arrays(
    path: str | Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays and their metadata to a file, one array at a time."""
    write_bytes(path, _parts(arrays, dict(metadata or {})))


def _parts(arrays: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> Iterator[Any]:
    """Yield the bytes of a file: the length of the header, the header, and the arrays, the largest item size first.

    This order keeps every array aligned, so that it can be mapped into memory.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    offset = 0
    for name in names:
        array = arrays[name]
        end = offset + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("=")]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C", copy=False)
        yield little.reshape(-1).view(np.uint8).data


def narrowest(array: NDArray[Any]) -> NDArray[Any]:
    """Return non-negative integers in the smallest dtype that holds them, and other numbers unchanged.

    >>> narrowest(np.array([0, 300])).dtype
    dtype('uint16')
    """
    if array.dtype.kind not in "iu":
        return array
    return array.astype(np.min_scalar_type(int(array.max(initial=0))), copy=False)


def read_arrays(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the arrays of a file and their metadata.

    Raises
    ------
    FileError
        If the file is missing, truncated, or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a mapping
            return arrays, dict(file.metadata() or {})
    except SafetensorError as error:
        raise FileError(path, f"the arrays cannot be read ({error}); the file is damaged or of another kind") from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None


class MappedFile:
    """A file that stays mapped into memory as long as this object or one of its arrays exists.

    Reading the memory of a truncated file kills the process, so call ``check`` first.
    """

    def __init__(self, path: str | Path, memory: mmap.mmap | None) -> None:
        self.path = str(path)
        self._memory = memory

    def check(self) -> None:
        """Raise FileError if the file was truncated since it was mapped."""
        if self._memory is not None and self._memory.size() < len(self._memory):
            raise FileError(self.path, "was truncated while the model was in use; copy the folder and load it again")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the mapped memory: copies and pickles have arrays of their own."""
        return {"path": self.path, "_memory": None}


def map_arrays(
    path: str | Path, stream: IO[bytes], *, mapped: bool = True
) -> tuple[dict[str, NDArray[Any]], MappedFile]:
    """Return the arrays of an open file, mapped into memory: loaded on first access, shared between processes.

    The arrays are copy-on-write, as kernels are compiled for writable arrays. With ``mapped=False`` they are read
    at once, and later changes of the file do not affect them.

    Raises
    ------
    FileError
        If the file is truncated or not a safetensors file.
    """
    try:
        memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) if mapped else None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise FileError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    data: Any = memory if memory is not None else _all_bytes(stream)
    try:
        entries, start = _header(data)
        return {name: _array(data, start, entry) for name, entry in entries.items()}, MappedFile(path, memory)
    except (HiNetError, ValueError, RecursionError) as error:
        reason = "too many nested lists" if isinstance(error, RecursionError) else error
        raise FileError(path, f"the arrays cannot be read ({reason}); the file is damaged or of another kind") from None


def _all_bytes(stream: IO[bytes]) -> bytearray:
    stream.seek(0)
    return bytearray(stream.read())


class ArrayEntry(TypedDict):
    """An entry of the safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _header(data: Any) -> tuple[dict[str, ArrayEntry], int]:
    """Return the entries of the header and the offset of the first array; arrays have no gaps between them."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 <= start <= len(data):
        raise HiNetError(f"a header of {start - 8:,} bytes in a file of {len(data):,}")
    header = json.loads(bytes(data[8:start]))
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    check_plain(header, dict[str, ArrayEntry], "the header")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        low, high = entry["data_offsets"]
        if entry["dtype"] not in _DTYPES:
            raise HiNetError(f"the array {name!r} has the unknown dtype {entry['dtype']!r}")
        expected = np.dtype(_DTYPES[entry["dtype"]]).itemsize * math.prod(entry["shape"])
        if low != end or high - low != expected or min(entry["shape"], default=0) < 0:
            raise HiNetError(f"the array {name!r} of the shape {entry['shape']} has the bytes from {low:,} to {high:,}")
        end = high
    if end != len(data) - start:
        raise HiNetError(f"arrays of {end:,} bytes in a file with {len(data) - start:,} bytes of them")
    return header, start


def _array(data: Any, start: int, entry: ArrayEntry) -> NDArray[Any]:
    low, high = entry["data_offsets"]
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    array = np.ndarray(entry["shape"], dtype, data, start + low) if high > low else np.empty(entry["shape"], dtype)
    return array if array.flags.aligned else array.copy()
