"""A server that answers by script, at times it knows, written without any HTTP library."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

FIRST_S = 0.05
GAP_S = 0.02


@dataclass
class Script:
    """How the server behaves. `sent` holds, per request, when each of its events was written."""

    first_s: float = FIRST_S
    gap_s: float = GAP_S
    tokens_per_event: int = 1
    takes_ids: bool = True
    tokenize_field: str | None = "prompt"
    usage: bool = True
    status: Callable[[int], int] = lambda number: 200
    """Of the number-th streamed request."""
    break_after: int | None = None
    """Events after which the connection is gone."""
    error_after: int | None = None
    """Events after which the stream says that it failed."""
    tells_ids: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    sent: list[list[float]] = field(default_factory=list)
    received: list[float] = field(default_factory=list)
    most_at_once: int = 0
    at_once: int = 0


def tokens_of(text: str, special: bool) -> list[int]:
    """Words of one or two letters are one token each, longer ones one per letter; 0 comes first."""
    ids = [0] if special else []
    for word in text.split():
        parts = [word] if len(word) <= 2 else list(word)
        ids += [1 + sum(ord(c) * 31**at for at, c in enumerate(part)) % 5000 for part in parts]
    return ids


class ScriptedServer:
    """Serves one script on a free port."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self._open: set[asyncio.Task[None]] = set()

    async def idle(self) -> None:
        """Wait until every client has gone, or was slow to."""
        if self._open:
            _, late = await asyncio.wait(self._open, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = (ConnectionError, asyncio.IncompleteReadError)
        with contextlib.suppress(*gone), contextlib.closing(writer):
            while head := await reader.readline():
                method, path, _ = head.decode().split()
                length = 0
                while (line := await reader.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = json.loads(await reader.readexactly(length)) if method == "POST" else {}
                if not await self.answer(path, body, writer):
                    return

    async def answer(self, path: str, body: dict[str, Any], out: asyncio.StreamWriter) -> bool:
        script = self.script
        if path == "/v1/models":
            return self.whole(out, 200, {"data": [{"id": "scripted"}]})
        if path == "/tokenize":
            if script.tokenize_field not in body:
                return self.whole(out, 404, {})
            special = body.get("add_special_tokens", True)
            return self.whole(out, 200, {"tokens": tokens_of(body[script.tokenize_field], special)})
        return await self.complete(body, out)

    async def complete(self, body: dict[str, Any], out: asyncio.StreamWriter) -> bool:
        script = self.script
        prompt = body["prompt"]
        if not isinstance(prompt, str) and not script.takes_ids:
            return self.whole(out, 400, {"error": {"message": "a prompt is a text"}})
        num_in = len(tokens_of(prompt, special=True) if isinstance(prompt, str) else prompt)
        if not body.get("stream"):
            usage = {"prompt_tokens": num_in, "completion_tokens": 1}
            return self.whole(out, 200, {"choices": [], "usage": usage})
        script.received.append(time.perf_counter())
        script.bodies.append(body)
        status = script.status(len(script.bodies) - 1)
        if status != 200:
            return self.whole(out, status, {"error": {"message": "scripted refusal"}})
        script.at_once += 1
        script.most_at_once = max(script.most_at_once, script.at_once)
        try:
            return await self.stream(out, num_in, body["max_tokens"])
        finally:
            script.at_once -= 1

    async def stream(self, out: asyncio.StreamWriter, num_in: int, num_out: int) -> bool:
        script = self.script
        sent: list[float] = []
        script.sent.append(sent)
        out.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        out.write(b"Transfer-Encoding: chunked\r\n\r\n")
        num_events = -(-num_out // script.tokens_per_event)
        for at in range(num_events):
            await asyncio.sleep(script.first_s if at == 0 else script.gap_s)
            if at == script.break_after:
                return False
            if at == script.error_after:
                self.event(out, {"error": {"message": "scripted failure"}})
                break
            choice: dict[str, Any] = {"index": 0, "text": " ab", "finish_reason": None}
            if script.tells_ids:
                choice["token_ids"] = [7]
            sent.append(time.perf_counter())
            self.event(out, {"choices": [choice]})
        self.event(out, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if script.usage:
            details = {"cached_tokens": 3}
            usage = {"prompt_tokens": num_in, "completion_tokens": num_out}
            self.event(out, {"choices": [], "usage": {**usage, "prompt_tokens_details": details}})
        self.event(out, "[DONE]")
        out.write(b"0\r\n\r\n")
        return True

    def event(self, out: asyncio.StreamWriter, data: Any) -> None:
        """In two chunks of HTTP, cut within the line, as proxies do."""
        text = data if isinstance(data, str) else json.dumps(data)
        line = f"data: {text}\n\n".encode()
        for part in (line[:9], line[9:]):
            out.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    def whole(self, out: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> bool:
        data = json.dumps(body).encode()
        out.write(f"HTTP/1.1 {status} Scripted\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        out.write(data)
        return True


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(script)
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await server.idle()
