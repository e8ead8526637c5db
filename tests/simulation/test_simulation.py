"""Thousands of random steps over scheduler, caches and loop; the invariants hold after each."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.simulation.life import live
from tests.simulation.world import WAITS, Group, World
from treadle.cache.eviction import EVICTIONS
from treadle.schedule.order.build import ORDERS
from treadle.schedule.publication.at_chunk_end import AtChunkEnd
from treadle.schedule.publication.at_plan import AtPlan
from treadle.schedule.publication.build import Sharing
from treadle.wire.messages import Abort, Bye, Pause, ResetCache, Resume
from treadle.wire.sampling_params import SamplingParams

STEPS = 1200

CASES = list(
    itertools.product(
        ["none", "radix", "hashed", "block-tree", "block-tree without copies"],
        [0, 1],
        [
            [Group(48, 1)],
            [Group(9, 4)],
            [Group(40, 1), Group(7, 8)],
            [Group(48, 1), Group(40, 1, window=6)],
            [Group(8, 4, window=9)],
            [Group(60, 1), Group(11, 4, window=5), Group(44, 1, window=11)],
        ],
    )
)


@pytest.mark.parametrize(("index", "depth", "groups"), CASES)
def test_random_life(index: str, depth: int, groups: list[Group]) -> None:
    run_life(index, depth, groups, "fcfs")


@pytest.mark.parametrize("order", sorted(ORDERS.keys() - {"fcfs"}))
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("groups", [CASES[0][2], CASES[3][2]], ids=["whole", "window"])
def test_random_life_in_any_order(order: str, depth: int, groups: list[Group]) -> None:
    run_life("radix", depth, groups, order)


WHOLE, SMALL, WINDOWED = CASES[0][2], CASES[1][2], CASES[5][2]

SHARED = [
    *((index, "postpone") for index in ("radix", "hashed", "block-tree")),
    ("hashed", "at-plan"),
    *((f"radix by {policy}", "at-chunk-end") for policy in sorted(EVICTIONS.keys() - {"lru"})),
    *((f"{index} soft 30", "at-chunk-end") for index in ("radix", "hashed", "block-tree")),
]


@pytest.mark.parametrize(("index", "publication"), SHARED)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("groups", [WHOLE, SMALL, WINDOWED], ids=["whole", "small", "windows"])
def test_random_life_however_prefixes_are_shared(
    index: str, publication: str, depth: int, groups: list[Group]
) -> None:
    sharing = Sharing(publication, groups[0].block_size)
    world = run_life(index, depth, groups, "fcfs", sharing=sharing)
    assert world.engine.stats().evicted_tokens > 0
    assert publication != "at-plan" or world.engine.stats().postponements == 0


def run_life(
    index: str, depth: int, groups: list[Group], order: str, *, sharing: Sharing = WAITS
) -> World:
    rng = random.Random(f"{index}{depth}{groups}")
    world = World(
        index,
        groups=groups,
        depth=depth,
        rows=rng.randint(2, 5),
        budget=rng.randint(3, 20),
        order=order,
        sharing=sharing,
    )
    live(world, rng, STEPS)
    finishes = set(world.ends.values())
    assert {"stop", "length", "abort"} <= finishes
    # Requests that keep only a window seldom outgrow what they were admitted with.
    assert world.scheduler.counters.preemptions > 0 or all(group.window for group in groups)
    assert (world.scheduler.counters.prefix_hits > 0) == (index != "none")
    copies = index in ("block-tree", "block-tree soft 30")
    assert (world.num_copies > 0) == (copies and _part_blocks(groups))
    return world


def _part_blocks(groups: list[Group]) -> bool:
    """Whether part of a block can be found again: where every group finds all to the token."""
    whole = all(group.block_size == 1 or group.window is None for group in groups)
    return whole and any(group.block_size > 1 for group in groups)


@pytest.mark.parametrize("depth", [0, 1])
def test_bye_ends_everybody(depth: int) -> None:
    world = World("radix", groups=[Group(64, 1)], depth=depth)
    for seed in range(6):
        world.send([1, 2, 3, seed], seed=seed, params=SamplingParams(max_tokens=9, ignore_eos=True))
    world.step()
    world.step()
    world.engine.handle(Bye())
    world.drain()
    assert set(world.ends.values()) == {"abort"}
    assert len(world.ends) == 6
    world.kv.check([])


def test_overlap_plans_before_it_settles() -> None:
    """At depth 1 step n + 1 is launched while the tokens of step n are not known."""
    world = World("none", groups=[Group(64, 1)], depth=1)
    world.send([1, 2, 3], params=SamplingParams(max_tokens=6, ignore_eos=True))
    in_flight = []
    while world.engine.has_work:
        world.step()
        in_flight.append(world.fence.in_flight)
    assert in_flight == [1, 1, 1, 1, 1, 1, 0], "no step beyond max_tokens is launched"


@pytest.mark.parametrize("depth", [0, 1])
def test_pause_keeps_requests_where_they_are(depth: int) -> None:
    world = World("radix", groups=[Group(64, 1)], depth=depth)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    first = world.send([1, 2, 3], params=params)
    for _ in range(4):
        world.step()
    world.engine.handle(Pause(0, "keep"))
    later = world.send([4, 5, 6], params=params)
    world.drain()
    frozen = len(world.answers[first])
    assert 0 < frozen < 9
    assert not world.answers[later]
    assert world.engine.stats().paused
    assert (world.engine.stats().running, world.engine.stats().waiting) == (1, 1)
    world.engine.handle(Resume(1))
    world.drain()
    assert world.ends == {first: "length", later: "length"}
    assert world.done == {0: True, 1: True}


def test_pause_that_waits_is_answered_when_the_last_has_ended() -> None:
    world = World("radix", groups=[Group(64, 1)])
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    first = world.send([1, 2, 3], params=params)
    world.step()
    world.engine.handle(Pause(0, "wait"))
    later = world.send([4, 5, 6], params=params)
    world.step()
    assert world.done == {}
    world.drain()
    assert world.ends == {first: "length"}
    assert world.done == {0: True}
    world.engine.handle(Abort(later))
    world.drain()
    assert world.ends[later] == "abort", "those who wait outside can leave"


def test_cache_is_not_forgotten_while_requests_run() -> None:
    world = World("radix", groups=[Group(64, 1)])
    world.send(list(range(9)), params=SamplingParams(max_tokens=3, ignore_eos=True))
    world.step()
    world.engine.handle(ResetCache(0))
    world.drain()
    world.engine.handle(ResetCache(1))
    again = world.send(list(range(9)), params=SamplingParams(max_tokens=3, ignore_eos=True))
    world.drain()
    assert world.done == {0: False, 1: True}
    assert world.cached[again] == 0


def test_scores_do_not_come_from_the_cache() -> None:
    """What is scored is computed; what stands before the first score may be cached."""
    world = World("radix", groups=[Group(64, 1)])
    world.send(list(range(9)), params=SamplingParams(max_tokens=1))
    world.drain()
    whole = world.send(list(range(9)), params=SamplingParams(max_tokens=1, prompt_logprobs=0))
    late = SamplingParams(max_tokens=1, prompt_logprobs=0, prompt_logprobs_start=6)
    tail = world.send(list(range(9)), params=late)
    world.drain()
    assert (world.cached[whole], world.cached[tail]) == (0, 5)
    world.check_answer(whole)
    world.check_answer(tail)


def _shows_what_is_not_full(self: AtPlan[Any], request: Any, start: int, end: int) -> None:
    size = self._running.kv.groups[0].block_size
    full = min(len(request.tokens), -(-end // size) * size)
    self._running.kv.show(request.lease, request.tokens, full)


def _shows_what_is_not_there(
    self: AtChunkEnd[Any],
    request: Any,
    start: int,
    end: int,
) -> None:
    """In a tree, where the blocks of another may take the place of those being written."""
    published = self._running.kv.publish(request.lease, request.tokens, end, decode=False)
    self._running.kv.free(published.surplus)


@pytest.mark.parametrize(
    ("index", "strategy", "wrong"),
    [
        ("hashed", AtPlan, _shows_what_is_not_full),
        ("radix", AtChunkEnd, _shows_what_is_not_there),
    ],
)
def test_what_is_shown_too_early_is_seen(
    index: str, strategy: type[Any], wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "planned", wrong)
    publication = "at-plan" if strategy is AtPlan else "at-chunk-end"
    with pytest.raises(AssertionError):
        run_life(index, 1, SMALL, "fcfs", sharing=Sharing(publication, 0))
