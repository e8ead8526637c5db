"""StepPlan and StepResult: what the engine asks of the runner for one step, and what comes back.

A plan is a delta against the runner's row tables: rows that join and leave, blocks added to a row,
blocks to copy, tokens to compute. Nothing in it grows with context length except when a row joins.
"""

from __future__ import annotations

import msgspec

from treadle.wire.messages import TokenLogprob
from treadle.wire.sampling_params import SamplingParams


class BlockEdit(msgspec.Struct, frozen=True, array_like=True):
    """Write `blocks` into a row's block table, from block index `index` on."""

    group: int
    index: int
    blocks: list[int]


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Block `target` is to begin with what block `source` holds, in every layer of a group."""

    group: int
    source: int
    target: int


class RowJoin(msgspec.Struct, frozen=True, kw_only=True):
    """A request takes row `row`; the row holds nothing of its former owner."""

    row: int
    params: SamplingParams
    seed: int
    choice: int
    prompt: list[int] | None = None
    """Prompt ids, only for rows whose penalties depend on them."""
    output: list[int] | None = None
    """Output ids before a preemption, likewise."""
    constrained: bool = False
    """Whether a grammar masks the row: it is never sampled from without its mask."""
    bad_words: list[list[int]] = []
    """Token sequences that must not come about; `output` is there when some have several tokens."""


class RowWork(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one row to compute in this step."""

    row: int
    start: int
    """Position of the first token; everything before it has KV."""
    tokens: list[int] | None
    """Ids to compute, or None: one token, the one this row sampled last (the token table)."""
    edits: list[BlockEdit]
    sample: bool
    """Whether the last token's logits are wanted; exactly then one token is sampled."""
    output_index: int
    """Index of the sampled token in the answer; part of the random key."""
    score_at: int = 0
    """Position of the first token whose logits score a prompt token, the next one's."""
    targets: list[int] = []
    """The prompt tokens scored: those at score_at + 1 and on, one after another."""

    @property
    def num_logits(self) -> int:
        """Rows of logits: those that score, then the one that is sampled from."""
        return len(self.targets) + self.sample

    @property
    def num_tokens(self) -> int:
        return 1 if self.tokens is None else len(self.tokens)


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One step. Applied in the order leaves, joins, copies, work; row order is the order of `work`.

    Copies run one after another, and before any work: a block may be read by one of them and be
    handed out anew in the same plan.
    """

    step: int
    leaves: list[int]
    joins: list[RowJoin]
    work: list[RowWork]
    copies: list[BlockCopy] = []


class StepResult(msgspec.Struct, kw_only=True):
    """What one step produced: one entry per RowWork with `sample`, in plan order."""

    step: int
    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    scores: list[list[TokenLogprob]] = []
    """One entry per RowWork with `targets`, in plan order."""
