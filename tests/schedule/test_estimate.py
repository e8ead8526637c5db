"""SGLang's admission by estimate, in its published examples and beyond."""

from __future__ import annotations

import pytest

from tests.schedule.test_scheduler import Table
from treadle.engine.request import Request
from treadle.schedule.admission.estimate import Estimate
from treadle.schedule.admission.ratio import NewTokenRatio
from treadle.schedule.policy import Estimate as Params
from treadle.schedule.policy import Policy, PrefillFirst
from treadle.schedule.running import Running
from treadle.schedule.shortage.retraction import Retraction, important_kept, longest_kept

RUNNING, GENERATED, MAX_NEW = 40, 224, 1024
PROMPT = 100


class Pool:
    """Running requests in mid-answer, and a cache of which a part is evictable."""

    def __init__(
        self, *, free: int, evictable: int = 0, running: int = RUNNING, index: str = "radix"
    ) -> None:
        own = running * (PROMPT + GENERATED)
        self.table = Table(
            blocks=own + free + evictable, rows=running + 64, budget=10**6, index=index
        )
        if evictable:
            group = self.table.kv.groups[0]
            lease = group.lease(group.match([], ""), "")
            group.grow(lease, evictable)
            group.release(lease, list(range(10**7, 10**7 + evictable)), evictable)
        self.running: Running[Request] = Running(running + 64, self.table.kv, self.table.fence)
        for number in range(running):
            self._run(10**8 + number * 10**4)
        assert sum(self.table.kv.available) == free + evictable

    def _run(self, first: int) -> None:
        request = self.request(first, PROMPT)
        request.lease, _ = self.table.kv.lease(self.table.kv.match([], ""), "")
        request.tokens += [7] * GENERATED
        assert self.table.kv.grow(request.lease, len(request.tokens)) is not None
        request.num_computed = len(request.tokens) - 1
        self.running.requests.append(request)

    def request(self, first: int, num_prompt: int, *, max_tokens: int = MAX_NEW) -> Request:
        request = self.table.add(num_prompt, first=first, max_tokens=max_tokens)
        self.table.scheduler.finish(request)
        return request

    def admit(self, estimate: Estimate[Request], uncached: int, max_new: int = MAX_NEW) -> int:
        """How many of endless equal requests start in one step."""
        estimate.open()
        for number in range(100):
            request = self.request(10**9 + number * 10**4, uncached, max_tokens=max_new)
            match = self.table.kv.match(request.tokens[:-1], "")
            if not estimate.admits(request, match, uncached):
                return number
            estimate.charge(request, match, uncached)
        raise AssertionError("admission does not end")


def ratio_of(value: float) -> NewTokenRatio:
    ratio = NewTokenRatio(Params())
    ratio.value = value
    return ratio


@pytest.mark.parametrize(
    ("rho", "account", "admitted", "remaining"),
    [(0.7, 27600.0, 9, 375.0), (1.0, 18000.0, 5, 2875.0), (0.098, 46864.0, 15, 1489.0)],
)
def test_the_published_accounts(
    rho: float, account: float, admitted: int, remaining: float
) -> None:
    """20,000 free and 30,000 evictable slots, 40 running requests with 800 tokens to go each;
    newcomers of 2,000 tokens that may generate 1,024 cost 3,025."""
    pool = Pool(free=20_000, evictable=30_000)
    estimate: Estimate[Request] = Estimate(pool.running, ratio_of(rho), Params())
    estimate.open()
    assert estimate.left[0].total == pytest.approx(account)
    assert pool.admit(estimate, 2000) == admitted
    assert estimate.left[0].total == pytest.approx(remaining)


def test_the_ratio_decays_over_600_steps() -> None:
    ratio = NewTokenRatio(Params())
    seen = [ratio.value]
    for _ in range(700):
        ratio.decay()
        seen.append(ratio.value)
    assert seen[0] == pytest.approx(0.7)
    assert seen[1] == pytest.approx(0.7 - 0.001003333333)
    assert seen[300] == pytest.approx(0.399)
    assert seen[600] == pytest.approx(0.098)
    assert seen[700] == pytest.approx(0.098)


@pytest.mark.parametrize(
    ("conservativeness", "initial", "least"),
    [(1.0, 0.7, 0.098), (2.0, 1.0, 0.14), (0.5, 0.35, 0.049)],
)
def test_conservativeness(conservativeness: float, initial: float, least: float) -> None:
    ratio = NewTokenRatio(Params(conservativeness=conservativeness))
    assert (ratio.initial, ratio.least) == (pytest.approx(initial), pytest.approx(least))


def test_the_published_estimate_after_a_retraction() -> None:
    """39 of 40 stay, each with 224 of 1,024 tokens: 9,516 / 39,937."""
    pool = Pool(free=0)
    ratio = ratio_of(0.098)
    ratio.estimate(pool.running.requests[:39])
    assert ratio.value == pytest.approx(9516 / 39937)
    assert round(ratio.value, 3) == 0.238


def test_an_answer_counts_for_4096_tokens_at_most() -> None:
    pool = Pool(free=3 * (1000 + 4096 + 1) + 1, running=1)
    pool.running.requests[0].max_tokens = GENERATED  # expects nothing more
    estimate: Estimate[Request] = Estimate(pool.running, ratio_of(1.0), Params())
    assert pool.admit(estimate, 1000, max_new=9000) == 3


