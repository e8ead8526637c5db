"""Routes that change what the server does: pausing, resuming, and forgetting cached prefixes; in
the spellings of vLLM and SGLang. Never touches one request of its own accord: a pause that aborts
was asked to."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from treadle.errors import InvalidRequest
from treadle.server.body import decode, decode_query, read_body
from treadle.server.route import Endpoint, json_response
from treadle.text.frontend import Frontend

Mode = Literal["abort", "wait", "keep"]

_SGLANG_MODES: dict[str, Mode] = {"abort": "abort", "in_place": "keep", "retract": "keep"}


class Status(msgspec.Struct):
    status: str


class IsPaused(msgspec.Struct):
    is_paused: bool


class Message(msgspec.Struct):
    message: str
    status: str = "ok"


class PauseQuery(msgspec.Struct, kw_only=True):
    mode: Mode = "abort"
    """End running requests, let them end, or freeze them."""
    clear_cache: bool = True
    """Forget cached prefixes as well; not with "keep", whose requests hold some."""
    wait_for_inflight_requests: bool = False
    """The old spelling of mode "wait"."""


class ResetQuery(msgspec.Struct, kw_only=True):
    reset_running_requests: bool = False
    """Refused: /pause first."""


class PauseRequest(msgspec.Struct, kw_only=True):
    mode: Literal["abort", "in_place", "retract"] | None = None
    """Both "in_place" and "retract" freeze what runs."""


class Control:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._pause_body = msgspec.json.Decoder(PauseRequest)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/pause",
                self._pauses,
                "Start no further step until /resume (vLLM's).",
                methods=("POST",),
                query=PauseQuery,
                answer=Status,
                access="admin",
                errors=(500, 503),
            ),
            Endpoint(
                "/resume",
                self._resumes,
                "Go on after a pause (vLLM's).",
                methods=("POST",),
                answer=Status,
                access="admin",
                errors=(500, 503),
            ),
            Endpoint(
                "/is_paused",
                self._is_paused,
                "Whether it is paused.",
                answer=IsPaused,
                errors=(503,),
            ),
            Endpoint(
                "/pause_generation",
                self._pauses_generation,
                "Start no further step until /continue_generation (SGLang's).",
                methods=("POST",),
                body=PauseRequest,
                body_required=False,
                answer=Message,
                access="admin",
                errors=(500, 503),
            ),
            Endpoint(
                "/continue_generation",
                self._continues_generation,
                "Go on after a pause (SGLang's).",
                methods=("POST",),
                answer=Message,
                access="admin",
                errors=(500, 503),
            ),
            Endpoint(
                "/reset_prefix_cache",
                self._resets,
                "Forget cached prefixes; 400 while requests run (vLLM's).",
                methods=("POST",),
                query=ResetQuery,
                access="admin",
                errors=(500, 503),
            ),
            Endpoint(
                "/flush_cache",
                self._flushes,
                "Forget cached prefixes; 400 while requests run (SGLang's).",
                methods=("GET", "POST"),
                media="text/plain",
                access="admin",
                errors=(400, 500, 503),
            ),
        ]

    async def _pauses(self, request: Request) -> Response:
        query = decode_query(PauseQuery, request)
        mode: Mode = "wait" if query.wait_for_inflight_requests else query.mode
        await self._pause(mode)
        if query.clear_cache and mode != "keep":
            await self._forget()
        return json_response(Status("paused"))

    async def _pauses_generation(self, request: Request) -> Response:
        body = await read_body(request)
        asked = decode(self._pause_body, body) if body else PauseRequest()
        await self._pause(_SGLANG_MODES[asked.mode or "abort"])
        return json_response(Message("Generation is paused."))

    async def _resumes(self, request: Request) -> Response:
        del request
        await self._frontend.resume()
        return json_response(Status("resumed"))

    async def _continues_generation(self, request: Request) -> Response:
        del request
        await self._frontend.resume()
        return json_response(Message("Generation goes on."))

    async def _is_paused(self, request: Request) -> Response:
        del request
        self._frontend.require_ready()
        return json_response(IsPaused(self._frontend.paused))

    async def _resets(self, request: Request) -> Response:
        if decode_query(ResetQuery, request).reset_running_requests:
            raise InvalidRequest(
                "reset_running_requests is not supported", param="reset_running_requests"
            )
        await self._forget()
        return Response()

    async def _flushes(self, request: Request) -> Response:
        del request
        await self._forget()
        return PlainTextResponse("Cache flushed.\n")

    async def _pause(self, mode: Mode) -> None:
        if not await self._frontend.pause(mode):
            raise InvalidRequest("the pause was ended while it waited for running requests")

    async def _forget(self) -> None:
        if not await self._frontend.reset_cache():
            raise InvalidRequest("nothing was forgotten: requests that use the cache are running")
