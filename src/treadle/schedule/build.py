"""Putting a scheduler together: the strategies of all axes over one set of running requests."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.admission.stepwise import Stepwise
from treadle.schedule.composition.unified import Unified
from treadle.schedule.entrance import Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.ports import KV, Fence, Schedulable
from treadle.schedule.publication.at_chunk_end import AtChunkEnd
from treadle.schedule.running import Running
from treadle.schedule.scheduler import Limits, Scheduler, Strategies
from treadle.schedule.shortage.preempt_newest import PreemptNewest

R = TypeVar("R", bound=Schedulable)

WORTH_WAITING = 64
"""Computing fewer tokens twice costs less than the part of a step that stays empty meanwhile."""


def build_scheduler(
    limits: Limits,
    waiting: WaitingOrder[R],
    kv: KV,
    fence: Fence,
    *,
    worth_waiting: int = WORTH_WAITING,
) -> Scheduler[R]:
    running: Running[R] = Running(limits.max_num_seqs, kv, fence)
    publication: AtChunkEnd[R] = AtChunkEnd(running, fence, worth_waiting)
    growth = Growth(running, waiting, PreemptNewest(running))
    entrance = Entrance(waiting, running, Stepwise(kv), publication)
    composition = Unified(running, growth, entrance)
    return Scheduler(limits, waiting, running, Strategies(composition, publication), fence)
