"""GGUF files (versions 2 and 3): the header, read and checked, and tensors as views of the mapping.

Opening costs milliseconds whatever the size of the file: large arrays of the metadata are only
walked over, and decoded when somebody asks for them. Whatever is wrong with a file ends in a
ModelFileError that names file and field. Never converts weights and never copies their bytes.
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.blocks import BLOCKS, num_bytes
from treadle.kernels.ops import RawTensor, WeightType

MAGIC = b"GGUF"

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_STRING = 8
_ARRAY = 9
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Metadata value type → its letter, the same in struct and in numpy."""

_SCALARS = {kind: struct.Struct("<" + letter) for kind, letter in _NUMBERS.items()}

_SMALLEST_KEY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8

_TYPE_NAMES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    30: "bf16",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
    41: "q1_0",
}

_SUPPORTED = {kind.value: kind for kind in WeightType}


class GGUFFile:
    """An open file. Every extent that its header names lies inside the file."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self._mapping = mapping
        cursor = _Cursor(path, mapping)
        num_tensors, num_keys = _read_preamble(cursor)
        self.metadata: Mapping[str, Any] = _read_metadata(cursor, num_keys)
        self._table = _read_tensors(cursor, num_tensors, _alignment(path, self.metadata))
        self.tensors: Mapping[str, RawTensor] = self._table

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Map the file and read its header."""
        try:
            with path.open("rb") as file:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:  # mmap refuses to map nothing
            raise ModelFileError(f"{path}: not a GGUF file: it is empty") from None
        try:
            return cls(path, mapping)
        except ModelFileError:
            mapping.close()
            raise

    def drop(self, name: str) -> None:
        """Take the tensor's pages out of this process's memory; the next read brings them back."""
        extent = self._table.extent(name)
        # Outward to whole pages: a neighbour's share of an edge page is simply read again.
        lead = extent.start % mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_DONTNEED, extent.start - lead, extent.num_bytes + lead)

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of a tensor if there still is one.

        Metadata that was never asked for and tensors cannot be read afterwards.
        """
        self._table.detach()
        try:
            self._mapping.close()
        except BufferError:
            return


@dataclasses.dataclass(frozen=True, slots=True)
class _Extent:
    """Where a tensor lies; `num_bytes` is 0 for types whose layout is not known here."""

    type_name: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class _TensorTable(Mapping[str, RawTensor]):
    """The tensors by name, in file order. Unsupported types are listed, and refused on access."""

    def __init__(self, path: Path, mapping: mmap.mmap, extents: dict[str, _Extent]) -> None:
        self._path = path
        self._mapping: mmap.mmap | None = mapping
        self._extents = extents

    def __getitem__(self, name: str) -> RawTensor:
        extent = self.extent(name)
        if self._mapping is None:
            raise ValueError(f"{self._path} is closed")
        data = np.frombuffer(self._mapping, np.uint8, extent.num_bytes, extent.start)
        return RawTensor(name, _SUPPORTED[extent.type_name], extent.shape, data)

    def __contains__(self, name: object) -> bool:
        return name in self._extents

    def __iter__(self) -> Iterator[str]:
        return iter(self._extents)

    def __len__(self) -> int:
        return len(self._extents)

    def extent(self, name: str) -> _Extent:
        extent = self._extents[name]
        if extent.type_name not in _SUPPORTED:
            raise ModelFileError(
                f"{self._path}: tensor '{name}' has type {extent.type_name}; supported are "
                + ", ".join(_SUPPORTED)
            )
        return extent

    def detach(self) -> None:
        self._mapping = None


@dataclasses.dataclass(frozen=True, slots=True)
class _UnreadArray:
    """An array that lies inside the file and has not been decoded yet."""

    kind: int
    length: int
    start: int


class _Metadata(Mapping[str, Any]):
    """The key-value pairs in file order; arrays are decoded on first access, and kept."""

    def __init__(self, path: Path, mapping: mmap.mmap, values: dict[str, Any]) -> None:
        self._path = path
        self._mapping = mapping
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _UnreadArray):
            value = self._values[key] = self._decode(key, value)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _decode(self, key: str, array: _UnreadArray) -> list[Any]:
        if array.kind != _STRING:
            return _decode_numbers(self._mapping, array)
        try:
            return _decode_strings(self._mapping, array.start, array.length)
        except UnicodeDecodeError:
            raise ModelFileError(
                f"{self._path}: metadata key '{key}' holds a string that is not UTF-8"
            ) from None


def _decode_numbers(mapping: mmap.mmap, array: _UnreadArray) -> list[Any]:
    letter = _NUMBERS[array.kind]
    # Any non-zero byte means true, so a bool is first read as a number.
    dtype = np.dtype("<" + letter.replace("?", "B"))
    numbers = np.frombuffer(mapping, dtype, array.length, array.start)
    return list((numbers != 0).tolist() if letter == "?" else numbers.tolist())


def _decode_strings(mapping: mmap.mmap, at: int, length: int) -> list[str]:
    read_length = _U64.unpack_from
    strings = []
    for _ in range(length):
        start = at + 8
        at = start + read_length(mapping, at)[0]
        strings.append(mapping[start:at].decode())
    return strings


class _Cursor:
    """A place in the header. Nothing is read beyond the end of the file, and every error names
    the field that was being read."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        self.size = len(mapping)
        self.at = 0
        self.field = "the header"

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {self.field} {problem}")

    def number(self, layout: struct.Struct) -> Any:
        start = self.take(layout.size)
        return layout.unpack_from(self.mapping, start)[0]

    def take(self, num_bytes: int) -> int:
        """Step over num_bytes; returns where they start."""
        start = self.at
        if num_bytes > self.size - start:
            raise self.error("is cut off: the file ends inside it")
        self.at = start + num_bytes
        return start

    def string(self) -> str:
        num_bytes = self.number(_U64)
        start = self.take(num_bytes)
        try:
            return self.mapping[start : self.at].decode()
        except UnicodeDecodeError:
            raise self.error("is not UTF-8") from None

    def expect(self, what: str, count: int, *, smallest: int) -> None:
        """Refuse a count that the rest of the file could not hold."""
        if count > (self.size - self.at) // smallest:
            raise self.error(f"claims {count} {what}, more than the file can hold")

    def skip_strings(self, count: int) -> None:
        read_length = _U64.unpack_from
        mapping, at = self.mapping, self.at
        try:
            for _ in range(count):
                at += 8 + read_length(mapping, at)[0]
        except (struct.error, OverflowError):
            at = self.size + 1
        self.take(at - self.at)


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Number of tensors, number of metadata keys."""
    if cursor.mapping[:4] != MAGIC:
        raise ModelFileError(f"{cursor.path}: not a GGUF file: it does not start with 'GGUF'")
    cursor.take(4)
    version = cursor.number(_U32)
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = "a big-endian GGUF file" if swapped in _VERSIONS else f"GGUF version {version}"
        raise ModelFileError(
            f"{cursor.path}: this is {what}; supported are versions 2 and 3, little-endian"
        )
    num_tensors, num_keys = cursor.number(_U64), cursor.number(_U64)
    cursor.expect("metadata keys", num_keys, smallest=_SMALLEST_KEY)
    cursor.expect("tensors", num_tensors, smallest=_SMALLEST_TENSOR)
    return num_tensors, num_keys


def _read_metadata(cursor: _Cursor, num_keys: int) -> _Metadata:
    values: dict[str, Any] = {}
    for index in range(num_keys):
        cursor.field = f"metadata key {index + 1} of {num_keys}"
        key = cursor.string()
        cursor.field = f"metadata key '{key}'"
        if key in values:
            raise cursor.error("occurs twice")
        values[key] = _read_value(cursor, cursor.number(_U32))
    return _Metadata(cursor.path, cursor.mapping, values)


def _read_value(cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor)
    if kind not in _SCALARS:
        raise cursor.error(f"has unknown value type {kind}")
    return cursor.number(_SCALARS[kind])


def _read_array(cursor: _Cursor) -> _UnreadArray:
    kind, length = cursor.number(_U32), cursor.number(_U64)
    start = cursor.at
    if kind == _STRING:
        cursor.expect("strings", length, smallest=8)
        cursor.skip_strings(length)
    elif kind in _NUMBERS:
        cursor.take(length * _SCALARS[kind].size)
    else:
        # No model uses arrays of arrays, and other readers refuse them as well.
        what = "arrays" if kind == _ARRAY else f"unknown value type {kind}"
        raise cursor.error(f"is an array of {what}, which is not supported")
    return _UnreadArray(kind, length, start)


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1):
        raise ModelFileError(f"{path}: metadata key 'general.alignment' is not a power of two")
    return value


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> _TensorTable:
    extents: dict[str, _Extent] = {}
    for index in range(num_tensors):
        cursor.field = f"tensor {index + 1} of {num_tensors}"
        name = cursor.string()
        cursor.field = f"tensor '{name}'"
        if name in extents:
            raise cursor.error("occurs twice")
        extents[name] = _read_extent(cursor, alignment)
    base = -(-cursor.at // alignment) * alignment
    for name, extent in extents.items():
        end = base + extent.start + extent.num_bytes
        if end > cursor.size:
            raise ModelFileError(
                f"{cursor.path}: tensor '{name}' ends at byte {end}, "
                f"but the file has only {cursor.size} bytes"
            )
        extents[name] = dataclasses.replace(extent, start=base + extent.start)
    return _TensorTable(cursor.path, cursor.mapping, extents)


def _read_extent(cursor: _Cursor, alignment: int) -> _Extent:
    """One tensor's description; `start` still counts from the end of the header."""
    num_dims = cursor.number(_U32)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.error(f"has {num_dims} dimensions; it must have 1 to {_MAX_DIMS}")
    dims = tuple(cursor.number(_U64) for _ in range(num_dims))
    kind, offset = cursor.number(_U32), cursor.number(_U64)
    if 0 in dims:
        raise cursor.error(f"has an empty dimension: {list(dims)}")
    if kind not in _TYPE_NAMES:
        raise cursor.error(f"has unknown type {kind}")
    if offset % alignment:
        raise cursor.error(f"starts at offset {offset}, not a multiple of {alignment}")
    type_name = _TYPE_NAMES[kind]
    return _Extent(type_name, dims[::-1], offset, _num_bytes(cursor, type_name, dims))


def _num_bytes(cursor: _Cursor, type_name: str, dims: tuple[int, ...]) -> int:
    if type_name not in _SUPPORTED:
        return 0
    kind = _SUPPORTED[type_name]
    values, _ = BLOCKS[kind]
    if dims[0] % values:
        raise cursor.error(
            f"has rows of {dims[0]} values; {type_name} needs a multiple of {values}"
        )
    return num_bytes(kind, dims)
