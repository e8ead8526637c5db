"""Who is in a step, under each composition, admission and shortage."""

from __future__ import annotations

import dataclasses

import pytest

from tests.schedule.test_scheduler import Table
from treadle.engine.request import Request
from treadle.schedule.policy import (
    Chunking,
    Policy,
    PrefillFirst,
    Stepwise,
    TwoStage,
)
from treadle.schedule.publication.build import Sharing

SGLANG = Policy(
    composition="prefill-first",
    admission="estimate",
    shortage="retract-by-length",
    prefill_first=PrefillFirst(chunk_tokens=10, prefill_tokens=16),
)
TRTLLM = Policy(
    composition="two-stage",
    admission="no-evict",
    shortage="never",
    chunking=Chunking(on=False),
)


def of(policy: Policy, **changes: object) -> Policy:
    return dataclasses.replace(policy, **changes)  # type: ignore[arg-type]


def test_long_prefill_is_cut_to_the_threshold() -> None:
    table = Table(blocks=200, budget=20, policy=Policy(chunking=Chunking(most_tokens=8)))
    table.add(18)
    table.add(4)
    assert table.step() == [("r1", 8, False), ("r2", 4, True)]
    assert table.step() == [("r1", 8, False), ("r2", 1, True)]
    assert table.step() == [("r1", 2, True), ("r2", 1, True)]


def test_without_chunks_a_prompt_waits_until_it_fits_the_budget_and_blocks_those_behind() -> None:
    table = Table(blocks=200, budget=10, policy=Policy(chunking=Chunking(on=False)))
    table.add(6)
    table.add(9)
    table.add(2)
    assert table.step() == [("r1", 6, True)]
    assert table.step() == [("r1", 1, True), ("r2", 9, True)]
    assert table.step() == [("r1", 1, True), ("r2", 1, True), ("r3", 2, True)]


def test_without_chunks_a_prompt_longer_than_any_step_is_divided_when_it_is_alone() -> None:
    table = Table(blocks=200, budget=10, policy=Policy(chunking=Chunking(on=False)))
    first = table.add(3)
    table.add(25)
    assert table.step() == [("r1", 3, True)]
    assert table.step() == [("r1", 1, True)]
    table.scheduler.finish(first)
    assert [table.step() for _ in range(3)] == [
        [("r2", 10, False)],
        [("r2", 10, False)],
        [("r2", 5, True)],
    ]


def test_a_watermark_is_kept_unless_nobody_runs() -> None:
    policy = Policy(stepwise=Stepwise(watermark=0.25))
    table = Table(blocks=40, policy=policy)
    table.add(35)
    assert table.step() == [("r1", 35, True)]
    table = Table(blocks=40, policy=policy)
    table.add(20)
    table.step()
    table.add(10)
    assert table.step() == [("r1", 1, True)], "30 of 40 would be held, and one more"
    table.add(1)
    waiting = table.scheduler.num_waiting
    assert waiting == 2


def test_without_the_reserve_a_prompt_starts_with_the_blocks_of_its_first_chunk() -> None:
    for whole, started in ((True, False), (False, True)):
        policy = Policy(stepwise=Stepwise(whole_prompt=whole))
        table = Table(blocks=20, budget=10, policy=policy)
        table.add(8)
        table.step()
        later = table.add(15)
        table.step()
        assert (later.row is not None) is started


def test_prompts_and_decodes_have_steps_of_their_own() -> None:
    table = Table(blocks=200, policy=SGLANG)
    table.add(4)
    table.add(3)
    assert table.step() == [("r1", 4, True), ("r2", 3, True)]
    assert table.step() == [("r1", 1, True), ("r2", 1, True)]
    table.add(5)
    assert table.step() == [("r3", 5, True)], "prompts go first"
    assert table.step() == [("r1", 1, True), ("r2", 1, True), ("r3", 1, True)]


def test_one_prompt_at_a_time_is_carried_from_step_to_step() -> None:
    table = Table(blocks=400, policy=SGLANG)
    table.add(6)
    table.add(17)
    table.add(2)
    assert table.step() == [("r1", 6, True), ("r2", 4, False)]
    assert table.step() == [("r2", 10, False)]
    assert table.step() == [("r2", 3, True), ("r3", 2, True)]


