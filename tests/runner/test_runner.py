"""Plans through the runner, over a program whose logits are known: who gets which token."""

from __future__ import annotations

import numpy as np
import torch

from treadle.kernels.ops import FloatArray, IntArray, KVSpec, StepInputs, StepLimits
from treadle.kernels.torch.backend import TorchBackend
from treadle.runner.runner import Runner
from treadle.sampling.sampler import Sampler
from treadle.wire.plan import BlockCopy, RowJoin, RowWork, StepPlan
from treadle.wire.sampling_params import SamplingParams

VOCAB, ROWS = 50, 8
TABLE = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
"""Logits by the token they follow."""

GREEDY = SamplingParams(temperature=0)


class TableProgram:
    """Logits of a token are its row of the table; those nobody wants are NaN."""

    def __init__(self, inputs: StepInputs) -> None:
        self.likeliest: IntArray = np.full(inputs.limits.logits, VOCAB, np.int32)
        self.runs: list[tuple[int, ...]] = []
        self._inputs = inputs

    def run(
        self, num_tokens: int, num_rows: int, num_logits: int, num_likeliest: int = 0
    ) -> FloatArray:
        self.runs.append((num_tokens, num_rows, num_logits, num_likeliest))
        tokens = self._inputs.token_ids[self._inputs.logit_tokens[: num_logits + num_likeliest]]
        self.likeliest[:num_likeliest] = TABLE[tokens[num_logits:]].argmax(axis=1)
        return TABLE[tokens[:num_logits]]


class Desk:
    """A runner over the table, and what it was asked to run."""

    def __init__(self) -> None:
        inputs = StepInputs(StepLimits(64, ROWS, (4,), extra_logits=8))
        backend = TorchBackend(threads=1)
        self.program = TableProgram(inputs)
        self.pool = backend.kv_pool(KVSpec(2, 1, 8, 16, "f32"), 4)
        self.sampler = Sampler(backend.sampling, ROWS, VOCAB, eos=[0])
        self._runner = Runner(backend, self.program, inputs, [self.pool], self.sampler)
        self._step = 0

    def step(
        self,
        works: list[RowWork],
        joins: dict[int, SamplingParams] | None = None,
        leaves: list[int] | None = None,
        copies: list[BlockCopy] | None = None,
    ) -> list[int]:
        """The sampled tokens, in the plan's order."""
        self._step += 1
        new = [RowJoin(row=r, params=p, seed=r, choice=0) for r, p in (joins or {}).items()]
        plan = StepPlan(
            step=self._step, leaves=leaves or [], joins=new, copies=copies or [], work=works
        )
        self._runner.forward(plan)
        self.result = self._runner.sample(plan)
        assert len(self.result.tokens) == len(self.result.logprobs)
        return self.result.tokens


def work(row: int, tokens: list[int] | None, start: int = 0, **given: object) -> RowWork:
    return RowWork(
        **{  # type: ignore[arg-type]
            "row": row,
            "start": start,
            "tokens": tokens,
            "edits": [],
            "sample": True,
            "output_index": 0,
            **given,
        }
    )


def likeliest(token: int) -> int:
    return int(TABLE[token].argmax())


def test_tokens_come_in_the_order_of_the_plan() -> None:
    desk = Desk()
    best_of_5 = likeliest(5)
    joins = {
        2: GREEDY,
        0: SamplingParams(temperature=0, logprobs=1),
        1: SamplingParams(temperature=0, logit_bias={best_of_5: -100.0}),
        3: SamplingParams(temperature=0, prompt_logprobs=0),
        4: SamplingParams(temperature=1.0, allowed_token_ids=[17]),
    }
    works = [
        work(2, [3, 4]),
        work(0, [5]),
        work(3, [6, 7, 8], targets=[7, 8]),
        work(4, [9]),
        work(1, [5]),
    ]
    tokens = desk.step(works, joins)
    assert desk.program.runs == [(8, 5, 2 + 3, 2)]
    without = TABLE[5].copy()
    without[best_of_5] -= 100
    assert tokens == [likeliest(4), best_of_5, likeliest(8), 17, int(without.argmax())]
    assert [entry is not None for entry in desk.result.logprobs] == [False, True, *[False] * 3]
    assert [[entry.token for entry in each] for each in desk.result.scores] == [[7, 8]]
    # Each row goes on from its own token.
    again = desk.step([work(row, None, start=5) for row in (2, 0, 3)])
    assert desk.program.runs[-1] == (3, 3, 1, 2)
    assert again == [likeliest(token) for token in tokens[:3]]


def test_a_plain_row_takes_what_the_program_found() -> None:
    desk = Desk()
    desk.step([work(0, [1]), work(1, [2])], {0: GREEDY, 1: GREEDY})
    assert desk.program.runs == [(2, 2, 0, 2)]
    desk.program.likeliest[:] = -1
    assert desk.step([work(1, None, start=1)]) == [likeliest(likeliest(2))]


def test_which_rows_are_plain() -> None:
    """Recomputed when a row changes hands."""
    desk = Desk()
    asking = [
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(temperature=0, logit_bias={1: 0.5}),
        SamplingParams(temperature=0, allowed_token_ids=[4, 5]),
        SamplingParams(temperature=0, min_tokens=2),
        SamplingParams(temperature=0, frequency_penalty=0.5),
    ]
    for params in asking:
        join = RowJoin(row=3, params=params, seed=0, choice=0, prompt=[1], output=[])
        desk.sampler.join(join)
        assert desk.sampler.plain == set(), params
        desk.sampler.leave(3)
        desk.sampler.join(RowJoin(row=3, params=GREEDY, seed=0, choice=0))
        assert desk.sampler.plain == {3}
        desk.sampler.leave(3)
    bad = RowJoin(row=3, params=GREEDY, seed=0, choice=0, bad_words=[[1]])
    desk.sampler.join(bad)
    assert desk.sampler.plain == set()
    # Ends that cannot come need no minimum, and a scored prompt is no matter of the answer.
    unending = SamplingParams(temperature=0, min_tokens=2, ignore_eos=True, top_k=3, top_p=0.5)
    desk.sampler.join(RowJoin(row=4, params=unending, seed=0, choice=0))
    scored = SamplingParams(temperature=0, prompt_logprobs=0)
    desk.sampler.join(RowJoin(row=5, params=scored, seed=0, choice=0))
    assert desk.sampler.plain == {4, 5}


def test_a_step_without_any_choice() -> None:
    desk = Desk()
    assert desk.step([work(0, [1, 2], sample=False)], {0: GREEDY}) == []
    assert desk.program.runs == [(2, 1, 0, 0)]


def test_copies_run_in_order_before_the_work() -> None:
    """A block may be copied, and be written over by the next copy."""
    desk = Desk()
    desk.pool.kv[:] = torch.arange(4)[:, None, None, None, None, None]
    copies = [BlockCopy(0, 1, 3), BlockCopy(0, 2, 1)]
    seen: list[list[float]] = []
    run = desk.program.run

    def watched(*sizes: int) -> FloatArray:
        seen.append(desk.pool.kv[:, 1, 1, 0, 0, 0].tolist())
        return run(*sizes)

    desk.program.run = watched  # type: ignore[method-assign]
    desk.step([work(0, [5])], {0: GREEDY}, copies=copies)
    assert seen == [[0, 2, 2, 1]]
