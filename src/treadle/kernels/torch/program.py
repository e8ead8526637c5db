"""A recorded forward pass: its ops, run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from treadle.kernels.ops import FloatArray, IntArray
from treadle.kernels.torch.buffers import StepSize, TorchBuffer

Op = Callable[[StepSize], None]


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """PyTorch's thread count belongs to the process, so it is borrowed for the time of a call."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TorchProgram:
    """The ops of one recording; their buffers live as long as it does."""

    def __init__(
        self,
        ops: tuple[Op, ...],
        logits: TorchBuffer,
        likeliest: torch.Tensor,
        threads: int,
        memory_bytes: int,
    ) -> None:
        self.likeliest: IntArray = likeliest.numpy()
        self._ops = ops
        self._logits = logits
        self._threads = threads
        self.memory_bytes = memory_bytes
        """Of its buffers. What PyTorch allocates for an op and gives back is not known before."""

    @torch.inference_mode()
    def run(
        self, num_tokens: int, num_rows: int, num_logits: int, num_likeliest: int = 0
    ) -> FloatArray:
        size = StepSize(num_tokens, num_rows, num_logits, num_likeliest)
        with limited_threads(self._threads):
            for op in self._ops:
                op(size)
        logits: FloatArray = self._logits.read(num_logits).numpy()
        return logits
