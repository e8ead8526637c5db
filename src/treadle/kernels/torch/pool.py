"""The paged KV pool: K and V of all layers of a group, block by block."""

from __future__ import annotations

import dataclasses

import torch

from treadle.kernels.ops import KVSpec, KVType

_DTYPES: dict[KVType, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


@dataclasses.dataclass(frozen=True)
class TorchKVPool:
    """What is read is what was written, rounded to the pool's type."""

    spec: KVSpec
    num_blocks: int
    kv: torch.Tensor  # [blocks, layers, K or V, block_size, kv_heads, head_dim]

    def copy(self, source: int, target: int) -> None:
        assert 0 <= source < self.num_blocks
        assert 0 <= target < self.num_blocks
        self.kv[target] = self.kv[source]

    def read(
        self, layer: int, blocks: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V at places in blocks, [count, kv_heads, head_dim] each."""
        return self.kv[blocks, layer, 0, places], self.kv[blocks, layer, 1, places]

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        blocks, places = slots // self.spec.block_size, slots % self.spec.block_size
        self.kv[blocks, layer, 0, places] = k.to(self.kv.dtype)
        self.kv[blocks, layer, 1, places] = v.to(self.kv.dtype)


def allocate_pool(spec: KVSpec, num_blocks: int) -> TorchKVPool:
    shape = (num_blocks, spec.layers, 2, spec.block_size, spec.kv_heads, spec.head_dim)
    return TorchKVPool(spec, num_blocks, torch.empty(shape, dtype=_DTYPES[spec.type]))
