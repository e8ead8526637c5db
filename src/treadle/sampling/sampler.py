"""The sampler: per-row parameters in arrays, and the pipeline from logits to tokens.

    log-probabilities of the model ─┐
    logits ─▶ edits (bias, minimum length, penalties) ─▶ temperature, min-p, top-k, top-p ─▶ token

Log-probabilities are the model's own: before edits and temperature (vLLM's raw_logprobs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from treadle.kernels.ops import FloatArray, IntArray, SampleRows, SamplingOps
from treadle.sampling.edits import LogitBias, MinTokens, Penalties, RowState, collect
from treadle.sampling.random import PURPOSE_TOKEN, uniforms
from treadle.wire.messages import TokenLogprob
from treadle.wire.plan import RowJoin, RowWork


class Sampler:
    """Holds the sampling state of every row, by row number. A row's draw depends on its own request
    and logits only."""

    def __init__(self, ops: SamplingOps, num_rows: int, eos: Iterable[int]) -> None:
        self._ops = ops
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int32)
        self._top_p = np.zeros(num_rows, np.float32)
        self._min_p = np.zeros(num_rows, np.float32)
        self._seeds = np.zeros(num_rows, np.uint64)
        self._choices = np.zeros(num_rows, np.uint64)
        self._num_logprobs: dict[int, int] = {}
        self._states: list[RowState] = [LogitBias(), MinTokens(eos), Penalties()]

    def join(self, join: RowJoin) -> None:
        row, params = join.row, join.params
        self._temperature[row] = 0.0 if params.greedy else params.temperature
        self._top_k[row] = max(params.top_k, 0)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = join.seed
        self._choices[row] = join.choice
        if params.logprobs is not None:
            self._num_logprobs[row] = params.logprobs
        for state in self._states:
            state.join(join)

    def leave(self, row: int) -> None:
        self._num_logprobs.pop(row, None)
        for state in self._states:
            state.leave(row)

    def sample(
        self, logits: FloatArray, works: Sequence[RowWork]
    ) -> tuple[list[int], list[TokenLogprob | None]]:
        """One token per row of `logits` [len(works), vocab], which it may overwrite."""
        rows = np.array([work.row for work in works], np.int32)
        wanted = [at for at, work in enumerate(works) if work.row in self._num_logprobs]
        edits = collect(self._states, [(work.row, work.output_index) for work in works])
        # Edits overwrite logits; rows that report log-probabilities keep the model's own.
        raw = logits[wanted] if wanted else None
        if edits is not None:
            self._ops.edit(logits, edits)
        tokens = self._ops.sample(logits, self._rows(rows, works))
        chosen: list[int] = tokens.tolist()
        if self._states:
            for work, token in zip(works, chosen, strict=True):
                for state in self._states:
                    state.sampled(work.row, token)
        logprobs: list[TokenLogprob | None] = [None] * len(works)
        if raw is not None:
            num_top = [self._num_logprobs[works[at].row] for at in wanted]
            for at, entry in zip(wanted, self._logprobs(raw, tokens[wanted], num_top), strict=True):
                logprobs[at] = entry
        return chosen, logprobs

    def _rows(self, rows: IntArray, works: Sequence[RowWork]) -> SampleRows:
        indexes = np.array([work.output_index for work in works], np.uint64)
        return SampleRows(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            uniform=uniforms(
                self._seeds[rows], self._choices[rows], indexes, purpose=PURPOSE_TOKEN
            ),
        )

    def _logprobs(
        self, raw: FloatArray, tokens: IntArray, num_top: Sequence[int]
    ) -> list[TokenLogprob]:
        """`raw` [n, vocab] are unmodified logits, `tokens` [n] the chosen ids."""
        rows = np.arange(len(raw), dtype=np.int32)
        top = self._ops.top_logprobs(raw, rows, max(num_top))
        entries = []
        for at, (token, count) in enumerate(zip(tokens.tolist(), num_top, strict=True)):
            own = raw[at, token]
            best = (top.logits[at, :count] - top.log_sum_exp[at]).tolist()
            entries.append(
                TokenLogprob(
                    token=token,
                    logprob=float(own - top.log_sum_exp[at]),
                    rank=int(np.count_nonzero(raw[at] > own)) + 1,
                    top=list(zip(top.tokens[at, :count].tolist(), best, strict=True)),
                )
            )
        return entries
