"""Who is planned: budget, order, chunks, admission, preemption. Steps are settled by hand."""

from __future__ import annotations

from treadle.cache.fence import Fence
from treadle.cache.kv import KVCache, build_prefix_cache
from treadle.engine.request import Request
from treadle.schedule.build import build_scheduler
from treadle.schedule.draft import Draft, Flight
from treadle.schedule.growth import Growth
from treadle.schedule.order.build import OrderParams, build_order
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.policy import Policy
from treadle.schedule.publication.at_chunk_end import MOST_PASSED
from treadle.schedule.publication.build import Sharing
from treadle.schedule.scheduler import Limits
from treadle.schedule.shortage.preempt_newest import PreemptNewest
from treadle.wire.messages import Generate
from treadle.wire.sampling_params import SamplingParams

WORTH_WAITING = 20
AT_PLAN = Sharing("at-plan", 0)
WAITS = Sharing(wait_tokens=WORTH_WAITING)


class Table:
    """A scheduler over one KV group, with its steps settled at once."""

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int = 1,
        rows: int = 8,
        budget: int = 100,
        index: str = "none",
        policy: Policy | None = None,
        order: str = "fcfs",
        sharing: Sharing = WAITS,
    ) -> None:
        self.fence = Fence()
        self.kv = KVCache([build_prefix_cache(index, blocks, block_size)])
        waiting: WaitingOrder[Request] = build_order(order, OrderParams())
        self.scheduler = build_scheduler(
            Limits(rows, budget, 0),
            waiting,
            self.kv,
            self.fence,
            policy or Policy(),
            sharing=sharing,
        )
        self._serial = 0

    def add(
        self,
        num_prompt: int,
        *,
        first: int | None = None,
        max_tokens: int = 50,
        priority: int = 0,
    ) -> Request:
        self._serial += 1
        start = 1000 * self._serial if first is None else first
        message = Generate(
            request_id=f"r{self._serial}",
            prompt=list(range(start, start + num_prompt)),
            params=SamplingParams(max_tokens=max_tokens),
            seed=0,
        )
        request = Request.of(message, max_tokens, float(self._serial), priority)
        self.scheduler.add(request)
        return request

    def draft(self) -> Draft[Request]:
        """A step for tests to compose."""
        return Draft(100, 0, self.scheduler._strategies.publication)

    def step(self) -> list[tuple[str, int, bool]]:
        """(request, tokens, sampled) per work of the next step, which is carried out."""
        flight = self.scheduler.plan()
        if flight is None:
            return []
        self.fence.launch(flight.plan.step)
        self.fence.settle(flight.plan.step)
        self._settle(flight)
        return [
            (request.request_id, work.num_tokens, work.sample)
            for request, work in zip(flight.requests, flight.plan.work, strict=True)
        ]

    def _settle(self, flight: Flight[Request]) -> None:
        for request, work in zip(flight.requests, flight.plan.work, strict=True):
            self.scheduler.settle(request, work)
            if work.sample:
                request.num_pending -= 1
                request.tokens.append(7)


def test_running_requests_go_first_and_prompts_fill_the_budget() -> None:
    table = Table(blocks=200, budget=10)
    table.add(4)
    table.add(9)
    table.add(3)
    assert table.step() == [("r1", 4, True), ("r2", 6, False)]
    assert table.step() == [("r1", 1, True), ("r2", 3, True), ("r3", 3, True)]
    assert table.step() == [("r1", 1, True), ("r2", 1, True), ("r3", 1, True)]


def test_a_prompt_longer_than_the_budget_is_chunked() -> None:
    table = Table(blocks=200, budget=8)
    table.add(20)
    assert [table.step() for _ in range(3)] == [
        [("r1", 8, False)],
        [("r1", 8, False)],
        [("r1", 4, True)],
    ]


def test_rows_bound_the_running_requests() -> None:
    table = Table(blocks=200, rows=2)
    for _ in range(3):
        table.add(2)
    assert [name for name, _, _ in table.step()] == ["r1", "r2"]
    assert table.scheduler.num_waiting == 1


