"""Which weight type each tensor of a GGUF file has: one for all, or mixed as llama-quantize does.

Of the many mixes that llama-quantize knows these are the two that differ most: Q4_K_M, the usual
one, and MXFP4_MOE. What it leaves alone stays in float32 here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from tests.blocks import SIZES
from tests.tiny_models import FIRST_OF_KIND, WITH_EXPERTS
from treadle.kernels.ops import WeightType

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a mix goes by, besides a tensor's name and shape."""

    layers: int
    tied: bool


Mix = Callable[[str, Shape, Facts], WeightType]
"""By a tensor's name and shape, of which the last axis is a row."""

_FALLBACKS = {
    WeightType.Q2_K: WeightType.IQ4_NL,
    WeightType.Q3_K: WeightType.IQ4_NL,
    WeightType.IQ4_XS: WeightType.IQ4_NL,
    WeightType.Q4_K: WeightType.Q5_0,
    WeightType.Q5_K: WeightType.Q5_1,
    WeightType.Q6_K: WeightType.Q8_0,
}
"""Where a row is no multiple of 256."""


def all_of(kind: WeightType) -> Mix:
    """All matrices whose rows it divides."""

    def mix(name: str, shape: Shape, _: Facts) -> WeightType:
        return kind if _is_matrix(name, shape) and _divides(kind, shape) else WeightType.F32

    return mix


def q4_k_m(name: str, shape: Shape, facts: Facts) -> WeightType:
    if not _is_matrix(name, shape) or name == "position_embd.weight":
        return WeightType.F32
    if name == "output.weight" or (facts.tied and name == "token_embd.weight"):
        kind = WeightType.Q6_K
    elif "attn_qkv" in name:
        kind = WeightType.Q5_K
    elif ("attn_v" in name or "ffn_down" in name) and _more_bits(name, facts.layers):
        kind = WeightType.Q6_K
    else:
        kind = WeightType.Q4_K
    return _fitting(kind, shape)


def mxfp4_moe(name: str, shape: Shape, _: Facts) -> WeightType:
    if not _is_matrix(name, shape):
        return WeightType.F32
    return _fitting(WeightType.MXFP4 if len(shape) == 3 else WeightType.Q8_0, shape)


MIXES: Mapping[str, Mix] = {"q4_k_m": q4_k_m, "mxfp4_moe": mxfp4_moe}

MIXED = [
    (name, types)
    for name in FIRST_OF_KIND
    for types in MIXES
    if types != "mxfp4_moe" or name in WITH_EXPERTS
]
"""Tiny models and the mixes that tests write them in."""


def mix_of(name: str) -> Mix:
    """By the name of a mix, or of the one type that all matrices have."""
    return MIXES[name] if name in MIXES else all_of(WeightType(name))


def _is_matrix(name: str, shape: Shape) -> bool:
    return len(shape) > 1 and "ffn_gate_inp" not in name


def _divides(kind: WeightType, shape: Shape) -> bool:
    return shape[-1] % SIZES[kind][0] == 0


def _fitting(kind: WeightType, shape: Shape) -> WeightType:
    if not _divides(kind, shape):
        kind = _FALLBACKS.get(kind, kind)
    return kind if _divides(kind, shape) else WeightType.F16


def _more_bits(name: str, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third in between."""
    layer, eighth = int(name.split(".")[1]), layers // 8
    return layer < eighth or layer >= math.floor(7 * layers / 8) or (layer - eighth) % 3 == 2
