"""The most that a machine lets any engine reach on a task: bytes by its read bandwidth, operations
by its peak. Caches are not modelled, and activations, KV and everything but products cost nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from treadle.bench.floors import Machine
from treadle.bench.floors import measure_machine as measure_backend
from treadle.kernels.native.backend import NativeBackend
from treadle.models.card import ModelCard

BYTE_BITS = 9
"""Bits per weight up to which products are made of bytes, whose peak is higher."""


class Work(NamedTuple):
    """What a task computes at the least."""

    prompt_tokens: int
    """That no cache holds."""
    num_prompts: int
    steps: int
    rows: int


def measure_machine(threads: int) -> Machine:
    backend = NativeBackend(threads=threads)
    try:
        return measure_backend(backend)
    finally:
        backend.close()


def least_s(machine: Machine, card: ModelCard, work: Work) -> float:
    """Prompts are bound by operations, steps by whichever takes longer."""
    weights = card.layers * _layer_weights(card)
    head = card.hidden * card.vocab_size
    peak = _peak(machine, card, weights + head)
    prompts = 2 * (weights * work.prompt_tokens + head * work.num_prompts) / peak
    read = card.weight_bytes / machine.read_bytes_per_s
    step = max(read, 2 * (weights + head) * work.rows / peak)
    return max(prompts, read) + step * work.steps if work.prompt_tokens else step * work.steps


def operation(card: ModelCard) -> str:
    bits = _bits(card, card.layers * _layer_weights(card) + card.hidden * card.vocab_size)
    return "multiply-adds of bytes" if bits <= BYTE_BITS else "multiply-adds of floats"


def peak_rate(machine: Machine, card: ModelCard) -> float:
    return _peak(machine, card, card.layers * _layer_weights(card) + card.hidden * card.vocab_size)


def _peak(machine: Machine, card: ModelCard, num_weights: int) -> float:
    on_bytes = _bits(card, num_weights) <= BYTE_BITS
    return machine.byte_operations_per_s if on_bytes else machine.float_operations_per_s


def _bits(card: ModelCard, num_weights: int) -> float:
    return card.weight_bytes * 8 / num_weights


def _layer_weights(card: ModelCard) -> int:
    """Of the products that one token passes through in one layer."""
    queries, keys = card.heads * card.head_dim, card.kv_heads * card.head_dim
    attention = card.hidden * (2 * queries + 2 * keys)
    return attention + (3 if card.wiring.gated else 2) * card.hidden * card.ffn
