"""`bench startup`: real processes on a tiny model, and the arithmetic of phases."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from treadle.bench.startup import (
    measure_startup,
    options_of,
    peak_rss,
    phases_of,
    process_tree,
    show_startup,
)
from treadle.bench.startup_child import Marks
from treadle.errors import EngineError

PHASES = [
    "interpreter",
    "imports",
    "configure",
    "load weights",
    "allocate KV",
    "load tokenizer",
    "other",
    "8 tokens",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("startup"))


def test_phases_add_up_to_the_whole() -> None:
    marks = Marks(
        entered=10.5,
        imported=11.0,
        loaded=13.0,
        answered=13.25,
        engine={"configure": 0.5, "load weights": 1.0},
    )
    phases = phases_of(marks, began=10.0)
    assert phases == {
        "interpreter": 0.5,
        "imports": 0.5,
        "configure": 0.5,
        "load weights": 1.0,
        "other": 0.5,
        "8 tokens": 0.25,
    }
    assert sum(phases.values()) == 3.25


def test_a_model_starts(path: Path) -> None:
    began = time.monotonic()
    report = measure_startup(str(path), {"threads": 1, "max_model_len": 64}, 1, 60)
    took = time.monotonic() - began
    (served,), (generated,), (phases,) = report.serve, report.generate, report.phases
    assert list(phases) == PHASES
    assert min(phases.values()) >= 0
    assert 0 < served.seconds + generated.seconds + sum(phases.values()) < took
    assert generated.seconds > 0.5 * sum(phases.values()), "the same work, measured twice"
    if sys.platform == "linux":
        assert served.peak_rss_bytes is not None
        assert generated.peak_rss_bytes is not None
        assert served.peak_rss_bytes > 20 * 2**20
        assert generated.peak_rss_bytes > 20 * 2**20
    lines = show_startup(report)
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("load tokenizer") for line in lines)


def test_what_does_not_start(path: Path) -> None:
    with pytest.raises(EngineError, match=r"serve ended with status 1: .*max_model_len is 100000"):
        measure_startup(str(path), {"max_model_len": 100_000}, 1, 60)


def test_what_takes_too_long(path: Path) -> None:
    with pytest.raises(EngineError, match=r"not ready after 0\.01 s"):
        measure_startup(str(path), {}, 1, 0.01)


def test_settings_as_options() -> None:
    given = {"max_model_len": 64, "threads": None, "kv_dtype": "f16"}
    assert options_of(given) == ["--max-model-len", "64", "--kv-dtype", "f16"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_tree() -> None:
    """A child that holds 64 MiB, and starts one that sleeps."""
    program = (
        "import subprocess, sys\n"
        "held = bytearray(b'x') * 2**26\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert process_tree(process.pid) == [process.pid, grandchild]
        alone, both = peak_rss([process.pid]), peak_rss([process.pid, grandchild])
        process.communicate(b"\n")
    assert alone is not None
    assert both is not None
    assert both > alone > 2**26
    assert peak_rss([process.pid]) is None, "it has ended"
