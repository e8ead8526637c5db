"""A chat client for any OpenAI-compatible server, with the standard library alone."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from treadle.errors import EngineError, InvalidRequest, RequestError, StartError, TreadleError
from treadle.wire.sampling_params import SamplingParams

TIMEOUT_S = 600


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Error(msgspec.Struct):
    message: str
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


class _Refusal(msgspec.Struct):
    error: _Error


class RemoteAnswerer:
    """One model of one server; each answer is one request."""

    def __init__(
        self, url: str, model: str | None, *, api_key: str | None, params: SamplingParams
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"{url}: an address starts with http:// or https://")
        base = url.rstrip("/")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._params = params
        self.name = model or self._first_model()

    def answer(self, messages: list[dict[str, str]]) -> Generator[str, None, None]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": messages,
            "stream": True,
            # Only what was asked for: other servers need not know every field.
            **_given(self._params),
        }
        with self._open("/chat/completions", body) as response:
            yield from _texts(response)

    def close(self) -> None:
        """Nothing is kept open between answers."""

    def _first_model(self) -> str:
        with self._open("/models") as response:
            try:
                models = msgspec.json.decode(response.read(), type=_Models).data
            except msgspec.DecodeError as error:
                raise StartError(f"{self._base}/models: not a list of models: {error}") from None
        if not models:
            raise StartError(f"{self._base}/models: the server has no model")
        return models[0].id

    def _open(self, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPResponse:
        data = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "content-type": "application/json"}
        try:
            request = urllib.request.Request(self._base + path, data, headers)  # noqa: S310
            response = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise StartError(f"{self._base}: {reason}") from None
        assert isinstance(response, http.client.HTTPResponse)
        return response


def _texts(response: http.client.HTTPResponse) -> Iterator[str]:
    """The text of each event of a stream."""
    try:
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            chunk = msgspec.json.decode(data, type=_Chunk)
            if chunk.error is not None:
                raise EngineError(chunk.error.message)
            for choice in chunk.choices:
                if choice.delta.content:
                    yield choice.delta.content
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise EngineError(f"the answer broke off: {error}") from None
    raise EngineError("the answer broke off")


def _refusal(status: int, body: bytes) -> TreadleError:
    try:
        refusal = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        refusal = _Error(f"the server answered with status {status}")
    kind = RequestError if status < EngineError.status else EngineError
    error = kind(refusal.message)
    error.code = refusal.code if isinstance(refusal.code, str) else None
    return error


def _given(params: SamplingParams) -> dict[str, Any]:
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    defaults = SamplingParams(max_tokens=None)
    return {k: v for k, v in fields.items() if v != getattr(defaults, k)}
