"""From an HTTP body or query to a typed request, or to a 400 that names what is wrong and where."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from starlette.requests import Request

from treadle.errors import InvalidRequest
from treadle.server.errors import BodyTooLarge

T = TypeVar("T")

MAX_BODY_BYTES = 32 << 20

_EXPLAIN_BELOW_BYTES = 1 << 20
"""Longer bodies that are not JSON are not read a second time to say why."""

_ABOUT_FIELD = re.compile(r".*(?:missing required|contains unknown) field `(?P<name>[^`]*)`")
_PLACED = re.compile(r"(?P<what>.*) - at (?:`\w+` in )?`\$\.?(?P<path>[^`]*)`", re.DOTALL)


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    declared = request.headers.get("content-length", "").lstrip("0")
    # A longer number is larger, and some are too long for int().
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > max_bytes):
        raise _too_large(max_bytes)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError as error:
        raise _wrong_json(body, error) from None


def decode_query(kind: type[T], request: Request) -> T:
    """The query's parameters; those that `kind` does not name are ignored, as in a body."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {max_bytes} bytes")


def _wrong_field(message: str) -> InvalidRequest:
    placed = _PLACED.fullmatch(message)
    what = message if placed is None else placed["what"]
    what = what.replace(" | null`", "`")
    what = what[:1].lower() + what[1:]
    path = placed["path"] if placed is not None else ""
    if about := _ABOUT_FIELD.match(what):
        field = f"{path}.{about['name']}".lstrip(".")
        return InvalidRequest(f"{path or 'the body'}: {what}", param=field)
    return InvalidRequest(f"{path or 'the body'}: {what}", param=path or None)


def _wrong_json(body: bytes, error: ValueError) -> InvalidRequest:
    """Python's reader takes NaN and half surrogate pairs, so it can tell where they stand."""
    reason = f"the body is not valid JSON: {error}"
    if len(body) > _EXPLAIN_BELOW_BYTES:
        return InvalidRequest(reason)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return InvalidRequest(reason)
    for path, leaf in _leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return InvalidRequest(f"{path} is {leaf}; numbers must be finite", param=path)
        if isinstance(leaf, str) and not _is_text(leaf):
            return InvalidRequest(f"{path} holds half of a surrogate pair", param=path)
    return InvalidRequest(reason)


def _leaves(value: object) -> Iterator[tuple[str, object]]:
    """Every number and string with its path, in document order; without recursion, since the
    reader may allow deeper nesting than is left of our stack."""
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, node = stack.pop()
        inner: list[tuple[str, object]] = []
        if isinstance(node, dict):
            inner = [(f"{path}.{_ascii(key)}".lstrip("."), child) for key, child in node.items()]
        elif isinstance(node, list):
            inner = [(f"{path}[{index}]", child) for index, child in enumerate(node)]
        else:
            yield path, node
        stack += reversed(inner)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ascii(key: str) -> str:
    return key.encode("ascii", "backslashreplace").decode("ascii")
