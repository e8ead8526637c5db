"""Weights in the kernels' layout: checked against the file's bytes, then repacked once.

Knows file layouts by size alone; how panels are laid out is known to the C++ side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.blocks import BLOCKS, num_bytes
from treadle.kernels.native import _native
from treadle.kernels.native.memory import Arena, Bytes
from treadle.kernels.ops import (
    FloatArray,
    Form,
    Matrix,
    RawTensor,
    Vector,
    WeightType,
)

TYPE_INDEX = {kind: index for index, kind in enumerate(WeightType)}
"""The C++ side's numbers, which follow the same order."""


@dataclasses.dataclass(frozen=True, eq=False)
class NativeMatrix(Matrix):
    """Packed panels; `memory` keeps alive what `packed` points to."""

    packed: _native.Matrix
    memory: Bytes


@dataclasses.dataclass(frozen=True, eq=False)
class NativeVector(Vector):
    values: FloatArray  # [n]


def pack_matrix(backend: _native.Backend, arena: Arena, parts: Sequence[RawTensor]) -> NativeMatrix:
    """Repack one matrix, or several stacked along n."""
    if not parts:
        raise ValueError("a matrix needs at least one part")
    for part in parts:
        _check_matrix(part)
    k = parts[0].shape[1]
    for part in parts:
        if part.shape[1] != k:
            raise ModelFileError(
                f"tensor {part.name} has {part.shape[1]} inputs, "
                f"but {parts[0].name}, which it is stacked on, has {k}"
            )
    packed = _native.Matrix(k)
    sizes = [_native.packed_bytes(TYPE_INDEX[part.type], part.shape[0], k) for part in parts]
    # Parts that lie together and share a type become one.
    memory = arena.take(sum(sizes))
    address = memory.ctypes.data
    flawed = []
    for part, size in zip(parts, sizes, strict=True):
        source = np.ascontiguousarray(part.data).reshape(-1)
        place = source.ctypes.data
        if not packed.add_part(backend, TYPE_INDEX[part.type], place, part.shape[0], address):
            flawed.append(part.name)
        address += size
    forms = frozenset(Form.Q8 if part.type.quantised else Form.F32 for part in parts)
    n = sum(part.shape[0] for part in parts)
    return NativeMatrix(n=n, k=k, forms=forms, flawed=tuple(flawed), packed=packed, memory=memory)


def load_vector(tensor: RawTensor) -> NativeVector:
    """A vector as float32, copied out of its file."""
    if len(tensor.shape) != 1:
        raise ModelFileError(f"tensor {tensor.name} has shape {list(tensor.shape)}, not one axis")
    if tensor.type.quantised:
        raise ModelFileError(f"tensor {tensor.name} is a vector of type {tensor.type}")
    _check_bytes(tensor)
    values = _as_float32(tensor)
    flawed = () if np.isfinite(values).all() else (tensor.name,)
    return NativeVector(n=tensor.shape[0], flawed=flawed, values=values)


def _as_float32(tensor: RawTensor) -> FloatArray:
    data = np.ascontiguousarray(tensor.data).reshape(-1)
    if tensor.type is WeightType.F32:
        return data.view(np.float32).copy()
    if tensor.type is WeightType.F16:
        return data.view(np.float16).astype(np.float32)
    return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _check_matrix(tensor: RawTensor) -> None:
    if len(tensor.shape) != 2 or min(tensor.shape) < 1:
        raise ModelFileError(f"tensor {tensor.name} has shape {list(tensor.shape)}, not two axes")
    block, _ = BLOCKS[tensor.type]
    if tensor.shape[1] % block:
        raise ModelFileError(
            f"tensor {tensor.name} of type {tensor.type} has {tensor.shape[1]} inputs, "
            f"not a multiple of {block}"
        )
    _check_bytes(tensor)


def _check_bytes(tensor: RawTensor) -> None:
    expected = num_bytes(tensor.type, tensor.shape)
    if tensor.data.dtype != np.uint8 or tensor.data.size != expected:
        raise ModelFileError(
            f"tensor {tensor.name} of shape {list(tensor.shape)} and type {tensor.type} "
            f"has {tensor.data.nbytes} bytes, not {expected}"
        )
