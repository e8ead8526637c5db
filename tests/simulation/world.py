"""A world without a model: the real engine, scheduler and caches over a runner that keeps, in place
of K and V, a chained digest per slot. Reading a wrong block, or one overwritten too early, shows at
once, and every answer can be foretold.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from tests.simulation.grammar import Rules, SimCompiler
from treadle.cache.block_tree import PartialReuse
from treadle.cache.fence import Fence
from treadle.cache.kv import Keeping, KVCache, build_prefix_cache
from treadle.cache.prefix import NO_BLOCK, PrefixCache, Window
from treadle.engine.admission import Served
from treadle.engine.compiling import Compiling
from treadle.engine.limits import UNLIMITED
from treadle.engine.limits import Limits as ServerLimits
from treadle.engine.loop import Engine
from treadle.engine.priorities import Priorities
from treadle.engine.request import Request
from treadle.kernels.ops import NO_TOKEN
from treadle.sampling.masks import RowMasks
from treadle.schedule.build import build_scheduler
from treadle.schedule.order.build import OrderParams, build_order
from treadle.schedule.order.in_batch import InBatchCheck
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.policy import Policy
from treadle.schedule.publication.build import Sharing
from treadle.schedule.scheduler import Limits
from treadle.wire.constraint import Constraint
from treadle.wire.messages import (
    Delta,
    Done,
    Failed,
    FromEngine,
    Generate,
    TokenLogprob,
)
from treadle.wire.plan import RowWork, StepPlan, StepResult
from treadle.wire.sampling_params import SamplingParams

VOCAB = 50

COUNTING = Priorities("count")

WAITS = Sharing(wait_tokens=3)

ORDERING = OrderParams(check=InBatchCheck(2, 3), sort_limit=5)
"""Thresholds that prompts of a few tokens meet."""

EOS = 7
ROOT = 12345


def chain(state: int, token: int) -> int:
    return hash((state, token))


def choose(state: int, seed: int) -> int:
    return hash((state, seed, 99)) % VOCAB


def choose_among(state: int, seed: int, allowed: list[int]) -> int:
    return max(allowed, key=lambda token: hash((state, seed, token)))


def score(state: int, token: int) -> float:
    """Stands for the log-probability of a token behind what `state` digests."""
    return -float(hash((state, token, 5)) % 1000)


def foretell_scores(prompt: list[int], params: SamplingParams) -> list[tuple[int, float]]:
    """Each scored prompt token with its score."""
    if params.prompt_logprobs is None:
        return []
    state, scores = ROOT, []
    for index, token in enumerate(prompt):
        if index >= max(params.prompt_logprobs_start, 1):
            scores.append((token, score(state, token)))
        state = chain(state, token)
    return scores


def foretell(
    prompt: list[int],
    params: SamplingParams,
    seed: int,
    room: int,
    constraint: Constraint | None = None,
) -> list[int]:
    """The answer, computed without cache, batch or schedule."""
    if constraint is not None:
        return foretell_constrained(prompt, params, seed, room, Rules(constraint.text))
    state = ROOT
    for token in prompt:
        state = chain(state, token)
    answer: list[int] = []
    while len(answer) < (room if params.max_tokens is None else params.max_tokens):
        token = choose(state, seed)
        answer.append(token)
        state = chain(state, token)
        if token == EOS and not params.ignore_eos:
            break
    return answer


def foretell_constrained(
    prompt: list[int], params: SamplingParams, seed: int, room: int, rules: Rules
) -> list[int]:
    """Token by token: nothing is taken ahead."""
    state = ROOT
    for token in prompt:
        state = chain(state, token)
    answer: list[int] = []
    ahead: list[int] = []
    while len(answer) < (room if params.max_tokens is None else params.max_tokens):
        allowed = ahead[:1] or rules.allowed(answer)
        if not allowed:
            break
        token = choose_among(state, seed, allowed)
        state = chain(state, token)
        answer.append(token)
        if token == EOS and not ahead:
            break
        ahead = ahead[1:] if ahead else rules.forced(answer)
        if not ahead and rules.over(answer):
            break
    return answer


@dataclasses.dataclass(frozen=True)
class Group:
    """A KV group of the world."""

    num_blocks: int
    block_size: int
    window: int | None = None

    def first_seen(self, position: int) -> int:
        """The first position that a token at `position` attends to."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def build(self, index: str, budget: int) -> PrefixCache:
        window = None if self.window is None else Window(self.window, budget)
        kind, _, soft = index.partition(" soft ")
        num_soft = int(soft) // self.block_size if soft else None
        kind, _, without = kind.partition(" without ")
        kind, _, eviction = kind.partition(" by ")
        partial = PartialReuse(copies=without != "copies") if kind == "block-tree" else None
        return build_prefix_cache(
            kind,
            self.num_blocks,
            self.block_size,
            window,
            keeping=Keeping(eviction or "lru", partial, num_soft),
        )


