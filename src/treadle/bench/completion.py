"""One streamed completion, timed: server-sent events become a Measured.

Tokens are counted by the server's usage, never by events; times are of the bytes' arrival.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from treadle.bench.connection import Connections, reason_of


class Measured(msgspec.Struct, kw_only=True):
    """One request. Without an error it has a first token, an end, and the server's counts."""

    conversation: int
    turn: int
    input_len: int | None
    """Tokens of the prompt as built; None where the answer before it was not to be counted."""
    output_len: int
    """Tokens asked for."""
    arrival_s: float = 0.0
    """When it was due, after the start."""
    sent_s: float = 0.0
    """When it was sent, after the start: later than due by what the client's limit made it wait."""
    ttft_s: float | None = None
    latency_s: float | None = None
    itl_s: list[float] = []
    """Between the events that bring tokens; as many as the server chose to send."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Per token after the first; None for answers of one token."""
        if self.error or self.completion_tokens < 2:
            return None
        assert self.latency_s is not None
        assert self.ttft_s is not None
        return (self.latency_s - self.ttft_s) / (self.completion_tokens - 1)


class Answer(msgspec.Struct):
    text: str = ""
    token_ids: list[int] = []
    """Empty where the server does not tell them."""


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class Stream:
    """The events of one answer, as their bytes come in."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        """Of the events that bring tokens."""
        self.last: float | None = None
        """Of the last event of the answer itself; one that only counts is not part of it."""
        self.usage: _Usage | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.answer = Answer()
        self._texts: list[str] = []
        self._open = b""
        self.raw = b""
        """What is no event: the body of a refusal."""

    def feed(self, piece: bytes, now: float) -> None:
        *lines, self._open = (self._open + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)
            elif not line.startswith((b":", b"event:", b"id:", b"retry:")):
                self.raw += line

    def finish(self) -> None:
        self.raw += self._open
        self.answer.text = "".join(self._texts)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            return
        try:
            chunk = _CHUNK.decode(data)
        except msgspec.DecodeError as error:
            self.error = self.error or f"an event is no completion: {error}"
            return
        if chunk.error is not None:
            self.error = _message(chunk.error)
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            self._take(choice, now)

    def _take(self, choice: _Choice, now: float) -> None:
        self.last = now
        if choice.text or choice.token_ids or choice.finish_reason is None:
            # A token may have no text of its own; the end of an answer is no token.
            self.arrivals.append(now)
        self.finish_reason = choice.finish_reason or self.finish_reason
        self._texts.append(choice.text or "")
        self.answer.token_ids += choice.token_ids or ()


async def complete(
    connections: Connections, body: dict[str, Any], into: Measured, timeout_s: float
) -> Answer:
    """Send, measure into `into`, and give the answer; what goes wrong is noted there."""
    stream = Stream()
    encoded = msgspec.json.encode(body)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            status = await connections.exchange("/v1/completions", encoded, stream.feed)
    except TimeoutError:
        into.error = f"no end after {timeout_s:g} s"
    except OSError as error:
        into.error = f"the connection failed: {reason_of(error)}"
    else:
        stream.finish()
        into.error = _fault(stream, status)
    if stream.arrivals:
        into.ttft_s = stream.arrivals[0] - began
        pairs = zip(stream.arrivals, stream.arrivals[1:], strict=False)
        into.itl_s = [later - earlier for earlier, later in pairs]
    if stream.last is not None:
        into.latency_s = stream.last - began
        into.ttft_s = into.latency_s if into.ttft_s is None else into.ttft_s
    if stream.usage is not None:
        _count(stream.usage, into)
    into.finish_reason = stream.finish_reason
    return stream.answer


def _count(usage: _Usage, into: Measured) -> None:
    into.prompt_tokens = usage.prompt_tokens
    into.completion_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        into.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _fault(stream: Stream, status: int) -> str | None:
    """What is wrong with a finished answer."""
    if status != 200:
        return f"status {status}: {_refusal(stream.raw)}"
    if stream.error is not None:
        return stream.error
    if stream.last is None or stream.finish_reason is None:
        return "the stream ended before its answer"
    if stream.usage is None:
        return "the server does not tell the usage of a stream (stream_options.include_usage)"
    if stream.usage.completion_tokens == 0:
        return "an answer without tokens"
    return None


def _refusal(body: bytes) -> str:
    try:
        return _message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace") or "no reason given"


def _message(error: Any) -> str:
    """The sentence in an error object, whatever its shape."""
    while isinstance(error, dict):
        inner = error.get("error", error.get("message", error.get("detail")))
        if inner is None:
            break
        error = inner
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
