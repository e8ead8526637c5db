"""What a request's headers say of its place among those that wait."""

from __future__ import annotations

from starlette.requests import Request

from treadle.text.intake import Place

ROUTING_KEY_HEADER = "x-smg-routing-key"
"""SGLang's; its gateways set it."""


def place_of(http: Request, priority: int | None, routing_key: str | None) -> Place:
    """The body goes before the header."""
    key = http.headers.get(ROUTING_KEY_HEADER, "") if routing_key is None else routing_key
    return Place(priority, key)
