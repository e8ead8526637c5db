"""Where the runner's calls run: in the caller's thread, or one after another in a thread of their
own, so that the engine plans and settles while a step computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from treadle.sampling.masks import RowMasks
from treadle.wire.plan import StepPlan, StepResult


class StepRunner(Protocol):
    """See `runner.Runner`."""

    def forward(self, plan: StepPlan) -> None: ...
    def sample(self, plan: StepPlan, masks: RowMasks | None) -> StepResult: ...
    def close(self) -> None: ...


class Executor(Protocol):
    """Calls run in the order in which they were submitted."""

    def forward(self, plan: StepPlan) -> None: ...

    def sample(self, plan: StepPlan, masks: RowMasks | None) -> Callable[[], StepResult]:
        """Returns a handle that waits for the result, and raises what the step raised. The masks
        must stay as they are until then."""
        ...

    def close(self) -> None: ...


class InlineExecutor:
    """Runs each call at once."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def forward(self, plan: StepPlan) -> None:
        self._runner.forward(plan)

    def sample(self, plan: StepPlan, masks: RowMasks | None) -> Callable[[], StepResult]:
        result = self._runner.sample(plan, masks)
        return lambda: result

    def close(self) -> None:
        self._runner.close()


class ThreadExecutor:
    """Runs calls in one thread. The native kernels release the GIL, so the engine goes on."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="treadle-runner")
        self._forward: Future[None] | None = None

    def forward(self, plan: StepPlan) -> None:
        self._forward = self._thread.submit(self._runner.forward, plan)

    def sample(self, plan: StepPlan, masks: RowMasks | None) -> Callable[[], StepResult]:
        forward = self._forward
        assert forward is not None, "sample follows forward"
        sampled = self._thread.submit(self._runner.sample, plan, masks)

        def result() -> StepResult:
            forward.result()
            return sampled.result()

        return result

    def close(self) -> None:
        self._thread.shutdown()
        self._runner.close()
