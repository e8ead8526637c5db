"""SGLang's own routes: /generate, and /abort_request for the ids that it is given."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.errors import InvalidRequest, TreadleError
from treadle.server.body import decode, read_body
from treadle.server.errors import error_body
from treadle.server.place import ROUTING_KEY_HEADER
from treadle.server.route import Endpoint, json_response
from treadle.server.stream import DONE, EventStream, event, unless_gone
from treadle.text.frontend import Frontend
from treadle.text.sglang import GenerateRequest
from treadle.text.sglang_answer import GenerateAnswer
from treadle.text.sglang_batch import Batch, Running


class AbortRequest(msgspec.Struct):
    """Ids that nobody has are ignored: their requests may just have ended."""

    rid: str | list[str] | None = None
    abort_all: bool | None = None


class Native:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend, *, incremental: bool) -> None:
        self._frontend = frontend
        self._incremental = incremental
        self._generate = msgspec.json.Decoder(GenerateRequest)
        self._abort = msgspec.json.Decoder(AbortRequest)
        self._running = Running()

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
        request.routing_key = request.routing_key or http.headers.get(ROUTING_KEY_HEADER)
        _ = self._frontend.text  # raises while loading, before a word on the request itself
        name = secrets.token_hex(16)
        batch = await asyncio.to_thread(Batch, self._frontend, request, name)
        if request.stream:
            return EventStream(self._events(batch))
        return json_response(await unless_gone(http.receive, batch.whole(self._running)))

    async def _aborts(self, http: Request) -> Response:
        request = decode(self._abort, await read_body(http))
        names = [request.rid] if isinstance(request.rid, str) else request.rid or []
        if request.abort_all:
            self._frontend.abort_all()
        elif not any(names):
            raise InvalidRequest("either rid or abort_all must be given", param="rid")
        for name in names:
            for request_id in self._running.request_ids(name):
                self._frontend.abort(request_id)
        return Response()

    async def _events(self, batch: Batch) -> AsyncGenerator[bytes, None]:
        begun = False
        answers = batch.stream(self._running, incremental=self._incremental)
        try:
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    begun = True
                    yield event(answer)
        except TreadleError as error:
            if not begun:
                raise  # there is still a status to tell it with
            yield event(error_body(error))
        yield DONE