def test_decodes_join_a_mixed_chunk() -> None:
    mixed = of(SGLANG, prefill_first=PrefillFirst(10, 16, mixed=True))
    table = Table(blocks=400, policy=mixed)
    table.add(2)
    table.step()
    table.add(17)
    assert table.step() == [("r2", 9, False), ("r1", 1, True)]
    assert table.step() == [("r2", 8, True), ("r1", 1, True)]


def test_without_chunks_the_first_prompt_may_be_longer_than_the_prefill_tokens() -> None:
    table = Table(blocks=400, policy=of(SGLANG, chunking=Chunking(on=False)))
    table.add(30)
    table.add(10)
    table.add(6)
    assert table.step() == [("r1", 30, True)]
    assert table.step() == [("r2", 10, True)], "6 more are not below the 6 that are left"
    assert table.step() == [("r3", 6, True)]


def test_a_chunk_ends_with_a_page() -> None:
    table = Table(blocks=100, block_size=4, policy=SGLANG)
    table.add(5)
    table.add(13)
    assert table.step() == [("r1", 5, True)], "of 10 tokens two pages are taken; none is left"
    assert table.step() == [("r2", 8, False)]
    assert table.step() == [("r2", 5, True)]


def test_a_full_batch_asks_for_nobody_until_somebody_leaves() -> None:
    table = Table(blocks=60, policy=SGLANG)
    first = table.add(10, max_tokens=40)
    table.step()
    table.add(10, max_tokens=20)
    table.step()
    asked = count_matches(table)
    for _ in range(20):
        assert table.step() == [("r1", 1, True)]
    assert asked == []
    table.scheduler.finish(first)
    assert table.step() == [("r2", 10, True)]


def count_matches(table: Table) -> list[int]:
    asked: list[int] = []
    match = table.kv.match

    def watched(tokens: list[int], salt: str) -> object:
        asked.append(len(tokens))
        return match(tokens, salt)

    table.kv.match = watched  # type: ignore[method-assign,assignment]
    return asked


def test_prompts_stand_before_decodes_and_decodes_are_accounted_first() -> None:
    table = Table(blocks=400, budget=10, policy=TRTLLM)
    table.add(4)
    table.add(3)
    table.step()
    table.add(8)
    table.add(9)
    assert table.step() == [("r3", 8, True), ("r1", 1, True), ("r2", 1, True)]
    assert table.step() == [("r1", 1, True), ("r2", 1, True), ("r3", 1, True)], "9 do not fit 7"


@pytest.mark.parametrize(
    ("equal", "steps"),
    [
        (False, [[("r1", 12, False)], [("r1", 8, True), ("r2", 6, True)]]),
        (
            True,
            [[("r1", 8, False), ("r2", 6, True)], [("r1", 12, True), ("r2", 1, True)]],
        ),
    ],
)
def test_chunks_are_of_units(equal: bool, steps: list[list[tuple[str, int, bool]]]) -> None:
    """Of 15 tokens, in units of 4; the 3 that are left are none."""
    policy = of(TRTLLM, chunking=Chunking(), two_stage=TwoStage(equal, unit_tokens=4))
    table = Table(blocks=400, budget=15, policy=policy)
    table.add(20)
    table.add(6)
    assert [table.step(), table.step()] == steps


def test_a_unit_larger_than_a_step_does_not_stop_the_engine() -> None:
    policy = of(TRTLLM, chunking=Chunking(), two_stage=TwoStage(unit_tokens=64))
    table = Table(blocks=400, budget=15, policy=policy)
    table.add(20)
    assert [table.step(), table.step()] == [[("r1", 15, False)], [("r1", 5, True)]]


def test_no_evict_counts_blocks_to_the_end() -> None:
    table = Table(blocks=40, policy=TRTLLM)
    table.add(5, max_tokens=15)
    table.add(5, max_tokens=15)
    table.add(1, max_tokens=1)
    assert [name for name, _, _ in table.step()] == ["r1", "r2"], "r3 would need block 41 and 42"
    while table.scheduler.num_waiting:
        ended = [r for r in table.scheduler.running if r.num_output == r.max_tokens]
        for request in ended:
            table.scheduler.finish(request)
        table.step()
    assert table.scheduler.counters.preemptions == 0


