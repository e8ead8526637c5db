"""How SGLang's defaults follow from the device's memory and the model. Pure."""

from __future__ import annotations

from treadle.config.kv_capacity import sglang_request_slots
from treadle.config.kv_layout import vector_bytes
from treadle.config.kv_rules import sglang_budget
from treadle.config.presets.knob import Ruled
from treadle.config.presets.memory import described, of_free, own_type
from treadle.config.sglang_reserve import (
    FALLBACK_FRACTION,
    SGLangShape,
    chunk_size,
    decode_rows,
    reserve,
    static_fraction,
)
from treadle.config.view import View

_PAGES = {"flashmla": 64, "trtllm_mla": 64}
_FEWEST_REQUESTS = 2048


def shape(see: View) -> SGLangShape:
    """What the reserve depends on; all graphs."""
    return SGLangShape(
        gpu_mib=see.device.nominal_mib,
        tensor_parallel=see.device.count,
        chunked_prefill_size=see.user.schedule.max_num_batched_tokens,
        latent_attention=see.model.attention == "mla",
    )


def chunked_prefill_size(see: View) -> Ruled:
    return Ruled(chunk_size(SGLangShape(gpu_mib=see.device.nominal_mib)), described(see))


def decode_max_bs(see: View) -> Ruled:
    rows = decode_rows(
        SGLangShape(gpu_mib=see.device.nominal_mib, tensor_parallel=see.device.count)
    )
    return Ruled(rows, described(see) + ("" if see.device.count < 4 else ", four ranks or more"))


def reserved_mib(see: View) -> Ruled:
    parts = reserve(shape(see)).parts
    return Ruled(
        sum(part.mib for part in parts), " + ".join(f"{part.name} {part.mib:g}" for part in parts)
    )


def mem_fraction_static(see: View) -> Ruled:
    mib = see.device.nominal_mib
    if mib is None:
        return Ruled(FALLBACK_FRACTION, "the device's memory cannot be read")
    reserved = reserved_mib(see).value
    fraction = static_fraction(mib, reserved)
    return Ruled(fraction, f"({mib} - {reserved:g} MiB reserved) / {mib} MiB")


def page_size(see: View) -> Ruled:
    """1, or what the attention backend wants."""
    if see.device.kind == "cpu":
        return Ruled(1, "no attention backend asks for pages")
    return forced_page_size(backend_name(see))


def forced_page_size(backend: str) -> Ruled:
    """What a backend of SGLang's forces."""
    size = _PAGES.get(backend, 1)
    how = "asks for" if backend in _PAGES else "takes"
    return Ruled(size, f"the attention backend {backend} {how} {size}")


def attention_backend(see: View) -> Ruled:
    return Ruled(backend_name(see), f"{see.model.attention} on {see.device.name}")


def backend_name(see: View) -> str:
    """By generation: Hopper is 9, Blackwell 10."""
    major, latent = (see.device.capability or (8, 0))[0], see.model.attention == "mla"
    if major == 9:
        return "fa3"
    if major == 10:
        return "flashinfer" if latent else "trtllm_mha"
    return "triton" if latent else "flashinfer"


def disable_radix_cache(see: View) -> Ruled:
    off = see.model.attention == "none"
    return Ruled(off, "there is no attention" if off else "no model hook turns the tree off")


def kv_cache_dtype(see: View) -> Ruled | None:
    own = own_type(see)
    return None if own is None else Ruled(own, f"auto is the weights' own type, {own}")


def max_running_requests(see: View) -> Ruled:
    """By how many tokens the pool holds; where that is not known, the fewest."""
    tokens, context = _pool_tokens(see), see.settled.max_model_len
    if tokens is None:
        return Ruled(_FEWEST_REQUESTS, "the pool's size is not known: the rule's least")
    slots = sglang_request_slots(tokens, context)
    return Ruled(slots, f"a pool of {tokens} tokens, a window of {context}")


def _pool_tokens(see: View) -> int | None:
    values = see.model.values_on(see.device.count)
    bytes_per_token = values * vector_bytes(1, see.settled.kv_dtype)
    asked = see.user.cache.kv_cache_memory_bytes
    if asked is not None:
        return asked // bytes_per_token
    memory = of_free(see)
    if memory is None:
        return None
    fraction = see.user.cache.kv_memory_fraction
    static = mem_fraction_static(see).value if fraction is None else fraction
    return sglang_budget(memory, static).kv_bytes // bytes_per_token
