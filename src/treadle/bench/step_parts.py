"""What each part of a step takes, timed from outside: an engine knows of no clock.

Methods of an engine's parts are replaced by ones that read the clock around them; calls lie within
each other, so a part's own time is what is left of it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import msgspec

from treadle.engine.build import Parts
from treadle.engine.loop import Engine
from treadle.wire.messages import FromEngine
from treadle.wire.plan import StepPlan

P = ParamSpec("P")
R = TypeVar("R")


class StepTimes(msgspec.Struct, kw_only=True):
    """One step, in seconds; the parts add up to the whole."""

    num_tokens: int
    num_rows: int
    plan_s: float
    """Who computes what; blocks."""
    fill_s: float
    """The plan into input arrays."""
    forward_s: float
    """The native call."""
    sample_s: float
    settle_s: float
    """Tokens taken in, blocks published, messages; and all else of the loop."""
    step_s: float


class StepClock:
    """Keeps the times of each step that computed something, since the last `take`.

    For engines that run a step's parts one after the other, in the caller's thread.
    """

    def __init__(self, parts: Parts, engine: Engine) -> None:
        assert parts.resolved.schedule.overlap_depth == 0, "steps do not overlap"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._plans: list[StepPlan] = []
        self._times: list[StepTimes] = []
        self._step = engine.step
        self._forward = parts.runner.forward
        parts.scheduler.plan = self._timed("plan", parts.scheduler.plan)  # type: ignore[method-assign]
        parts.program.run = self._timed("program", parts.program.run)  # type: ignore[method-assign]
        parts.runner.sample = self._timed("sample", parts.runner.sample)  # type: ignore[method-assign]
        parts.runner.forward = self._forward_noted  # type: ignore[method-assign]
        engine.step = self._step_noted  # type: ignore[method-assign]

    def take(self) -> list[StepTimes]:
        times, self._times = self._times, []
        return times

    def _timed(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._seconds[part] += time.perf_counter() - began

        return timed

    def _forward_noted(self, plan: StepPlan) -> None:
        self._plans.append(plan)
        began = time.perf_counter()
        self._forward(plan)
        self._seconds["forward"] += time.perf_counter() - began

    def _step_noted(self) -> list[FromEngine]:
        self._seconds.clear()
        self._plans.clear()
        began = time.perf_counter()
        messages = self._step()
        whole = time.perf_counter() - began
        for plan in self._plans:
            self._times.append(_times_of(plan, self._seconds, whole))
        return messages


def _times_of(plan: StepPlan, seconds: Mapping[str, float], whole: float) -> StepTimes:
    timed = seconds["plan"] + seconds["forward"] + seconds["sample"]
    return StepTimes(
        num_tokens=sum(work.num_tokens for work in plan.work),
        num_rows=len(plan.work),
        plan_s=seconds["plan"],
        fill_s=seconds["forward"] - seconds["program"],
        forward_s=seconds["program"],
        sample_s=seconds["sample"],
        settle_s=whole - timed,
        step_s=whole,
    )


def median_times(steps: Sequence[StepTimes]) -> StepTimes:
    """Of each part by itself, so the parts add up to about the whole."""
    return StepTimes(
        num_tokens=steps[-1].num_tokens,
        num_rows=steps[-1].num_rows,
        **{
            name: statistics.median(getattr(step, name) for step in steps)
            for name in StepTimes.__struct_fields__
            if name.endswith("_s")
        },
    )
