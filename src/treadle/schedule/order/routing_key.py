"""Requests with the routing key of many running ones first: what they share, say an adapter or a
tenant's prefix, is at work already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

from treadle.schedule.order.waiting import Outlook
from treadle.schedule.ports import Schedulable

R = TypeVar("R", bound=Schedulable)


class RoutingKey(Generic[R]):
    """Running keys by how often they run, then all others; ties by key, then by place. Where no
    running request has a key, places decide."""

    def sorted(self, waiting: Sequence[R], outlook: Outlook[R]) -> Sequence[R]:
        runs = Counter(request.routing_key for request in outlook.running if request.routing_key)
        if not runs:
            return waiting

        def key(request: R) -> tuple[bool, int, str]:
            count = runs.get(request.routing_key, 0)
            return not count, -count, request.routing_key

        return sorted(waiting, key=key)
