"""Putting a scheduler together: the strategies of all axes over one set of running requests."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.admission.estimate import Estimate
from treadle.schedule.admission.max_utilization import MaxUtilization
from treadle.schedule.admission.no_evict import NoEvict
from treadle.schedule.admission.ratio import NewTokenRatio
from treadle.schedule.admission.static import Static
from treadle.schedule.admission.stepwise import Stepwise
from treadle.schedule.composition.prefill_first import PrefillBeforeDecode
from treadle.schedule.composition.two_stage import CapacityThenBatch
from treadle.schedule.composition.unified import Unified
from treadle.schedule.displacement import Displacement
from treadle.schedule.entrance import Entrance
from treadle.schedule.growth import Growth
from treadle.schedule.making_way import MakingWay
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.policy import Policy
from treadle.schedule.ports import KV, Fence, Schedulable
from treadle.schedule.publication.build import Sharing, build_publication
from treadle.schedule.running import Running
from treadle.schedule.scheduler import Limits, Scheduler, Strategies
from treadle.schedule.shortage.never import Never
from treadle.schedule.shortage.preempt_lowest_priority import PreemptLowestPriority
from treadle.schedule.shortage.preempt_newest import PreemptNewest
from treadle.schedule.shortage.retraction import Retraction, important_kept, longest_kept
from treadle.schedule.strategies import Admission, Composition, Shortage

R = TypeVar("R", bound=Schedulable)


def build_scheduler(
    limits: Limits,
    waiting: WaitingOrder[R],
    kv: KV,
    fence: Fence,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    *,
    sharing: Sharing = Sharing(),  # noqa: B008 - frozen
) -> Scheduler[R]:
    running: Running[R] = Running(limits.max_num_seqs, kv, fence)
    ratio = NewTokenRatio(policy.estimate)
    admission = _admission(policy, running, ratio)
    publication = build_publication(sharing, running, fence)
    growth = Growth(running, waiting, _shortage(policy, running, ratio))
    entrance = Entrance(waiting, running, admission, publication)
    composition = _composition(policy, running, growth, entrance, admission)
    strategies = Strategies(composition, admission, publication)
    return Scheduler(limits, waiting, running, strategies, fence)


def _admission(policy: Policy, running: Running[R], ratio: NewTokenRatio) -> Admission[R]:
    match policy.admission:
        case "stepwise":
            return Stepwise(running, policy.stepwise)
        case "estimate":
            return Estimate(running, ratio, policy.estimate)
        case "no-evict":
            return NoEvict(running)
        case "max-utilization":
            return MaxUtilization(running, policy.overlap_depth)
        case "static":
            return Static(running)
    raise AssertionError(f"no admission is called {policy.admission}")


def _shortage(policy: Policy, running: Running[R], ratio: NewTokenRatio) -> Shortage[R]:
    match policy.shortage:
        case "preempt-newest":
            return PreemptNewest(running, waits=policy.admission == "max-utilization")
        case "preempt-lowest-priority":
            return PreemptLowestPriority(running)
        case "retract-by-length":
            return Retraction(running, ratio, longest_kept)
        case "retract-by-priority":
            return Retraction(running, ratio, important_kept)
        case "never":
            return Never()
    raise AssertionError(f"no shortage is called {policy.shortage}")


def _composition(
    policy: Policy,
    running: Running[R],
    growth: Growth[R],
    entrance: Entrance[R],
    admission: Admission[R],
) -> Composition[R]:
    match policy.composition:
        case "unified":
            return Unified(running, growth, entrance, policy.chunking)
        case "prefill-first":
            making_way = _making_way(policy, running, growth, entrance, admission)
            return PrefillBeforeDecode(running, growth, entrance, admission, policy, making_way)
        case "two-stage":
            return CapacityThenBatch(running, growth, entrance, policy.two_stage, policy.chunking)
    raise AssertionError(f"no composition is called {policy.composition}")


def _making_way(
    policy: Policy,
    running: Running[R],
    growth: Growth[R],
    entrance: Entrance[R],
    admission: Admission[R],
) -> MakingWay[R] | None:
    if policy.displacement is None:
        return None
    assert isinstance(admission, Estimate), "what is freed is an estimate"
    return MakingWay(running, growth, entrance, admission, Displacement(policy.displacement))
