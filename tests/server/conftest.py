"""Servers for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.served import Served
from treadle.text.load import ModelText, load_text

Start = Callable[..., Served]


@pytest.fixture(scope="session")
def server(demo_gguf: Path) -> Iterator[Served]:
    """One server that tests share; none may leave a request behind."""
    del demo_gguf  # downloaded before a server's deadline runs
    served = Served()
    try:
        yield served.wait_ready()
        assert served.process.poll() is None, served.wait()
    finally:
        served.close()


@pytest.fixture
def start(demo_gguf: Path) -> Iterator[Start]:
    """Servers of the test's own, to be stopped or broken."""
    del demo_gguf
    with contextlib.ExitStack() as stack:

        def launch(name: str = "fake", *options: str) -> Served:
            served = Served(name, *options)
            stack.callback(served.close)
            return served

        yield launch


@pytest.fixture(scope="session")
def text(demo_gguf: Path) -> ModelText:
    return load_text(demo_gguf)
