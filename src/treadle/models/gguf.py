"""GGUF files (versions 2 and 3): the header, read and checked, and tensors as views of the mapping.

Opening costs milliseconds whatever the size of the file: large arrays of the metadata are only
walked over, and decoded when somebody asks for them. Whatever is wrong with a file ends in a
ModelFileError that names file and field. Never converts weights and never copies their bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.blocks import BLOCKS, num_bytes
from treadle.kernels.ops import RawTensor, WeightType
from treadle.models.mapped import Extent, JoinedTensors, MappedTensors, map_file

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
    """An open model, in one file or split over several. Every extent that a header names lies
    inside its file; of a split model, `path` and `metadata` are those of the first part."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self.path = parts[0].path
        self.metadata: Mapping[str, Any] = parts[0].metadata
        self._tensors = JoinedTensors([part.tensors for part in parts])
        self.tensors: Mapping[str, RawTensor] = self._tensors

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Map the file and read its header; naming any part of a split model opens all of it."""
        with contextlib.ExitStack() as opened:

            def part(path: Path) -> _Part:
                result = _Part.open(path)
                opened.callback(result.tensors.close)
                return result

            parts = [part(path)]
            if split := _split_of(parts[0]):
                parts = [
                    parts[0] if index == split.index else part(split.path_of(index))
                    for index in range(split.count)
                ]
                _check_split(parts, split)
            result = cls(parts)
            opened.pop_all()
        return result

    def extents(self) -> Mapping[str, Extent]:
        """Sizes of all tensors, without looking at their types."""
        return self._tensors.extents()

    def drop(self, name: str) -> None:
        """Take the tensor's pages out of this process's memory; the next read brings them back."""
        self._tensors.drop(name)

    def close(self) -> None:
        """Unmap the file, or leave that to the last view of a tensor if there still is one.

        Metadata that was never asked for and tensors cannot be read afterwards.
        """
        self._tensors.close()


@dataclasses.dataclass(frozen=True)
class _Part:
    """One file with a header of its own."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: MappedTensors

    @classmethod
    def open(cls, path: Path) -> _Part:
        mapping = map_file(path, "GGUF")
        try:
            cursor = _Cursor(path, mapping)
            num_tensors, num_keys = _read_preamble(cursor)
            metadata = _read_metadata(cursor, num_keys)
            tensors = _read_tensors(cursor, num_tensors, _alignment(path, metadata))
        except ModelFileError:
            mapping.close()
            raise
        return cls(path, metadata, tensors)


@dataclasses.dataclass(frozen=True)
class _Split:
    """What one part says about the model it is a part of."""

    index: int
    """Counts from 0; file names count from 1."""
    count: int
    folder: Path
    stem: str

    def path_of(self, index: int) -> Path:
        return self.folder / f"{self.stem}-{index + 1:05}-of-{self.count:05}.gguf"


def _split_of(part: _Part) -> _Split | None:
    """None for a model in one file."""
    count = _split_number(part, "split.count", 1)
    if count <= 1:
        return None
    index = _split_number(part, "split.no", None)
    found = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", part.path.name, re.DOTALL)
    if found is None or (int(found[2]), int(found[3])) != (index + 1, count):
        raise ModelFileError(
            f"{part.path}: is part {index + 1} of a model in {count} files, so its name must end "
            f"in -{index + 1:05}-of-{count:05}.gguf for the others to be found"
        )
    return _Split(index, count, part.path.parent, found[1])


def _split_number(part: _Part, key: str, default: int | None) -> int:
    value = part.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise ModelFileError(f"{part.path}: metadata key '{key}' is {value!r}, not a count")
    return value


def _check_split(parts: Sequence[_Part], split: _Split) -> None:
    """The parts belong together, and none has lost tensors."""
    for index, part in enumerate(parts):
        for key, expected in (("split.no", index), ("split.count", split.count)):
            if part.metadata.get(key) != expected:
                raise ModelFileError(
                    f"{part.path}: metadata key '{key}' is {part.metadata.get(key)!r}; "
                    f"by its name it must be {expected}"
                )
    expected = _split_number(parts[0], "split.tensors.count", None)
    found = sum(len(part.tensors) for part in parts)
    if found != expected:
        raise ModelFileError(
            f"{parts[0].path}: metadata key 'split.tensors.count' is {expected}, "
            f"but the {split.count} parts hold {found} tensors"
        )


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


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> MappedTensors:
    extents: dict[str, Extent] = {}
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
    return MappedTensors(cursor.path, cursor.mapping, extents, _SUPPORTED)


def _read_extent(cursor: _Cursor, alignment: int) -> Extent:
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
    return Extent(type_name, dims[::-1], offset, _num_bytes(cursor, type_name, dims))


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
