"""Processes of engines: their commands, tuned to the threads given, and their end."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.running import Unable

HERE = Path(__file__).parent
READY_S = 600.0

SERVERS = ("treadle", "llama-server", "vllm")
DRIVERS = ("treadle_engine", "openvino_genai", "transformers", "llama_cpp")
SHARING = ("treadle_engine", "openvino_genai", "llama_cpp")
"""Drivers whose engines can answer from a prefix that was computed before."""

Command = tuple[list[str], dict[str, str]]
"""And what its environment has beside ours."""


def server_command(kind: str, where: str, model: Path, threads: int, port: int) -> Command:
    match kind:
        case "treadle":
            command = [where, "-m", "treadle.cli.main", "serve", str(model), "--port", str(port)]
            return [*command, "--threads", str(threads), "--log-stats-interval", "0"], {}
        case "llama-server":
            # 32 slots over one pool; threads for decoding and for prompts.
            both = ["-t", str(threads), "-tb", str(threads)]
            command = [where, "-m", str(model), "--port", str(port), *both]
            command += ["-np", "32", "-c", "40960", "--kv-unified", "-fa", "on", "-b", "2048"]
            return [*command, "-ub", "512", "--no-webui", "-ngl", "0"], {}
        case "vllm":
            command = [where, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
            command += ["--port", str(port), "--max-model-len", "4096", "--max-num-seqs", "64"]
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
            return command, {
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": cores,
                "OMP_NUM_THREADS": str(threads),
            }
    raise AssertionError(kind)


def driver_command(kind: str, where: str, model: Path, threads: int) -> list[str]:
    """`where` is the Python that has the engine; of llama.cpp a folder, for any Python."""
    arguments = [str(HERE / "drivers" / f"{kind}.py"), str(model), str(threads)]
    if kind == "llama_cpp":
        return [sys.executable, *arguments, str(llama_binaries(Path(where)))]
    return [where, *arguments]


def llama_binaries(folder: Path) -> Path:
    """Where libllama lies: in the folder itself, or in the node-llama-cpp installed in it."""
    inside = folder / "@node-llama-cpp" / "linux-x64" / "bins" / "linux-x64"
    return inside if inside.is_dir() else folder


@contextlib.contextmanager
def process(
    command: list[str], environment: Mapping[str, str] | None = None, *, pipes: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Ends with its block; its last words are told if it fails within."""
    pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed below)
    started = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=pipe,
        stdout=pipe,
        stderr=log,
        text=True,
    )
    try:
        yield started
    except Unable as error:
        log.seek(0)
        raise Unable(" ".join([f"{error}:", *log.read().strip().splitlines()[-1:]])) from None
    finally:
        started.terminate()
        try:
            started.wait(timeout=20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        for stream in (started.stdin, started.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        log.close()


def wait_ready(url: str, server: subprocess.Popen[str]) -> None:
    """All these servers have /health, which is 200 only once they answer."""
    parts = urlsplit(url)
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise Unable(f"ended with status {server.returncode} before it was ready")
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                connection.close()
                return
        connection.close()
        time.sleep(0.02)
    raise Unable(f"was not ready after {READY_S:g} s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
