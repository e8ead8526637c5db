"""The sampler: per-row parameters in arrays, and the pipeline from logits to tokens.

    log-probabilities of the model ─┐
    logits ─▶ masks (allowed tokens, grammars) ─▶ edits (bias, bad words, minimum length, penalties)
           ─▶ temperature, min-p, top-k, top-p ─▶ token

Log-probabilities are the model's own: before masks, edits and temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from treadle.kernels.ops import NO_TOKEN, FloatArray, IntArray, SampleRows, SamplingOps
from treadle.sampling.edits import BadWords, LogitBias, MinTokens, Penalties, RowState, collect
from treadle.sampling.masks import AllowedTokens, RowMasks
from treadle.sampling.random import PURPOSE_TOKEN, uniforms
from treadle.sampling.report import Wish, report, wish
from treadle.wire.messages import TokenLogprob
from treadle.wire.plan import RowJoin, RowWork


class Sampler:
    """Holds the sampling state of every row, by row number. A row's draw depends on its own request
    and logits only."""

    def __init__(
        self, ops: SamplingOps, num_rows: int, vocab_size: int, eos: Iterable[int]
    ) -> None:
        self._ops = ops
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int32)
        self._top_p = np.zeros(num_rows, np.float32)
        self._min_p = np.zeros(num_rows, np.float32)
        self._seeds = np.zeros(num_rows, np.uint64)
        self._choices = np.zeros(num_rows, np.uint64)
        self.plain: set[int] = set()
        """Rows whose token is the likeliest, and of which nothing else is asked."""
        self._wishes: dict[int, Wish] = {}
        self._prompt_wishes: dict[int, Wish] = {}
        self._masks = AllowedTokens(vocab_size)
        self._states: list[RowState] = [LogitBias(), BadWords(), MinTokens(eos), Penalties()]
        self._edited: dict[int, list[RowState]] = {}

    def join(self, join: RowJoin) -> None:
        row, params = join.row, join.params
        self._temperature[row] = 0.0 if params.greedy else params.temperature
        self._top_k[row] = max(params.top_k, 0)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = join.seed
        self._choices[row] = join.choice
        if wanted := wish(params.logprobs, params):
            self._wishes[row] = wanted
        if wanted := wish(params.prompt_logprobs, params):
            self._prompt_wishes[row] = wanted
        masked = self._masks.join(join)
        if states := [state for state in self._states if state.join(join)]:
            self._edited[row] = states
        masked |= join.constrained
        if params.greedy and not (masked or states or row in self._wishes):
            self.plain.add(row)

    def leave(self, row: int) -> None:
        self._wishes.pop(row, None)
        self._prompt_wishes.pop(row, None)
        self._masks.leave(row)
        for state in self._edited.pop(row, ()):
            state.leave(row)
        self.plain.discard(row)

    def score(self, logits: FloatArray, works: Sequence[RowWork]) -> list[list[TokenLogprob]]:
        """Log-probabilities of the prompt tokens that `works` target, one list each; `logits` are
        those for them, work after work."""
        targets = [target for work in works for target in work.targets]
        wishes = [self._prompt_wishes[work.row] for work in works for _ in work.targets]
        entries = iter(report(self._ops, logits, targets, wishes))
        return [[next(entries) for _ in work.targets] for work in works]

    def sample(
        self, logits: FloatArray, works: Sequence[RowWork], grammars: RowMasks | None = None
    ) -> tuple[list[int], list[TokenLogprob | None]]:
        """One token per row of `logits` [len(works), vocab], which it may overwrite; NO_TOKEN where
        none is left to choose. `grammars` are masks of rows of `works`."""
        rows = [work.row for work in works]
        wanted = [at for at, row in enumerate(rows) if row in self._wishes]
        collected = self._masks.collect(rows), grammars and grammars.placed(rows)
        masks = [mask for mask in collected if mask is not None]
        edits = None
        if self._edited:
            edits = collect(self._states, [(work.row, work.output_index) for work in works])
        raw = None
        if wanted:
            # Masks and edits overwrite logits; rows that report log-probabilities keep the model's.
            untouched = not masks and edits is None and len(wanted) == len(works)
            raw = logits if untouched else logits[wanted]
        for places, words in masks:
            self._ops.mask(logits, places, words)
        if edits is not None:
            self._ops.edit(logits, edits)
        chosen: list[int] = self._ops.sample(logits, self._rows(rows, works)).tolist()
        for row, token in zip(rows, chosen, strict=True):
            for state in self._edited.get(row, ()):
                if token != NO_TOKEN:
                    state.sampled(row, token)
        logprobs: list[TokenLogprob | None] = [None] * len(works)
        if raw is not None:
            wishes = [self._wishes[rows[at]] for at in wanted]
            tokens = [chosen[at] for at in wanted]
            entries = report(self._ops, raw, tokens, wishes)
            for at, entry in zip(wanted, entries, strict=True):
                logprobs[at] = entry
        return chosen, logprobs

    def _rows(self, numbers: Sequence[int], works: Sequence[RowWork]) -> SampleRows:
        rows: IntArray = np.array(numbers, np.int32)
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
