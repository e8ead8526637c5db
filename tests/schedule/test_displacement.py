"""Who gives way to a waiting request that is more important, and when nobody does."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.test_compositions import SGLANG, of
from tests.schedule.test_order import make
from tests.schedule.test_scheduler import Table
from treadle.schedule.displacement import Displacement

POLICY = of(SGLANG, displacement=10)


@given(
    by=st.integers(-20, 20),
    priorities=st.lists(st.integers(-20, 20), max_size=6),
    frees=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    missing=st.integers(-5, 30),
    threshold=st.integers(0, 12),
)
def test_victims_are_the_shortest_run_that_is_enough(
    by: int, priorities: list[int], frees: list[int], missing: int, threshold: int
) -> None:
    running = [make(n, priority=priority) for n, priority in enumerate(priorities)]
    freed = dict(zip(running, frees, strict=False))
    usable = [one for one in running if one.priority > by + threshold]
    usable.sort(key=lambda one: (-one.priority, -one.arrived))
    enough = [
        usable[:length]
        for length in range(1, len(usable) + 1)
        if sum(freed[one] for one in usable[:length]) >= missing
    ]
    found = Displacement(threshold).victims(
        make(99, priority=by), running, missing, lambda one: freed[one]
    )
    assert found == (enough[0] if enough else [])


@pytest.mark.parametrize(("priority", "gives_way"), [(9, True), (10, False), (30, False)])
def test_a_full_batch_gives_way_by_more_than_the_threshold(priority: int, gives_way: bool) -> None:
    table = Table(blocks=400, budget=40, rows=2, policy=POLICY, order="priority")
    table.add(3, priority=15)
    worst = table.add(3, priority=20)
    assert table.step() == [("r1", 3, True), ("r2", 3, True)]
    table.add(4, priority=priority)
    second = table.step()
    third = table.step()
    if gives_way:
        assert second == [("r1", 1, True)], "r2 gave its row up"
        assert third == [("r3", 4, True)]
        assert worst.row is None
        assert worst in table.scheduler.waiting
        assert len(worst.tokens) == 4, "no token is lost"
    else:
        assert second == third == [("r1", 1, True), ("r2", 1, True)]


def test_of_equals_the_newest_gives_way_and_no_more_than_needed() -> None:
    table = Table(blocks=400, budget=40, rows=3, policy=POLICY, order="priority")
    for _ in range(3):
        table.add(3, priority=20)
    table.step()
    table.add(4, priority=0)
    assert table.step() == [("r1", 1, True), ("r2", 1, True)]
    assert table.step() == [("r4", 4, True)]
    assert [request.request_id for request in table.scheduler.waiting] == ["r3"]


def kv_is_short(*, num_new: int) -> tuple[Table, list[list[tuple[str, int, bool]]]]:
    """Two run, expected to take 0.7 of 50 each; the third would take more than is left."""
    table = Table(blocks=120, budget=40, rows=8, policy=POLICY, order="priority")
    table.add(3, priority=20)
    table.add(3, priority=30)
    table.step()
    table.add(4, max_tokens=num_new, priority=0)
    return table, [table.step(), table.step()]


def test_kv_that_is_expected_to_be_enough_is_given_up() -> None:
    table, steps = kv_is_short(num_new=60)
    assert steps == [[("r1", 1, True)], [("r3", 4, True)]]
    assert table.scheduler.counters.preemptions == 1


def test_nothing_happens_where_it_would_not_be_enough() -> None:
    table, steps = kv_is_short(num_new=116)
    assert steps == [[("r1", 1, True), ("r2", 1, True)]] * 2
    assert table.scheduler.counters.preemptions == 0


def test_without_it_nobody_gives_way() -> None:
    policy = dataclasses.replace(POLICY, displacement=None)
    table = Table(blocks=400, budget=40, rows=1, policy=policy, order="priority")
    table.add(3, priority=99)
    table.step()
    table.add(4, priority=0)
    assert table.step() == [("r1", 1, True)]
