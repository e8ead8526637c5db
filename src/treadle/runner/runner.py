"""The runner: carries out step plans on one device, in order, without knowing who asks.

Two calls per step, so that what sampling needs (a grammar's mask, say) may be computed while the
forward pass runs: `forward` applies the plan's changes and computes logits, `sample` chooses
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernels.ops import Backend, FloatArray, Program, StepInputs
from treadle.runner.rows import RowTables
from treadle.sampling.sampler import Sampler
from treadle.wire.messages import TokenLogprob
from treadle.wire.plan import RowWork, StepPlan, StepResult


class Runner:
    """Plans must arrive in step order; every row a plan names was joined and has not left."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        inputs: StepInputs,
        block_sizes: Sequence[int],
        sampler: Sampler,
    ) -> None:
        self._backend = backend
        self._program = program
        self._tables = RowTables(inputs, block_sizes)
        self._sampler = sampler
        self._logits: FloatArray | None = None

    def forward(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._sampler.leave(row)
        for join in plan.joins:
            self._sampler.join(join)
        for work in plan.work:
            self._tables.edit(work)
        num_tokens, num_logits = self._tables.fill(plan.work)
        self._logits = self._program.run(num_tokens, len(plan.work), num_logits)

    def sample(self, plan: StepPlan) -> StepResult:
        works = [work for work in plan.work if work.sample]
        scoring = [work for work in plan.work if work.targets]
        if not works and not scoring:
            return StepResult(step=plan.step, tokens=[], logprobs=[])
        logits = self._logits
        assert logits is not None, "sample follows forward"
        scores: list[list[TokenLogprob]] = []
        if scoring:
            scored, sampled = _split(plan.work)
            scores = self._sampler.score(logits, scored, scoring)
            logits = logits[sampled]
        if not works:
            return StepResult(step=plan.step, tokens=[], logprobs=[], scores=scores)
        tokens, logprobs = self._sampler.sample(logits, works)
        self._tables.sampled([work.row for work in works], tokens)
        return StepResult(step=plan.step, tokens=tokens, logprobs=logprobs, scores=scores)

    def close(self) -> None:
        """Give the device back."""
        self._backend.close()


def _split(works: Sequence[RowWork]) -> tuple[list[int], list[int]]:
    """Rows of logits that score, and those that are sampled from, in the order of `works`."""
    scored: list[int] = []
    sampled: list[int] = []
    at = 0
    for work in works:
        scored += range(at, at + len(work.targets))
        sampled += [at + len(work.targets)] * work.sample
        at += work.num_logits
    return scored, sampled
