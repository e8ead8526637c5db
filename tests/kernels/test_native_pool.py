"""The native backend's threads and life: start, stop, two in one process, Python running on."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from treadle.errors import StartError
from treadle.kernels.native.backend import NativeBackend, available_variants
from treadle.kernels.native.memory import ALIGNMENT, Arena, pages
from treadle.kernels.ops import (
    FloatArray,
    Program,
    RawTensor,
    Rows,
    SampleRows,
    StepInputs,
    StepLimits,
    WeightType,
)


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def settles_at(count: int) -> bool:
    """A thread that has been joined may be listed a little longer."""
    deadline = time.monotonic() + 5
    while num_threads() != count and time.monotonic() < deadline:
        time.sleep(0.001)
    return num_threads() == count


def program(
    backend: NativeBackend, *, rows: int = 64, width: int = 256, repeat: int = 1
) -> Program:
    """Sums of powers of a fixed matrix, enough work for several pieces."""
    values = np.random.default_rng(1).normal(size=(width, width)).astype(np.float32) / 16
    matrix = backend.matrix(
        [RawTensor("m", WeightType.F32, values.shape, values.view(np.uint8).reshape(-1))]
    )
    inputs = StepInputs(StepLimits(rows, rows, ()))
    inputs.token_ids[:] = np.arange(rows) % width
    inputs.row_starts[1] = rows
    inputs.logit_tokens[:] = np.arange(rows)
    r = backend.recorder(inputs, [])
    x, y = r.buffer(Rows.TOKENS, width), r.buffer(Rows.TOKENS, width)
    r.embed(matrix, x)
    for _ in range(repeat):
        r.linear(x, matrix, y)
        r.linear(y, matrix, x, accumulate=True)
    logits = r.buffer(Rows.LOGITS, width)
    r.select(x, logits)
    return r.finish(logits)


def expected() -> FloatArray:
    backend = NativeBackend(threads=1)
    result = program(backend).run(64, 1, 64).copy()
    backend.close()
    return result


def test_threads_start_and_end_with_the_backend() -> None:
    before = num_threads()
    for threads in (1, 2, 3, 4) * 5:
        backend = NativeBackend(threads=threads)
        assert num_threads() == before + threads - 1
        assert str(threads) in backend.description
        backend.close()
        assert settles_at(before)
        backend.close()


def test_threads_end_when_a_backend_is_dropped() -> None:
    before = num_threads()
    backend = NativeBackend(threads=3)
    program(backend).run(64, 1, 64)
    del backend
    assert settles_at(before)


def test_closing_during_idle_and_at_once() -> None:
    """Workers are asleep, about to sleep, or not yet started when close comes."""
    wanted = expected()
    for pause in (0, 0.0001, 0.001) * 10:
        backend = NativeBackend(threads=4)
        run = program(backend)
        np.testing.assert_array_equal(run.run(64, 1, 64), wanted)
        time.sleep(pause)
        np.testing.assert_array_equal(run.run(64, 1, 64), wanted)
        backend.close()


def test_a_closed_backend_refuses_work() -> None:
    backend = NativeBackend(threads=2)
    run = program(backend)
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        run.run(64, 1, 64)
    one = np.ones(1, np.float32)
    greedy = SampleRows(0 * one, np.zeros(1, np.int32), one, 0 * one, np.zeros(1))
    with pytest.raises(RuntimeError, match="closed"):
        backend.sampling.sample(np.zeros((1, 5), np.float32), greedy)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    wanted = expected()
    for threads in (2, 3, 8):
        backend = NativeBackend(threads=threads)
        run = program(backend)
        for _ in range(200):
            np.testing.assert_array_equal(run.run(64, 1, 64), wanted)
        backend.close()


def test_workers_that_come_late_rest_and_come_back() -> None:
    """Far more threads than cores: most pieces are held by a thread that is not running."""
    wanted = expected()
    backend = NativeBackend(threads=24)
    run = program(backend, repeat=1)
    for _ in range(300):
        np.testing.assert_array_equal(run.run(64, 1, 64), wanted)
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 5, "those that rest were woken"


def test_two_backends_at_once() -> None:
    wanted = expected()
    backends = [NativeBackend(threads=2) for _ in range(2)]
    programs = [program(backend) for backend in backends]
    equal: list[bool] = []

    def work(run: Program) -> None:
        equal.extend(np.array_equal(run.run(64, 1, 64), wanted) for _ in range(100))

    callers = [threading.Thread(target=work, args=(run,)) for run in programs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert equal == [True] * 200
    backends[0].close()
    np.testing.assert_array_equal(programs[1].run(64, 1, 64), wanted)
    backends[1].close()


def test_one_backend_from_many_python_threads() -> None:
    """Programs of one backend take turns, whoever calls."""
    wanted = expected()
    backend = NativeBackend(threads=2)
    equal: list[bool] = []

    def work() -> None:
        run = program(backend)
        equal.extend(np.array_equal(run.run(64, 1, 64), wanted) for _ in range(30))

    for _ in range(2):
        callers = [threading.Thread(target=work) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert equal == [True] * 240
    backend.close()


def test_python_runs_during_a_run() -> None:
    backend = NativeBackend(threads=1, isa="portable")
    run = program(backend, rows=256, repeat=40)
    interval: list[float] = []

    def work() -> None:
        start = time.perf_counter()
        run.run(256, 1, 256)
        interval.extend((start, time.perf_counter()))

    caller = threading.Thread(target=work)
    caller.start()
    moments = []
    while caller.is_alive():
        moments.append(time.perf_counter())
    caller.join()
    start, end = interval
    middle = (end - start) / 5
    # Held, the GIL would let this thread run at the borders of the interval at most.
    assert any(start + middle < moment < end - middle for moment in moments)
    backend.close()


def test_variants_that_cannot_run_are_refused() -> None:
    with pytest.raises(StartError, match="sse9"):
        NativeBackend(isa="sse9", threads=1)
    with pytest.raises(StartError, match="at least 1"):
        NativeBackend(threads=0)
    assert "portable" in available_variants()
    for isa in available_variants():
        backend = NativeBackend(isa=isa, threads=1)
        assert isa in backend.description
        backend.close()


def test_arena_hands_out_separate_aligned_memory() -> None:
    arena = Arena()
    taken = [arena.take(size) for size in (1, 64, 100, 33 << 20, 5)]
    for index, array in enumerate(taken):
        assert array.ctypes.data % ALIGNMENT == 0
        assert not array[::4096].any()
        array[:] = index + 1
    assert [int(array[-1]) for array in taken] == [1, 2, 3, 4, 5]


def test_untouched_pages_cost_nothing() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    area = pages(8 << 30)
    assert area.size == 8 << 30
    area[123 << 20] = 1
    assert resident() - before < 64 << 20


def test_memory_that_there_is_not_is_one_sentence() -> None:
    with pytest.raises(StartError, match=r"1048576\.0 GiB"):
        pages(1 << 50)
