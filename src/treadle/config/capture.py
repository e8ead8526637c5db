"""The sizes of step that engines capture graphs for: tokens or requests, ascending.

Lists alone; which step replays which of them is `replay`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

VLLM_MOST_TOKENS = 512
TRTLLM_MOST_REQUESTS = 128

_DOUBLES_FROM = 256
"""TensorRT-LLM goes on in powers of two from here."""


def vllm_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    draft_tokens: int = 0,
    asked: Iterable[int] | None = None,
    sequence_parallel: int = 1,
) -> tuple[int, ...]:
    """Token counts. Decode rows with drafts have 1 + draft_tokens each, and only multiples of that
    can be captured whole, so sizes are rounded up to them."""
    row = 1 + draft_tokens
    budget = max_num_batched_tokens
    if asked is not None:
        sizes = {size for size in asked if 1 <= size <= budget}
    else:
        most = min(2 * max_num_seqs * row, VLLM_MOST_TOKENS, budget)
        sizes = _up_to(most, [1, 2, 4], range(8, 256, 8), range(256, most + 1, 16))
        sizes |= {budget} if budget <= most else set()
    sizes = {size for size in (-(-size // row) * row for size in sizes) if size <= budget}
    return tuple(sorted(size for size in sizes if size % sequence_parallel == 0))


def sglang_decode_sizes(
    largest: int,
    *,
    speculative: bool = False,
    padding: bool = True,
    request_slots: int | None = None,
    multiple_of: int = 1,
) -> tuple[int, ...]:
    """Requests. Parallel attention needs batches that divide among its ranks."""
    most = largest if request_slots is None else min(largest, request_slots)
    if not padding:
        sizes = set(range(1, most + 1))
    elif speculative:
        sizes = _up_to(
            most,
            range(1, 9),
            range(10, 33, 2),
            range(40, 65, 4),
            range(72, 257, 8),
            range(272, most + 1, 16),
        )
    else:
        sizes = _up_to(
            most,
            [1, 2, 4, 8, 12],
            range(16, 257, 8),
            range(272, 497, 16),
            range(512, most + 1, 32),
        )
    if most >= 1:
        sizes.add(most)
    return tuple(sorted(size for size in sizes if size % multiple_of == 0))


def sglang_prefill_sizes(largest: int) -> tuple[int, ...]:
    """Token counts of prefill, whose graphs break off around attention."""
    sizes = _up_to(
        largest,
        range(4, 33, 4),
        range(48, 257, 16),
        range(288, 513, 32),
        range(576, 1025, 64),
        range(1280, 4097, 256),
        range(4608, largest + 1, 512),
    )
    return tuple(sorted(sizes))


def trtllm_sizes(largest: int = TRTLLM_MOST_REQUESTS, *, padding: bool = False) -> tuple[int, ...]:
    """Requests, and the largest whatever it is."""
    few: list[Sequence[int]] = (
        [[1, 2, 4], range(8, 129, 8)] if padding else [range(1, 32), [32, 64, 128]]
    )
    doubles = []
    size = _DOUBLES_FROM
    while size < largest:
        doubles.append(size)
        size *= 2
    return tuple(sorted(_up_to(largest, *few, doubles) | {largest}))


def _up_to(most: int, *parts: Iterable[int]) -> set[int]:
    return {size for part in parts for size in part if size <= most}
