"""Each order against a plain sort, over queues that requests join, leave and come back to; and the
worked examples."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.calls import count_calls
from treadle.cache.kv import KVCache, build_prefix_cache
from treadle.engine.request import Request
from treadle.schedule.order.build import ORDERS, OrderParams, build_order
from treadle.schedule.order.hrrn import HighestResponseRatioNext
from treadle.schedule.order.in_batch import InBatchCheck
from treadle.schedule.order.lpm import LongestPrefixMatch
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.ports import KVMatch
from treadle.wire.messages import Generate
from treadle.wire.sampling_params import SamplingParams

Oracle = Callable[["Queue"], list[Request]]

CHECK = InBatchCheck(cached=3, shared=4)
PARAMS = OrderParams(check=CHECK, sort_limit=6, seed=5)


def make(number: int, tokens: Sequence[int] = (1, 2, 3), **fields: Any) -> Request:
    salt = fields.pop("salt", "")
    most = fields.pop("max_tokens", 8)
    message = Generate(
        request_id=f"r{number}",
        prompt=list(tokens),
        params=SamplingParams(max_tokens=most),
        seed=0,
        cache_salt=salt,
    )
    request = Request.of(message, most, float(number))
    return dataclasses.replace(request, **fields)


class Queue:
    """The queue as a list, with what orders look at: the cache, who runs, the work done so far."""

    def __init__(self, block_size: int = 1, index: str = "radix") -> None:
        self.kv = KVCache([build_prefix_cache(index, 4096, block_size)])
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.prefilled = 0

    def remember(self, tokens: Sequence[int], salt: str = "") -> None:
        """Have the cache know these tokens."""
        lease, _ = self.kv.lease(self.kv.match(list(tokens), salt), salt)
        assert self.kv.grow(lease, len(tokens)) is not None
        self.kv.release(lease, list(tokens), len(tokens))

    def match(self, request: Request) -> KVMatch:
        return self.kv.match(request.tokens[:-1], request.cache_salt)

    def path(self, request: Request) -> Sequence[object]:
        return self.kv.path(self.kv.match(request.tokens[:-1], request.cache_salt))

    def cached(self, request: Request) -> int:
        return self.match(request).num_tokens


def deferred(queue: Queue) -> list[Request]:
    """Pairs compared one by one."""
    behind: list[Request] = []
    begun: list[Request] = []
    for request in queue.waiting:
        if queue.cached(request) > CHECK.cached:
            continue
        shared = [
            len(
                list(
                    itertools.takewhile(
                        lambda pair: pair[0] == pair[1],
                        zip(request.tokens, other.tokens, strict=False),
                    )
                )
            )
            for other in begun
            if other.cache_salt == request.cache_salt
        ]
        (behind if max(shared, default=0) >= CHECK.shared else begun).append(request)
    return behind


def by_match(queue: Queue) -> list[Request]:
    behind = deferred(queue)
    inf = float("inf")
    return sorted(queue.waiting, key=lambda r: inf if r in behind else -queue.cached(r))


def by_ratio(queue: Queue) -> list[Request]:
    behind = deferred(queue)

    def ratio(request: Request) -> float:
        left = len(request.tokens) - queue.cached(request)
        return (queue.prefilled - request.prefilled_before) / left

    return sorted(queue.waiting, key=lambda r: (r in behind, -ratio(r), r.request_id))


def by_tree(queue: Queue) -> list[Request]:
    """A node per token, salts apart, walked by recursion."""
    root: dict[str, Any] = {"ends": [], "below": {}, "weight": 0}
    for request in queue.waiting:
        node = root
        prefix: list[object] = list(request.tokens[: queue.cached(request)])
        if prefix:
            prefix[0] = (request.cache_salt, prefix[0])
        for token in prefix:
            node = node["below"].setdefault(token, {"ends": [], "below": {}, "weight": 0})
            node["weight"] += 1
        node["ends"].append(request)

    def walk(node: dict[str, Any]) -> Iterator[Request]:
        for child in sorted(node["below"].values(), key=lambda child: -child["weight"]):
            yield from walk(child)
        yield from node["ends"]

    return list(walk(root))


def by_key(queue: Queue) -> list[Request]:
    counts: dict[str, int] = {}
    for request in queue.running:
        if request.routing_key:
            counts[request.routing_key] = counts.get(request.routing_key, 0) + 1
    if not counts:
        return list(queue.waiting)
    return sorted(
        queue.waiting,
        key=lambda r: (
            (0, -counts[r.routing_key], r.routing_key)
            if r.routing_key in counts
            else (1, 0, r.routing_key)
        ),
    )


def limited(oracle: Oracle) -> Oracle:
    return lambda queue: (
        oracle(queue) if len(queue.waiting) <= PARAMS.sort_limit else list(queue.waiting)
    )


SORTS: dict[str, Oracle] = {
    "fcfs": lambda queue: list(queue.waiting),
    "priority": lambda queue: sorted(
        queue.waiting, key=lambda r: (r.priority, r.times.arrived, r.request_id)
    ),
    "lof": lambda queue: sorted(queue.waiting, key=lambda r: (r.priority, -r.max_tokens)),
    "lpm": limited(by_match),
    "hrrn": limited(by_ratio),
    "dfs-weight": by_tree,
    "routing-key": by_key,
}


@st.composite
def requests(draw: st.DrawFn, number: int) -> Request:
    short = st.lists(st.integers(0, 2), min_size=1, max_size=9)
    return make(
        number,
        draw(short),
        salt=draw(st.sampled_from(["", "", "other"])),
        max_tokens=draw(st.integers(1, 4)),
        priority=draw(st.integers(-2, 2)),
        routing_key=draw(st.sampled_from(["", "a", "b", "c"])),
        prefilled_before=draw(st.integers(0, 50)),
    )


@pytest.mark.parametrize("name", sorted(SORTS))
@pytest.mark.parametrize("block_size", [1, 2])
@given(data=st.data())
def test_orders_are_what_a_sort_says(name: str, block_size: int, data: st.DataObject) -> None:
    queue = Queue(block_size)
    for _ in range(data.draw(st.integers(0, 4))):
        queue.remember(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=9)))
    order: WaitingOrder[Request] = build_order(name, PARAMS)
    gone: list[Request] = []
    number = 0
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 4))):
            number += 1
            request = data.draw(requests(number))
            queue.waiting.append(request)
            order.add(request)
        if gone and data.draw(st.booleans()):
            back = gone.pop()
            queue.waiting.insert(0, back)
            order.put_back(back)
        if queue.waiting and data.draw(st.booleans()):
            left = data.draw(st.sampled_from(queue.waiting))
            queue.waiting.remove(left)
            assert order.remove(left)
            assert not order.remove(left)
        queue.prefilled += data.draw(st.integers(50, 60))
        queue.running = data.draw(st.lists(requests(0), max_size=3))
        expected = SORTS[name](queue)
        walk = order.candidates(queue)
        for request in expected[: data.draw(st.integers(0, 12))]:
            assert next(walk) is request
            if data.draw(st.booleans()):
                assert order.remove(request)
                queue.waiting.remove(request)
                gone.append(request)
        assert len(order) == len(queue.waiting)
        assert set(order) == set(queue.waiting)


@given(seed=st.integers(0, 9), numbers=st.permutations(range(9)))
def test_random_is_everybody_and_the_same_again(seed: int, numbers: list[int]) -> None:
    queue = Queue()
    queue.waiting = [make(number) for number in numbers]
    walks = []
    for _ in range(2):
        order: WaitingOrder[Request] = build_order("random", OrderParams(seed=seed))
        for request in queue.waiting:
            order.add(request)
        walks.append([list(order.candidates(queue)), list(order.candidates(queue))])
        assert set(walks[-1][0]) == set(queue.waiting)
    assert walks[0] == walks[1]


def test_random_is_no_other_order() -> None:
    queue = Queue()
    order: WaitingOrder[Request] = build_order("random", OrderParams())
    for number in range(30):
        order.add(make(number))
    first, second = list(order.candidates(queue)), list(order.candidates(queue))
    assert first != second
    assert first != sorted(first, key=lambda request: request.times.arrived)


def test_who_left_during_a_walk_is_not_offered() -> None:
    queue = Queue()
    for name in ORDERS:
        order: WaitingOrder[Request] = build_order(name, OrderParams())
        three = [make(number) for number in range(3)]
        for request in three:
            order.add(request)
        walk = order.candidates(queue)
        offered = [next(walk)]
        left = next(request for request in three if request not in offered)
        order.remove(left)
        offered += walk
        assert left not in offered, name
        assert len(offered) == 2


# The worked examples.


def long_queue() -> Queue:
    """x has nothing in the cache; y has 10 tokens and 32 in common with x; z has 33; w has nothing
    and shares 31 tokens with x."""
    queue = Queue()
    x = list(range(100, 200))
    z = list(range(500, 1100))
    queue.remember(z[:33])
    queue.remember(x[:10], salt="y")
    queue.waiting = [
        make(1, x),
        make(2, [*x[:32], *range(300, 330)]),
        make(3, z),
        make(4, [*x[:31], *range(400, 430)]),
    ]
    return queue


def test_in_batch_check_defers_who_shares_32_tokens() -> None:
    queue = long_queue()
    x, y, z, w = queue.waiting
    assert InBatchCheck(32, 32).deferred(queue.waiting, queue) == {y}
    again = make(5, [*z.tokens[:550], 7])
    # More than 32 tokens of it are cached, and it is not looked at.
    assert InBatchCheck(32, 32).deferred([*queue.waiting, again], queue) == {y}
    assert InBatchCheck(33, 32).deferred([*queue.waiting, again], queue) == {y, again}
    assert InBatchCheck(32, 31).deferred(queue.waiting, queue) == {y, w}
    assert InBatchCheck(-1, 32).deferred(queue.waiting, queue) == set()
    assert LongestPrefixMatch[Request](InBatchCheck(32, 32)).sorted(queue.waiting, queue) == [
        z,
        x,
        w,
        y,
    ]


def test_in_batch_check_keeps_salts_apart() -> None:
    queue = long_queue()
    x, y, *_ = queue.waiting
    y.cache_salt = "y"
    assert queue.cached(y) == 10
    assert InBatchCheck(32, 32).deferred([x, y], queue) == set()


@pytest.mark.parametrize(("waiting", "policy"), [(128, "lpm"), (129, "fcfs")])
@pytest.mark.parametrize("name", ["lpm", "hrrn"])
def test_a_long_queue_is_first_come_first_served(name: str, waiting: int, policy: str) -> None:
    queue = Queue()
    queue.remember(range(9))
    queue.prefilled = 10
    order: WaitingOrder[Request] = build_order(name, OrderParams())
    queue.waiting = [make(number, [50 + number] * 20) for number in range(waiting - 1)]
    queue.waiting.append(make(waiting, range(9)))
    for request in queue.waiting:
        order.add(request)
    first = next(order.candidates(queue))
    assert (first is queue.waiting[-1]) == (policy == "lpm")


def test_response_ratios() -> None:
    queue = Queue()
    queue.prefilled = 10_000
    queue.waiting = [
        make(1, range(500), prefilled_before=9000),
        make(2, range(1000, 3000), prefilled_before=2000),
        make(3, range(5000, 5010), prefilled_before=9900),
    ]
    p, q, r = queue.waiting
    order: HighestResponseRatioNext[Request] = HighestResponseRatioNext(InBatchCheck(32, 32))
    assert order.sorted(queue.waiting, queue) == [r, q, p]


def test_a_tree_is_walked_where_most_wait() -> None:
    """Three wait under one prefix, two under another, one of them in the middle of its edge."""
    queue = Queue()
    queue.remember([1, 2, 3, 4, 5, 6])
    queue.remember([1, 2, 3, 7, 8])
    queue.remember([9, 9, 9, 9])
    a = make(1, [9, 9, 9, 9, 0])
    b = make(2, [1, 2, 3, 4, 0])
    c = make(3, [5, 5])
    d = make(4, [1, 2, 3, 4, 5, 6, 0])
    e = make(5, [9, 9, 0])
    f = make(6, [1, 2, 0])
    order: WaitingOrder[Request] = build_order("dfs-weight", OrderParams())
    for request in (a, b, c, d, e, f):
        order.add(request)
    assert list(order.candidates(queue)) == [d, b, f, a, e, c]


@pytest.mark.parametrize("name", ["fcfs", "priority", "lof"])
def test_a_walk_costs_little_however_many_wait(name: str) -> None:
    """Looking at three, taking the third, 10,000 being there. A call is what is counted."""

    def calls(waiting: int) -> int:
        rng = random.Random(waiting)
        queue = Queue()
        order: WaitingOrder[Request] = build_order(name, OrderParams())
        for number in range(waiting):
            order.add(make(number, priority=rng.randrange(9), max_tokens=rng.randrange(1, 99)))

        def look() -> None:
            walk = order.candidates(queue)
            next(walk), next(walk)
            order.remove(next(walk))

        return max(count_calls(look) for _ in range(5))

    assert calls(10_000) == calls(10)
