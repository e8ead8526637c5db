"""How vLLM's defaults follow from device, model and entry point. Pure."""

from __future__ import annotations

from treadle.config.presets.knob import Ruled
from treadle.config.presets.memory import described, own_type
from treadle.config.view import View

LARGE_GIB = 70

_BATCHED_TOKENS = {
    (True, "offline"): 16384,
    (True, "server"): 8192,
    (False, "offline"): 8192,
    (False, "server"): 2048,
}

_BACKENDS = {
    "mha": (("FLASHINFER", 7), ("FLASH_ATTN", 8), ("TRITON_ATTN", 0)),
    "mla": (
        ("FLASHINFER_MLA", 10),
        ("FLASH_ATTN_MLA", 9),
        ("FLASHMLA", 9),
        ("TRITON_MLA", 0),
    ),
}
"""Backend, and the generation it needs at least; in the order in which they are tried."""

_PAGES = {"FLASHMLA": 64}


def is_large(see: View) -> tuple[bool, str]:
    """Whether a device counts as large, and why."""
    if see.device.kind == "cpu":
        return False, "a CPU counts with the small devices"
    large = bool(see.device.has_gib(LARGE_GIB))
    if large and "a100" in see.device.name.lower():
        return False, f"an A100 counts with those below {LARGE_GIB} GiB"
    return large, f"{described(see)}, large from {LARGE_GIB} GiB"


def max_num_batched_tokens(see: View) -> Ruled:
    large, why = is_large(see)
    entry = "the API server" if see.user.usage == "server" else "offline use"
    return Ruled(_BATCHED_TOKENS[large, see.user.usage], f"{entry}; {why}")


def max_num_seqs(see: View) -> Ruled:
    large, why = is_large(see)
    asked = see.user.schedule.max_num_batched_tokens
    tokens = max_num_batched_tokens(see).value if asked is None else asked
    return Ruled(min(1024 if large else 256, tokens), f"{why}; at most the step's {tokens} tokens")


def attention_backend(see: View) -> Ruled | None:
    name = first_backend(see)
    if name is None:
        return None
    return Ruled(name, f"{see.model.attention} on {see.device.name}: the first that it runs")


def first_backend(see: View) -> str | None:
    """Of those that are tried; None where there is no attention."""
    if see.model.attention == "none":
        return None
    major = (see.device.capability or (8, 0))[0]
    tried = _BACKENDS[see.model.attention]
    if see.model.attention == "mha" and major != 10:
        tried = (tried[1], tried[0], tried[2])
    if see.model.attention == "mla" and major != 10:
        tried = tried[1:]
    return next(name for name, least in tried if major >= least)


def block_size(see: View) -> Ruled:
    """16, or what the attention backend wants."""
    backend = None if see.device.kind == "cpu" else first_backend(see)
    if backend is None:
        return Ruled(16, "no attention backend asks for another size")
    return page_size(backend)


def page_size(backend: str) -> Ruled:
    """What a backend of vLLM's forces."""
    size = _PAGES.get(backend, 16)
    how = "asks for" if backend in _PAGES else "takes"
    return Ruled(size, f"the attention backend {backend} {how} {size}")


def enable_prefix_caching(see: View) -> Ruled:
    found = see.model.attention != "none"
    return Ruled(found, "a decoder with attention" if found else "there is no attention")


def cache_dtype(see: View) -> Ruled | None:
    own = own_type(see)
    return None if own is None else Ruled(own, f"auto is the weights' own type, {own}")


def speculative_config(see: View) -> Ruled:
    method = see.model.speculators
    if method is None:
        return Ruled(None, "the checkpoint has no speculators_config")
    return Ruled(method, "the checkpoint's speculators_config says so")


def chunked_prefill(see: View) -> Ruled:
    del see  # every model that treadle knows generates, none has an encoder
    return Ruled(True, "a model that generates, without an encoder")
