"""What planning memory takes of a model: per layer what it stores for a token, and the sizes of its
weights by how devices share them. From a config.json, or from the headers of a file, alone.

Wider than a ModelCard: models that cannot run here may be planned. Never reads a weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Share = Literal["split", "kv", "copied", "experts"]
"""How tensor-parallel devices share a layer's weights: each has a part; a part where there are KV
heads enough, else a copy of a head's; all; or its experts."""


class Amount(NamedTuple):
    """Of weights."""

    values: int = 0
    num_bytes: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.values + other.values, self.num_bytes + other.num_bytes)


NOTHING = Amount()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOutline:
    """`value_dim` is 0 where a latent vector holds keys and values in one (MLA)."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    num_experts: int
    weights: Mapping[Share, Amount]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outline:
    """A model as far as its memory goes."""

    name: str
    architecture: str
    source: str
    """Where the sizes of the weights come from, for people."""
    max_positions: int
    dtype: Literal["f32", "f16", "bf16"]
    """What its numbers are computed in, which is what a cache holds unless told otherwise."""
    layers: tuple[LayerOutline, ...]
    embed: Amount
    head: Amount
    """Nothing where the embedding is the head."""
    rest: Amount
    """Outside layers, on every device: the last norm, positions."""
    notes: tuple[str, ...] = ()
    widths: tuple[int, int, int] | None = None
    """Numbers of a token that a step works with: hidden, feed-forward, vocabulary."""
    weight_type: str = ""
    """What its layers' weights are stored as; empty where headers told sizes alone."""

    @property
    def weights(self) -> Amount:
        """All of them, once."""
        parts = [amount for layer in self.layers for amount in layer.weights.values()]
        return total([*parts, self.embed, self.head, self.rest])


def total(amounts: Iterable[Amount]) -> Amount:
    result = NOTHING
    for amount in amounts:
        result = result.plus(amount)
    return result
