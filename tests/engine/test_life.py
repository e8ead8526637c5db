"""What surrounds calls: forks, interrupts, forgotten engines, many engines, the process's end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from treadle import LLM, SamplingParams
from treadle.errors import EngineError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("life"))


def script(path: Path, text: str) -> subprocess.Popen[str]:
    """A Python process of its own."""
    head = (
        "import os, signal, sys, threading, time\n"
        "from treadle import LLM, SamplingParams\n"
        f"path = {str(path)!r}\n"
        "params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", head + text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, out, err


@pytest.mark.parametrize("depth", [0, 1])
def test_a_forked_child_is_told_and_ends(path: Path, depth: int) -> None:
    text = f"""
llm = LLM(path, overlap_depth={depth}, threads=2)
before = llm.generate("The loom", params)[0].outputs
stream = llm.generate_stream("forever", SamplingParams(max_tokens=300, ignore_eos=True))
next(stream)
child = os.fork()
if child == 0:
    for call in (lambda: llm.generate("x"), lambda: next(stream), lambda: llm.get_metrics()):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, str(error)[:52], flush=True)
    llm.close()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stream.close()
assert llm.generate("The loom", params)[0].outputs == before
"""
    status, out, err = finished(script(path, text))
    told = "EngineError this engine was made before the process forked"
    assert (status, err) == (0, "")
    assert [line.startswith(told[: len(line)]) for line in out.splitlines()[:3]] == [True] * 3
    assert out.splitlines()[3] == "7"


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError", "del llm"])
def test_a_process_ends_without_close(path: Path, end: str) -> None:
    text = f"""
llm = LLM(path)
stream = llm.generate_stream("forever", SamplingParams(max_tokens=400, ignore_eos=True))
next(stream)
{end}
"""
    status, _, err = finished(script(path, text))
    assert status == {"": 0, "del llm": 0, "sys.exit(3)": 3, "raise KeyError": 1}[end]
    assert ("KeyError" in err) == (end == "raise KeyError")
    assert "Fatal" not in err


def test_an_interrupt_while_the_model_loads(path: Path) -> None:
    """At any moment; what is half loaded is given up."""
    text = """
import treadle.engine.llm
try:
    threading.Timer({delay}, os.kill,
                    (os.getpid(), signal.SIGINT)).start()
    llm = LLM(path)
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    processes = [
        script(path, text.replace("{delay}", str(delay))) for delay in (0.0, 0.01, 0.03, 0.08)
    ]
    for process in processes:
        began = time.monotonic()
        assert finished(process) == (0, "interrupted\n", "")
        assert time.monotonic() - began < 9


def test_a_forgotten_engine_is_given_back(path: Path) -> None:
    llm = LLM(str(path))
    llm.generate("x", GREEDY)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("treadle")]
    engine = weakref.ref(llm._session.engine)
    del llm
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    gc.collect()
    assert engine() is None


def test_a_stream_keeps_its_engine(path: Path) -> None:
    expected = LLM(str(path)).generate("The loom", GREEDY)[0].outputs[0].text
    stream = LLM(str(path)).generate_stream("The loom", GREEDY)
    gc.collect()
    assert "".join(piece.text for piece in stream) == expected


def test_a_hundred_engines_one_after_another(path: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cycle() -> None:
        with LLM(str(path), kv_cache_memory_bytes=1 << 20) as llm:
            llm.generate("x", GREEDY)

    for _ in range(10):
        cycle()
    before, memory = held(), resident()
    for _ in range(90):
        cycle()
    assert held() == before
    assert resident() - memory < 20 * 2**20


def test_closing_from_another_thread_ends_the_calls(path: Path) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    llm = LLM(str(path))
    stream = llm.generate_stream("x", long)
    next(stream)
    closing = threading.Timer(0.02, llm.close)
    closing.start()
    with pytest.raises(EngineError, match="closed"):
        llm.generate(["x"] * 100, long)
    with pytest.raises(EngineError, match="closed"):
        list(stream)
    closing.join()


def test_an_idle_engine_rests(path: Path) -> None:
    with LLM(str(path), overlap_depth=1) as llm:
        llm.generate("x", GREEDY)
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.02


def exhaust(stream: Iterator[object]) -> None:
    """Ask for more, for ever."""
    while True:
        next(stream, None)


def test_ctrl_c_in_a_stream(path: Path) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # By the process's own time: the limit on a test's time has the other timer. An interrupt amid
    # the garbage collector, where the test tools have hooks, would be lost.
    before = signal.signal(signal.SIGVTALRM, interrupt)
    gc.disable()
    try:
        with LLM(str(path)) as llm:
            expected = llm.generate("The loom", GREEDY)[0].outputs
            for delay_s in (0.001, 0.003, 0.01, 0.02):
                stream = llm.generate_stream("x", long)
                signal.setitimer(signal.ITIMER_VIRTUAL, delay_s)
                with pytest.raises(KeyboardInterrupt):
                    exhaust(stream)
                stream.close()
                assert llm.generate("The loom", GREEDY)[0].outputs == expected
    finally:
        gc.enable()
        signal.signal(signal.SIGVTALRM, before)
