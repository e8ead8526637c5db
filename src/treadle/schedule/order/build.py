"""From an order's name to the order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from treadle.schedule.order.dfs_weight import DfsWeight
from treadle.schedule.order.fcfs import Fcfs
from treadle.schedule.order.hrrn import HighestResponseRatioNext
from treadle.schedule.order.in_batch import InBatchCheck
from treadle.schedule.order.lof import LongestOutputFirst
from treadle.schedule.order.lpm import LongestPrefixMatch
from treadle.schedule.order.priority import Priority
from treadle.schedule.order.resorted import Resorted
from treadle.schedule.order.routing_key import RoutingKey
from treadle.schedule.order.shuffled import Shuffled
from treadle.schedule.order.waiting import WaitingOrder


@dataclasses.dataclass(frozen=True)
class OrderParams:
    """What the orders can be told; each reads its own."""

    check: InBatchCheck = InBatchCheck(32, 32)  # noqa: RUF009
    sort_limit: int = 128
    """With more waiting, lpm and hrrn are first come, first served."""
    seed: int = 0


ORDERS: Mapping[str, Callable[[OrderParams], WaitingOrder[Any]]] = {
    "fcfs": lambda _: Fcfs(),
    "priority": lambda _: Priority(),
    "lof": lambda _: LongestOutputFirst(),
    "lpm": lambda say: Resorted(LongestPrefixMatch(say.check), say.sort_limit),
    "hrrn": lambda say: Resorted(HighestResponseRatioNext(say.check), say.sort_limit),
    "dfs-weight": lambda _: Resorted(DfsWeight()),
    "random": lambda say: Resorted(Shuffled(say.seed)),
    "routing-key": lambda _: Resorted(RoutingKey()),
}


def build_order(name: str, params: OrderParams) -> WaitingOrder[Any]:
    return ORDERS[name](params)
