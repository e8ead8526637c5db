"""Weights as the reference keeps them: GGUF block types unpacked to small integers and scales.

Owns the byte layouts of the block types. Never requantises: `values * scales + minimums` is
exactly what the file says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from treadle.errors import ModelFileError
from treadle.kernels.ops import QUANT_BLOCK, Form, Matrix, RawTensor, Vector, WeightType


@dataclasses.dataclass(frozen=True)
class DensePart:
    """Rows of a matrix in a float type, as stored."""

    weight: torch.Tensor  # [n, k] f32, f16 or bf16

    @property
    def n(self) -> int:
        return self.weight.shape[0]

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids].float()


@dataclasses.dataclass(frozen=True)
class QuantPart:
    """Rows of a matrix in a block type; K comes first, for products add up block by block."""

    values: torch.Tensor  # [k / 32, 32, n] int8
    scales: torch.Tensor  # [k / 32, n] f32
    minimums: torch.Tensor | None  # [k / 32, n] f32

    @property
    def n(self) -> int:
        return self.values.shape[2]

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


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Sixteen bytes hold values 0 to 15 in their low halves and 16 to 31 in their high ones."""
    return torch.cat([packed & 0xF, packed >> 4], dim=-1)


def _f16(pair: torch.Tensor) -> torch.Tensor:
    return pair.contiguous().view(torch.float16).float()[..., 0]


def _unpack_q4_0(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Scale f16, then 16 bytes of nibbles, 8 above their value."""
    return _nibbles(block[..., 2:]).to(torch.int8) - 8, _f16(block[..., :2]), None


def _unpack_q4_1(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Scale f16, minimum f16, then 16 bytes of nibbles."""
    values = _nibbles(block[..., 4:]).to(torch.int8)
    return values, _f16(block[..., :2]), _f16(block[..., 2:4])


def _unpack_q8_0(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Scale f16, then 32 signed bytes."""
    return block[..., 2:].contiguous().view(torch.int8), _f16(block[..., :2]), None


_Unpack = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]

_BLOCKS: dict[WeightType, tuple[int, _Unpack]] = {
    WeightType.Q4_0: (18, _unpack_q4_0),
    WeightType.Q4_1: (20, _unpack_q4_1),
    WeightType.Q8_0: (34, _unpack_q8_0),
}  # type -> (bytes per block, how to unpack)


def stack(parts: Sequence[RawTensor]) -> TorchMatrix:
    """One matrix of several tensors with equal k, one below the other."""
    for tensor in parts:
        _check_matrix(tensor, k=parts[0].shape[-1])
    forms = frozenset(Form.Q8 if tensor.type.quantised else Form.F32 for tensor in parts)
    unpacked = tuple(
        _quant_part(tensor) if tensor.type.quantised else DensePart(_dense(tensor))
        for tensor in parts
    )
    return TorchMatrix(sum(p.n for p in unpacked), parts[0].shape[1], forms, unpacked)


def vector(tensor: RawTensor) -> TorchVector:
    if len(tensor.shape) != 1 or tensor.type.quantised:
        raise ModelFileError(
            f"tensor {tensor.name} is {tensor.type} {list(tensor.shape)}; "
            "expected a vector in a float type"
        )
    _check_bytes(tensor)
    return TorchVector(tensor.shape[0], _dense(tensor).float())


def _check_matrix(tensor: RawTensor, k: int) -> None:
    if len(tensor.shape) != 2:
        raise ModelFileError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}; expected a matrix"
        )
    if tensor.shape[1] != k:
        raise ModelFileError(f"tensor {tensor.name} has rows of {tensor.shape[1]}; expected {k}")
    if tensor.type.quantised and k % QUANT_BLOCK:
        raise ModelFileError(
            f"tensor {tensor.name} is {tensor.type} with rows of {k}, "
            f"which is not a multiple of {QUANT_BLOCK}"
        )
    _check_bytes(tensor)


def _check_bytes(tensor: RawTensor) -> None:
    count = int(np.prod(tensor.shape))
    if tensor.type.quantised:
        expected = count // QUANT_BLOCK * _BLOCKS[tensor.type][0]
    else:
        expected = count * _DENSE[tensor.type].itemsize
    if tensor.data.nbytes != expected:
        raise ModelFileError(
            f"tensor {tensor.name} holds {tensor.data.nbytes} bytes; expected {expected}"
        )


def _bytes(tensor: RawTensor) -> torch.Tensor:
    return torch.from_numpy(np.array(tensor.data, np.uint8))  # a copy: the file may be read-only


def _dense(tensor: RawTensor) -> torch.Tensor:
    return _bytes(tensor).view(_DENSE[tensor.type]).reshape(tensor.shape)


def _quant_part(tensor: RawTensor) -> QuantPart:
    block_bytes, unpack = _BLOCKS[tensor.type]
    n, k = tensor.shape
    blocks = _bytes(tensor).reshape(n, k // QUANT_BLOCK, block_bytes)
    values, scales, minimums = unpack(blocks)
    return QuantPart(
        values.permute(1, 2, 0).contiguous(),
        scales.T.contiguous(),
        None if minimums is None else minimums.T.contiguous(),
    )
