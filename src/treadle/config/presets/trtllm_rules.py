"""How TensorRT-LLM's defaults (PyTorch path) follow from device and model. Pure."""

from __future__ import annotations

from treadle.config.presets.knob import Ruled
from treadle.config.presets.memory import own_type
from treadle.config.view import View

DEFAULT_BACKEND = "TRTLLM"

_WITHOUT_REUSE = ("FLASHINFER", "FLASHINFER_STAR_ATTENTION")
_LATENT_REUSE = ((9, 0), (10, 0), (10, 3), (12, 0))
"""Generations on which KV of latent attention is found again."""


def enable_block_reuse(see: View) -> Ruled:
    return block_reuse(see, DEFAULT_BACKEND)


def block_reuse(see: View, backend: str) -> Ruled:
    """What the executor makes of the default, which is on."""
    if backend in _WITHOUT_REUSE:
        return Ruled(False, f"the attention backend {backend} turns it off")
    if see.model.attention == "mla" and see.device.capability not in _LATENT_REUSE:
        return Ruled(False, f"latent attention on {see.device.name} turns it off")
    return Ruled(True, f"the attention backend {backend} leaves it on")


def tokens_per_block(backend: str, max_num_tokens: int = 8192) -> Ruled:
    """What a backend of TensorRT-LLM's forces."""
    sizes = {"FlashMLA": 64, "VANILLA": max_num_tokens}
    size = sizes.get(backend, 32)
    how = "asks for" if backend in sizes else "takes"
    return Ruled(size, f"the attention backend {backend} {how} {size}")


def default_tokens_per_block(see: View) -> Ruled:
    del see  # the default backend takes it as it is, on every device
    return tokens_per_block(DEFAULT_BACKEND)


def kv_dtype(see: View) -> Ruled | None:
    own = own_type(see)
    return None if own is None else Ruled(own, f"auto is the weights' own type, {own}")
