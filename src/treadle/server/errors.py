"""Errors as OpenAI's clients expect them: a status, and {"error": {message, type, param, code}}."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from treadle.errors import OverloadError, TreadleError

JSON = "application/json"

RETRY_AFTER_S = 1


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class BodyTooLarge(TreadleError):
    """The request's body is longer than the server reads."""

    status = 413


def error_body(error: TreadleError) -> ErrorBody:
    detail = ErrorDetail(error.message, _type_of(error.status), error.param, error.code)
    return ErrorBody(detail)


def error_response(error: TreadleError) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, OverloadError) else None
    return _response(error.status, error_body(error), headers)


def plain_error(status: int, message: str) -> bytes:
    """The body of an error that has no type here."""
    return msgspec.json.encode(ErrorBody(ErrorDetail(message, _type_of(status))))


async def on_treadle_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, TreadleError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    body = ErrorBody(ErrorDetail(message, _type_of(error.status_code)))
    return _response(error.status_code, body, dict(error.headers or {}))


async def on_bug(request: Request, error: Exception) -> Response:
    del request, error  # the traceback is logged; it is not the client's business
    return _response(500, ErrorBody(ErrorDetail("internal error", _type_of(500))))


def _type_of(status: int) -> str:
    if status == OverloadError.status:
        return "service_unavailable_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _response(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type=JSON)
