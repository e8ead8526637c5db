"""The most that a machine lets any engine reach on a task: bytes by its read bandwidth, operations
by its peak. Caches are not modelled; of the operations only those of matrix products count.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.bench.floors import Machine
from treadle.bench.floors import measure_machine as measure_backend
from treadle.kernels.native.backend import NativeBackend
from treadle.models.card import ModelCard

BYTE_BITS = 9
"""Bits per weight up to which products are made of bytes, whose peak is higher."""

KV_VALUE_BYTES = 2


class Work(NamedTuple):
    """What a task computes at the least."""

    prompt_tokens: int
    """That no cache holds."""
    num_prompts: int
    steps: int
    """Of decoding, all rows together."""
    rows: int
    kv_tokens: int = 0
    """Whose K and V a step reads for all its rows, on average; a shared prefix counts once."""


class Shape(msgspec.Struct, frozen=True):
    """Of a model, as far as floors go."""

    weight_bytes: int
    """Read by every step: an embedding that is no head too is not among them."""
    layer_weights: int
    """Of the products that one token passes through in all layers."""
    head_weights: int
    kv_bytes: int
    """Of one token."""

    @property
    def on_bytes(self) -> bool:
        bits = self.weight_bytes * 8 / (self.layer_weights + self.head_weights)
        return bits <= BYTE_BITS


class Least(NamedTuple):
    seconds: float
    bound: str
    """What binds: bytes, operations, or each in its part."""


def shape_of(card: ModelCard) -> Shape:
    """An untied embedding is taken to have as many bits per weight as all the rest."""
    layers, head = card.layers * _layer_weights(card), card.hidden * card.vocab_size
    in_file = layers + head * (1 if card.tied_head else 2)
    return Shape(
        weight_bytes=round(card.weight_bytes * (layers + head) / in_file),
        layer_weights=layers,
        head_weights=head,
        kv_bytes=2 * card.layers * card.kv_heads * card.head_dim * KV_VALUE_BYTES,
    )


def measure_machine(threads: int) -> Machine:
    backend = NativeBackend(threads=threads)
    try:
        return measure_backend(backend)
    finally:
        backend.close()


def peak_rate(machine: Machine, shape: Shape) -> float:
    return machine.byte_operations_per_s if shape.on_bytes else machine.float_operations_per_s


def least(shape: Shape, work: Work, read_bytes_per_s: float, peak: float) -> Least:
    """Prompts are bound by operations, steps by whichever takes longer."""
    seconds = {"bytes": 0.0, "operations": 0.0}
    read = (shape.weight_bytes + work.kv_tokens * shape.kv_bytes) / read_bytes_per_s
    computed = 2 * (shape.layer_weights + shape.head_weights) * work.rows / peak
    seconds["bytes" if read > computed else "operations"] += work.steps * max(read, computed)
    if work.prompt_tokens:
        products = shape.layer_weights * work.prompt_tokens + shape.head_weights * work.num_prompts
        weights = shape.weight_bytes / read_bytes_per_s
        prompts = 2 * products / peak
        seconds["bytes" if weights > prompts else "operations"] += max(prompts, weights)
    bound = " and ".join(name for name, value in seconds.items() if value)
    return Least(sum(seconds.values()), bound)


def _layer_weights(card: ModelCard) -> int:
    """Of the products that one token passes through in one layer."""
    queries, keys = card.heads * card.head_dim, card.kv_heads * card.head_dim
    attention = card.hidden * (2 * queries + 2 * keys)
    return attention + (3 if card.wiring.gated else 2) * card.hidden * card.ffn
