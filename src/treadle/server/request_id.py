"""X-Request-Id: a client, or a proxy before us, finds on the answer what it wrote on the request.

It never names anything here: proxies send the same one again when they try again, or with each
part of a larger task.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAME = b"x-request-id"


class EchoRequestId:
    """Answers without one on the request keep the answer's own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = next((value for name, value in scope.get("headers", ()) if name == _NAME), None)
        if sent is None:
            await self._app(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message["headers"] if pair[0] != _NAME]
                message = {**message, "headers": [*others, (_NAME, sent)]}
            await send(message)

        await self._app(scope, receive, send_with_id)
