"""What this machine allows: bytes read and operations per second, measured, and the least time
that a forward pass's ops can take by them.

Caches are not modelled: weights and KV are taken to come from memory, activations to cost nothing.
A model that fits the last cache can therefore beat its floor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from treadle.errors import StartError
from treadle.kernels.native._native import OpTime
from treadle.kernels.native.backend import NativeBackend
from treadle.kernels.native.program import NativeProgram
from treadle.kernels.ops import Backend, FloatArray, Program

_ARRAY_BYTES = 2**28
_REPEATS = 4


class Machine(msgspec.Struct, frozen=True):
    """Rates of all the engine's threads together."""

    read_bytes_per_s: float
    byte_operations_per_s: float
    """Multiply-adds of bytes, as products with quantised weights are made of; each is two."""
    float_operations_per_s: float

    def floor_s(self, op: OpTime) -> float:
        """The least seconds that an op can take: what it reads, or what it computes."""
        peak = self.byte_operations_per_s if op.on_bytes else self.float_operations_per_s
        read = (op.weight_bytes + op.kv_bytes) / self.read_bytes_per_s
        return max(read, op.operations / peak)


def measure_machine(backend: NativeBackend) -> Machine:
    """Takes about a second, and 256 MiB per thread for as long."""
    return Machine(
        read_bandwidth(backend.threads), backend.peak(on_bytes=True), backend.peak(on_bytes=False)
    )


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read from memory together."""
    arrays = [np.ones(_ARRAY_BYTES // 8, np.float64) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_REPEATS):
            began = time.perf_counter()
            list(pool.map(np.max, arrays))
            best = max(best, threads * _ARRAY_BYTES / (time.perf_counter() - began))
    return best


class Pass(msgspec.Struct):
    """One forward pass."""

    num_tokens: int
    num_rows: int
    seconds: float
    """Of the whole call, so more than its ops took together."""
    ops: list[OpTime]


class Recording:
    """Profiles each pass of a program while `on`, in place of running it plainly.

    Holds no more than the passes since the last `take`.
    """

    def __init__(self, backend: Backend, program: Program) -> None:
        """Raises StartError on a backend whose ops have no times."""
        if not isinstance(backend, NativeBackend) or not isinstance(program, NativeProgram):
            raise StartError(
                f"only the native backend times its ops; the backend is {backend.name}"
            )
        self.on = False
        self.backend = backend
        self._program = program
        self._plain = program.run
        self._passes: list[Pass] = []
        program.run = self._run  # type: ignore[method-assign]

    def take(self) -> list[Pass]:
        passes, self._passes = self._passes, []
        return passes

    def _run(
        self, num_tokens: int, num_rows: int, num_logits: int, num_likeliest: int = 0
    ) -> FloatArray:
        if not self.on:
            return self._plain(num_tokens, num_rows, num_logits, num_likeliest)
        began = time.perf_counter()
        logits, ops = self._program.profile(num_tokens, num_rows, num_logits, num_likeliest)
        seconds = time.perf_counter() - began
        self._passes.append(Pass(num_tokens, num_rows, seconds, ops))
        return logits


def floor_s(machine: Machine, ops: Sequence[OpTime]) -> float:
    return sum(machine.floor_s(op) for op in ops)
