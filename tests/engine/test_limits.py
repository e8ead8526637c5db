"""Who leaves a full queue for a more important one, and who has run too long."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.world import Group, World
from treadle.engine.limits import Limits
from treadle.engine.priorities import Priorities
from treadle.wire.messages import Pause, Resume
from treadle.wire.sampling_params import SamplingParams

LONG = SamplingParams(max_tokens=9, ignore_eos=True)


def full(priorities: list[int | None], *, queued: int, rows: int = 1) -> World:
    """A world whose first request runs before the others arrive, one after the other."""
    world = World(
        "none",
        groups=[Group(64, 1)],
        rows=rows,
        order="priority",
        priorities=Priorities("count"),
        limits=Limits(max_queued=queued),
    )
    for number, priority in enumerate(priorities):
        world.send([1, 2], params=LONG, priority=priority)
        if number == 0:
            world.step()
    return world


def test_a_full_queue_refuses_who_is_not_more_important() -> None:
    world = full([0, 1, 2, 2, 3], queued=2)
    world.drain()
    assert world.ends == {
        "r0": "length",
        "r1": "length",
        "r2": "length",
        "r3": "failed 503",
        "r4": "failed 503",
    }


def test_a_full_queue_loses_its_least_important_and_newest() -> None:
    world = full([0, 2, 2, 1, 1], queued=2)
    world.drain()
    assert list(world.ends.items()) == [
        ("r2", "failed 503"),
        ("r1", "failed 503"),
        ("r0", "length"),
        ("r3", "length"),
        ("r4", "length"),
    ]


def test_rows_that_are_free_are_not_the_queue() -> None:
    world = full([0, 0, 0, 0, 0], queued=1, rows=3)
    world.drain()
    assert [world.ends[f"r{n}"] for n in range(5)] == ["length"] * 4 + ["failed 503"]


def test_nobody_waits_where_no_queue_is_wanted() -> None:
    world = full([5, 0], queued=0)
    world.drain()
    assert world.ends == {"r0": "length", "r1": "failed 503"}


def test_those_before_the_gate_are_the_queue_while_it_is_shut() -> None:
    world = full([0], queued=1)
    world.engine.handle(Pause(0, "wait"))
    for priority in (3, 2, 4):
        world.send([1, 2], params=LONG, priority=priority)
    world.engine.handle(Resume(1))
    world.drain()
    assert world.ends == {
        "r1": "failed 503",
        "r3": "failed 503",
        "r0": "length",
        "r2": "length",
    }


@given(
    priorities=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    queued=st.integers(0, 4),
)
def test_the_most_important_are_left(priorities: list[int], queued: int) -> None:
    """Against a list that is sorted anew for each arrival."""
    world = full([0, *priorities], queued=queued)
    waiting: list[tuple[int, int]] = []
    for number, priority in enumerate(priorities, start=1):
        waiting = sorted([*waiting, (priority, number)])
        # Of equals the newest leaves, and never one that waits for one of its own priority.
        waiting = waiting[:queued] if len(waiting) > queued else waiting
    world.drain()
    ended = {key for key, end in world.ends.items() if end == "length"}
    assert ended == {"r0"} | {f"r{number}" for _, number in waiting}


def test_an_answer_that_takes_too_long_fails() -> None:
    world = World("radix", groups=[Group(64, 1)], rows=2, limits=Limits(running_timeout=1000))
    slow = world.send([1, 2, 3], params=LONG)
    world.step()
    (request,) = world.scheduler.running
    other = world.send([4, 5], params=LONG)
    waiting = world.send([4, 5], params=LONG)
    world.step()
    request.times = dataclasses.replace(request.times, started=request.times.arrived - 2000)
    world.drain()
    assert world.ends == {slow: "failed 503", other: "length", waiting: "length"}
    world.check_answer(other)
    world.kv.check([])
