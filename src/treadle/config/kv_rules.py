"""How three engines decide how much memory K and V get: one pure function for each.

The fractions of the three have different bases, so none can be carried from one to another. Where
the amounts come from (a trial run, a description of hardware that is not here) is the caller's
business; what the bytes are divided into is `kv_capacity`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from treadle.config.byte_size import gigabytes
from treadle.errors import StartError

_NO_ROOM = "the weights and what a step takes need more than the device has"
VLLM_UTILIZATION = 0.92
TRTLLM_FRACTION = 0.9


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a device's memory before its KV pool is made."""

    total_bytes: int
    free_bytes: int
    """Before the weights are loaded."""
    weights_bytes: int
    activation_bytes: int = 0
    """The most that a largest step takes beside weights and KV."""
    activation_how: str = "the most a largest step takes"
    other_bytes: int = 0
    """What grew meanwhile outside the allocator that the weights are in."""
    capture_bytes: int = 0
    """What captured graphs are expected to take, or have taken."""


class Term(msgspec.Struct, frozen=True):
    """A summand of a budget."""

    name: str
    num_bytes: int
    how: str


class Budget(msgspec.Struct, frozen=True):
    """What KV gets. The terms add up to it."""

    kv_bytes: int
    terms: tuple[Term, ...]


def exact(fraction: float) -> Fraction:
    """The decimal that was written: 0.92 is 92/100, so that 0.92 of 80 GB are 73.6 GB."""
    return Fraction(str(fraction))


def check_fraction(name: str, fraction: float) -> Fraction:
    if not 0 < fraction <= 1:
        raise StartError(f"{name} is {fraction}; it must be above 0 and at most 1")
    return exact(fraction)


def vllm_budget(
    memory: Memory, *, utilization: float = VLLM_UTILIZATION, estimate_capture: bool = True
) -> Budget:
    """A share of all memory, less all that was measured, less what graphs are expected to take.

    Raises StartError when the share is not free to begin with, or leaves nothing for KV."""
    share = check_fraction("gpu_memory_utilization", utilization)
    asked = math.ceil(memory.total_bytes * share)
    if memory.free_bytes < asked:
        fits = math.floor(Fraction(memory.free_bytes, memory.total_bytes) * 100) / 100
        raise StartError(
            f"gpu_memory_utilization {utilization:g} asks for {gigabytes(asked)} of"
            f" {gigabytes(memory.total_bytes)}, but {gigabytes(memory.free_bytes)} are free; free"
            f" memory, or lower it to {fits:g}"
        )
    capture = memory.capture_bytes if estimate_capture else 0
    terms = (
        Term("share", asked, f"{utilization:g} of {gigabytes(memory.total_bytes)}, rounded up"),
        Term("weights", -memory.weights_bytes, "loaded"),
        Term("activations", -memory.activation_bytes, memory.activation_how),
        Term("other", -memory.other_bytes, "grew outside the allocator"),
        Term("graphs", -capture, "expected" if estimate_capture else "the estimate is off"),
    )
    taken = -sum(term.num_bytes for term in terms[1:])
    advice = "raise it" if taken < memory.total_bytes else _NO_ROOM
    return _positive(terms, f"gpu_memory_utilization {utilization:g}", advice)


def sglang_budget(memory: Memory, fraction: float, *, after_capture: bool = False) -> Budget:
    """What is free once the weights are there, less the share of what was free before that the
    fraction leaves to everything else. With `after_capture` the graphs are there already, and what
    they took is no longer part of that share.

    Raises StartError when nothing is left, with the smallest fraction that leaves something."""
    share = check_fraction("mem_fraction_static", fraction)
    kept = math.ceil(memory.free_bytes * (1 - share))
    terms = [
        Term("free", memory.free_bytes, "before loading"),
        Term("weights", -memory.weights_bytes, "loaded"),
    ]
    if after_capture:
        taken = memory.capture_bytes + memory.activation_bytes + memory.other_bytes
        terms.append(Term("graphs", -taken, "captured, with the memory they work in"))
    why = f"{_plain(1 - share)} of {gigabytes(memory.free_bytes)}: not static"
    terms.append(Term("reserve", -kept, why))
    return _positive(tuple(terms), f"mem_fraction_static {fraction:g}", _least_fraction(terms))


def _least_fraction(terms: Sequence[Term]) -> str:
    """What to set instead, given what was free and what was taken of it."""
    free, taken = terms[0].num_bytes, -sum(term.num_bytes for term in terms[1:-1])
    if taken >= free:
        return _NO_ROOM
    suggested = math.ceil(Fraction(taken + 1, free) * 1000) / 1000
    return f"it must be above {taken / free:.4f}, say {suggested:g}"


def trtllm_peak(torch_peak: int, total_used: int, torch_current: int) -> int:
    """The most the trial run took: PyTorch's own peak, and what others hold on the device."""
    return torch_peak + max(total_used - torch_current, 0)


def trtllm_budget(
    memory: Memory,
    *,
    fraction: float = TRTLLM_FRACTION,
    temporary_pool_bytes: int = 0,
    most_bytes: Sequence[int] = (),
) -> Budget:
    """A share of what the trial run's peak leaves; the pool that the trial itself had is given back
    first. `most_bytes` are bounds on the result: max_tokens' bytes, max_gpu_total_bytes."""
    share = check_fraction("free_gpu_memory_fraction", fraction)
    peak = (
        memory.weights_bytes
        + memory.activation_bytes
        + memory.other_bytes
        + memory.capture_bytes
        + temporary_pool_bytes
    )
    left = max(memory.total_bytes - peak + temporary_pool_bytes, 0)
    given = math.floor(left * share)
    terms = [
        Term("total", memory.total_bytes, "of the device"),
        Term("peak", -peak, "the most the trial run took, weights and all"),
        Term("trial's pool", temporary_pool_bytes, "given back"),
        Term("kept free", given - left, f"{_plain(1 - share)} of {gigabytes(left)}"),
    ]
    bounds = [bound for bound in most_bytes if bound > 0]
    if bounds and min(bounds) < given:
        terms.append(Term("bound", min(bounds) - given, "max_tokens or max_gpu_total_bytes"))
    return _positive(tuple(terms), f"free_gpu_memory_fraction {fraction:g}", _NO_ROOM)


def _positive(terms: tuple[Term, ...], setting: str, advice: str) -> Budget:
    total = sum(term.num_bytes for term in terms)
    if total <= 0:
        parts = ", ".join(f"{t.name} {gigabytes(t.num_bytes)}" for t in terms if t.num_bytes)
        raise StartError(f"{setting} leaves no memory for KV ({parts}); {advice}")
    return Budget(total, tuple(term for term in terms if term.num_bytes))


def _plain(share: Fraction) -> str:
    return f"{float(share):.3f}".rstrip("0").rstrip(".")