def test_a_prompt_waits_until_all_of_it_fits_and_blocks_those_behind() -> None:
    """Even when the step would compute only a chunk of it; first come, first served."""
    table = Table(blocks=20, budget=5)
    first = table.add(12)
    table.add(9)
    table.add(1)
    table.step()
    table.step()
    assert table.step() == [("r1", 2, True)]
    assert table.step() == [("r1", 1, True)]
    table.scheduler.finish(first)
    assert table.step() == [("r2", 5, False)]


def test_the_newest_is_preempted_and_returns_first_with_its_tokens() -> None:
    table = Table(blocks=12)
    table.add(4)
    table.add(4)
    last = table.add(2)
    assert table.step() == [("r1", 4, True), ("r2", 4, True), ("r3", 2, True)]
    # 10 blocks are held; r1 and r2 take the last two, r3 finds none and gives up its own.
    assert table.step() == [("r1", 1, True), ("r2", 1, True)]
    assert (last.row, last.num_computed, len(last.tokens)) == (None, 0, 3)
    behind = table.add(1)
    assert table.scheduler.counters.preemptions == 1
    # It needs 3 blocks and there are 2: it waits, and r4 behind it.
    assert [name for name, _, _ in table.step()] == ["r1", "r2"]
    table.scheduler.finish(table.scheduler.running[0])
    assert [(name, n) for name, n, _ in table.step()] == [("r2", 1), ("r3", 3), ("r4", 1)]
    assert behind.row is not None


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    table = Table(blocks=8)
    table.add(4)
    table.add(4)
    table.step()
    table.add(1)
    assert table.step() == [("r1", 1, True)], "r2 was preempted; its blocks are free, yet r3 waits"


def test_the_last_token_of_a_known_prompt_is_computed() -> None:
    for index, block_size, computed in (("radix", 1, 1), ("radix", 4, 4), ("hashed", 4, 4)):
        table = Table(blocks=64, block_size=block_size, index=index)
        first = table.add(16, first=0)
        table.step()
        table.scheduler.finish(first)
        table.add(16, first=0)
        assert table.step() == [("r2", computed, True)]
        assert table.scheduler.counters.prefix_hits == 16 - computed


def test_no_token_is_planned_beyond_max_tokens() -> None:
    table = Table(blocks=64)
    table.add(3, max_tokens=2)
    assert len(table.step()) == 1
    assert len(table.step()) == 1
    assert table.step() == []


def test_what_arrives_together_and_begins_alike_is_computed_once() -> None:
    table = Table(blocks=1000, index="radix", budget=100)
    requests = [table.add(150, first=5000) for _ in range(3)]
    requests.append(table.add(30, first=5000))
    assert table.step() == [("r1", 100, False)]
    assert table.step() == [("r1", 50, True)], "the others wait, though there is room"
    assert table.step() == [("r1", 1, True), ("r2", 1, True), ("r3", 1, True), ("r4", 1, True)]
    assert [request.cached_tokens for request in requests] == [0, 149, 149, 29]


def test_nobody_waits_where_too_little_is_shared() -> None:
    for index, first, salts in (
        ("radix", 5085, ("", "")),  # begins with other tokens
        ("none", 5000, ("", "")),  # nothing would be found
        ("radix", 5000, ("", "other")),
    ):
        table = Table(blocks=1000, index=index, budget=100)
        table.add(60, first=5000).cache_salt = salts[0]
        table.add(60, first=first).cache_salt = salts[1]
        assert [name for name, _, _ in table.step()] == ["r1", "r2"]
    table = Table(blocks=1000, index="radix", budget=100)
    table.add(WORTH_WAITING - 1, first=5000)
    table.add(WORTH_WAITING - 1, first=5000)
    assert [name for name, _, _ in table.step()] == ["r1", "r2"]


def test_a_wait_ends_where_nothing_is_found_in_the_end() -> None:
    """Blocks of 32: the last of the other's tokens fill none."""
    table = Table(blocks=100, block_size=32, index="hashed", budget=100)
    table.add(60, first=5000)
    later = table.add(60, first=5000)
    assert table.step() == [("r1", 60, True)]
    assert table.step() == [("r1", 1, True), ("r2", 28, True)]
    assert later.cached_tokens == 32


