"""The native CPU backend: C++ kernels, chosen by CPU features, on a thread pool of its own.

Owns threads, weight memory and the choice of variant. It never imports PyTorch and shares nothing
with other backends in the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.errors import StartError
from treadle.kernels.native import _native
from treadle.kernels.native.buffers import NativeKVPool
from treadle.kernels.native.memory import Arena
from treadle.kernels.native.recorder import NativeRecorder
from treadle.kernels.native.sampling import NativeSampling
from treadle.kernels.native.weights import NativeMatrix, NativeVector, load_vector, pack_matrix
from treadle.kernels.ops import KVPool, KVSpec, RawTensor, StepInputs


class NativeBackend:
    """Implements `Backend`. All it made is unusable after `close`."""

    name = "native"

    def __init__(self, *, threads: int, isa: str | None = None) -> None:
        available = _native.variants()
        if isa is not None and isa not in available:
            raise StartError(
                f"this processor cannot run the native kernels' {isa} variant; "
                f"it runs {', '.join(available)}",
                param="isa",
            )
        if threads < 1:
            raise StartError(f"threads is {threads}; it must be at least 1", param="threads")
        self.isa = isa or available[0]
        self.threads = threads
        plural = "" if self.threads == 1 else "s"
        self.description = f"native {self.isa}, {self.threads} thread{plural}"
        self._handle = _native.Backend(self.isa, self.threads)
        self._arena = Arena()
        self.sampling = NativeSampling(self._handle)

    def matrix(self, parts: Sequence[RawTensor]) -> NativeMatrix:
        return pack_matrix(self._handle, self._arena, parts)

    def vector(self, tensor: RawTensor) -> NativeVector:
        return load_vector(tensor)

    def kv_pool(self, spec: KVSpec, num_blocks: int) -> NativeKVPool:
        return NativeKVPool(spec, num_blocks)

    def recorder(self, inputs: StepInputs, pools: Sequence[KVPool]) -> NativeRecorder:
        return NativeRecorder(self._handle, inputs, pools)

    def peak(self, *, on_bytes: bool) -> float:
        """Operations per second of all threads when nothing is fetched: multiply-adds of bytes, or
        of floats."""
        return self._handle.peak(on_bytes)

    def close(self) -> None:
        """Stop and join the threads; safe to call twice."""
        self._handle.close()


def available_variants() -> list[str]:
    """Variants that this processor runs, best first."""
    return _native.variants()
