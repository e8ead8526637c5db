"""Rotary embedding, and attention over K and V as stored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from treadle.kernels.ops import ATTENTION_PIECE, Masking, RopeTable
from treadle.kernels.torch.rows import softcap


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
