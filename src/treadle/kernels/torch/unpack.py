"""The byte layouts of GGUF's block types, for the reference.

Owns what the bytes mean: each type becomes small integers, a float32 scale per group of them and,
for some types, a float32 minimum. Scales of two levels are multiplied, which float32 does exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from treadle.kernels.blocks import BLOCKS
from treadle.kernels.ops import WeightType

Unpacked = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""int8 values [..., groups, group], scales and minima [..., groups]."""

_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values; the scale is half of what the exponent says."""


def unpack(kind: WeightType, rows: torch.Tensor) -> Unpacked:
    """Rows of bytes [n, bytes]."""
    blocks = rows.unflatten(1, (-1, BLOCKS[kind][1]))
    values, scales, minima = _UNPACK[kind](blocks)
    scales = scales.flatten(1)
    group = values[0].numel() // scales.shape[1]
    values = values.to(torch.int8).flatten(1).unflatten(1, (-1, group))
    return values, scales, None if minima is None else minima.flatten(1)


def _fields(packed: torch.Tensor, width: int, bits: int) -> torch.Tensor:
    """Numbers of `bits` bits: a run of `width` bytes holds `width` numbers in the lowest bits of
    all of them, then the next ones above."""
    runs = packed.unflatten(-1, (-1, 1, width))
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return ((runs >> shifts) & (2**bits - 1)).flatten(-3)


def _f16(pair: torch.Tensor) -> torch.Tensor:
    return pair.contiguous().view(torch.float16).float()  # [..., 1]


def _looked_up(table: tuple[int, ...], codes: torch.Tensor) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.int8)[codes.int()]


def _q4_0(block: torch.Tensor) -> Unpacked:
    """Scale f16, then 16 bytes of nibbles, 8 above their value."""
    return _fields(block[..., 2:], 16, 4).to(torch.int8) - 8, _f16(block[..., :2]), None


def _q4_1(block: torch.Tensor) -> Unpacked:
    """Scale f16, minimum f16, then 16 bytes of nibbles."""
    return _fields(block[..., 4:], 16, 4), _f16(block[..., :2]), _f16(block[..., 2:4])


def _five_bits(block: torch.Tensor) -> torch.Tensor:
    """The top bits of 32 values, one after the other, then 16 bytes of nibbles."""
    return _fields(block[..., 4:], 16, 4) | _fields(block[..., :4], 1, 1) << 4


def _q5_0(block: torch.Tensor) -> Unpacked:
    """Scale f16, then numbers of five bits, 16 above their value."""
    return _five_bits(block[..., 2:]).to(torch.int8) - 16, _f16(block[..., :2]), None


def _q5_1(block: torch.Tensor) -> Unpacked:
    """Scale f16, minimum f16, then numbers of five bits."""
    return _five_bits(block[..., 4:]), _f16(block[..., :2]), _f16(block[..., 2:4])


def _q8_0(block: torch.Tensor) -> Unpacked:
    """Scale f16, then 32 signed bytes."""
    return block[..., 2:].contiguous().view(torch.int8), _f16(block[..., :2]), None


def _q2_k(block: torch.Tensor) -> Unpacked:
    """16 bytes of a scale and, above it, a minimum; 64 bytes of pairs of bits; both scales f16."""
    small, values = block[..., :16], _fields(block[..., 16:80], 32, 2)
    scales = _f16(block[..., 80:82]) * (small & 15)
    return values, scales, -_f16(block[..., 82:]) * (small >> 4)


def _q3_k(block: torch.Tensor) -> Unpacked:
    """32 bytes of top bits, 64 of pairs of bits, 12 of scales (low nibbles of all 16, then their
    top pairs), scale f16. Numbers are 4 above their value, scales 32."""
    numbers = _fields(block[..., 32:96], 32, 2) | _fields(block[..., :32], 32, 1) << 2
    small = _fields(block[..., 96:104], 8, 4) | _fields(block[..., 104:108], 4, 2) << 4
    scales = _f16(block[..., 108:]) * (small.to(torch.int8) - 32)
    return numbers.to(torch.int8) - 4, scales, None


def _two_levels(block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima from both their f16 scales and 12 bytes: four scales and four minima of
    six bits, whose two spare bits are the top of the last four, then those's nibbles."""
    scale, minimum, rest = block[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    small_scales = torch.cat([scale & 63, (rest & 15) | (scale >> 6) << 4], dim=-1)
    small_minima = torch.cat([minimum & 63, rest >> 4 | (minimum >> 6) << 4], dim=-1)
    return _f16(block[..., :2]) * small_scales, -_f16(block[..., 2:4]) * small_minima


def _q4_k(block: torch.Tensor) -> Unpacked:
    """16 bytes of scales, then 128 of nibbles."""
    return _fields(block[..., 16:], 32, 4), *_two_levels(block)


def _q5_k(block: torch.Tensor) -> Unpacked:
    """16 bytes of scales, 32 of top bits, then 128 of nibbles."""
    numbers = _fields(block[..., 48:], 32, 4) | _fields(block[..., 16:48], 32, 1) << 4
    return numbers, *_two_levels(block)


def _q6_k(block: torch.Tensor) -> Unpacked:
    """128 bytes of nibbles, 64 of top pairs, 16 signed scales, scale f16; numbers are 32 above
    their value."""
    numbers = _fields(block[..., :128], 64, 4) | _fields(block[..., 128:192], 32, 2) << 4
    scales = _f16(block[..., 208:]) * block[..., 192:208].contiguous().view(torch.int8)
    return numbers.to(torch.int8) - 32, scales, None


def _iq4_nl(block: torch.Tensor) -> Unpacked:
    """Scale f16, then 16 bytes of nibbles, which a table explains."""
    return _looked_up(_NON_LINEAR, _fields(block[..., 2:], 16, 4)), _f16(block[..., :2]), None


def _iq4_xs(block: torch.Tensor) -> Unpacked:
    """Scale f16, then of eight scales the top pairs and the nibbles, then 128 bytes as IQ4_NL has
    16; scales are 32 above their value."""
    small = _fields(block[..., 4:8], 1, 4) | _fields(block[..., 2:4], 1, 2) << 4
    scales = _f16(block[..., :2]) * (small.to(torch.int8) - 32)
    return _looked_up(_NON_LINEAR, _fields(block[..., 8:], 16, 4)), scales, None


def _mxfp4(block: torch.Tensor) -> Unpacked:
    """An exponent, then 16 bytes of nibbles, which a table explains."""
    powers = torch.tensor([math.ldexp(1.0, exponent - 128) for exponent in range(256)])
    scales = powers[block[..., :1].int()]
    return _looked_up(_E2M1, _fields(block[..., 1:], 16, 4)), scales, None


_UNPACK: dict[WeightType, Callable[[torch.Tensor], Unpacked]] = {
    WeightType.Q4_0: _q4_0,
    WeightType.Q4_1: _q4_1,
    WeightType.Q5_0: _q5_0,
    WeightType.Q5_1: _q5_1,
    WeightType.Q8_0: _q8_0,
    WeightType.Q2_K: _q2_k,
    WeightType.Q3_K: _q3_k,
    WeightType.Q4_K: _q4_k,
    WeightType.Q5_K: _q5_k,
    WeightType.Q6_K: _q6_k,
    WeightType.IQ4_NL: _iq4_nl,
    WeightType.IQ4_XS: _iq4_xs,
    WeightType.MXFP4: _mxfp4,
}
