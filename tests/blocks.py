"""Bytes of every weight type for tests: real ones where the gguf package can quantise, else random
blocks. What they mean is for the gguf package's `dequantize` to say, never for this module."""

from __future__ import annotations

import zlib

import gguf
import numpy as np

from treadle.kernels.ops import WeightType

SIZES = {kind: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.name]] for kind in WeightType}
"""Values per block, bytes per block."""

_HALVES: dict[WeightType, tuple[int, ...]] = {
    WeightType.Q4_0: (0,),
    WeightType.Q4_1: (0, 2),
    WeightType.Q5_0: (0,),
    WeightType.Q5_1: (0, 2),
    WeightType.Q8_0: (0,),
    WeightType.Q2_K: (80, 82),
    WeightType.Q3_K: (108,),
    WeightType.Q4_K: (0, 2),
    WeightType.Q5_K: (0, 2),
    WeightType.Q6_K: (208,),
    WeightType.IQ4_NL: (0,),
    WeightType.IQ4_XS: (0,),
    WeightType.MXFP4: (),
}
"""Where a block has its scale and its minimum's, f16."""

_NUMBERS = {
    WeightType.Q4_0: slice(2, None),
    WeightType.Q4_1: slice(4, None),
    WeightType.Q5_0: slice(2, None),
    WeightType.Q5_1: slice(4, None),
    WeightType.Q8_0: slice(2, None),
    WeightType.Q2_K: slice(16, 80),
    WeightType.Q3_K: slice(0, 96),
    WeightType.Q4_K: slice(16, None),
    WeightType.Q5_K: slice(16, None),
    WeightType.Q6_K: slice(0, 192),
    WeightType.IQ4_NL: slice(2, None),
    WeightType.IQ4_XS: slice(8, None),
    WeightType.MXFP4: slice(1, None),
}
"""Where it has its numbers."""

_CENTRE = {WeightType.Q2_K: 1.5, WeightType.Q4_K: 7.5, WeightType.Q5_K: 15.5}
"""How much larger the minimum's scale is than the scale, for random blocks of mean zero."""


def whole_blocks(kind: WeightType, k: int) -> int:
    """k, or the next multiple of the type's block."""
    return -(-k // SIZES[kind][0]) * SIZES[kind][0]


def dequantised(data: np.ndarray, kind: WeightType, n: int) -> np.ndarray:
    """float32 [n, k]."""
    rows = np.ascontiguousarray(data).view(np.uint8).reshape(n, -1)
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind.name]).reshape(n, -1)


def quantised(values: np.ndarray, kind: WeightType) -> np.ndarray:
    """Bytes [n, row] near these values; of types which the gguf package cannot quantise, random
    ones of their spread."""
    values = values.astype(np.float32)
    try:
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.name])
    except NotImplementedError:
        data = _of_spread(float(values.std()), values.shape, kind, zlib.crc32(values.tobytes()))
    return data.view(np.uint8).reshape(len(values), -1)


def random_blocks(
    rng: np.random.Generator, n: int, k: int, kind: WeightType, *, exponents: int = 252
) -> np.ndarray:
    """Random bytes all over; every finite f16 occurs as a scale or minimum, also negative ones and
    denormals, and every exponent below `exponents`, of which 251 is the last whose products with
    the numbers are finite."""
    blocks = _random_bytes(rng, (n, k), kind)
    for at in _HALVES[kind]:
        bits = rng.integers(0, 0x7C00, blocks.shape[:2], np.uint16)
        bits |= rng.integers(0, 2, bits.shape, np.uint16) << 15
        blocks[..., at : at + 2] = bits[..., None].view(np.uint8)
    if kind is WeightType.MXFP4:
        blocks[..., 0] = rng.integers(0, exponents, blocks.shape[:2], np.uint8)
    return blocks.reshape(n, -1)


def magnitudes(data: np.ndarray, kind: WeightType, n: int) -> np.ndarray:
    """Per weight, a bound of the terms it is a sum of: what rounding errors are relative to."""
    bounds = []
    for number in (0, 128, 255):
        blocks = data.reshape(n, -1, SIZES[kind][1]).copy()
        blocks[..., _NUMBERS[kind]] = number
        bounds.append(np.abs(dequantised(blocks, kind, n).astype(np.float64)))
    return 2 * bounds[0] + np.maximum(bounds[1], bounds[2])


def with_numbers(kind: WeightType, shape: tuple[int, int], number_byte: int) -> np.ndarray:
    """Blocks of a plain scale in which every byte of numbers is the same."""
    blocks = _random_bytes(np.random.default_rng(number_byte), shape, kind)
    blocks[..., _NUMBERS[kind]] = number_byte
    for at in _HALVES[kind]:
        blocks[..., at : at + 2] = np.array([1.0], np.float16).view(np.uint8)
    if kind is WeightType.MXFP4:
        blocks[..., 0] = 128
    return blocks.reshape(shape[0], -1)


def _random_bytes(rng: np.random.Generator, shape: tuple[int, int], kind: WeightType) -> np.ndarray:
    values, size = SIZES[kind]
    return rng.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)


def _of_spread(spread: float, shape: tuple[int, ...], kind: WeightType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    n, k = shape
    blocks = _random_bytes(rng, (n, k), kind)
    jitter = rng.uniform(0.5, 1.5, blocks.shape[:2])

    def set_scales(size: float) -> None:
        for at, factor in zip(_HALVES[kind], (1.0, _CENTRE.get(kind, 1.0)), strict=False):
            scales = (jitter * size * factor).astype(np.float16)
            blocks[..., at : at + 2] = scales[..., None].view(np.uint8)

    set_scales(1.0)
    set_scales(spread / float(dequantised(blocks, kind, n).std()))
    return blocks.reshape(n, -1)