class DigestRunner:
    """Carries out plans on digests; asserts that each position read holds what its row wrote."""

    def __init__(self, groups: list[Group], rows: int) -> None:
        self._groups = groups
        self._memory = [[[0] * g.block_size for _ in range(g.num_blocks)] for g in groups]
        self._tables: list[list[dict[int, int]]] = [[{} for _ in range(rows)] for _ in groups]
        self._sampled = [0] * rows
        self._seeds: dict[int, int] = {}
        self._constrained: set[int] = set()
        self._history: dict[int, dict[int, int]] = {}
        self.states: dict[int, list[int]] = {}

    def forward(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            del self._seeds[row], self._history[row]
            self._constrained.discard(row)
        for join in plan.joins:
            assert join.row not in self._seeds, "a row is taken twice"
            self._seeds[join.row] = join.seed
            if join.constrained:
                self._constrained.add(join.row)
            self._history[join.row] = {}
            for tables in self._tables:
                tables[join.row] = {}
        for copy in plan.copies:
            memory = self._memory[copy.group]
            memory[copy.target] = list(memory[copy.source])
        for work in plan.work:
            for edit in work.edits:
                table = self._tables[edit.group][work.row]
                table.update({edit.index + i: block for i, block in enumerate(edit.blocks)})
        self.states = {}
        for work in plan.work:
            tokens = [self._sampled[work.row]] if work.tokens is None else work.tokens
            self.states[work.row] = self._compute(work.row, work.start, tokens)

    def sample(self, plan: StepPlan, masks: RowMasks | None) -> StepResult:
        tokens = []
        words = {} if masks is None else dict(zip(masks.rows, masks.words, strict=True))
        assert words.keys() <= self._constrained
        for work in plan.work:
            if work.sample:
                state, seed = self.states[work.row][-1], self._seeds[work.row]
                if work.row in words:
                    allowed = [t for t in range(VOCAB) if words[work.row][t // 32] >> t % 32 & 1]
                    token = choose_among(state, seed, allowed) if allowed else NO_TOKEN
                else:
                    token = choose(state, seed)
                self._sampled[work.row] = max(token, 0)
                tokens.append(token)
        scores = [self._score(work) for work in plan.work if work.targets]
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        return StepResult(step=plan.step, tokens=tokens, logprobs=logprobs, scores=scores)

    def _score(self, work: RowWork) -> list[TokenLogprob]:
        first = work.score_at - work.start
        assert 0 <= first <= work.num_tokens - len(work.targets), "scored without being computed"
        states = self.states[work.row][first : first + len(work.targets)]
        return [
            TokenLogprob(target, score(state, target), 1, [])
            for state, target in zip(states, work.targets, strict=True)
        ]

    def _compute(self, row: int, start: int, tokens: list[int]) -> list[int]:
        history = self._history[row]
        results: list[list[int]] = []
        for group, kept in enumerate(self._groups):
            # What is computed already was computed in this row, or found in the cache.
            for position in range(kept.first_seen(start), start):
                if position in history:
                    state = self._read(group, row, position)
                    assert state == history[position], "KV was overwritten"
            state = self._read(group, row, start - 1) if start else ROOT
            states: list[int] = []
            for position, token in enumerate(tokens, start):
                state = chain(state, token)
                self._write(group, row, position, state)
                history[position] = state
                states.append(state)
            results.append(states)
        assert all(states == results[0] for states in results), "groups hold other tokens' KV"
        return results[0]

    def _read(self, group: int, row: int, position: int) -> int:
        size = self._groups[group].block_size
        block = self._tables[group][row][position // size]
        return self._memory[group][block][position % size]

    def _write(self, group: int, row: int, position: int, state: int) -> None:
        size = self._groups[group].block_size
        block = self._tables[group][row][position // size]
        self._memory[group][block][position % size] = state


class LateExecutor:
    """Runs a step's calls only when its result is asked for: the latest moment there is."""

    def __init__(self, runner: DigestRunner) -> None:
        self._runner = runner

    def forward(self, plan: StepPlan) -> None:
        """Happens with `sample`."""

    def sample(self, plan: StepPlan, masks: RowMasks | None) -> Callable[[], StepResult]:
        def run() -> StepResult:
            self._runner.forward(plan)
            return self._runner.sample(plan, masks)

        return run

    def close(self) -> None:
        """Nothing to close."""


class World:
    """One engine, the requests sent to it, and what came back."""

    def __init__(
        self,
        index: str,
        *,
        groups: list[Group],
        depth: int = 0,
        rows: int = 4,
        budget: int = 16,
        scores: int = 3,
        sharing: Sharing = WAITS,
        order: str = "fcfs",
        priorities: Priorities = COUNTING,
        limits: ServerLimits = UNLIMITED,
        policy: Policy | None = None,
    ) -> None:
        self.fence = Fence()
        self.kv = KVCache([group.build(index, budget) for group in groups])
        waiting: WaitingOrder[Request] = build_order(order, ORDERING)
        self.scheduler = build_scheduler(
            Limits(rows, budget, scores),
            waiting,
            self.kv,
            self.fence,
            policy or Policy(overlap_depth=depth),
            sharing=sharing,
        )
        self.window = 80
        served = Served(
            vocab_size=VOCAB,
            max_model_len=self.window,
            eos_token_ids=(EOS,),
            overlap_depth=depth,
            priorities=priorities,
            limits=limits,
        )
        executor = LateExecutor(DigestRunner(groups, rows))
        self.compiler = SimCompiler(budget)
        self.engine = Engine(
            served, self.scheduler, self.kv, self.fence, executor, Compiling(self.compiler)
        )
        self.sent: dict[str, Generate] = {}
        self.answers: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.cached: dict[str, int] = {}
        self.scores: dict[str, list[tuple[int, float]]] = {}
        self.done: dict[int, bool] = {}
        self.num_copies = 0
        self._written: dict[int, set[tuple[int, int]]] = {}
        """By step in flight: (group, block)."""
        self._named: dict[int, dict[Request, set[tuple[int, int]]]] = {}
        self._watch_plans()

    def send(
        self,
        prompt: list[int],
        *,
        salt: str = "",
        seed: int = 0,
        params: SamplingParams | None = None,
        priority: int | None = None,
        routing_key: str = "",
        constraint: Constraint | None = None,
    ) -> str:
        key = f"r{len(self.sent)}"
        params = params or SamplingParams(max_tokens=8)
        message = Generate(
            request_id=key,
            prompt=prompt,
            params=params,
            seed=seed,
            cache_salt=salt,
            priority=priority,
            routing_key=routing_key,
            constraint=constraint,
        )
        self.sent[key] = message
        self.answers[key] = []
        self.scores[key] = []
        self.engine.handle(message)
        return key

    def step(self) -> None:
        self.receive(self.engine.step())
        self.check()

    def drain(self) -> None:
        for _ in range(100_000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to rest")

    def receive(self, messages: list[FromEngine]) -> None:
        for message in messages:
            if isinstance(message, Done):
                self.done[message.call] = message.ok
                continue
            assert isinstance(message, Delta | Failed)
            key = message.request_id
            assert key not in self.ends, "a request ended twice"
            if isinstance(message, Failed):
                self.ends[key] = f"failed {message.status}"
                self.failures[key] = message.message
                continue
            assert not (message.prompt_logprobs and self.answers[key]), "scores come first"
            self.scores[key] += [(e.token, e.logprob) for e in message.prompt_logprobs or []]
            self.answers[key] += message.tokens
            if message.finish:
                self.ends[key] = message.finish
                self.cached[key] = message.cached_tokens

    def check(self) -> None:
        """Nothing is given back late or early: leases and cache add up to the pool, except for what
        steps in flight hold back."""
        if not self.fence.num_deferred:
            self.kv.check([request.lease for request in self.scheduler.running])
        assert len(self.scheduler.running) <= self.scheduler.limits.max_num_seqs

    def check_answer(self, key: str) -> None:
        message = self.sent[key]
        room = min(self.window, self.kv.capacity_tokens) - len(message.prompt)
        expected = foretell(message.prompt, message.params, message.seed, room, message.constraint)
        scores = foretell_scores(message.prompt, message.params)
        if self.ends[key] == "abort":
            assert self.answers[key] == expected[: len(self.answers[key])]
            assert self.scores[key] == scores[: len(self.scores[key])]
        else:
            assert self.answers[key] == expected, message
            assert self.scores[key] == scores
            ends = expected[-1:] == [EOS] and not message.params.ignore_eos
            if message.constraint is not None:
                rules = Rules(message.constraint.text)
                ends = expected[-1:] == [EOS] or rules.over(expected)
            assert self.ends[key] == ("stop" if ends else "length")

    def _watch_plans(self) -> None:
        """Assert the lifetime rule on each plan: a block it writes is named by no other request's
        step in flight, nor written by one a block that it copies; and the limits of a step."""
        plan = self.scheduler.plan

        def watched() -> object:
            flight = plan()
            if flight is None:
                return None
            assert sum(work.num_tokens for work in flight.plan.work) <= (
                self.scheduler.limits.max_num_batched_tokens
            )
            assert len({work.row for work in flight.plan.work}) == len(flight.plan.work)
            assert sum(len(work.targets) for work in flight.plan.work) <= (
                self.scheduler.limits.max_scores
            )
            settled = self.fence.next_step - 1 - self.fence.in_flight
            self._named = {step: n for step, n in self._named.items() if step > settled}
            self._written = {step: n for step, n in self._written.items() if step > settled}
            for copy in flight.plan.copies:
                self.num_copies += 1
                source = (copy.group, copy.source)
                assert all(source not in blocks for blocks in self._written.values())
            written = self._written[flight.plan.step] = set()
            for request, work in zip(flight.requests, flight.plan.work, strict=True):
                for group, part in enumerate(request.lease.parts):
                    size = self.kv.groups[group].block_size
                    end = work.start + work.num_tokens
                    for index in range(work.start // size, -(-end // size)):
                        self._assert_free(request, (group, part.blocks[index]))
                        written.add((group, part.blocks[index]))
            self._named[flight.plan.step] = {
                request: {
                    (group, block)
                    for group, part in enumerate(request.lease.parts)
                    for block in part.blocks
                    if block != NO_BLOCK
                }
                for request in flight.requests
            }
            return flight

        self.scheduler.plan = watched  # type: ignore[method-assign,assignment]

    def _assert_free(self, writer: Request, block: tuple[int, int]) -> None:
        for named in self._named.values():
            for request, blocks in named.items():
                assert request is writer or block not in blocks, "reused under a step in flight"


def random_prompt(rng: random.Random, longest: int) -> list[int]:
    """Prompts that share prefixes: a few stems, cut anywhere, with a random tail."""
    base = rng.randrange(3) * 17
    stem = [(base + i * 5) % VOCAB for i in range(longest)]
    shared = stem[: rng.randint(0, longest - 1)]
    tail = [rng.randrange(VOCAB) for _ in range(rng.randint(0, longest - len(shared)))]
    return shared + tail or [rng.randrange(VOCAB)]
