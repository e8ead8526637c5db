"""The torch backend's front door: makes weights, pools and recorders of the reference kernels.

Readable above all; other backends are tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treadle.kernels.ops import KVPool, KVSpec, RawTensor, StepInputs
from treadle.kernels.torch.pool import TorchKVPool, allocate_pool
from treadle.kernels.torch.recorder import TorchRecorder
from treadle.kernels.torch.sampling import TorchSampling
from treadle.kernels.torch.weights import TorchMatrix, TorchVector, stack, vector


class TorchBackend:
    """Implements ops.Backend; holds no state but its thread count."""

    name = "torch"

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = threads or torch.get_num_threads()
        self.description = f"PyTorch {torch.__version__} on CPU, {self._threads} threads"
        self.sampling = TorchSampling()

    def matrix(self, parts: Sequence[RawTensor]) -> TorchMatrix:
        return stack(parts)

    def vector(self, tensor: RawTensor) -> TorchVector:
        return vector(tensor)

    def kv_pool(self, spec: KVSpec, num_blocks: int) -> TorchKVPool:
        return allocate_pool(spec, num_blocks)

    def recorder(self, inputs: StepInputs, pools: Sequence[KVPool]) -> TorchRecorder:
        return TorchRecorder(inputs, [_ours(pool) for pool in pools], self._threads)

    def close(self) -> None:
        """Nothing to stop: PyTorch's threads belong to the process."""


def _ours(pool: KVPool) -> TorchKVPool:
    assert isinstance(pool, TorchKVPool)
    return pool
