"""What the engine says to the text side: messages due with the next step, in order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from treadle.engine.ends import End
from treadle.engine.request import Request
from treadle.errors import TreadleError
from treadle.wire.messages import Delta, Done, Failed, FromEngine, TokenLogprob


class Replies:
    """Only ever appended to, and taken as a whole."""

    def __init__(self) -> None:
        self._messages: list[FromEngine] = []

    def __bool__(self) -> bool:
        return bool(self._messages)

    def take(self) -> list[FromEngine]:
        messages, self._messages = self._messages, []
        return messages

    def tokens(self, request: Request, tokens: list[int], logprob: TokenLogprob | None) -> None:
        """An answer goes on."""
        self._messages.append(_delta(request, tokens, logprob))

    def end(
        self,
        request: Request,
        end: End,
        *,
        tokens: Sequence[int] = (),
        logprob: TokenLogprob | None = None,
    ) -> None:
        """The end of an answer, with its last tokens where these are what ended it."""
        delta = _delta(request, list(tokens), logprob)
        delta.finish, delta.stop_token, delta.ends_in_text = end
        delta.timings = request.times.until(time.monotonic())
        self._messages.append(delta)

    def scores(self, request: Request, scores: list[TokenLogprob]) -> None:
        delta = Delta(request_id=request.request_id, tokens=[], prompt_logprobs=scores)
        self._messages.append(delta)

    def failure(self, request_id: str, error: TreadleError) -> None:
        self._messages.append(
            Failed(
                request_id=request_id,
                status=error.status,
                message=error.message,
                code=error.code,
                param=error.param,
            )
        )

    def done(self, call: int, *, ok: bool) -> None:
        self._messages.append(Done(call, ok))


def _delta(request: Request, tokens: list[int], logprob: TokenLogprob | None) -> Delta:
    return Delta(
        request_id=request.request_id,
        tokens=tokens,
        logprobs=None if logprob is None else [logprob],
        cached_tokens=request.cached_tokens or 0,
    )
