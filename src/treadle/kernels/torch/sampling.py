"""Sampling on logits, row by row: no row's result depends on another's.

Probabilities are float32, running sums float64, added in order.
"""

from __future__ import annotations

import numpy as np
import torch

from treadle.kernels.ops import (
    NO_TOKEN,
    FloatArray,
    IntArray,
    LogitEdits,
    MaskArray,
    SampleRows,
    TopLogprobs,
)


class TorchSampling:
    """Keeps nothing between calls."""

    def edit(self, logits: FloatArray, edits: LogitEdits) -> None:
        where = edits.rows, edits.tokens
        x = logits[where] + edits.add
        x = np.where(x > 0, x / edits.repetition, x * edits.repetition)
        logits[where] = x - edits.subtract

    def mask(self, logits: FloatArray, rows: IntArray, allowed: MaskArray) -> None:
        bits = np.unpackbits(allowed.view(np.uint8), axis=1, bitorder="little")
        keep = bits[:, : logits.shape[1]].astype(np.bool_)
        logits[rows] = np.where(keep, logits[rows], -np.inf)

    def top_logprobs(self, logits: FloatArray, rows: IntArray, num_top: int) -> TopLogprobs:
        chosen = torch.from_numpy(logits)[torch.from_numpy(rows)]
        ordered, tokens = chosen.sort(dim=1, descending=True, stable=True)
        return TopLogprobs(
            chosen.logsumexp(dim=1).numpy(),
            tokens[:, :num_top].int().numpy(),
            ordered[:, :num_top].numpy().copy(),
        )

    def memory_bytes(self, vocab_size: int) -> int:
        """Nothing is kept between calls."""
        del vocab_size
        return 0

    def sample(self, logits: FloatArray, rows: SampleRows) -> IntArray:
        count = len(rows.temperature)
        return np.array([_sample_row(logits, rows, row) for row in range(count)], np.int32)


def _sample_row(logits: FloatArray, rows: SampleRows, row: int) -> int:
    x = torch.from_numpy(logits[row])
    x = torch.where(x.isnan(), -torch.inf, x)
    if float(x.max()) == -torch.inf:
        return NO_TOKEN
    temperature = float(rows.temperature[row])
    if temperature == 0:
        return int(x.argmax())  # the first of equals
    p = torch.softmax(x / temperature, dim=0)
    top_k, top_p = int(rows.top_k[row]), float(rows.top_p[row])
    min_p, uniform = float(rows.min_p[row]), float(rows.uniform[row])
    if not 0 < top_k < len(p) and top_p >= 1 and min_p == 0:
        return _pick(p, uniform)  # nothing binds
    p, tokens = p.sort(descending=True, stable=True)
    p = p[: max(1, int((p >= min_p * p[0]).sum()))]
    if top_k > 0:
        p = p[:top_k]
    p = p[: _reach(p, top_p)]
    return int(tokens[_pick(p, uniform)])


def _reach(p: torch.Tensor, top_p: float) -> int:
    """Length of the smallest prefix whose share of the sum is at least top_p."""
    running = p.double().cumsum(dim=0)
    return int((running < top_p * running[-1]).sum()) + 1


def _pick(p: torch.Tensor, uniform: float) -> int:
    """The first index at which the running sum exceeds uniform * total."""
    running = p.double().cumsum(dim=0)
    total = running[-1]
    # A uniform just below 1 may round to the total itself, which nothing exceeds.
    target = min(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return int((running > target).int().argmax())
