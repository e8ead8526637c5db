"""What a step takes on a device that is not here, by the model's widths: an estimate.

On this machine a trial measures it. What is live at once is counted for one layer and for the head:
buffers of kernels, of collectives and of graphs are not.
"""

from __future__ import annotations

import msgspec


class StepWidths(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a token that a step works with."""

    hidden: int
    ffn: int
    """Of the feed-forward block, or of all experts that a token passes through."""
    vocab: int


class StepEstimate(msgspec.Struct, frozen=True, kw_only=True):
    num_bytes: int
    how: str


def estimate(widths: StepWidths, *, tokens: int, rows: int, devices: int = 1) -> StepEstimate:
    """Of the largest step: what flows from layer to layer, before and after a norm; a feed-forward
    block with its gate, which devices share; logits in f32 and what sampling makes of them."""
    ffn = -(-widths.ffn // devices)
    num_bytes = 2 * tokens * (2 * widths.hidden + 3 * ffn) + 2 * 4 * rows * widths.vocab
    shared = f"{widths.ffn:,}" + (f" / {devices}" if devices > 1 else "")
    how = (
        f"estimated: {tokens:,} tokens × (2 × {widths.hidden:,} + 3 × {shared}) numbers of 2 bytes,"
        f" and {rows:,} rows × {widths.vocab:,} logits twice in 4"
    )
    return StepEstimate(num_bytes=num_bytes, how=how)
