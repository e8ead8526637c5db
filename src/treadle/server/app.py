"""The HTTP application: the OpenAI routes, /health and /metrics. Never starts or stops anything."""

from __future__ import annotations

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from treadle.config.settings import ServerSettings
from treadle.errors import OverloadError, TreadleError
from treadle.server.errors import JSON, on_bug, on_http_error, on_treadle_error
from treadle.server.metrics import Metrics
from treadle.server.openai import OpenAI
from treadle.server.request_id import EchoRequestId
from treadle.server.stream import ClientGone
from treadle.text.frontend import Frontend

CLIENT_CLOSED = 499
"""For the record only: nobody is there to read it."""


def create_app(frontend: Frontend, metrics: Metrics, settings: ServerSettings) -> Starlette:
    metrics.watch(lambda: frontend.stats)

    async def health(request: Request) -> Response:
        del request
        try:
            frontend.window  # noqa: B018 (raises unless requests are served)
        except TreadleError as error:
            body = {"status": "unavailable", "message": error.message}
            if frontend.loading:
                body["phase"] = frontend.phase
            return _json(body, OverloadError.status)
        return _json({"status": "ok"}, 200)

    async def exposition(request: Request) -> Response:
        del request
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", exposition),
            *OpenAI(frontend, settings).routes(),
        ],
        middleware=[Middleware(EchoRequestId)],
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


def _json(value: dict[str, str], status: int) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)
