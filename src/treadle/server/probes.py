"""Whether the server is there and well: for load balancers and monitors.

Each probe says one thing: /live that the process answers, /health that requests are served,
/health_generate that the engine makes tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import secrets

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from treadle.errors import EngineError, OverloadError, TreadleError
from treadle.server.metrics import Metrics
from treadle.server.route import Endpoint, json_response
from treadle.text.frontend import Frontend
from treadle.wire.sampling_params import SamplingParams

VERSION = importlib.metadata.version("treadle")

LOOK_EVERY_S = 0.25
"""How often /health_generate looks whether other requests got tokens."""


class Health(msgspec.Struct, kw_only=True):
    status: str
    message: str | UnsetType = UNSET
    phase: str | UnsetType = UNSET
    """While loading: the phase that has ended last."""


class Version(msgspec.Struct):
    version: str


class Probes:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend, metrics: Metrics, generate_timeout_s: float) -> None:
        self._frontend = frontend
        self._metrics = metrics
        self._generate_timeout_s = generate_timeout_s

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("/live", self._live, "The process answers.", answer=Health, access="open"),
            Endpoint(
                "/health",
                self._health,
                "Requests are served; 503 while loading, stopping or broken.",
                answer=Health,
                access="open",
                tells=(503,),
            ),
            Endpoint(
                "/ping",
                self._health,
                "The same as /health.",
                methods=("GET", "POST"),
                answer=Health,
                access="open",
                tells=(503,),
            ),
            Endpoint(
                "/health_generate",
                self._health_generate,
                "The engine makes tokens.",
                answer=Health,
                access="open",
                tells=(503,),
            ),
            Endpoint("/version", self._version, "Its version.", answer=Version, access="open"),
            Endpoint(
                "/metrics",
                self._exposition,
                "Metrics for Prometheus.",
                media="text/plain",
                access="open",
            ),
        ]

    async def _live(self, request: Request) -> Response:
        del request
        return json_response(Health(status="ok"))

    async def _health(self, request: Request) -> Response:
        del request
        try:
            self._frontend.require_ready()
        except TreadleError as error:
            return self._unavailable(error)
        return json_response(Health(status="ok"))

    async def _health_generate(self, request: Request) -> Response:
        """A token for this probe, or for anybody: where all rows are taken, the probe waits like
        any request, and the engine is well."""
        del request
        limit = self._generate_timeout_s
        try:
            self._frontend.require_ready()
            probe = asyncio.create_task(self._make_token())
            try:
                async with asyncio.timeout(limit):
                    await self._until_tokens(probe)
            finally:
                probe.cancel()
                await asyncio.gather(probe, return_exceptions=True)
        except TimeoutError:
            return self._unavailable(OverloadError(f"the engine made no token within {limit:g} s"))
        except TreadleError as error:
            return self._unavailable(error)
        return json_response(Health(status="ok"))

    async def _make_token(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        accepted = self._frontend.check([0], params)
        name = f"health-{secrets.token_hex(8)}"
        async with contextlib.aclosing(
            self._frontend.generate([accepted], request_id=name)
        ) as arrivals:
            async for parts in arrivals:
                if any(part.token_ids for part in parts):
                    return
        raise EngineError("the engine ended a request without a token")

    async def _until_tokens(self, probe: asyncio.Task[None]) -> None:
        """Until the probe has its token or, where it waits or finds the queue full, others have."""
        before = self._num_tokens()
        while True:
            await asyncio.wait([probe], timeout=LOOK_EVERY_S)
            if self._num_tokens() > before:
                return
            if probe.done():
                error = probe.exception()
                if error is None:
                    return
                if not isinstance(error, OverloadError):
                    raise error
                self._frontend.require_ready()
                await asyncio.sleep(LOOK_EVERY_S)

    def _num_tokens(self) -> int:
        stats = self._frontend.stats
        return 0 if stats is None else stats.generation_tokens

    def _unavailable(self, error: TreadleError) -> Response:
        body = Health(status="unavailable", message=error.message)
        if self._frontend.loading:
            body.phase = self._frontend.phase
        return json_response(body, OverloadError.status)

    async def _exposition(self, request: Request) -> Response:
        del request
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def _version(self, request: Request) -> Response:
        del request
        return json_response(Version(VERSION))
