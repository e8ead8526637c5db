"""Calls to the engine that concern no request: it is asked, and says when it is done."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from treadle.errors import TreadleError
from treadle.wire.ends import Sender
from treadle.wire.messages import Done, ToEngine


class Calls:
    """Every call ends: with the engine's word, or with an error."""

    def __init__(self, channel: Sender) -> None:
        self._channel = channel
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._numbers = itertools.count()

    async def make(self, message: Callable[[int], ToEngine]) -> bool:
        """Send what `message` makes of the call's number; whether the engine has done it."""
        number = next(self._numbers)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[number] = done
        self._channel.send([message(number)])
        try:
            return await done
        finally:
            self._waiting.pop(number, None)

    def settle(self, done: Done) -> None:
        call = self._waiting.pop(done.call, None)
        if call is not None and not call.done():
            call.set_result(done.ok)

    def fail(self, error: TreadleError) -> None:
        """The engine will say no more."""
        calls, self._waiting = self._waiting, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(error.with_traceback(None))
