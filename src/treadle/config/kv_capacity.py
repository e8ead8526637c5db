"""What engines divide a KV budget into: blocks, pages, tokens and rows of requests.

Every division rounds down where the engine's does, so a result here is the number it would print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.errors import StartError

NULL_BLOCKS = 1
"""vLLM takes the first block out of its pool; padding points at it."""

_SLOTS_PER_CONTEXT = 512
_FEWEST_SLOTS = 2048
_MOST_SLOTS = 4096


class Blocks(NamedTuple):
    blocks: int
    usable: int
    """Without the null block."""


def agreed(per_worker: Sequence[int]) -> int:
    """What all workers can hold: they keep the same blocks, so the poorest decides."""
    return min(per_worker)


def vllm_blocks(kv_bytes: int, page_bytes: int, layers: int, override: int | None = None) -> Blocks:
    """Two divisions, as vLLM does them: by the bytes of a block in one layer, then by layers."""
    blocks = kv_bytes // page_bytes // layers if override is None else override
    return Blocks(blocks, max(blocks - NULL_BLOCKS, 0))


def vllm_group_layers(layers_of_kind: Sequence[int]) -> int:
    """Layers in each of the groups into which vLLM cuts a model with several kinds of layers: the
    rarest kind's, so that one number of blocks serves all groups; kinds of about the same number
    stay whole."""
    fewest, most = min(layers_of_kind), max(layers_of_kind)
    return most if most < 1.25 * fewest else fewest


def sglang_tokens(
    kv_bytes: int, bytes_per_token: int, page_size: int = 1, most_tokens: int | None = None
) -> int:
    """Whole pages; a bound above what there is room for changes nothing."""
    tokens = kv_bytes // bytes_per_token
    if most_tokens is not None:
        tokens = min(tokens, most_tokens)
    return tokens // page_size * page_size


def sglang_request_slots(
    tokens: int, context: int, asked: int | None = None, data_parallel: int = 1
) -> int:
    """Most requests at once. Raises StartError when not even one fits."""
    if asked is None:
        slots = max(_FEWEST_SLOTS, min(tokens * _SLOTS_PER_CONTEXT // context, _MOST_SLOTS))
    else:
        slots = asked // data_parallel
    slots = min(slots, tokens // 2)
    if slots < 1:
        raise StartError(f"max_running_requests comes to {slots} with a pool of {tokens} tokens")
    return slots


def trtllm_tokens(kv_bytes: int, bytes_per_token: int) -> int:
    return kv_bytes // bytes_per_token


def trtllm_blocks(max_tokens: int, tokens_per_block: int = 32) -> int:
    return max_tokens // tokens_per_block
