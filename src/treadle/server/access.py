"""Who may call what, from where: API keys, and web pages of other origins (CORS).

Wraps the application, so that it decides before a body is read. Knows a request by its path and
method only.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.config.settings import ServerSettings
from treadle.errors import TreadleError
from treadle.server.errors import error_response
from treadle.server.route import Access, Endpoint

_SCHEME = "bearer"


class Unauthorized(TreadleError):
    """The request carries no key, or none that opens anything."""

    status = 401
    code = "invalid_api_key"


class Forbidden(TreadleError):
    """The request carries a key, but not the one that opens this."""

    status = 403
    code = "admin_api_key_needed"


def guards(endpoints: Sequence[Endpoint], settings: ServerSettings) -> list[Middleware]:
    """What stands in front of the application, outermost first; nothing if nothing is set."""
    found: list[Middleware] = []
    if settings.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=["GET", "POST", "PUT"],
                allow_headers=["*"],
                expose_headers=["retry-after", "x-request-id"],
            )
        )
    if settings.api_key or settings.admin_api_key:
        found.append(Middleware(Keys, endpoints=endpoints, settings=settings))
    return found


class Keys:
    """ASGI middleware. A path that no row of the table names is open: it is answered with 404."""

    def __init__(
        self, app: ASGIApp, *, endpoints: Sequence[Endpoint], settings: ServerSettings
    ) -> None:
        self._app = app
        self._accesses = {e.path: e.access for e in endpoints}
        self._patterns = [(e.route(), e.access) for e in endpoints if "{" in e.path]
        admin = [settings.admin_api_key] if settings.admin_api_key is not None else []
        self._keys: dict[Access, list[str]] = {
            "key": [*settings.api_key, *admin] if settings.api_key else [],
            "admin": admin or settings.api_key,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            keys = self._keys.get(self._access(scope), [])
            given = Headers(scope=scope).get("authorization", "")
            if keys and not _opens(given, keys):
                if _opens(given, self._keys["key"]):
                    response = error_response(Forbidden("the admin API key is needed"))
                else:
                    response = error_response(Unauthorized("a valid API key is needed"))
                    response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _access(self, scope: Scope) -> Access:
        if (access := self._accesses.get(scope["path"])) is not None:
            return access
        of_path = (access for route, access in self._patterns if _is_of(route, scope))
        return next(of_path, "open")


def _is_of(route: Route, scope: Scope) -> bool:
    """Whether the route is of the request's path, whatever its method."""
    return route.matches(scope)[0] is not Match.NONE


def _opens(header: str, keys: Iterable[str]) -> bool:
    """Takes the same time for every wrong key."""
    scheme, _, given = header.partition(" ")
    token = given.strip().encode("latin-1", "replace")
    matches = [hmac.compare_digest(token, key.encode()) for key in keys]
    return scheme.lower() == _SCHEME and any(matches)
