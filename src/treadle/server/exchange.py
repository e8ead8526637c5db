"""One accepted request on its way: its answers come in parts, and leave whole or as a stream."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from treadle.server.answers import Choice, Shape, Tally
from treadle.server.errors import JSON
from treadle.server.mould import Mould
from treadle.server.prompts import Prompt
from treadle.server.schema.answer import Answer, Usage
from treadle.server.schema.request import GenerationRequest
from treadle.server.stream import DONE, PushedStream, event, unless_gone
from treadle.text.choice import ChoiceDelta
from treadle.text.frontend import Frontend
from treadle.text.inbox import Inbox
from treadle.text.intake import Accepted

Kind = Literal["text_completion", "chat.completion", "chat.completion.chunk"]


@dataclasses.dataclass(frozen=True)
class Label:
    """What every answer, and every chunk of it, says of itself."""

    id: str
    created: int
    model: str
    fingerprint: str

    def answer(self, kind: Kind, choices: list[Choice]) -> Answer[Choice]:
        return Answer(self.id, kind, self.created, self.model, choices, self.fingerprint)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What goes to the engine, and how its answer is written."""

    request: GenerationRequest
    prompts: Sequence[Prompt]
    accepted: Sequence[Accepted]
    shape: Shape
    label: Label
    kinds: tuple[Kind, Kind]
    """Of a whole answer, and of a chunk."""
    timed: bool

    async def respond(self, http: Request, frontend: Frontend) -> Response:
        headers = {"x-request-id": self.label.id}
        if self.request.stream:
            return PushedStream(Chunks(self, frontend), headers)
        answer = await unless_gone(http.receive, self._whole(frontend))
        return Response(msgspec.json.encode(answer), headers=headers, media_type=JSON)

    async def _whole(self, frontend: Frontend) -> Answer[Choice]:
        tally = self.tally()
        merged: dict[int, ChoiceDelta] = {}
        async with contextlib.aclosing(self._generate(frontend)) as arrivals:
            async for parts in arrivals:
                for part in parts:
                    tally.add(part)
                    held = merged.setdefault(part.index, part)
                    if held is not part:
                        held.append(part)
        parts = [merged[index] for index in sorted(merged)]
        answer = self.label.answer(self.kinds[0], [self.shape.whole(part) for part in parts])
        self.shape.head(answer, parts[0])
        answer.usage = tally.usage()
        if self.timed:
            answer.timings = tally.timings()
        return answer

    def _generate(self, frontend: Frontend) -> AsyncGenerator[list[ChoiceDelta], None]:
        return frontend.generate(
            self.accepted,
            request_id=self.label.id,
            cache_salt=self.request.cache_salt or "",
        )

    def tally(self) -> Tally:
        return Tally(self.prompts, self.request.n or 1)


class Chunks:
    """The chunks of a stream, the parts of an answer in; a stream.Source.

    The first chunk of a choice and the last say more than text. Those between differ in nothing
    else, unless the request asked for more, and come from a mould.
    """

    def __init__(self, exchange: Exchange, frontend: Frontend) -> None:
        self._exchange = exchange
        self._frontend = frontend
        self._tally = exchange.tally()
        self._begun = False
        self._moulds: dict[int, Mould] = {}
        self._varies = exchange.shape.tells_tokens or exchange.request.continuous_usage

    def open(self) -> AbstractContextManager[Inbox]:
        exchange = self._exchange
        return self._frontend.asked(
            exchange.accepted,
            request_id=exchange.label.id,
            cache_salt=exchange.request.cache_salt or "",
        )

    def tell(self, parts: list[ChoiceDelta]) -> bytes:
        told: list[bytes] = []
        for part in parts:
            self._tally.add(part)
            mould = self._moulds.get(part.index)
            if mould is None or part.finish_reason is not None:
                told += map(event, self._chunks(part))
            elif part.text:
                told.append(mould.event(part.text))
        return b"".join(told)

    def last(self) -> bytes:
        if not self._exchange.request.include_usage:
            return DONE
        usage = self._answer([])
        usage.usage = self._tally.usage()
        return event(usage) + DONE

    def _chunks(self, part: ChoiceDelta) -> list[Answer[Choice]]:
        """The chunks that tell this part. The last of all has the times."""
        exchange = self._exchange
        chunks = [self._answer([one]) for one in exchange.shape.chunks(part)]
        if chunks and not self._begun:
            self._begun = True
            exchange.shape.head(chunks[0], part)
        if chunks and part.finish_reason is None and not self._varies:
            self._moulds[part.index] = Mould(self._text_chunk(part.index))
        for chunk in chunks:
            chunk.usage = self._usage()
        if exchange.timed and self._tally.complete:
            chunks[-1].timings = self._tally.timings()
        return chunks

    def _text_chunk(self, index: int) -> Callable[[str], bytes]:
        def chunk(text: str) -> bytes:
            (choice,) = self._exchange.shape.chunks(ChoiceDelta(index, text, [0], [], 0))
            answer = self._answer([choice])
            answer.usage = self._usage()
            return event(answer)

        return chunk

    def _usage(self) -> Usage | UnsetType | None:
        request = self._exchange.request
        if not request.include_usage:
            return UNSET
        return self._tally.usage() if request.continuous_usage else None

    def _answer(self, choices: list[Choice]) -> Answer[Choice]:
        return self._exchange.label.answer(self._exchange.kinds[1], choices)
