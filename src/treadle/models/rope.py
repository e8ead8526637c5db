"""Rotary positions: how fast each pair of a head turns, and the table of angles that follows.

Owns the scaling rules by which models reach beyond the context that they were first trained on.
A table depends on the model and on the number of positions served, never on a request.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from treadle.kernels.ops import FloatArray, RopeTable


class Scaling(Protocol):
    """A rule that bends the frequencies."""

    @property
    def magnitude(self) -> float:
        """Factor of every cosine and sine, which makes attention sharper or flatter."""
        ...

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:
        """Radians per position of each pair: [rotary_dim / 2]."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """One way of turning heads; layers share it by its index in the card."""

    theta: float
    rotary_dim: int
    interleaved: bool
    """Whether pairs are neighbours in a head, or half of rotary_dim apart."""
    scaling: Scaling


@dataclasses.dataclass(frozen=True)
class Plain:
    """theta to the power of -2i / rotary_dim. Exponents are rounded to float32, as the models
    were trained with."""

    magnitude: float = 1.0

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:  # noqa: ARG002
        return _plain(theta, rotary_dim).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Linear:
    """Every frequency is divided by the same factor."""

    factor: float
    magnitude: float = 1.0

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:  # noqa: ARG002
        return _plain(theta, rotary_dim).astype(np.float32) / np.float32(self.factor)


@dataclasses.dataclass(frozen=True)
class Divided:
    """Each frequency is divided by a factor of its own."""

    factors: tuple[float, ...]
    magnitude: float = 1.0

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:  # noqa: ARG002
        plain: FloatArray = _plain(theta, rotary_dim).astype(np.float32)
        factors: FloatArray = np.array(self.factors, np.float32)
        return plain / factors


@dataclasses.dataclass(frozen=True)
class Dynamic:
    """A larger base, by how far the positions served exceed the original context. Others take a
    request's own length; then its answers would depend on how far it has got."""

    factor: float
    original: int
    magnitude: float = 1.0

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:
        stretch = self.factor * max(positions, self.original) / self.original - (self.factor - 1)
        base = theta * math.pow(stretch, rotary_dim / (rotary_dim - 2))
        return _plain(base, rotary_dim).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Llama3:
    """Waves longer than the original context / low are divided by the factor, those shorter than
    the context / high are kept, and between the two lies a blend."""

    factor: float
    low: float
    high: float
    original: int
    magnitude: float = 1.0

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:  # noqa: ARG002
        plain = _plain(theta, rotary_dim)
        turns = self.original * plain / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        blended: FloatArray = (plain * (kept + (1 - kept) / self.factor)).astype(np.float32)
        return blended


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn:
    """Pairs that turn more than `fast` times over the original context are kept, those that turn
    less than `slow` times are divided by the factor, with a ramp over the pairs between."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    whole_pairs: bool = True
    """Whether the ramp begins and ends at a pair."""
    magnitude: float

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:  # noqa: ARG002
        plain = _plain(theta, rotary_dim)
        first, last = (self._pair(turns, theta, rotary_dim) for turns in (self.fast, self.slow))
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        width = last - first if last != first else 0.001
        divided = np.clip((np.arange(rotary_dim // 2) - first) / width, 0, 1)
        ramped: FloatArray = (plain * (1 - divided + divided / self.factor)).astype(np.float32)
        return ramped

    def _pair(self, turns: float, theta: float, rotary_dim: int) -> float:
        """The pair, counted in fractions, that turns so often over the original context."""
        wave = self.original / (turns * 2 * math.pi)
        return rotary_dim * math.log(wave) / (2 * math.log(theta))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongRope:
    """One set of divisors for models served within the original context, another beyond it. Others
    take a request's own length; then its cached keys would be wrong once it crosses the border."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    magnitude: float

    def frequencies(self, theta: float, rotary_dim: int, positions: int) -> FloatArray:
        factors = self.long if positions > self.original else self.short
        divided: FloatArray = (_plain(theta, rotary_dim) / np.array(factors)).astype(np.float32)
        return divided


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def longrope_magnitude(factor: float, original: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


_PIECE = 256
"""Positions whose angles are turned into cosines at a time."""


def rope_table(rope: Rope, positions: int) -> RopeTable:
    """Frequencies and angles are rounded to float32, as the models were trained with.

    Their cosines are rounded from float64, so that every machine gets the same table.
    """
    frequencies = rope.scaling.frequencies(rope.theta, rope.rotary_dim, positions)
    magnitude = rope.scaling.magnitude
    cos = np.empty((positions, len(frequencies)), np.float32)
    sin = np.empty_like(cos)
    # Piece by piece, or what lies between would be several times as large as the table.
    for start in range(0, positions, _PIECE):
        end = min(start + _PIECE, positions)
        angles = np.arange(start, end, dtype=np.float32)[:, None] * frequencies
        wide = angles.astype(np.float64)
        cos[start:end] = np.cos(wide) * magnitude
        sin[start:end] = np.sin(wide) * magnitude
    return RopeTable(cos, sin, rope.interleaved)


def _plain(theta: float, rotary_dim: int) -> npt.NDArray[np.float64]:
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies: npt.NDArray[np.float64] = 1 / theta ** exponents.astype(np.float64)
    return frequencies
