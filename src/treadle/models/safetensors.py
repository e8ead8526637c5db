"""Model directories as Hugging Face publishes them: config.json, and weights in safetensors files.

The headers are read and checked here, because numpy has no bfloat16 for a library to return. As in
the format itself, a file's tensors cover its data without gap or overlap. Whatever is wrong ends in
a ModelFileError that names file and tensor. Never converts weights and never copies their bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from treadle.errors import ModelFileError
from treadle.kernels.ops import RawTensor, WeightType
from treadle.models.mapped import Extent, JoinedTensors, MappedTensors, map_file

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""As in the format's own library."""

_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}

_SUPPORTED = {"F32": WeightType.F32, "F16": WeightType.F16, "BF16": WeightType.BF16}


class SafetensorsFolder:
    """An open model directory. Every extent that a header names lies inside its file, and with an
    index the files hold exactly the tensors that it lists."""

    def __init__(self, path: Path, tensors: JoinedTensors) -> None:
        self.path = path
        self.config = read_json_object(path / CONFIG)
        self.generation_config = read_optional_json_object(path / GENERATION_CONFIG)
        self._tensors = tensors
        self.tensors: Mapping[str, RawTensor] = tensors

    @classmethod
    def open(cls, path: Path) -> SafetensorsFolder:
        """Map all weight files of the directory and read their headers."""
        listed = None
        names = [_WEIGHTS]
        if not (path / _WEIGHTS).exists() and (path / _INDEX).exists():
            listed = _read_index(path / _INDEX)
            names = list(dict.fromkeys(listed.values()))
        with contextlib.ExitStack() as opened:
            shards = []
            for name in names:
                shards.append(_open_shard(path / name))
                opened.callback(shards[-1].close)
            tensors = JoinedTensors(shards)
            if listed is not None:
                _check_index(path / _INDEX, listed, tensors)
            result = cls(path, tensors)
            opened.pop_all()
        return result

    def extents(self) -> Mapping[str, Extent]:
        """Sizes of all tensors, without looking at their types."""
        return self._tensors.extents()

    def drop(self, name: str) -> None:
        """Take the tensor's pages out of this process's memory; the next read brings them back."""
        self._tensors.drop(name)

    def close(self) -> None:
        """Unmap the files; views of tensors stay valid, further tensors cannot be had."""
        self._tensors.close()


def holds_all_weights(path: Path) -> bool:
    """Whether the directory's weights are there, not its configuration alone, or some shards."""
    if (path / _WEIGHTS).exists():
        return True
    index = path / _INDEX
    return index.exists() and all((path / name).is_file() for name in _read_index(index).values())


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; a key that occurs twice is refused."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    return _parse_object(content, str(path))


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """The same; an empty one if there is no such file."""
    return read_json_object(path) if path.exists() else {}


def _parse_object(content: bytes, what: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in result if names.count(name) > 1)
            raise ModelFileError(f"{what}: key '{twice}' occurs twice")
        return result

    try:
        value = json.loads(content.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{what}: holds no JSON object")
    return value


def _read_index(path: Path) -> dict[str, str]:
    """Tensor → file name. Names stay inside the directory."""
    listed = read_json_object(path).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ModelFileError(f"{path}: 'weight_map' lists no tensors")
    for tensor, file in listed.items():
        if not isinstance(file, str) or "/" in file or "\0" in file or file in ("", ".", ".."):
            raise ModelFileError(f"{path}: tensor '{tensor}' is in {file!r}, which is no file name")
    return listed


def _check_index(path: Path, listed: Mapping[str, str], tensors: JoinedTensors) -> None:
    for name, file in listed.items():
        if name not in tensors:
            raise ModelFileError(f"{path}: lists tensor '{name}', which {file} does not hold")
        home = tensors.home(name).name
        if home != file:
            raise ModelFileError(f"{path}: lists tensor '{name}' in {file}; it is in {home}")
    for name in tensors:
        if name not in listed:
            raise ModelFileError(f"{tensors.home(name)}: tensor '{name}' is not in {path.name}")


def _open_shard(path: Path) -> MappedTensors:
    mapping = map_file(path, "safetensors")
    try:
        return MappedTensors(path, mapping, _read_header(path, mapping), _SUPPORTED)
    except ModelFileError:
        mapping.close()
        raise


def _read_header(path: Path, mapping: mmap.mmap) -> dict[str, Extent]:
    size = len(mapping)
    num_bytes = int.from_bytes(mapping[:_LENGTH_BYTES], "little")
    if size < _LENGTH_BYTES:
        raise ModelFileError(f"{path}: the header's length is cut off")
    if num_bytes > _MAX_HEADER_BYTES:
        raise ModelFileError(
            f"{path}: not a safetensors file: its header would be {num_bytes} bytes long"
        )
    start = _LENGTH_BYTES + num_bytes
    if start > size:
        raise ModelFileError(
            f"{path}: the header ends at byte {start}, but the file has only {size} bytes"
        )
    header = _parse_object(mapping[_LENGTH_BYTES:start], f"{path}: the header")
    header.pop("__metadata__", None)
    extents = {name: _extent(f"{path}: tensor '{name}'", header[name], start) for name in header}
    _check_cover(path, extents, start, size)
    return dict(sorted(extents.items(), key=lambda item: item[1].start))


def _extent(what: str, entry: object, start: int) -> Extent:
    """One tensor's description. What it says is checked against itself, not yet the file."""
    if not isinstance(entry, dict):
        raise ModelFileError(f"{what} has no description")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str):
        raise ModelFileError(f"{what} has no 'dtype'")
    if not _are_counts(shape):
        raise ModelFileError(f"{what} has no 'shape' of whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(f"{what} has no 'data_offsets' of a start and an end")
    num_bytes = offsets[1] - offsets[0]
    if kind in _ITEM_BYTES and num_bytes != math.prod(shape) * _ITEM_BYTES[kind]:
        raise ModelFileError(
            f"{what} has {num_bytes} bytes, but shape {shape} of {kind} has "
            f"{math.prod(shape) * _ITEM_BYTES[kind]}"
        )
    return Extent(kind, tuple(shape), start + offsets[0], num_bytes)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_cover(path: Path, extents: Mapping[str, Extent], start: int, size: int) -> None:
    """Tensors follow one another from the header's end to the file's."""
    ordered = sorted(extents.items(), key=lambda item: (item[1].start, item[1].num_bytes))
    at = start
    for name, extent in ordered:
        end = extent.start + extent.num_bytes
        if end > size:
            raise ModelFileError(
                f"{path}: tensor '{name}' ends at byte {end}, but the file has only {size} bytes"
            )
        if extent.start != at:
            fault = "overlaps" if extent.start < at else "does not follow"
            raise ModelFileError(f"{path}: tensor '{name}' {fault} the tensor before it")
        at = end
    if at != size:
        raise ModelFileError(f"{path}: {size - at} bytes behind the last tensor belong to none")
