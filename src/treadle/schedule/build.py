"""Putting a scheduler together: the strategies of all axes over one set of running requests."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.admission.stepwise import Stepwise
from treadle.schedule.composition.unified import Unified
from treadle.schedule.entrance import Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.ports import KV, Fence, Schedulable
from treadle.schedule.publication.build import Sharing, build_publication
from treadle.schedule.running import Running
from treadle.schedule.scheduler import Limits, Scheduler, Strategies
from treadle.schedule.shortage.preempt_newest import PreemptNewest

R = TypeVar("R", bound=Schedulable)


def build_scheduler(
    limits: Limits,
    waiting: WaitingOrder[R],
    kv: KV,
    fence: Fence,
    *,
    sharing: Sharing = Sharing(),  # noqa: B008 - frozen
) -> Scheduler[R]:
    running: Running[R] = Running(limits.max_num_seqs, kv, fence)
    publication = build_publication(sharing, running, fence)
    growth = Growth(running, waiting, PreemptNewest(running))
    entrance = Entrance(waiting, running, Stepwise(kv), publication)
    composition = Unified(running, growth, entrance)
    return Scheduler(limits, waiting, running, Strategies(composition, publication), fence)
