"""What a client spends per event: ours beside httpx and aiohttp, as far as they are installed.

    python benchmarks/sse_client.py [--streams 32] [--events 1000]

A server in another process sends ready-made events as fast as they are taken. The figure is the
client's processor time: at 10 us per event, 1,000 tokens per second take 1 % of a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable

import click

from treadle.bench.completion import Measured, complete
from treadle.bench.connection import Address, Connections

CHUNK = {
    "id": "cmpl-0123456789abcdef",
    "object": "text_completion",
    "created": 1700000000,
    "model": "demo",
    "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
    "usage": None,
}

BODY = {"model": "demo", "prompt": [1, 2, 3], "max_tokens": 1, "stream": True}

Client = Callable[[], Awaitable[int]]
"""One stream; how many of its events brought tokens."""


def serve(listener: socket.socket, num_events: int) -> None:
    event = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
    part = f"{len(event):x}\r\n".encode() + event + b"\r\n"
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    end = b"data: [DONE]\n\n"

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n") and await reader.readuntil(b"}"):
                writer.write(head)
                for _ in range(num_events):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)  # an event at a time, as tokens come
                writer.write(f"{len(end):x}\r\n".encode() + end + b"\r\n0\r\n\r\n")

    async def main() -> None:
        server = await asyncio.start_server(connected, sock=listener)
        await server.serve_forever()

    asyncio.run(main())


def ours(url: str) -> Client:
    connections = Connections(Address(url, None))

    async def one() -> int:
        record = Measured(conversation=0, turn=0, input_len=3, output_len=1)
        await complete(connections, BODY, record, 600)
        return len(record.itl_s) + 1

    return one


def of_httpx(url: str) -> Client:
    import httpx

    client = httpx.AsyncClient(base_url=url, timeout=600)

    async def one() -> int:
        count = 0
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    count += len(json.loads(line[6:])["choices"])
        return count

    return one


def of_aiohttp(url: str) -> Client:
    import aiohttp

    async def one() -> int:
        count = 0
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/completions", json=BODY) as response,
        ):
            async for line in response.content:
                if line.startswith(b"data: {"):
                    count += len(json.loads(line[6:])["choices"])
        return count

    return one


async def spent(client: Client, streams: int) -> tuple[float, int]:
    """Processor seconds, and events taken."""
    await client()
    began = time.process_time()
    counts = await asyncio.gather(*(client() for _ in range(streams)))
    return time.process_time() - began, sum(counts)


@click.command()
@click.option("--streams", default=32, show_default=True)
@click.option("--events", default=1000, show_default=True)
def main(streams: int, events: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=streams)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = multiprocessing.Process(target=serve, args=(listener, events), daemon=True)
    server.start()
    clients = {"treadle": ours, "httpx": of_httpx, "aiohttp": of_aiohttp}
    for name, make in clients.items():
        try:
            seconds, count = asyncio.run(spent(make(url), streams))
        except ImportError:
            click.echo(f"{name:8} is not installed")
            continue
        click.echo(f"{name:8} {seconds / count * 1e6:6.1f} us per event, {count} events")
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
