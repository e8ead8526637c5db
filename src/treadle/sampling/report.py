"""Log-probabilities to tell: of the token at a place, of the likeliest, and of ids asked for.

Under the model's own distribution, whatever was done to the logits before the choice (vLLM's
raw_logprobs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from treadle.kernels.ops import FloatArray, SamplingOps
from treadle.wire.messages import TokenLogprob
from treadle.wire.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True)
class Wish:
    """What one request wants to know at each place."""

    num_top: int
    asked: tuple[int, ...]


def wish(num_top: int | None, params: SamplingParams) -> Wish | None:
    """None when nothing is to be told; `num_top` is the parameter for these places."""
    if num_top is None:
        return None
    return Wish(num_top, tuple(params.logprob_token_ids or ()))


def report(
    ops: SamplingOps,
    logits: FloatArray,
    tokens: Sequence[int],
    wishes: Sequence[Wish],
) -> list[TokenLogprob]:
    """One entry for each row of the unmodified `logits` [L, vocab], L > 0: the log-probability of
    its token, by its wish."""
    most = max(one.num_top for one in wishes)
    top = ops.top_logprobs(logits, np.arange(len(logits), dtype=np.int32), most)
    entries = []
    for at, (row, token, one) in enumerate(zip(logits, tokens, wishes, strict=True)):
        own, total = row[token], top.log_sum_exp[at]
        best = (top.logits[at, : one.num_top] - total).tolist()
        asked = (row[list(one.asked)] - total).tolist() if one.asked else []
        entries.append(
            TokenLogprob(
                token=token,
                logprob=float(own - total),
                rank=int(np.count_nonzero(row > own)) + 1,
                top=list(zip(top.tokens[at, : one.num_top].tolist(), best, strict=True)),
                asked=list(zip(one.asked, asked, strict=True)),
            )
        )
    return entries
