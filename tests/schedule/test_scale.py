"""What a step costs does not depend on how many requests wait, how long contexts are or how much is
cached: counted in calls, Python's and C's, since a clock would tell of the machine."""

from __future__ import annotations

import pytest

from tests.schedule.calls import count_calls
from tests.schedule.test_scheduler import Table
from treadle.schedule.order.build import ORDERS

ROWS = 64


class Scene(Table):
    """64 running rows, `waiting` requests behind them and `nodes` prefixes in the cache."""

    def __init__(
        self, *, index: str, context: int, waiting: int, nodes: int = 0, order: str = "fcfs"
    ) -> None:
        blocks = ROWS * (context // 16 + 8) + 2 * nodes
        super().__init__(
            blocks=blocks,
            block_size=16,
            rows=ROWS,
            budget=ROWS * context,
            index=index,
            order=order,
        )
        group = self.kv.groups[0]
        for number in range(nodes):
            tokens = [10**6 + number] * 16
            lease = group.lease(group.match(tokens, ""), "")
            group.grow(lease, 1)
            group.release(lease, tokens, 16)
        for number in range(ROWS):
            self.add(context, first=10**8 + context * number, max_tokens=200)
        self.step()
        self.waiting = [self.add(context, max_tokens=200) for _ in range(waiting)]

    def calls(self) -> int:
        """Of one step that only decodes, in the middle of a block."""
        while any(len(request.tokens) % 16 != 5 for request in self.scheduler.running):
            self.step()
        return count_calls(self.step)


@pytest.mark.parametrize("index", ["none", "radix", "hashed", "block-tree"])
@pytest.mark.parametrize("order", ["fcfs", "priority", "lof"])
def test_a_step_costs_the_same_whatever_waits_and_is_cached(index: str, order: str) -> None:
    small = Scene(index=index, context=160, waiting=1, order=order)
    large = Scene(index=index, context=160, waiting=10_000, nodes=20_000, order=order)
    assert large.calls() == small.calls()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_while_no_row_is_free_nobody_looks_at_the_queue(order: str) -> None:
    small = Scene(index="radix", context=160, waiting=1, order=order)
    large = Scene(index="radix", context=160, waiting=1000, order=order)
    assert large.calls() == small.calls()


@pytest.mark.parametrize("order", ["fcfs", "priority", "lof"])
def test_one_that_waits_for_blocks_costs_the_same_whoever_waits_behind_it(order: str) -> None:
    def calls(waiting: int) -> int:
        scene = Scene(index="radix", context=160, waiting=0, order=order)
        scene.scheduler.finish(scene.scheduler.running[0])
        scene.add(80_000)
        for _ in range(waiting):
            scene.add(80_000)
        scene.step()
        assert scene.scheduler.num_waiting == 1 + waiting
        return scene.calls()

    assert calls(1000) == calls(1)


@pytest.mark.parametrize("index", ["none", "radix", "hashed", "block-tree"])
def test_a_step_costs_the_same_however_long_contexts_are(index: str) -> None:
    assert (
        Scene(index=index, context=8000, waiting=2).calls()
        == Scene(index=index, context=80, waiting=2).calls()
    )


@pytest.mark.parametrize("index", ["none", "radix", "hashed", "block-tree"])
def test_a_request_that_waits_for_blocks_costs_the_same_however_long_it_is(index: str) -> None:
    """There is a row for it, and not enough KV: every step asks whether there is by now."""

    def calls(context: int) -> int:
        scene = Scene(index=index, context=160, waiting=0)
        scene.scheduler.finish(scene.scheduler.running[0])
        scene.add(context)
        scene.step()
        assert scene.scheduler.num_waiting == 1
        return scene.calls()

    assert calls(80_000) == calls(20_000)


def test_aborting_one_of_many_costs_the_same() -> None:
    def calls(waiting: int) -> int:
        scene = Scene(index="radix", context=32, waiting=waiting)
        return count_calls(lambda: scene.scheduler.finish(scene.waiting[waiting // 2]))

    assert calls(10_000) == calls(3)
