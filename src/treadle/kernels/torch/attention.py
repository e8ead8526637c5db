"""Rotary embedding, the paged KV pool, and attention over it.

K and V are read only as stored: rounded to the pool's type, also those of the running step.
"""

from __future__ import annotations

import dataclasses

import torch

from treadle.kernels.ops import ATTENTION_PIECE, KVSpec, KVType, RopeTable

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


def context_slots(table: torch.Tensor, block_size: int, length: int) -> torch.Tensor:
    """Slots of a row's positions 0 to length - 1."""
    positions = torch.arange(length)
    return table[positions // block_size] * block_size + positions % block_size


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one row's new tokens: q [T, heads, d] at `positions`, over k and v
    [context, kv_heads, d], piece by piece; [T, heads * d]."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    q = q.reshape(tokens, kv_heads, heads // kv_heads, head_dim)
    largest = torch.full((tokens, kv_heads, heads // kv_heads), -torch.inf)
    total = torch.zeros_like(largest)
    out = torch.zeros_like(q)
    for start in range(0, len(k), ATTENTION_PIECE):
        piece = slice(start, min(start + ATTENTION_PIECE, len(k)))
        scores = torch.einsum("tghd,cgd->tghc", q, k[piece].float()) * scale
        future = torch.arange(piece.start, piece.stop) > positions[:, None]
        scores.masked_fill_(future[:, None, None, :], -torch.inf)
        # Finite from the first piece on: position 0 is in every token's past.
        new_largest = torch.maximum(largest, scores.amax(dim=-1))
        weights = torch.exp(scores - new_largest[..., None])
        rescale = torch.exp(largest - new_largest)
        total = total * rescale + weights.sum(dim=-1)
        out = out * rescale[..., None] + torch.einsum("tghc,cgd->tghd", weights, v[piece].float())
        largest = new_largest
    return (out / total[..., None]).reshape(tokens, heads * head_dim)
