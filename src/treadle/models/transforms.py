"""What is done to a tensor between its file and the backend, one tensor at a time.

Each transform says which shape the file must have for the shape that is wanted, and makes the one
from the other. A transform that only selects bytes works on every weight type; one that calculates
or reorders works on floats, and says so of the tensor that it cannot treat.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from treadle.errors import ModelFileError
from treadle.kernels.ops import FloatArray, RawTensor, WeightType

Shape = tuple[int, ...]

_NUMPY = {WeightType.F32: np.float32, WeightType.F16: np.float16, WeightType.BF16: np.uint16}
"""What holds an element; numpy knows no bfloat16."""


class Transform(Protocol):
    def stored(self, wanted: Shape) -> Shape:
        """The shape in the file."""
        ...

    def apply(self, tensor: RawTensor) -> RawTensor: ...


@dataclasses.dataclass(frozen=True)
class Same:
    """As it is."""

    def stored(self, wanted: Shape) -> Shape:
        return wanted

    def apply(self, tensor: RawTensor) -> RawTensor:
        return tensor


SAME = Same()


@dataclasses.dataclass(frozen=True)
class PlusOne:
    """Norms that multiply by 1 + w, stored as w."""

    def stored(self, wanted: Shape) -> Shape:
        return wanted

    def apply(self, tensor: RawTensor) -> RawTensor:
        return _from_floats(tensor.name, to_float32(tensor) + np.float32(1))


@dataclasses.dataclass(frozen=True)
class Transposed:
    """Matrices stored with inputs as rows."""

    def stored(self, wanted: Shape) -> Shape:
        return wanted[::-1]

    def apply(self, tensor: RawTensor) -> RawTensor:
        elements = _elements(tensor, "which cannot be transposed").T
        data = np.ascontiguousarray(elements).view(np.uint8).reshape(-1)
        return RawTensor(tensor.name, tensor.type, tensor.shape[::-1], data)


@dataclasses.dataclass(frozen=True)
class Slice:
    """One of several matrices that lie in one tensor, one after the other."""

    index: int
    count: int

    def stored(self, wanted: Shape) -> Shape:
        return (self.count, *wanted)

    def apply(self, tensor: RawTensor) -> RawTensor:
        size = tensor.data.nbytes // self.count
        data = tensor.data[self.index * size : (self.index + 1) * size]
        return RawTensor(tensor.name, tensor.type, tensor.shape[1:], data)


def to_float32(tensor: RawTensor) -> FloatArray:
    """The values of a tensor of a float type, in its shape."""
    elements = _elements(tensor, "where floats are expected")
    if tensor.type is WeightType.BF16:
        return (elements.astype(np.uint32) << 16).view(np.float32)
    return elements.astype(np.float32)


def concatenated(tensors: Sequence[RawTensor]) -> RawTensor:
    """Vectors, one after the other."""
    if len(tensors) == 1:
        return tensors[0]
    name = " + ".join(tensor.name for tensor in tensors)
    return _from_floats(name, np.concatenate([to_float32(tensor) for tensor in tensors]))


def _elements(tensor: RawTensor, what: str) -> npt.NDArray[Any]:
    if tensor.type not in _NUMPY:
        raise ModelFileError(f"tensor '{tensor.name}' is {tensor.type}, {what}")
    count = math.prod(tensor.shape)
    # A copy: the file's bytes need not be aligned, and may be unmapped later.
    return np.array(tensor.data).view(_NUMPY[tensor.type])[:count].reshape(tensor.shape)


def _from_floats(name: str, values: FloatArray) -> RawTensor:
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return RawTensor(name, WeightType.F32, values.shape, data)
