"""Rotary embedding, the paged KV pool, and attention over it.

K and V are read only as stored: rounded to the pool's type, also those of the running step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from treadle.kernels.ops import ATTENTION_PIECE, KVSpec, KVType, Masking, RopeTable
from treadle.kernels.torch.rows import softcap

_DTYPES: dict[KVType, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclasses.dataclass(frozen=True)
class TorchKVPool:
    """Slot s of a layer is token s % block_size of block s // block_size."""

    spec: KVSpec
    num_blocks: int
    k: torch.Tensor  # [layers, slots, kv_heads, head_dim]
    v: torch.Tensor  # [layers, slots, kv_heads, head_dim]

    def copy(self, source: int, target: int) -> None:
        assert 0 <= source < self.num_blocks
        assert 0 <= target < self.num_blocks
        size = self.spec.block_size
        for memory in (self.k, self.v):
            blocks = memory.unflatten(1, (-1, size))
            blocks[:, target] = blocks[:, source]


def allocate_pool(spec: KVSpec, num_blocks: int) -> TorchKVPool:
    shape = (spec.layers, num_blocks * spec.block_size, spec.kv_heads, spec.head_dim)
    dtype = _DTYPES[spec.type]
    return TorchKVPool(
        spec, num_blocks, torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
    )


class Rope:
    """A RopeTable, ready to rotate heads [T, heads, head_dim] in place."""

    def __init__(self, table: RopeTable) -> None:
        self._cos = torch.tensor(table.cos)
        self._sin = torch.tensor(table.sin)
        self._interleaved = table.interleaved

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> None:
        cos = self._cos[positions][:, None, :]
        sin = self._sin[positions][:, None, :]
        half = cos.shape[-1]
        if self._interleaved:
            first, second = heads[..., 0 : 2 * half : 2], heads[..., 1 : 2 * half : 2]
        else:
            first, second = heads[..., :half], heads[..., half : 2 * half]
        rotated = first * cos - second * sin, second * cos + first * sin
        first[:], second[:] = rotated


def context_slots(table: torch.Tensor, block_size: int, first: int, end: int) -> torch.Tensor:
    """Slots of a row's positions first to end - 1."""
    positions = torch.arange(first, end)
    return table[positions // block_size] * block_size + positions % block_size


def first_visible(position: int, masking: Masking) -> int:
    """The first position of the context that the token at `position` sees."""
    return 0 if masking.window is None else max(0, position - masking.window + 1)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor, masking: Masking
) -> torch.Tensor:
    """Attention of one row's new tokens: q [T, heads, d] at `positions`, over k and v
    [context, kv_heads, d], which begin where the first of them begins to see; [T, heads * d]."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    q = q.reshape(tokens, kv_heads, heads // kv_heads, head_dim)
    largest = torch.full((tokens, kv_heads, heads // kv_heads), -torch.inf)
    total = torch.zeros_like(largest)
    out = torch.zeros_like(q)
    begin = first_visible(int(positions[0]), masking)
    for start, stop in _pieces(begin, begin + len(k)):
        keys, values = (x[start - begin : stop - begin].float() for x in (k, v))
        scores = torch.einsum("tghd,cgd->tghc", q, keys) * masking.scale
        if masking.softcap is not None:
            scores = softcap(scores, masking.softcap)
        hidden = _hidden(torch.arange(start, stop), positions, masking)
        scores.masked_fill_(hidden[:, None, None, :], -torch.inf)
        new_largest = torch.maximum(largest, scores.amax(dim=-1))
        # A token that has seen nothing yet has no maximum; its weights must be 0, not NaN.
        shift = torch.where(new_largest == -torch.inf, 0, new_largest)
        weights = torch.exp(scores - shift[..., None])
        rescale = torch.exp(largest - shift)
        total = total * rescale + weights.sum(dim=-1)
        out = out * rescale[..., None] + torch.einsum("tghc,cgd->tghd", weights, values)
        largest = new_largest
    return (out / total[..., None]).reshape(tokens, heads * head_dim)


def _pieces(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cuts at absolute multiples of ATTENTION_PIECE."""
    for start in range(first // ATTENTION_PIECE * ATTENTION_PIECE, end, ATTENTION_PIECE):
        yield max(start, first), min(start + ATTENTION_PIECE, end)


def _hidden(context: torch.Tensor, positions: torch.Tensor, masking: Masking) -> torch.Tensor:
    """Which positions of the context each token does not see; [T, context]."""
    hidden = context > positions[:, None]
    if masking.window is not None:
        hidden |= context <= positions[:, None] - masking.window
    return hidden
