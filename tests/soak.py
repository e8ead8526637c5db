"""A soak: random requests, clients that leave, a pool too small for them, and then the accounts.

`python -m tests.soak [SECONDS [SEED]]` takes ten minutes by default; the tests run a short one.
The server is `treadle serve` as users start it, on a tiny random model.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx

from tests.server.served import DEADLINE_S, Served, eventually
from tests.server.test_metrics import samples
from tests.server.test_real_engine import RealServed
from tests.tiny import WINDOW, tiny_llama

NUM_QUEUED = 2000
"""Requests sent at once at the start."""

NUM_STREAMS = 200
"""Requests open at any time after that."""

POOL_TOKENS = WINDOW
"""As much KV as one request may need: with others about, requests are preempted."""

KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 2
"""K and V of two layers with two heads of 16 numbers in f16; see tests.tiny."""

OPTIONS = (
    *("--kv-cache-memory-bytes", str(POOL_TOKENS * KV_BYTES_PER_TOKEN), "--block-size", "16"),
    *("--max-num-seqs", "16", "--max-num-batched-tokens", "128", "--log-stats-interval", "0"),
)

ANSWER_S = 120.0
"""After which an answer counts as lost."""

SLACK_BYTES = 24 << 20
"""By which a process may grow in the second half: allocators take a while to settle."""


@dataclasses.dataclass
class Account:
    """What the clients know."""

    sent: int = 0
    """Answers asked for by requests that are right."""
    complete: int = 0
    """Answers that came whole."""
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)


class Client:
    """Sends random requests, one after the other, and judges what comes back."""

    def __init__(self, address: tuple[str, int], rng: random.Random, account: Account) -> None:
        self._address = address
        self._rng = rng
        self._account = account

    async def request(self, **fixed: Any) -> None:
        body = {**self._body(), **fixed}
        leaves_after = None if fixed or self._rng.random() < 0.7 else self._rng.expovariate(5)
        self._account.sent += body["n"]
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(_post(body))
            async with asyncio.timeout(leaves_after if leaves_after is not None else ANSWER_S):
                self._judge(body, await reader.read(-1))
        except TimeoutError:
            self._account.outcomes["left"] += 1
            if leaves_after is None:
                self._account.wrong.append(f"no answer in {ANSWER_S:g} s: {body}")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _body(self) -> dict[str, Any]:
        rng = self._rng
        shared = [3 + at % 300 for at in range(rng.choice((0, 16, 40, 100)))]
        own = [rng.randrange(3, 300) for _ in range(rng.randint(1, 30))]
        return {
            "prompt": shared + own,
            "max_tokens": rng.choice((1, 5, 20, 60)),
            "n": rng.choice((1, 1, 1, 2, 3)),
            "stream": rng.random() < 0.6,
            "temperature": rng.choice((0, 1)),
            "stop": rng.choice((None, "e", ["the", " a"])),
            "logprobs": rng.choice((None, None, 2)),
            "ignore_eos": rng.random() < 0.5,
        }

    def _judge(self, body: dict[str, Any], answer: bytes) -> None:
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = head[9:12].decode()
        if status != "200":
            self._account.wrong.append(f"{status} for {body}: {rest!r}")
            return
        ends = _ends_of_stream(_dechunked(rest)) if body["stream"] else _ends(rest)
        if sorted(ends) != list(range(body["n"])):
            self._account.wrong.append(f"ends {ends} for {body}")
        self._account.complete += body["n"]
        self._account.outcomes["stream" if body["stream"] else "whole"] += 1


def _post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def _ends(body: bytes) -> list[int]:
    """Indices of the answers that have an end."""
    choices = json.loads(body)["choices"]
    return [one["index"] for one in choices if one["finish_reason"] in ("stop", "length")]


def _ends_of_stream(text: bytes) -> list[int]:
    events = text.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""], "the stream has no end"
    return [
        choice["index"]
        for event in events[:-2]
        for choice in json.loads(event.removeprefix(b"data: "))["choices"]
        if choice["finish_reason"] in ("stop", "length")
    ]


def _dechunked(body: bytes) -> bytes:
    text = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        text += body[:length]
        body = body[length + 2 :]
    return text


class Soak:
    """One server from start to end, and what must hold of it."""

    def __init__(self, model: Path, seed: int) -> None:
        self.served: Served = RealServed(model, *OPTIONS)
        self._account = Account()
        self._rng = random.Random(seed)

    def run(self, seconds: float, *, num_queued: int, num_streams: int) -> None:
        served = self.served.wait_ready()
        usual = self._usual()
        asyncio.run(self._burst(num_queued))
        asyncio.run(self._work(seconds / 2, num_streams))
        self._settle()
        before = self._rss()
        asyncio.run(self._work(seconds / 2, num_streams))
        self._settle()
        after = self._rss()
        assert not self._account.wrong, self._account.wrong[:3]
        assert self._usual() == usual
        self._check_metrics()
        for name, size in after.items():
            grown = size - before[name]
            assert grown < SLACK_BYTES, f"the {name} process grew by {grown >> 20} MiB"
        _tell(f"{dict(self._account.outcomes)}, RSS {_mib(before)} → {_mib(after)} MiB")
        served.process.terminate()
        assert served.wait() == 0
        assert "Traceback" not in served.log, served.log
        assert "socket.send" not in served.log, "wrote to clients that had gone"

    def close(self) -> None:
        self.served.close()

    async def _burst(self, count: int) -> None:
        client = Client(self.served.address, self._rng, self._account)
        await asyncio.gather(*(client.request(n=1, max_tokens=4) for _ in range(count)))
        _tell(f"{count} at once: {dict(self._account.outcomes)}")

    async def _work(self, seconds: float, num_clients: int) -> None:
        end = time.monotonic() + seconds

        async def work(seed: int) -> None:
            client = Client(self.served.address, random.Random(seed), self._account)
            while time.monotonic() < end:
                await client.request()

        seeds = [self._rng.randrange(1 << 30) for _ in range(num_clients)]
        await asyncio.gather(*(work(seed) for seed in seeds))

    def _settle(self) -> None:
        """Nothing runs, nothing waits, every block is free: a request can have all of them."""
        eventually(self._is_idle, seconds=30)
        prompt = [self._rng.randrange(3, 300) for _ in range(POOL_TOKENS - 8)]
        response = self.served.complete(prompt, max_tokens=8, ignore_eos=True)
        assert response.status_code == 200, response.text
        self._account.sent += 1
        self._account.complete += 1
        eventually(self._is_idle)

    def _is_idle(self) -> bool:
        found = self._metrics()
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return [found[f"vllm:{name}", ""] for name in names] == [0, 0, 0]

    def _check_metrics(self) -> None:
        found = self._metrics()
        ended = {
            reason: found["vllm:request_success_total", reason]
            for reason in ("stop", "length", "abort", "error")
        }
        _tell(f"ended {ended}, preemptions {found['vllm:num_preemptions_total', '']:.0f}")
        account = self._account
        # One who leaves may do so before the request is read, or after its answer is done.
        assert account.complete <= ended["stop"] + ended["length"]
        assert sum(ended.values()) <= account.sent
        assert ended["error"] == 0
        assert ended["abort"] > 0
        assert found["vllm:num_preemptions_total", ""] > 0
        assert found["vllm:e2e_request_latency_seconds_count", ""] == sum(ended.values())
        generated = found["vllm:request_generation_tokens_sum", ""]
        assert 0 < generated <= found["vllm:generation_tokens_total", ""]

    def _metrics(self) -> dict[tuple[str, str], float]:
        return samples(httpx.get(f"{self.served.url}/metrics", timeout=DEADLINE_S).text)

    def _usual(self) -> object:
        self._account.sent += 1
        self._account.complete += 1
        body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return self.served.complete("Up went the", **body).json()["choices"]

    def _rss(self) -> dict[str, int]:
        pids = {"server": self.served.process.pid, "engine": self.served.engine_pid}
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            for name, pid in pids.items()
        }


def _mib(sizes: dict[str, int]) -> str:
    return "/".join(str(size >> 20) for size in sizes.values())


def _tell(text: str) -> None:
    sys.stderr.write(f"soak: {text}\n")


def main(arguments: Iterable[str]) -> None:
    seconds, seed = ([float(one) for one in arguments] + [600.0, 0.0])[:2]
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(tiny_llama("f32", Path(folder)), int(seed))
        try:
            soak.run(seconds, num_queued=NUM_QUEUED, num_streams=NUM_STREAMS)
        finally:
            soak.close()


if __name__ == "__main__":
    main(sys.argv[1:])
