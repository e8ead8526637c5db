"""Counts HTTP requests by route and status, under the names that FastAPI's dashboards use.

Polls of health and metrics are left out, as vLLM does: they would drown the rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

LEFT_OUT = frozenset({"/health", "/live", "/load", "/metrics", "/ping", "/version"})

CLIENT_CLOSED = 499
"""Where nothing was answered, since nobody was there any more."""

UNKNOWN = "none"
"""The handler of paths that no route has: names that clients make up must not become labels."""

DURATION_S = (0.1, 0.5, 1.0)
FINE_DURATION_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)


class HttpMetrics:
    """An ASGI application around another; changes nothing of what passes."""

    def __init__(self, app: Starlette, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "http_requests",
            "HTTP requests answered.",
            ["handler", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "From an HTTP request's head to the end of its answer.",
            ["handler", "method"],
            buckets=DURATION_S,
            registry=registry,
        )
        self._fine_seconds = Histogram(
            "http_request_duration_highr_seconds",
            "The same of all routes, in finer buckets.",
            buckets=FINE_DURATION_S,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0
        began = time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
            status = status or CLIENT_CLOSED
        finally:
            self._count(scope, status or 500, time.monotonic() - began)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        handler = _path_of(self._app.routes, scope)
        if handler in LEFT_OUT:
            return
        method = scope["method"]
        self._requests.labels(handler, method, f"{status // 100}xx").inc()
        self._seconds.labels(handler, method).observe(seconds)
        self._fine_seconds.observe(seconds)


def _path_of(routes: Sequence[BaseRoute], scope: Scope) -> str:
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            return route.path
    return UNKNOWN
