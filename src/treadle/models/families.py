"""The architectures, and what each of them does differently from Llama.

Adding an architecture is an entry in a table below, with a function where a fact of it is new, and
names where its tensors are called otherwise. A file that says nothing about a fact gets what the
architecture's makers took for granted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from treadle.kernels.ops import Routing
from treadle.models import names
from treadle.models.card import Dense, Experts, Wiring
from treadle.models.family import (
    Family,
    Sizes,
    Windows,
    activation,
    all_slide,
    dense,
    llama_wiring,
)
from treadle.models.fields import Fields

_replace = dataclasses.replace


def _qwen2_wiring(fields: Fields, sizes: Sizes) -> Wiring:
    return _replace(llama_wiring(fields, sizes), biases=frozenset({"qkv"}))


def _qwen3_wiring(fields: Fields, sizes: Sizes) -> Wiring:
    return _replace(llama_wiring(fields, sizes), qk_norm="head")


def _olmo2_wiring(fields: Fields, sizes: Sizes) -> Wiring:
    wiring = llama_wiring(fields, sizes)
    return _replace(wiring, pre_norms=False, post_norms=True, qk_norm="all")


def _gemma_wiring(fields: Fields, sizes: Sizes) -> Wiring:
    if fields.value("bidirectional"):
        raise fields.bad("bidirectional", "false, for only causal attention is supported")
    return _replace(
        llama_wiring(fields, sizes),
        post_norms=True,
        activation=activation(fields, "gelu_tanh"),
        embed_scale=math.sqrt(sizes.hidden),
    )


def _gemma2_wiring(fields: Fields, sizes: Sizes) -> Wiring:
    cap = fields.optional_positive("logit_softcap", 30.0)
    return _replace(_gemma_wiring(fields, sizes), logit_softcap=cap)


def _gemma3_wiring(fields: Fields, sizes: Sizes) -> Wiring:
    cap = fields.optional_positive("logit_softcap")
    return _replace(_gemma_wiring(fields, sizes), logit_softcap=cap, qk_norm="head")


def _gpt2_wiring(fields: Fields, _: Sizes) -> Wiring:
    if fields.value("add_cross_attention"):
        raise fields.bad("add_cross_attention", "false, for there is no encoder")
    return Wiring(
        norm="layer",
        norm_eps=fields.positive("norm_eps", 1e-5),
        biases=frozenset({"qkv", "attn_out", "up", "down"}),
        gated=False,
        activation=activation(fields, "gelu_tanh"),
        learned_positions=True,
    )


def _all_see_all(_: Fields, sizes: Sizes) -> Windows:
    return (None,) * sizes.layers


def _all_slide_if_used(fields: Fields, sizes: Sizes) -> Windows:
    return (_window_if_used(fields),) * sizes.layers


def _window_if_used(fields: Fields) -> int | None:
    return fields.optional_count("window") if fields.flag("use_window", False) else None


def _upper_slide_if_used(fields: Fields, sizes: Sizes) -> Windows:
    """All but the first layers, where the file does not list them."""
    window = _window_if_used(fields)
    if window is None:
        return (None,) * sizes.layers
    kinds = _listed(fields, sizes)
    if kinds is None:
        first = fields.whole("full_layers", 28)
        kinds = tuple(layer >= first for layer in range(sizes.layers))
    return tuple(window if slides else None for slides in kinds)


def _unrotated_slide_if_used(fields: Fields, sizes: Sizes) -> Windows:
    window = _window_if_used(fields)
    kinds = _listed(fields, sizes)
    if kinds is None:
        kinds = tuple(not _smollm3_rotates(fields, layer) for layer in range(sizes.layers))
    return tuple(window if slides else None for slides in kinds)


def _alternating(period: int) -> Callable[[Fields, Sizes], Windows]:
    """The last of every `period` layers sees all, where the file does not say otherwise."""

    def windows(fields: Fields, sizes: Sizes) -> Windows:
        window = fields.count("window", 4096)
        kinds = _listed(fields, sizes)
        if kinds is None:
            every = fields.count("window_period", period)
            kinds = tuple((layer + 1) % every != 0 for layer in range(sizes.layers))
        return tuple(window if slides else None for slides in kinds)

    return windows


def _listed(fields: Fields, sizes: Sizes) -> tuple[bool, ...] | None:
    """For each layer whether it has a window, as far as the file lists them."""
    listed = fields.value("layer_types")
    if not isinstance(listed, list):
        return None
    kinds = {"sliding_attention": True, "full_attention": False, True: True, False: False}
    if len(listed) != sizes.layers or any(kind not in kinds for kind in map(_hashable, listed)):
        what = f"'sliding_attention' or 'full_attention' for each of {sizes.layers} layers"
        raise fields.bad("layer_types", what)
    return tuple(kinds[kind] for kind in listed)


def _hashable(kind: object) -> str | bool | None:
    return kind if isinstance(kind, str | bool) else None


def _gpt2_feed_forward(fields: Fields, _: int) -> Dense | Experts:
    return Dense(fields.count("ffn", 4 * fields.count("hidden")))


def _mixtral_feed_forward(fields: Fields, layer: int) -> Dense | Experts:
    """GGUF has Mixtral under Llama's name, so a file without experts is a Llama."""
    count = fields.optional_count("experts")
    if count is None:
        return dense(fields, layer)
    width = fields.count("expert_ffn", fields.count("ffn"))
    return Experts(width, count, Routing(fields.count("experts_used"), renormalise=True))


