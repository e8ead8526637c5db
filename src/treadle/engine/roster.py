"""The requests that are here, wherever they stand, and how each of them ends.

    Reception ── enter ──▶ roster ──┬─ end ──▶ a last Delta
                                    └─ fail ─▶ one Failed

Says what is due to the text side; decides about no token and no block.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.engine.compiling import Compiling
from treadle.engine.ends import End
from treadle.engine.gate import Gate
from treadle.engine.replies import Replies
from treadle.engine.request import Request
from treadle.errors import TreadleError
from treadle.schedule.scheduler import Scheduler
from treadle.wire.messages import Failed, TokenLogprob


class Roster:
    """A request is here from `enter` until it ends, which it does once; then it is nowhere else
    either: not before the gate, not at the compiler, not in the scheduler."""

    def __init__(
        self, scheduler: Scheduler[Request], gate: Gate, compiling: Compiling, replies: Replies
    ) -> None:
        self._scheduler = scheduler
        self._gate = gate
        self._compiling = compiling
        self._replies = replies
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def enter(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def end(
        self,
        request: Request,
        end: End,
        *,
        tokens: Sequence[int] = (),
        logprob: TokenLogprob | None = None,
    ) -> None:
        """An answer is complete, with its last tokens where these are what ended it."""
        self._leave(request)
        self._replies.end(request, end, tokens=tokens, logprob=logprob)
        self.answer_drained()

    def fail(self, request: Request, error: TreadleError) -> None:
        """The others are not touched."""
        self._leave(request)
        self._replies.failure(request.request_id, error)
        self.answer_drained()

    def abort(self, request_id: str) -> None:
        """Unknown ids are those of requests that have ended."""
        if request := self._requests.get(request_id):
            self.end(request, End("abort"))

    def abort_all(self) -> None:
        for request_id in list(self._requests):
            self.abort(request_id)

    def fail_all(self, message: str) -> list[Failed]:
        """The engine cannot go on; nothing else is put in order any more."""
        failed = [Failed(request_id=key, status=500, message=message) for key in self._requests]
        self._requests.clear()
        return failed

    def answer_drained(self) -> None:
        """Once everybody inside the gate has ended: nothing that is held is among them."""
        if not self._gate.is_open and len(self._requests) == len(self._gate.held):
            for call in self._gate.drained():
                self._replies.done(call, ok=True)

    def _leave(self, request: Request) -> None:
        del self._requests[request.request_id]
        self._gate.held.pop(request, None)
        self._compiling.drop(request)
        self._scheduler.finish(request)
