"""How many bytes weights take in formats that checkpoints and engines use, scales included.

Sizes for planning; what the bytes mean is for backends to know.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, get_args

WeightFormat = Literal["f32", "bf16", "f16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]

FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)

_BITS: dict[WeightFormat, Fraction] = {
    "f32": Fraction(32),
    "bf16": Fraction(16),
    "f16": Fraction(16),
    # A float32 scale for each square of 128 by 128.
    "fp8": 8 + Fraction(32, 128 * 128),
    # A float16 scale and a zero point for 128 in a row.
    "int8": 8 + Fraction(16 + 8, 128),
    "int4": 4 + Fraction(16 + 4, 128),
    # An eight-bit scale for 32, or for 16.
    "mxfp4": 4 + Fraction(8, 32),
    "nvfp4": 4 + Fraction(8, 16),
}


def num_bytes(weight_format: WeightFormat, values: int) -> int:
    return math.ceil(values * _BITS[weight_format] / 8)
