"""The runner: carries out step plans on one device, in order, without knowing who asks.

Two calls per step, so that what sampling needs (a grammar's mask, say) may be computed while the
forward pass runs: `forward` applies the plan's changes and computes logits, `sample` chooses
tokens. Rows that want nothing but the likeliest token get it from the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernels.ops import Backend, FloatArray, KVPool, Program, StepInputs
from treadle.runner.rows import LogitRows, RowTables, split
from treadle.sampling.masks import RowMasks
from treadle.sampling.sampler import Sampler
from treadle.wire.plan import RowWork, StepPlan, StepResult


class Runner:
    """Plans must arrive in step order; every row a plan names was joined and has not left."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        inputs: StepInputs,
        pools: Sequence[KVPool],
        sampler: Sampler,
    ) -> None:
        self._backend = backend
        self._program = program
        self._tables = RowTables(inputs, [pool.spec for pool in pools])
        self._pools = pools
        self._sampler = sampler
        self._rows = LogitRows([], [], [])
        self._logits: FloatArray | None = None

    def forward(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._sampler.leave(row)
        for join in plan.joins:
            self._sampler.join(join)
        for copy in plan.copies:
            self._pools[copy.group].copy(copy.source, copy.target)
        for work in plan.work:
            self._tables.edit(work)
        rows = self._rows = split(plan.work, self._sampler.plain)
        num_tokens = self._tables.fill(plan.work, rows)
        self._logits = self._program.run(
            num_tokens, len(plan.work), rows.num_logits, len(rows.likeliest)
        )

    def sample(self, plan: StepPlan, masks: RowMasks | None = None) -> StepResult:
        logits, rows = self._logits, self._rows
        assert logits is not None, "sample follows forward"
        result = StepResult(step=plan.step, tokens=[], logprobs=[])
        if rows.scoring:
            result.scores = self._sampler.score(logits[: rows.num_scores], rows.scoring)
        result.tokens = self._program.likeliest[: len(rows.likeliest)].tolist()
        result.logprobs = [None] * len(result.tokens)
        if rows.sampling:
            tokens, logprobs = self._sampler.sample(logits[rows.num_scores :], rows.sampling, masks)
            result.tokens += tokens
            result.logprobs += logprobs
        works = rows.likeliest + rows.sampling
        self._tables.sampled([work.row for work in works], result.tokens)
        if rows.likeliest and rows.sampling:
            _restore(plan.work, works, result)
        return result

    def close(self) -> None:
        """Give the device back."""
        self._backend.close()


def _restore(plan: Sequence[RowWork], works: Sequence[RowWork], result: StepResult) -> None:
    """Put tokens, which are those of `works`, in the order of the plan."""
    place = {work.row: at for at, work in enumerate(works)}
    order = [place[work.row] for work in plan if work.sample]
    result.tokens = [result.tokens[at] for at in order]
    result.logprobs = [result.logprobs[at] for at in order]