def test_a_candidate_that_just_equals_what_is_left_waits() -> None:
    """Strictly less is asked for."""
    for spare, admitted in ((0, 2), (1, 3)):
        pool = Pool(free=3 * 1151 + spare, running=1)
        pool.running.requests[0].max_tokens = GENERATED
        estimate: Estimate[Request] = Estimate(pool.running, ratio_of(1.0), Params())
        assert pool.admit(estimate, 1000, max_new=150) == admitted


def test_of_a_chunked_prompt_the_answer_is_charged_with_its_end() -> None:
    pool = Pool(free=10_000, running=1)
    pool.running.requests[0].max_tokens = GENERATED
    estimate: Estimate[Request] = Estimate(pool.running, ratio_of(1.0), Params())
    request = pool.request(1, 3000)
    match = pool.table.kv.match(request.tokens[:-1], "")
    estimate.open()
    estimate.charge(request, match, 1000)
    assert estimate.left[0].total == 10_000 - 1000 - 1
    estimate.charge(request, match, 3000)
    assert estimate.left[0].total == 10_000 - 1001 - 3000 - MAX_NEW - 1


def test_a_lease_of_evictable_blocks_lowers_what_is_left() -> None:
    pool = Pool(free=1000, evictable=500, running=1)
    pool.running.requests[0].max_tokens = GENERATED
    estimate: Estimate[Request] = Estimate(pool.running, ratio_of(1.0), Params())
    request = pool.request(10**7, 400, max_tokens=10)
    match = pool.table.kv.match(request.tokens[:-1], "")
    assert match.num_tokens == 399
    estimate.open()
    estimate.charge(request, match, 1)
    assert estimate.left[0].total == 1500 - 1 - 10 - 1 - 399


def test_who_surely_takes_everything_is_walked_through_to_the_end() -> None:
    """Without a tree, ignore_eos: one of 100 tokens that will take 50 more beside one that holds
    150 and ends after 10; then what that one held is free."""
    for free, fits in ((100 + 20 + 2, False), (100 + 20 + 3, True)):
        pool = Pool(free=free, running=1, index="none")
        runner = pool.running.requests[0]
        runner.max_tokens = GENERATED + 10
        runner.params = type(runner.params)(max_tokens=GENERATED + 10, ignore_eos=True)
        estimate: Estimate[Request] = Estimate(pool.running, ratio_of(0.1), Params())
        request = pool.request(1, 100, max_tokens=50)
        request.params = type(request.params)(max_tokens=50, ignore_eos=True)
        estimate.open()
        match = pool.table.kv.match([], "")
        assert estimate.admits(request, match, 100) is fits


def retracting(*, blocks: int) -> Table:
    policy = Policy(
        composition="prefill-first",
        admission="estimate",
        shortage="retract-by-length",
        prefill_first=PrefillFirst(chunk_tokens=100, prefill_tokens=100),
        estimate=Params(conservativeness=0.01),
    )
    return Table(blocks=blocks, policy=policy)


def test_the_one_with_fewest_tokens_goes_and_queues_up_anew() -> None:
    table = retracting(blocks=20)
    table.add(4)
    assert table.step() == [("r1", 4, True)]
    assert table.step() == [("r1", 1, True)]
    late = table.add(4, max_tokens=8)
    assert table.step() == [("r2", 4, True)]
    steps = []
    while late.row is not None:
        steps.append(table.step())
    assert steps[-1] == [("r1", 1, True)]
    counters = table.scheduler.counters
    assert (counters.retractions, counters.preemptions) == (1, 1)
    assert late.num_output > 0, "its tokens are kept"
    behind = table.add(1)
    table.step()
    assert (late.row, behind.row) == (None, None)
    assert table.scheduler.num_waiting == 2


def test_among_equals_the_longest_prompt_goes_and_leaves_nothing_cached() -> None:
    pool = Pool(free=0, running=3, evictable=0)
    requests = pool.running.requests
    requests[1].num_prompt += 1
    requests[1].tokens.insert(0, 5)
    shortage: Retraction[Request] = Retraction(pool.running, ratio_of(0.1), longest_kept)
    wants = [(request, len(request.tokens) + 1) for request in requests]
    assert shortage.excess(wants) is requests[1]


def test_the_least_important_goes_whatever_it_has_generated() -> None:
    pool = Pool(free=0, running=3, evictable=0)
    first, second, third = requests = list(pool.running.requests)
    for request, priority, arrived in zip(requests, (2, 5, 5), (1.0, 3.0, 2.0), strict=True):
        request.priority, request.times.arrived = priority, arrived
    second.tokens.append(7)
    shortage: Retraction[Request] = Retraction(pool.running, ratio_of(0.1), important_kept)
    wants = [(request, len(request.tokens) + 1) for request in requests]
    assert shortage.excess(wants) is second, "of the least important the one that came last"
    pool.running.requests.remove(second)
    assert shortage.excess(wants) is third
    pool.running.requests.remove(third)
    assert shortage.excess(wants) is first


def test_one_alone_that_finds_nothing_is_given_up() -> None:
    table = retracting(blocks=6)
    lone = table.add(4)
    while lone.row is not None or table.scheduler.num_waiting:
        if not table.step():
            break
    assert table.scheduler.take_given_up() == [lone]
    assert table.scheduler.num_waiting == 0
    assert table.scheduler.counters.retractions == 0


def test_an_engine_at_rest_begins_with_the_initial_ratio() -> None:
    table = retracting(blocks=100)
    admission = table.scheduler._strategies.admission
    assert isinstance(admission, Estimate)
    first = table.add(4)
    for _ in range(5):
        table.step()
    assert admission._ratio.value < admission._ratio.initial
    table.scheduler.finish(first)
    table.add(4)
    assert admission._ratio.value == admission._ratio.initial
