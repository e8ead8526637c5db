"""What K and V of a token take, and how engines lay them out: pure arithmetic over shapes.

Sizes alone; how much memory there is for them is for `kv_rules`.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from treadle.errors import StartError

KVFormat = Literal["f32", "bf16", "f16", "fp8", "int8", "int4"]
"""How a cache stores numbers. int8 and int4 have a float16 scale for each head and token of K and
of V; fp8 has one scale for a layer, which is nothing per token."""

KV_FORMATS: tuple[KVFormat, ...] = get_args(KVFormat)

_BITS: dict[KVFormat, int] = {"f32": 32, "bf16": 16, "f16": 16, "fp8": 8, "int8": 8, "int4": 4}
_SCALE_BYTES = 2
_SCALED: tuple[KVFormat, ...] = ("int8", "int4")

SGLANG_INDEX_BYTES = 8
"""A cached token's slot number in the radix tree, an int64."""
SGLANG_TABLE_BYTES = 4
"""And in the table from requests to tokens, an int32."""


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer stores for a token: for each KV head a key and a value, or, with latent
    attention (MLA), one vector that all heads share."""

    kv_heads: int
    key_dim: int
    value_dim: int
    """0 with latent attention: values are read from the same vector."""
    window: int | None = None
    """Tokens that the layer looks back, itself included; None: all."""

    @property
    def latent(self) -> bool:
        return self.value_dim == 0

    def heads_per_device(self, tensor_parallel: int) -> int:
        """KV heads that one of the devices keeps. With fewer heads than devices each head is there
        more than once; a latent vector is on all of them."""
        if self.latent:
            return 1
        more, less = max(self.kv_heads, tensor_parallel), min(self.kv_heads, tensor_parallel)
        if more % less:
            raise StartError(
                f"tensor parallelism is {tensor_parallel}: it neither divides the model's"
                f" {self.kv_heads} KV heads nor is a multiple of them"
            )
        return max(self.kv_heads // tensor_parallel, 1)


def vector_bytes(dim: int, kv_format: KVFormat) -> int:
    """A key or a value of one head, with its scale where the format has one."""
    if not dim:
        return 0
    return -(-dim * _BITS[kv_format] // 8) + (_SCALE_BYTES if kv_format in _SCALED else 0)


def cell_bytes(shape: AttentionShape, kv_format: KVFormat) -> int:
    """Key and value of one head and token in one layer: vLLM's cell."""
    return vector_bytes(shape.key_dim, kv_format) + vector_bytes(shape.value_dim, kv_format)


def layer_bytes(shape: AttentionShape, kv_format: KVFormat, tensor_parallel: int = 1) -> int:
    """Of one token in one layer, on one device."""
    return shape.heads_per_device(tensor_parallel) * cell_bytes(shape, kv_format)


def sglang_buffer_bytes(
    pool_tokens: int, page_size: int, shape: AttentionShape, kv_format: KVFormat
) -> int:
    """SGLang's buffer for the keys of one layer, with a page before slot 0 for padding."""
    row = shape.kv_heads * vector_bytes(shape.key_dim, kv_format)
    return (pool_tokens + page_size) * row


def sglang_request_table_bytes(requests: int, context: int) -> int:
    """SGLang's dense table from requests to slots; row 0 is padding."""
    return (requests + 1) * context * SGLANG_TABLE_BYTES


def sglang_index_share(bytes_per_token: int) -> float:
    """What finding a token again takes, with pages of one token, of what its K and V take."""
    return (SGLANG_INDEX_BYTES + SGLANG_TABLE_BYTES) / bytes_per_token
