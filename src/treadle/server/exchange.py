"""One accepted request on its way: its answers come in parts, and leave whole or as a stream."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.server.answers import Choice, Shape, Tally
from treadle.server.errors import JSON
from treadle.server.prompts import Prompt
from treadle.server.schema.answer import Answer
from treadle.server.schema.request import GenerationRequest
from treadle.server.stream import DONE, EventStream, event, unless_gone
from treadle.text.choice import ChoiceDelta
from treadle.text.frontend import Frontend
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
            return EventStream(self._events(frontend), headers)
        answer = await unless_gone(http.receive, self._whole(frontend))
        return Response(msgspec.json.encode(answer), headers=headers, media_type=JSON)

    async def _whole(self, frontend: Frontend) -> Answer[Choice]:
        tally = self._tally()
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

    async def _events(self, frontend: Frontend) -> AsyncGenerator[bytes, None]:
        tally = self._tally()
        begun = False
        async with contextlib.aclosing(self._generate(frontend)) as arrivals:
            async for parts in arrivals:
                chunks: list[Answer[Choice]] = []
                for part in parts:
                    told = self._chunks(part, tally)
                    if told and not begun:
                        begun = True
                        self.shape.head(told[0], part)
                    chunks += told
                if chunks:
                    yield b"".join(map(event, chunks))
        last = b""
        if self.request.include_usage:
            usage = self.label.answer(self.kinds[1], [])
            usage.usage = tally.usage()
            last = event(usage)
        yield last + DONE

    def _chunks(self, part: ChoiceDelta, tally: Tally) -> list[Answer[Choice]]:
        """The chunks of a stream that tell this part. The last of all has the times."""
        tally.add(part)
        chunks = [self.label.answer(self.kinds[1], [one]) for one in self.shape.chunks(part)]
        if self.request.include_usage:
            for chunk in chunks:
                chunk.usage = tally.usage() if self.request.continuous_usage else None
        if self.timed and tally.complete:
            chunks[-1].timings = tally.timings()
        return chunks

    def _generate(self, frontend: Frontend) -> AsyncGenerator[list[ChoiceDelta], None]:
        return frontend.generate(
            self.accepted,
            request_id=self.label.id,
            cache_salt=self.request.cache_salt or "",
        )

    def _tally(self) -> Tally:
        return Tally(self.prompts, self.request.n or 1)
