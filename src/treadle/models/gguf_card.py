"""The card of a GGUF file: its metadata by the keys that llama.cpp's converter writes.

Owns those keys. Raises ModelFileError naming the key at fault.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.errors import ModelFileError
from treadle.kernels.ops import RawTensor
from treadle.models.card import ModelCard, heaviest_type
from treadle.models.families import GGUF_FAMILIES
from treadle.models.family import Family, Sizes, check, layers_of
from treadle.models.fields import Fields, Keys
from treadle.models.rope import Rope
from treadle.models.rope_fields import ropes_from_gguf

_KIND = "metadata key"

_GENERAL = {
    "architecture": "general.architecture",
    "name": "general.name",
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}

_OWN = {
    "layers": ("block_count",),
    "max_positions": ("context_length",),
    "hidden": ("embedding_length",),
    "ffn": ("feed_forward_length",),
    "heads": ("attention.head_count",),
    "kv_heads": ("attention.head_count_kv",),
    "head_dim": ("attention.key_length",),
    "value_dim": ("attention.value_length",),
    "norm_eps": ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
    "attn_scale": ("attention.scale",),
    "attn_softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "window": ("attention.sliding_window",),
    "layer_types": ("attention.sliding_window_pattern",),
    "window_period": ("attention.sliding_window_pattern",),
    "experts": ("expert_count",),
    "experts_used": ("expert_used_count",),
    "expert_ffn": ("expert_feed_forward_length",),
    "renormalise": ("expert_weights_norm",),
    "rotary_dim": ("rope.dimension_count",),
    "rope_theta": ("rope.freq_base",),
    "local_theta": ("rope.freq_base_swa",),
    "rope_kind": ("rope.scaling.type",),
    "rope_factor": ("rope.scaling.factor",),
    "rope_old_factor": ("rope.scale_linear",),
    "rope_original": ("rope.scaling.original_context_length",),
    "rope_magnitude": ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"),
    "rope_fast": ("rope.scaling.yarn_beta_fast",),
    "rope_slow": ("rope.scaling.yarn_beta_slow",),
    "rope_log_multiplier": ("rope.scaling.yarn_log_multiplier",),
    "shared_experts": ("expert_shared_count",),
    "expert_groups": ("expert_group_count",),
    "expert_scale": ("expert_weights_scale",),
}
"""Under the architecture's name."""

_UNSUPPORTED = ("shared_experts", "expert_groups", "expert_scale")
"""Facts that would change the arithmetic of a family in a way not known here."""


def gguf_family(metadata: Mapping[str, object]) -> Family:
    fields = gguf_fields(metadata)
    architecture = fields.text("architecture")
    if architecture not in GGUF_FAMILIES:
        raise fields.bad("architecture", "one of " + ", ".join(GGUF_FAMILIES))
    return GGUF_FAMILIES[architecture]


def card_from_gguf(metadata: Mapping[str, object], tensors: Mapping[str, RawTensor]) -> ModelCard:
    """Raises ModelFileError naming the metadata key at fault."""
    family, fields = gguf_family(metadata), gguf_fields({**metadata, **_biases(tensors)})
    for name in _UNSUPPORTED:
        if fields.value(name):
            raise fields.bad(name, "left out, for it is not supported")
    vocab_size, sizes = _vocab_size(tensors), _sizes(fields, tensors)
    layers = layers_of(family, fields, sizes)
    rotates = any(layer.rope is not None for layer in layers)
    card = ModelCard(
        architecture=fields.text("architecture"),
        name=fields.text("name", ""),
        vocab_size=vocab_size,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=fields.count("kv_heads", sizes.heads),
        head_dim=sizes.head_dim,
        layer_cards=layers,
        ropes=_ropes(family, fields, tensors, sizes.head_dim) if rotates else (),
        wiring=family.wiring(fields, sizes),
        max_positions=fields.count("max_positions"),
        bos_id=next(iter(fields.tokens("bos", vocab_size)), None),
        eos_ids=_eos_ids(fields, vocab_size),
        tied_head=family.gguf.roles["head"] not in tensors,
        weight_bytes=sum(t.data.nbytes for n, t in tensors.items() if not family.gguf.ignores(n)),
        weight_type=heaviest_type(tensors, family.gguf.ignores),
    )
    check(card, fields)
    return card


def gguf_fields(metadata: Mapping[str, object], more: Keys | None = None) -> Fields:
    """The file's facts; `more` are keys, under the architecture's name, that cards have no use
    for."""
    own = metadata.get("general.architecture")
    keys: Keys = {
        **{name: (key,) for name, key in _GENERAL.items()},
        **{
            name: tuple(f"{own}.{key}" for key in keys)
            for name, keys in {**_OWN, **(more or {})}.items()
        },
    }
    return Fields(metadata, keys, _KIND)


def _biases(tensors: Mapping[str, RawTensor]) -> dict[str, bool]:
    """What config.json says in as many words."""
    sides = {"attention_bias": "attn_q attn_k attn_v attn_output", "mlp_bias": "ffn_gate ffn_up"}
    return {
        fact: all(f"blk.0.{name}.bias" in tensors for name in names.split())
        for fact, names in sides.items()
    }


def _sizes(fields: Fields, tensors: Mapping[str, RawTensor]) -> Sizes:
    layers, hidden, heads = (fields.count(name) for name in ("layers", "hidden", "heads"))
    if layers > len(tensors):
        raise fields.bad("layers", "at most the number of tensors")
    head_dim = fields.count("head_dim", hidden // heads)
    if fields.count("value_dim", head_dim) != head_dim:
        raise fields.bad("value_dim", f"equal to key_length, {head_dim}")
    return Sizes(layers, hidden, heads, head_dim)


def _ropes(
    family: Family, fields: Fields, tensors: Mapping[str, RawTensor], head_dim: int
) -> tuple[Rope, ...]:
    return ropes_from_gguf(
        fields, tensors, head_dim, interleaved=family.interleaved, local=family.local_rope
    )


def _vocab_size(tensors: Mapping[str, RawTensor]) -> int:
    if "token_embd.weight" not in tensors:
        raise ModelFileError("tensor 'token_embd.weight' is missing")
    return tensors["token_embd.weight"].shape[0]


def _eos_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """The ends of a text, of a turn and of a message all end an answer."""
    ids = (token for name in ("eos", "eot", "eom") for token in fields.tokens(name, vocab_size))
    return tuple(dict.fromkeys(ids))
