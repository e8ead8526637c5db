"""What the server answers to, as a table: each row is a path with its methods, its request and its
answers. Routes and OpenAPI are both made from it, so neither says more than the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from treadle.server.errors import JSON

Access = Literal["open", "key", "admin"]
"""Who may call: everybody, those with a key, or those with the admin key where there is one."""


@dataclass(frozen=True)
class Endpoint:
    """One row."""

    path: str
    handle: Callable[[Request], Awaitable[Response]]
    summary: str
    methods: tuple[str, ...] = ("GET",)
    body: Any = None
    """Type of the request's JSON; None if there is none."""
    body_required: bool = True
    query: type[msgspec.Struct] | None = None
    answer: Any = None
    """Type of the answer's JSON; None for an empty one."""
    media: str | None = None
    """Of an answer that is no JSON."""
    streams: bool = False
    """Whether the answer is a stream of events when the request says `stream`."""
    access: Access = "key"
    errors: tuple[int, ...] = ()
    """Statuses of errors beyond those that follow from the fields above."""
    tells: tuple[int, ...] = ()
    """Statuses other than 200 whose answer has the shape of `answer`."""

    def route(self) -> Route:
        return Route(self.path, self.handle, methods=list(self.methods))


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)