def _qwen3_moe_feed_forward(fields: Fields, layer: int) -> Dense | Experts:
    step = fields.count("expert_layer_step", 1)
    if layer in fields.whole_numbers("dense_layers") or (layer + 1) % step:
        return dense(fields, layer)
    routing = Routing(fields.count("experts_used"), fields.flag("renormalise", True))
    return Experts(fields.count("expert_ffn"), fields.count("experts"), routing)


def _scale_by_query(wide_layers: int) -> Callable[[Fields, Sizes, int], float]:
    """By the width of a head; in models of `wide_layers` layers, the family's largest, by the
    hidden width per head, which GGUF files do not say."""

    def scale(fields: Fields, sizes: Sizes, _: int) -> float:
        wide = sizes.layers == wide_layers
        width = sizes.hidden / sizes.heads if wide else float(sizes.head_dim)
        width = fields.positive("query_scalar", width)
        return fields.positive("attn_scale", 1 / math.sqrt(width))

    return scale


def _gpt2_scale(fields: Fields, sizes: Sizes, layer: int) -> float:
    scale = 1 / math.sqrt(sizes.head_dim) if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return scale / (layer + 1) if by_layer else scale


def _never(_: Fields, __: int) -> bool:
    return False


def _smollm3_rotates(fields: Fields, layer: int) -> bool:
    """The list has 1 for layers that turn q and k, for all its name."""
    listed = fields.whole_numbers("no_rope_layers")
    if not listed:
        return (layer + 1) % fields.count("no_rope_layer_interval", 4) != 0
    if layer >= len(listed):
        raise fields.bad("no_rope_layers", "a number for each layer")
    return listed[layer] != 0


_LLAMA = Family(feed_forward=_mixtral_feed_forward, interleaved=True)
_QWEN2 = Family(wiring=_qwen2_wiring, windows=_upper_slide_if_used)
_QWEN3 = Family(
    wiring=_qwen3_wiring, windows=_upper_slide_if_used, taken_for_granted={"head_dim": 128}
)
_QWEN3_MOE = Family(
    wiring=_qwen3_wiring,
    windows=_all_slide_if_used,
    feed_forward=_qwen3_moe_feed_forward,
    taken_for_granted={"norm_topk_prob": False},
    folder=(names.QWEN3_MOE,),
)
_SMOLLM3 = Family(
    windows=_unrotated_slide_if_used,
    rotates=_smollm3_rotates,
    interleaved=True,
    taken_for_granted={"rope_theta": 2e6, "tie_word_embeddings": True},
)
_PHI3 = Family(
    taken_for_granted={"original_max_position_embeddings": 4096},
    gguf=names.GGUF_PHI3,
    folder=(names.PHI3,),
)
_GEMMA2 = Family(
    wiring=_gemma2_wiring,
    windows=_alternating(2),
    scale=_scale_by_query(wide_layers=46),
    softcap=50.0,
    taken_for_granted={"head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True},
    folder=(names.GEMMA,),
)
_GEMMA3 = Family(
    wiring=_gemma3_wiring,
    windows=_alternating(6),
    scale=_scale_by_query(wide_layers=62),
    local_rope=True,
    taken_for_granted={
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "rms_norm_eps": 1e-6,
    },
    folder=(names.GEMMA,),
)
_OLMO2 = Family(wiring=_olmo2_wiring, windows=_all_see_all, folder=(names.OLMO2,))
_GPT2 = Family(
    wiring=_gpt2_wiring,
    windows=_all_see_all,
    feed_forward=_gpt2_feed_forward,
    scale=_gpt2_scale,
    rotates=_never,
    keys={
        "hidden": ("n_embd",),
        "layers": ("n_layer",),
        "heads": ("n_head",),
        "ffn": ("n_inner",),
        "max_positions": ("n_positions", "n_ctx"),
        "norm_eps": ("layer_norm_epsilon",),
        "activation": ("activation_function",),
    },
    taken_for_granted={"tie_word_embeddings": True},
    folder=(names.GPT2, names.GPT2_BARE),
)

GGUF_FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "smollm3": _SMOLLM3,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "olmo2": _OLMO2,
    "gpt2": _GPT2,
}
"""By `general.architecture`."""

CONFIG_FAMILIES: Mapping[str, Family] = {
    "llama": Family(windows=_all_see_all),
    "mistral": Family(taken_for_granted={"sliding_window": 4096}),
    "mixtral": Family(
        windows=all_slide,
        feed_forward=_mixtral_feed_forward,
        taken_for_granted={"rope_theta": 1e6},
        folder=(names.MIXTRAL,),
    ),
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "smollm3": _SMOLLM3,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "olmo2": _OLMO2,
    "gpt2": _GPT2,
}
"""By `model_type`."""
