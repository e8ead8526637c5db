"""Weights as the reference keeps them: GGUF block types unpacked to small integers and scales.

Never requantises: `values * scales + minimums` is exactly what the file says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from treadle.errors import ModelFileError
from treadle.kernels.blocks import BLOCKS, num_bytes
from treadle.kernels.ops import Form, Matrix, RawTensor, Vector, WeightType
from treadle.kernels.torch.unpack import unpack

_NAN_SCALE = 2.0**127
"""What MXFP4's mark for NaN comes to as an exponent; far above any scale in f16."""


@dataclasses.dataclass(frozen=True)
class DensePart:
    """Rows of a matrix in a float type, as stored."""

    weight: torch.Tensor  # [n, k] f32, f16 or bf16

    @property
    def n(self) -> int:
        return self.weight.shape[0]

    @property
    def finite(self) -> bool:
        return bool(self.weight.isfinite().all())

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float()


@dataclasses.dataclass(frozen=True)
class QuantPart:
    """Rows of a matrix in a block type; K comes first, for products add up block by block."""

    values: torch.Tensor  # [k / group, group, n] int8; a group is 16 or 32 values of K
    scales: torch.Tensor  # [k / group, n] f32
    minimums: torch.Tensor | None  # [k / group, n] f32

    @property
    def n(self) -> int:
        return self.values.shape[2]

    @property
    def finite(self) -> bool:
        scales = (self.scales, self.minimums)
        return all(bool((x.abs() < _NAN_SCALE).all()) for x in scales if x is not None)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        weight = self.values[:, :, ids] * self.scales[:, None, ids]
        if self.minimums is not None:
            weight = weight + self.minimums[:, None, ids]
        return weight.flatten(0, 1).T


@dataclasses.dataclass(frozen=True)
class TorchMatrix(Matrix):
    parts: tuple[DensePart | QuantPart, ...]


@dataclasses.dataclass(frozen=True)
class TorchVector(Vector):
    data: torch.Tensor  # [n] f32


_DENSE = {
    WeightType.F32: torch.float32,
    WeightType.F16: torch.float16,
    WeightType.BF16: torch.bfloat16,
}


def stack(parts: Sequence[RawTensor]) -> TorchMatrix:
    """One matrix of several tensors with equal k, one below the other."""
    for tensor in parts:
        _check_matrix(tensor, k=parts[0].shape[-1])
    forms = frozenset(Form.Q8 if tensor.type.quantised else Form.F32 for tensor in parts)
    unpacked = tuple(
        _quant_part(tensor) if tensor.type.quantised else DensePart(_dense(tensor))
        for tensor in parts
    )
    flawed = tuple(t.name for t, part in zip(parts, unpacked, strict=True) if not part.finite)
    return TorchMatrix(sum(p.n for p in unpacked), parts[0].shape[1], forms, flawed, unpacked)


def vector(tensor: RawTensor) -> TorchVector:
    if len(tensor.shape) != 1 or tensor.type.quantised:
        raise ModelFileError(
            f"tensor {tensor.name} is {tensor.type} {list(tensor.shape)}; "
            "expected a vector in a float type"
        )
    _check_bytes(tensor)
    data = _dense(tensor).float()
    return TorchVector(tensor.shape[0], () if data.isfinite().all() else (tensor.name,), data)


def _check_matrix(tensor: RawTensor, k: int) -> None:
    if len(tensor.shape) != 2:
        raise ModelFileError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}; expected a matrix"
        )
    if tensor.shape[1] != k:
        raise ModelFileError(f"tensor {tensor.name} has rows of {tensor.shape[1]}; expected {k}")
    block, _ = BLOCKS[tensor.type]
    if k % block:
        raise ModelFileError(
            f"tensor {tensor.name} is {tensor.type} with rows of {k}, "
            f"which is not a multiple of {block}"
        )
    _check_bytes(tensor)


def _check_bytes(tensor: RawTensor) -> None:
    expected = num_bytes(tensor.type, tensor.shape)
    if tensor.data.nbytes != expected:
        raise ModelFileError(
            f"tensor {tensor.name} holds {tensor.data.nbytes} bytes; expected {expected}"
        )


def _bytes(tensor: RawTensor) -> torch.Tensor:
    return torch.from_numpy(np.array(tensor.data, np.uint8))  # a copy: the file may be read-only


def _dense(tensor: RawTensor) -> torch.Tensor:
    return _bytes(tensor).view(_DENSE[tensor.type]).reshape(tensor.shape)


def _quant_part(tensor: RawTensor) -> QuantPart:
    values, scales, minimums = unpack(tensor.type, _bytes(tensor).reshape(tensor.shape[0], -1))
    return QuantPart(
        values.permute(1, 2, 0).contiguous(),
        scales.T.contiguous(),
        None if minimums is None else minimums.T.contiguous(),
    )
