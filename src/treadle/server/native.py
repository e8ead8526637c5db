"""SGLang's own routes: /generate, and /abort_request for the ids that it is given.

A batch is checked whole before any of it is sent; its members are requests of their own from then
on, so each can be aborted by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.errors import InvalidRequest, TreadleError
from treadle.server.body import decode, read_body
from treadle.server.errors import error_body
from treadle.server.route import Endpoint, json_response
from treadle.server.stream import DONE, EventStream, event, unless_gone
from treadle.text.frontend import Frontend
from treadle.text.intake import Accepted, check_number
from treadle.text.sglang import GenerateRequest, Item, in_native_words
from treadle.text.sglang_answer import AnswerShape, GenerateAnswer

T = TypeVar("T")


class AbortRequest(msgspec.Struct):
    """Ids that nobody has are ignored: their requests may just have ended."""

    rid: str | list[str] | None = None
    abort_all: bool | None = None


@dataclass(frozen=True)
class _Member:
    """One item of a batch on its way, and the answers to it."""

    item: Item
    accepted: Accepted
    first: int
    """Index of its first answer among all of the batch."""
    shapes: list[AnswerShape]


class Native:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend, *, incremental: bool) -> None:
        self._frontend = frontend
        self._incremental = incremental
        self._generate = msgspec.json.Decoder(GenerateRequest)
        self._abort = msgspec.json.Decoder(AbortRequest)
        self._batches: dict[str, list[str]] = {}

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/generate",
                self._generates,
                "Continue a text, or each of a list (SGLang's own request).",
                methods=("POST", "PUT"),
                body=GenerateRequest,
                answer=GenerateAnswer | list[GenerateAnswer],
                streams=True,
            ),
            Endpoint(
                "/abort_request",
                self._aborts,
                "End requests by their id, or all (SGLang's).",
                methods=("POST",),
                body=AbortRequest,
                access="admin",
            ),
        ]

    async def _generates(self, http: Request) -> Response:
        request = decode(self._generate, await read_body(http))
        text = self._frontend.text  # raises while loading, before a word on the request itself
        name = request.rid if isinstance(request.rid, str) else secrets.token_hex(16)
        items = request.items(text.sampling_defaults, name)
        check_number(len(items), max(item.params.n for item in items))
        prompts = await asyncio.to_thread(self._encode, items)
        members = self._members(request, items, prompts)
        batch = (name, [item.request_id for item in items])
        if request.stream:
            return EventStream(self._events(request, members, batch))
        answers = await unless_gone(http.receive, self._whole(members, batch))
        return json_response(answers if self._is_list(request, members) else answers[0])

    async def _aborts(self, http: Request) -> Response:
        request = decode(self._abort, await read_body(http))
        names = [request.rid] if isinstance(request.rid, str) else request.rid or []
        if request.abort_all:
            self._frontend.abort_all()
        elif not any(names):
            raise InvalidRequest("either rid or abort_all must be given", param="rid")
        for name in names:
            for request_id in self._batches.get(name, [name]):
                self._frontend.abort(request_id)
        return Response()

    def _encode(self, items: list[Item]) -> list[list[int]]:
        return [
            self._frontend.encode(item.prompt, add_special=True)
            if isinstance(item.prompt, str)
            else item.prompt
            for item in items
        ]

    def _members(
        self, request: GenerateRequest, items: list[Item], prompts: list[list[int]]
    ) -> list[_Member]:
        tokenizer = self._frontend.text.tokenizer
        members: list[_Member] = []
        first = 0
        for item, prompt in zip(items, prompts, strict=True):
            with in_native_words():
                accepted = self._frontend.check(prompt, item.placed(len(prompt)))
            shapes = [
                AnswerShape(
                    tokenizer,
                    item,
                    prompt,
                    choice=choice,
                    texts=bool(request.return_text_in_logprobs),
                )
                for choice in range(item.params.n)
            ]
            members.append(_Member(item, accepted, first, shapes))
            first += item.params.n
        return members

    def _is_list(self, request: GenerateRequest, members: list[_Member]) -> bool:
        return request.batched or members[0].item.params.n > 1

    async def _whole(
        self, members: list[_Member], batch: tuple[str, list[str]]
    ) -> list[GenerateAnswer]:
        async with contextlib.aclosing(self._arrivals(members, batch)) as arrivals:
            async for _ in arrivals:
                pass
        return [shape.so_far() for member in members for shape in member.shapes]

    async def _events(
        self, request: GenerateRequest, members: list[_Member], batch: tuple[str, list[str]]
    ) -> AsyncGenerator[bytes, None]:
        is_list = self._is_list(request, members)
        begun = False
        try:
            async with contextlib.aclosing(self._arrivals(members, batch)) as arrivals:
                async for index, shape in arrivals:
                    answer = shape.take_news() if self._incremental else shape.so_far()
                    if is_list:
                        answer.index = index
                    begun = True
                    yield event(answer)
        except TreadleError as error:
            if not begun:
                raise  # there is still a status to tell it with
            yield event(error_body(error))
        yield DONE

    async def _arrivals(
        self, members: list[_Member], batch: tuple[str, list[str]]
    ) -> AsyncGenerator[tuple[int, AnswerShape], None]:
        """Each answer, with its index, whenever there is something to tell of it."""
        name, request_ids = batch
        if name in self._batches:
            raise InvalidRequest(f"a request with rid {name!r} is running already", param="rid")
        self._batches[name] = request_ids
        sources = [self._answers(member) for member in members]
        try:
            arrivals = merged(sources) if len(sources) > 1 else sources[0]
            async with contextlib.aclosing(arrivals):
                async for arrival in arrivals:
                    yield arrival
        finally:
            self._batches.pop(name, None)

    async def _answers(self, member: _Member) -> AsyncGenerator[tuple[int, AnswerShape], None]:
        item = member.item
        with in_native_words():
            arrivals = self._frontend.generate(
                [member.accepted], request_id=item.request_id, cache_salt=item.cache_salt
            )
            async with contextlib.aclosing(arrivals):
                async for parts in arrivals:
                    for part in parts:
                        shape = member.shapes[part.index]
                        if shape.add(part):
                            yield member.first + part.index, shape


async def merged(sources: list[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """What all of them yield, as it comes; none is asked for more than one ahead. Closes them."""
    asked: dict[asyncio.Future[T], AsyncGenerator[T, None]] = {}
    ready: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()

    def ask(source: AsyncGenerator[T, None]) -> None:
        future = asyncio.ensure_future(anext(source))
        asked[future] = source
        future.add_done_callback(ready.put_nowait)

    try:
        for source in sources:
            ask(source)
        while asked:
            future = await ready.get()
            source = asked.pop(future)
            with contextlib.suppress(StopAsyncIteration):
                yield future.result()
                ask(source)  # only now: what was told must be taken before more is added to it
    finally:
        for future in asked:
            future.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for source in sources:
            await source.aclose()
