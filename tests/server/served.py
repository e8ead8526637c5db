"""A served model in processes of its own, and raw requests to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]

DEADLINE_S = 20.0


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def eventually(holds: Callable[[], bool], seconds: float = DEADLINE_S) -> None:
    """Poll until true; the deadline is generous, since it is only met by failures."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that waits for its parent to ask does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Served:
    """One `serve_fake` process. `close` leaves nothing of it behind."""

    def __init__(self, name: str = "fake", *options: str) -> None:
        self.name = name
        self.log = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.serve_fake", name, *(options or ("0",))],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def url(self) -> str:
        return self.read_until(r"listening on (\S+), loading")

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def engine_pid(self) -> int:
        return int(self.read_until(r"find pid 0.00 s: (\d+)\n"))

    def wait_ready(self) -> Served:
        self.read_until(r"serving (\S+) at http")
        return self

    def read_until(self, pattern: str) -> str:
        """The first group, once the server has written it to standard error."""
        while not (match := re.search(pattern, self.log)):
            assert self.process.stderr is not None
            line = self.process.stderr.readline()
            assert line, f"{pattern!r} never came, but: {self.log}"
            self.log += line
        return match[1]

    def wait(self) -> int:
        """The exit status; `log` is complete then."""
        _, rest = self.process.communicate(timeout=DEADLINE_S)
        self.log += rest
        return self.process.returncode

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def running(self) -> int | None:
        """Requests in the engine's hands, by its own account."""
        text = httpx.get(f"{self.url}/metrics").text
        match = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
        return int(float(match[1])) if match else None

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=DEADLINE_S)

    def complete(self, prompt: Any, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", prompt=prompt, **body)

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The JSON of each event of a stream that ends as it should."""
        events = self.raw_events(path, **body)
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    def raw_events(self, path: str, **body: Any) -> list[str]:
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.text.split("\n\n")
        assert events.pop() == ""
        assert all(event.startswith("data: ") for event in events)
        return [event.removeprefix("data: ") for event in events]

    @contextlib.contextmanager
    def open_request(self, path: str, **body: Any) -> Iterator[socket.socket]:
        """A request whose answer is read, or not, by hand."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        with socket.create_connection(self.address, timeout=DEADLINE_S) as connection:
            connection.sendall(head.encode() + data)
            yield connection

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class RealServed(Served):
    """`treadle serve` as a user starts it."""

    def __init__(self, model: Path, *options: str) -> None:
        self.name = model.stem
        self.log = ""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "treadle.cli.main", "serve", str(model)),
                *("--port", "0", *options),
            ],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def engine_pid(self) -> int:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0])


def read_until(connection: socket.socket, text: bytes) -> bytes:
    received = b""
    while text not in received:
        piece = connection.recv(65536)
        assert piece, f"closed after {received!r}"
        received += piece
    return received


def read_all(connection: socket.socket) -> bytes:
    """Until the other side closes."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received
