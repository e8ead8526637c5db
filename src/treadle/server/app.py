"""The HTTP application: every route, what stands in front, and what becomes of errors. Never starts
or stops anything."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from treadle.errors import TreadleError
from treadle.server.access import guards
from treadle.server.control import Control
from treadle.server.errors import on_bug, on_http_error, on_treadle_error
from treadle.server.info import Configuration, Info
from treadle.server.metrics import Metrics
from treadle.server.native import Native
from treadle.server.openai import OpenAI
from treadle.server.openapi import Description
from treadle.server.probes import Probes
from treadle.server.request_id import EchoRequestId
from treadle.server.route import Endpoint
from treadle.server.stream import ClientGone
from treadle.server.tokens import Tokens
from treadle.text.frontend import Frontend

CLIENT_CLOSED = 499
"""For the record only: nobody is there to read it."""


def create_app(frontend: Frontend, metrics: Metrics, configuration: Configuration) -> Starlette:
    server = configuration.server
    endpoints: list[Endpoint] = [
        *Probes(frontend, metrics, server.health_generate_timeout).endpoints(),
        *Info(frontend, configuration).endpoints(),
        *OpenAI(frontend, server).endpoints(),
        *Native(frontend, incremental=server.incremental_streaming_output).endpoints(),
        *Tokens(frontend).endpoints(),
        *Control(frontend).endpoints(),
    ]
    endpoints += Description(endpoints, with_keys=bool(server.api_key)).endpoints()
    return Starlette(
        routes=[endpoint.route() for endpoint in endpoints],
        middleware=[Middleware(EchoRequestId), *guards(endpoints, server)],
        exception_handlers={
            TreadleError: on_treadle_error,
            HTTPException: on_http_error,
            ClientGone: _on_gone,
            ClientDisconnect: _on_gone,
            Exception: on_bug,
        },
    )


async def _on_gone(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=CLIENT_CLOSED)
