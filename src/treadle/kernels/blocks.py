"""How many values a block of each weight type has, and how many bytes in a GGUF file.

The one place for these sizes. What the bytes mean is for each backend to know.
"""

from __future__ import annotations

import math

from treadle.kernels.ops import WeightType

BLOCKS = {
    WeightType.F32: (1, 4),
    WeightType.F16: (1, 2),
    WeightType.BF16: (1, 2),
    WeightType.Q4_0: (32, 18),
    WeightType.Q4_1: (32, 20),
    WeightType.Q5_0: (32, 22),
    WeightType.Q5_1: (32, 24),
    WeightType.Q8_0: (32, 34),
    WeightType.Q2_K: (256, 84),
    WeightType.Q3_K: (256, 110),
    WeightType.Q4_K: (256, 144),
    WeightType.Q5_K: (256, 176),
    WeightType.Q6_K: (256, 210),
    WeightType.IQ4_NL: (32, 18),
    WeightType.IQ4_XS: (256, 136),
    WeightType.MXFP4: (32, 17),
}
"""Values per block, bytes per block."""


def num_bytes(kind: WeightType, shape: tuple[int, ...]) -> int:
    """Of a tensor whose rows are whole blocks."""
    values, size = BLOCKS[kind]
    return math.prod(shape) // values * size