def test_a_planned_block_is_found_in_the_same_step() -> None:
    table = Table(blocks=64, block_size=4, index="hashed", sharing=AT_PLAN)
    first, second = table.add(18, first=5000), table.add(18, first=5000)
    assert table.step() == [("r1", 18, True), ("r2", 2, True)]
    assert second.lease.parts[0].blocks[:4] == first.lease.parts[0].blocks[:4]
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)


def test_a_planned_block_is_lost_with_its_plan() -> None:
    """Work that is taken out of the step again takes what it would have shown with it."""
    table = Table(blocks=64, block_size=4, index="hashed", budget=10, sharing=AT_PLAN)
    request = table.add(18, first=5000)
    table.step()
    known = table.kv.match(list(range(5000, 5018)), "").num_tokens
    assert known == 8
    draft = table.draft()
    assert table.scheduler._running.grow(request, 18)
    draft.add(request, 8)
    assert table.kv.match(list(range(5000, 5018)), "").num_tokens == 16
    draft.drop(request)
    assert table.kv.match(list(range(5000, 5018)), "").num_tokens == known
    draft = table.draft()
    draft.add(request, 8)
    assert table.kv.match(list(range(5000, 5018)), "").num_tokens == 16, "and may come again"
    table.kv.check([request.lease])


def test_what_failed_is_found_by_nobody() -> None:
    for index, sharing in (("hashed", AT_PLAN), ("hashed", WAITS), ("radix", WAITS)):
        table = Table(blocks=64, block_size=4, index=index, budget=10, sharing=sharing)
        request = table.add(18, first=5000)
        table.step()
        flight = table.scheduler.plan()
        assert flight is not None
        table.fence.launch(flight.plan.step)
        table.fence.settle(flight.plan.step)
        table.scheduler.settle(request, flight.plan.work[0], failed=True)
        table.scheduler.finish(request)
        assert table.kv.match(list(range(5000, 5018)), "").num_tokens == 8
        table.kv.check([])


def test_who_is_postponed_lets_others_pass() -> None:
    """The second waits one step for the first's blocks; a stranger behind it starts at once."""
    table = Table(blocks=100, block_size=4, index="radix", sharing=Sharing("postpone", 4))
    table.add(18, first=5000)
    later = table.add(18, first=5000)
    table.add(9)
    assert table.step() == [("r1", 18, True), ("r3", 9, True)]
    assert table.step() == [("r1", 1, True), ("r3", 1, True), ("r2", 2, True)]
    assert later.cached_tokens == 16
    assert table.scheduler.counters.postponements == 1


def test_only_so_many_are_passed_in_a_step() -> None:
    table = Table(blocks=1000, block_size=4, index="radix", rows=99, sharing=Sharing("postpone", 4))
    for _ in range(MOST_PASSED + 10):
        table.add(18, first=5000)
    stranger = table.add(9)
    assert table.step() == [("r1", 18, True)]
    assert stranger.row is None
    assert table.scheduler.counters.postponements == MOST_PASSED


def test_a_prefix_hint() -> None:
    """The worked example `prefix_hint`: three branches of 50 tokens from a prefix of 2,000."""
    for hint, computed in ((False, 6150), (True, 2150)):
        table = Table(blocks=9000, index="radix", budget=9000, sharing=Sharing(wait_tokens=0))
        if hint:
            table.add(2000, first=5000, max_tokens=0)
            table.step()
            table.scheduler.finish(table.scheduler.running[0])
        for branch in range(3):
            request = table.add(2050, first=5000, max_tokens=1)
            request.tokens[2000:] = [branch] * 50
        table.step()
        assert table.scheduler.counters.computed_tokens == computed


def test_with_a_step_in_flight_no_more_give_way_than_are_needed() -> None:
    """The first victim's blocks are enough, but come back only once the step has settled."""
    table = Table(blocks=6)
    first, second, third = (table.add(2) for _ in range(3))
    table.step()
    running = table.scheduler._running
    growth = Growth(running, table.scheduler.waiting, PreemptNewest(running))
    step = table.fence.next_step
    table.fence.launch(step)
    for _ in range(2):
        assert not growth.reach(first, 3, table.draft())
        assert (second.row is None, third.row is None) == (False, True)
        assert running.counters.preemptions == 1
    table.fence.settle(step)
    assert growth.reach(first, 3, table.draft())
    assert second.row is not None
