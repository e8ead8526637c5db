"""TensorRT-LLM's guaranteed-no-evict: a request starts once all that it may ever take is there."""

from __future__ import annotations

from typing import TypeVar

from treadle.schedule.admission.account import Account
from treadle.schedule.ports import KVMatch, Schedulable
from treadle.schedule.running import Running
from treadle.schedule.strategies import Admission

R = TypeVar("R", bound=Schedulable)


class NoEvict(Admission[R]):
    """What running requests take up to their ends is always available, so nobody gives way."""

    def __init__(self, running: Running[R]) -> None:
        self._account = Account(running, end_of)

    def open(self, set_aside: int = 0) -> None:  # noqa: ARG002
        self._account.open()

    def admits(self, request: R, match: KVMatch, num_tokens: int) -> bool:  # noqa: ARG002
        return self._account.affords(request, match)

    def charge(self, request: R, match: KVMatch, num_tokens: int) -> None:  # noqa: ARG002
        self._account.charge(request, match)


def end_of(request: Schedulable) -> int:
    """The most tokens that the request can come to."""
    return request.num_prompt + request.max_tokens
