"""`treadle bench startup`: how long users wait for the first answer, in processes of their own.

    serve      treadle serve …      until /health says it is ready
    generate   treadle generate …   until it has printed eight tokens and ended
    phases     bench.startup_child  the same as generate, saying when each part was done

The child imports and loads what `generate` does; nothing of this process is reused but the files
that the system keeps in memory.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treadle.bench.report import Spread, end_of, heading, lines_of, spread, table
from treadle.bench.startup_child import NUM_TOKENS, PROMPT, Marks
from treadle.errors import EngineError

_POLL_S = 0.005

_TREADLE = [sys.executable, "-m", "treadle.cli.main"]


class Start(msgspec.Struct, frozen=True):
    """One start of one command."""

    seconds: float
    peak_rss_bytes: int | None
    """Of the command's processes together; None where the system does not tell."""


class StartupReport(msgspec.Struct, kw_only=True):
    model: str
    repeat: int
    serve: list[Start]
    generate: list[Start]
    phases: list[dict[str, float]]
    """Phase → seconds, in their order; one for each repetition."""


def measure_startup(
    model: str, settings: Mapping[str, Any], repeat: int, timeout_s: float
) -> StartupReport:
    """Raises EngineError, with what the command said, when one does not start."""
    options = options_of(settings)
    serve, generate, phases = [], [], []
    for _ in range(repeat):
        serve.append(_start_serving(model, options, timeout_s))
        generate.append(_generate(model, options, timeout_s))
        phases.append(_phases({"model": model, **settings}, timeout_s))
    return StartupReport(model=model, repeat=repeat, serve=serve, generate=generate, phases=phases)


def _start_serving(model: str, options: Sequence[str], timeout_s: float) -> Start:
    port = _free_port()
    command = [*_TREADLE, "serve", model, "--port", str(port), *options]
    with _process(command) as (process, began):
        while not _is_healthy(port):
            if process.poll() is not None:
                raise _failed(process, "serve")
            if time.monotonic() - began > timeout_s:
                raise EngineError(f"treadle serve was not ready after {timeout_s:g} s")
            time.sleep(_POLL_S)
        seconds = time.monotonic() - began
        return Start(seconds, peak_rss(process_tree(process.pid)))


def _generate(model: str, options: Sequence[str], timeout_s: float) -> Start:
    asked = ["--raw", "--model", model, "--max-tokens", str(NUM_TOKENS)]
    command = [*_TREADLE, "generate", PROMPT, *asked, *options]
    peak: list[int | None] = [None]
    with _process(command) as (process, began):

        def look() -> None:
            peak[0] = peak_rss([process.pid]) or peak[0]

        _wait(process, began, timeout_s, look)
        if process.returncode != 0:
            raise _failed(process, "generate")
        return Start(time.monotonic() - began, peak[0])


def _phases(settings: Mapping[str, Any], timeout_s: float) -> dict[str, float]:
    given = msgspec.json.encode(settings).decode()
    command = [sys.executable, "-m", "treadle.bench.startup_child", given]
    with _process(command) as (process, began):
        _wait(process, began, timeout_s, lambda: None)
        if process.returncode != 0:
            raise _failed(process, "the start")
        assert process.stdout is not None
        marks = msgspec.json.decode(process.stdout.read(), type=Marks)
    return phases_of(marks, began)


def phases_of(marks: Marks, began: float) -> dict[str, float]:
    """Seconds by phase; what lies between two marks and has no name is "other"."""
    named = {
        "interpreter": marks.entered - began,
        "imports": marks.imported - marks.entered,
        **marks.engine,
    }
    loading = sum(marks.engine.values())
    return {
        **named,
        "other": marks.loaded - marks.imported - loading,
        f"{NUM_TOKENS} tokens": marks.answered - marks.loaded,
    }


def options_of(settings: Mapping[str, Any]) -> list[str]:
    """Engine settings as on the command line; None means not given."""
    options: list[str] = []
    for name, value in settings.items():
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A running command and when it began; it and its children end with the block."""
    began = time.monotonic()
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    with process:
        try:
            yield process, began
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(
    process: subprocess.Popen[bytes], began: float, timeout_s: float, look: Callable[[], None]
) -> None:
    while process.poll() is None:
        look()
        if time.monotonic() - began > timeout_s:
            raise EngineError(f"a start had not ended after {timeout_s:g} s")
        time.sleep(_POLL_S)


def _failed(process: subprocess.Popen[bytes], what: str) -> EngineError:
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace").strip().splitlines()
    return EngineError(f"{what} ended with status {process.returncode}: {' '.join(said[-1:])}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def process_tree(pid: int) -> list[int]:
    """The process and all that descend from it, as far as the system tells."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
    return found


def peak_rss(pids: Sequence[int]) -> int | None:
    """The sum of each process's highest resident memory; shared pages count in each."""
    peaks = [peak for pid in pids if (peak := high_water(pid)) is not None]
    return sum(peaks) if peaks else None


def high_water(pid: int) -> int | None:
    """The highest resident memory of one process so far; None where it or the fact is missing."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return None


def show_startup(report: StartupReport) -> list[str]:
    commands = {"serve, ready": report.serve, f"generate, {NUM_TOKENS} tokens": report.generate}
    rows: list[list[float | str | None]] = []
    for name, starts in commands.items():
        whole = spread(start.seconds for start in starts)
        peaks = [start.peak_rss_bytes for start in starts if start.peak_rss_bytes is not None]
        rss = statistics.median(peaks) / 2**20 if peaks else None
        rows.append([name, *_ends(whole), rss])
    phase_rows: list[list[float | str | None]] = [
        [name, *_ends(spread(phases[name] for phases in report.phases))]
        for name in report.phases[0]
    ]
    return [
        heading("Startup"),
        *lines_of([("Model", end_of(report.model)), ("Repetitions", report.repeat)]),
        "",
        *table(["seconds", "median", "min", "max", "peak MiB"], rows),
        "",
        *table(["phase of generate, s", "median", "min", "max"], phase_rows),
    ]


def _ends(whole: Spread | None) -> list[float]:
    assert whole is not None
    return [whole.p50, whole.min, whole.max]