def test_no_evict_counts_shared_blocks_once() -> None:
    table = Table(blocks=40, index="radix", policy=TRTLLM)
    first = table.add(10, first=0, max_tokens=10)
    table.step()
    table.add(11, first=0, max_tokens=10)
    table.add(10, first=0, max_tokens=9)
    # 30 free, 10 of them for r1's answer; of r2's 21 tokens 10 are there, of r3's 19 nine.
    names = [name for name, _, _ in table.step()]
    assert names == ["r2", "r1"]
    table.scheduler.finish(first)
    assert [name for name, _, _ in table.step()] == ["r3", "r2"]


def test_a_static_batch_lets_nobody_join() -> None:
    table = Table(blocks=100, policy=of(TRTLLM, admission="static"))
    first, second = table.add(4, max_tokens=20), table.add(4, max_tokens=20)
    assert len(table.step()) == 2
    table.add(1)
    table.scheduler.finish(first)
    assert table.step() == [("r2", 1, True)]
    table.scheduler.finish(second)
    assert table.step() == [("r3", 1, True)]


def test_max_utilization_pauses_the_last_started_and_itself_waits() -> None:
    policy = of(TRTLLM, admission="max-utilization", shortage="preempt-newest")
    table = Table(blocks=12, policy=policy)
    table.add(4)
    table.add(4)
    last = table.add(2)
    assert [name for name, _, _ in table.step()] == ["r1", "r2", "r3"]
    assert table.step() == [("r1", 1, True), ("r2", 1, True)]
    assert last.row is not None, "it finds no block, and nobody is behind it"
    assert table.step() == [("r1", 1, True), ("r2", 1, True)]
    assert last.row is None, "r1 needed one more"


def test_the_least_important_gives_way_even_when_it_is_planned() -> None:
    policy = Policy(shortage="preempt-lowest-priority")
    table = Table(blocks=13, budget=9, policy=policy)
    important = [table.add(4), table.add(4)]
    low = table.add(1)
    table.step()
    table.scheduler._running.requests.sort(key=lambda request: request is not low)
    low.priority = 5
    before = low.num_pending, len(low.tokens), low.num_computed
    table.step()
    assert low.row is not None
    # 12 of 13 blocks are held; the plan begins with `low`, and then somebody important needs it.
    flight = table.scheduler.plan()
    assert flight is not None
    assert [request.request_id for request in flight.requests] == ["r1", "r2"]
    assert low.row is None
    assert (low.num_pending, len(low.tokens)) == (before[0], before[1] + 1)
    assert len(flight.plan.leaves) == 1
    assert flight.plan.leaves[0] not in [work.row for work in flight.plan.work]
    assert [request.row for request in important] == [work.row for work in flight.plan.work]


def test_what_is_dropped_leaves_no_trace() -> None:
    """Every field of a request that a draft changes is as it was."""
    from treadle.schedule.draft import Draft

    table = Table(blocks=100)
    request = table.add(9)
    request.next_score = 3
    table.step()
    table.scheduler.finish(request)
    draft: Draft[Request] = Draft(20, 10, table.scheduler._strategies.publication)
    request.num_computed, request.row = 4, 0
    names = ("num_computed", "num_pending", "next_score", "in_token_table")
    before = [getattr(request, name) for name in names], draft.budget, draft.scores
    draft.add(request, len(request.tokens) - 4)
    assert [getattr(request, name) for name in names] != before[0]
    assert draft.drop(request) is False
    assert ([getattr(request, name) for name in names], draft.budget, draft.scores) == before
    assert draft.is_empty


@pytest.mark.parametrize("policy", [TRTLLM, SGLANG, Policy()], ids=lambda one: one.composition)
def test_one_that_starts_in_the_same_step_is_waited_for(policy: Policy) -> None:
    """Compositions that gather first and start then know them before they run."""
    sharing = Sharing("postpone", 4)
    table = Table(blocks=200, block_size=4, index="radix", policy=policy, sharing=sharing)
    for _ in range(3):
        table.add(7, first=0, max_tokens=4)
    assert table.step() == [("r1", 7, True)]
    assert ("r2", 3, True) in table.step(), "a block of it is found"
