"""Programs beside the tests: `treadle serve` in its own environment, and what stands in front.

Needs nothing but the standard library and httpx, since treadle is not installed here.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]

DEADLINE_S = 60.0
"""Generous, since it is only met by failures."""

MODEL = "demo"


def free_port() -> int:
    """For programs that cannot choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Program:
    """One process and what it writes. `close` leaves nothing of it, or of its children, behind."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self._log = log
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*map(str, command)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """The first group, once the program has written it."""
        end = time.monotonic() + DEADLINE_S
        while not (match := re.search(pattern, self.log)):
            assert self.process.poll() is None, f"ended before {pattern!r}: {self.log}"
            assert time.monotonic() < end, f"{pattern!r} never came: {self.log}"
            time.sleep(0.05)
        return match[1]

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Serving(Program):
    """`treadle serve`, ready; on a port of its own choice."""

    def __init__(self, python: Path, log: Path, *options: str, model: str = MODEL) -> None:
        serve = ("-m", "treadle.cli.main", "serve", model, "--port", "0", *options)
        super().__init__([python, *serve], log)

    @property
    def url(self) -> str:
        return self.wait_for(r"listening on (\S+), loading")

    def wait_ready(self) -> Serving:
        self.wait_for(r"serving (\S+) at http")
        return self

    def metric(self, name: str) -> float:
        """The sum of one of its metrics over all labels; 0 if it has no value yet."""
        text = httpx.get(f"{self.url}/metrics", timeout=DEADLINE_S).text
        assert f"# TYPE {name} " in text, f"no {name} in {text}"
        values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))

    def wait_idle(self) -> None:
        """Until no request is left, by its own account."""
        end = time.monotonic() + DEADLINE_S
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"):
            assert time.monotonic() < end, "requests never ended"
            time.sleep(0.05)
