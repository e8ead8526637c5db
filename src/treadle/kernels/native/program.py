"""A recorded forward pass on the native backend: one native call runs it."""

from __future__ import annotations

import numpy as np

from treadle.kernels.native import _native
from treadle.kernels.native.buffers import NativeBuffer
from treadle.kernels.ops import FloatArray, IntArray


class NativeProgram:
    """A recorded forward pass; `keep` holds everything its ops point to."""

    def __init__(
        self,
        program: _native.Program,
        logits: FloatArray,
        likeliest: IntArray,
        keep: list[object],
    ) -> None:
        self.likeliest = likeliest
        self._program = program
        self._logits = logits
        self._keep = keep

    @property
    def memory_bytes(self) -> int:
        held: dict[int, int] = {}
        for kept in self._keep:
            arrays = kept.memory if isinstance(kept, NativeBuffer) else (kept,)
            held |= {id(array): array.nbytes for array in arrays if isinstance(array, np.ndarray)}
        return self._program.bytes + self.likeliest.nbytes + sum(held.values())

    def run(
        self, num_tokens: int, num_rows: int, num_logits: int, num_likeliest: int = 0
    ) -> FloatArray:
        self._program.run(num_tokens, num_rows, num_logits, num_likeliest)
        return self._logits[:num_logits]

    def profile(
        self, num_tokens: int, num_rows: int, num_logits: int, num_likeliest: int = 0
    ) -> tuple[FloatArray, list[_native.OpTime]]:
        """`run`, and what each op took and had to do, in their order."""
        times = self._program.profile(num_tokens, num_rows, num_logits, num_likeliest)
        return self._logits[:num_logits], times
