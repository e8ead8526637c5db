"""What a KV budget holds, as each engine would divide it: tokens, and requests of a length.

One pool for each engine over the layers of one device. A request's prompt chunks, which sliding
windows keep a little longer, are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from treadle.config.kv_capacity import (
    sglang_tokens,
    trtllm_blocks,
    trtllm_tokens,
    vllm_blocks,
    vllm_group_layers,
)
from treadle.config.kv_rules import exact

VLLM_BLOCK = 16
SGLANG_PAGE = 1
TRTLLM_BLOCK = 32
SGLANG_WINDOW_RATIO = 0.8
"""Tokens for layers with a window, of those for layers that see all."""


class LayerKind(msgspec.Struct, frozen=True):
    """Layers of one device that keep the same tokens."""

    layers: int
    window: int | None
    layer_bytes: int
    """Of one token in one layer."""

    @property
    def token_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def kept(self, length: int) -> int:
        """Tokens of a request of this length that these layers still need."""
        return length if self.window is None else min(length, self.window)


class Pool(Protocol):
    @property
    def tokens(self) -> int: ...

    @property
    def detail(self) -> str:
        """What it is divided into, for people."""
        ...

    def requests(self, length: int) -> int:
        """How many of this length fit at once."""
        ...


class VllmPool(msgspec.Struct, frozen=True):
    """Blocks that all groups of layers draw from; a group has as many layers as the rarest kind."""

    blocks: int
    usable: int
    group_windows: tuple[int | None, ...]

    @property
    def tokens(self) -> int:
        return self.blocks // len(self.group_windows) * VLLM_BLOCK

    @property
    def detail(self) -> str:
        groups = len(self.group_windows)
        among = f" among {groups} groups of layers" if groups > 1 else ""
        return f"{self.blocks:,} blocks of {VLLM_BLOCK}{among}, one of them null"

    def requests(self, length: int) -> int:
        # A window that begins inside a block needs that block whole.
        needed = sum(
            _blocks(length, VLLM_BLOCK)
            if window is None
            else min(_blocks(length, VLLM_BLOCK), _blocks(window, VLLM_BLOCK) + 1)
            for window in self.group_windows
        )
        return self.usable // needed


class SGLangPool(msgspec.Struct, frozen=True):
    """Slots of one token; layers with a window have fewer of their own."""

    tokens: int
    window_tokens: int | None
    window: int | None

    @property
    def detail(self) -> str:
        slots = f"{self.tokens:,} slots of a token"
        if self.window_tokens is None:
            return slots
        return f"{slots}, and {self.window_tokens:,} for layers with a window"

    def requests(self, length: int) -> int:
        most = self.tokens // length
        if self.window_tokens is None or self.window is None:
            return most
        return min(most, self.window_tokens // min(length, self.window))


class TrtllmPool(msgspec.Struct, frozen=True):
    """Blocks over all layers. Where windows differ it has a pool for each; how it divides memory
    among those is not modelled, and requests are then an upper bound."""

    tokens: int
    blocks: int
    kinds: tuple[LayerKind, ...]

    @property
    def detail(self) -> str:
        return f"{self.blocks:,} blocks of {TRTLLM_BLOCK}"

    def requests(self, length: int) -> int:
        whole = sum(kind.token_bytes for kind in self.kinds) * TRTLLM_BLOCK * self.blocks
        needed = sum(
            kind.token_bytes * TRTLLM_BLOCK * _blocks(kind.kept(length), TRTLLM_BLOCK)
            for kind in self.kinds
        )
        return whole // needed


def vllm_pool(kv_bytes: int, kinds: Sequence[LayerKind]) -> VllmPool:
    group = vllm_group_layers([kind.layers for kind in kinds])
    page_bytes = VLLM_BLOCK * kinds[0].layer_bytes
    blocks = vllm_blocks(kv_bytes, page_bytes, group)
    windows = tuple(kind.window for kind in kinds for _ in range(_blocks(kind.layers, group)))
    return VllmPool(blocks.blocks, blocks.usable, windows)


def sglang_pool(kv_bytes: int, kinds: Sequence[LayerKind]) -> SGLangPool:
    sliding = [kind for kind in kinds if kind.window is not None]
    whole = sum(kind.token_bytes for kind in kinds if kind.window is None)
    if not sliding or not whole:
        # Without layers that see all there is one kind of slot.
        per_token = sum(kind.token_bytes for kind in kinds)
        window = max((kind.window or 0 for kind in sliding), default=0) or None
        tokens = sglang_tokens(kv_bytes, per_token, SGLANG_PAGE)
        return SGLangPool(tokens, tokens if window else None, window)
    ratio = exact(SGLANG_WINDOW_RATIO)
    tokens = int(kv_bytes // (whole + ratio * sum(kind.token_bytes for kind in sliding)))
    return SGLangPool(tokens, int(ratio * tokens), max(kind.window or 0 for kind in sliding))


def trtllm_pool(kv_bytes: int, kinds: Sequence[LayerKind]) -> TrtllmPool:
    tokens = trtllm_tokens(kv_bytes, sum(kind.token_bytes for kind in kinds))
    return TrtllmPool(tokens, trtllm_blocks(tokens, TRTLLM_BLOCK), tuple(kinds))


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)
