"""One served demo model for all clients, checked after each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.serving import DEADLINE_S, MODEL, ROOT, Serving

COUNTING = {"model": MODEL, "prompt": "1, 2, 3, 4, 5,", "max_tokens": 6, "temperature": 0}
COUNTED = " 6, 7,"
"""What the demo model says to it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--serving-python",
        type=Path,
        default=ROOT / ".venv/bin/python",
        help="the Python that has treadle and what its own tests need",
    )


def pytest_configure() -> None:
    """Before the clients are imported: what they would look up at their makers' they must not need,
    and what they keep is not for the user's home."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "LITELLM_LOCAL_MODEL_COST_MAP"):
        os.environ[name] = "1"
    for name in ("HF_HOME", "NLTK_DATA"):
        os.environ[name] = str(ROOT / ".venv-clients" / "home")
    os.environ["LANGSMITH_TRACING"] = "false"


@pytest.fixture(scope="session")
def serving_python(pytestconfig: pytest.Config) -> Path:
    path = pytestconfig.getoption("--serving-python")
    assert isinstance(path, Path)
    return path.absolute()


@pytest.fixture(scope="session")
def server(serving_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    log = tmp_path_factory.mktemp("server") / "log"
    serving = Serving(serving_python, log)
    try:
        yield serving.wait_ready()
    finally:
        serving.close()


@pytest.fixture
def url(server: Serving) -> Iterator[str]:
    """The server's address; after the test it still answers as before, and nothing runs."""
    yield server.url
    server.wait_idle()
    answer = httpx.post(f"{server.url}/v1/completions", json=COUNTING, timeout=DEADLINE_S)
    assert answer.json()["choices"][0]["text"] == COUNTED
