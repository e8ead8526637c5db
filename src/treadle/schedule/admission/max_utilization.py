"""TensorRT-LLM's max-utilization: a request starts once the next step of all finds its blocks."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.admission.account import Account
from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission

R = TypeVar("R", bound=Schedulable)


class MaxUtilization(Admission[R]):
    """A prompt's blocks are spoken for from its first chunk on; of an answer, the next token's and
    one for each step that is planned ahead."""

    def __init__(self, running: Running[R], overlap_depth: int) -> None:
        self._ahead = overlap_depth
        self._account = Account(running, self._next_step)

    def open(self, set_aside: int = 0) -> None:  # noqa: ARG002
        self._account.open()

    def admits(self, request: R, match: KVMatch, num_tokens: int) -> bool:  # noqa: ARG002
        return self._account.affords(request, match)

    def charge(self, request: R, match: KVMatch, num_tokens: int) -> None:  # noqa: ARG002
        self._account.charge(request, match)

    def _next_step(self, request: R) -> int:
        return min(request.known + self._ahead, request.num_prompt + request.max_tokens)
