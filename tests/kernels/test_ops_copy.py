"""Copying a block of KV: what reads the copy reads what the source held, in every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.contexts import no_rope
from treadle.kernels.ops import (
    Backend,
    Buffer,
    KVLayer,
    KVSpec,
    KVType,
    Masking,
    Recorder,
    StepLimits,
)

HEADS, START, END = 4, 37, 41


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_a_copy_is_read_like_its_source(
    backend: Backend, paged: Callable[..., Any], block_size: int, kind: KVType
) -> None:
    spec = KVSpec(3, 2, 16, block_size, kind)
    num_blocks = -(-END // block_size)
    pool = backend.kv_pool(spec, 2 * num_blocks)
    order = np.random.default_rng(block_size).permutation(2 * num_blocks).astype(np.int32)
    source, target = order[:num_blocks], order[num_blocks:]

    def program(layer: int) -> Any:
        def record(recorder: Recorder, qkv: Buffer, out: Buffer) -> None:
            kv = KVLayer(0, layer)
            recorder.rope_store(qkv, HEADS, no_rope(16, END), kv)
            recorder.attention(qkv, HEADS, kv, out, masking=Masking(0.25))

        return paged(pool, record, heads=HEADS, limits=StepLimits(END, END, (num_blocks,)))

    programs = [program(layer) for layer in range(3)]
    rng = np.random.default_rng(7)
    qkv = rng.normal(size=(3, END, programs[0].width)).astype(np.float32)
    soil = np.full_like(qkv[0], 300)
    for layer, each in enumerate(programs):
        each.step([(soil, 0, target)])
        each.step([(qkv[layer, :START], 0, source)])
    for one, other in zip(source, target, strict=True):
        pool.copy(int(one), int(other))
    for layer, each in enumerate(programs):
        rest = qkv[layer, START:]
        copied = each.step([(rest, START, target)])
        np.testing.assert_array_equal(copied, each.step([(rest, START, source)]))
        assert np.abs(copied).max() < 10


def test_only_blocks_of_the_pool_are_copied(backend: Backend) -> None:
    pool = backend.kv_pool(KVSpec(1, 1, 16, 4, "f32"), 3)
    for source, target in (3, 0), (0, 3), (-1, 0), (0, -1):
        with pytest.raises((ValueError, AssertionError)):
            pool.copy(source, target)
