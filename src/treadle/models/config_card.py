"""The card of a Hugging Face folder: config.json and generation_config.json.

Owns their keys, and what transformers takes for granted where they say nothing. Raises
ModelFileError naming file and field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.errors import ModelFileError
from treadle.kernels.ops import RawTensor
from treadle.models.card import ModelCard, heaviest_type
from treadle.models.families import CONFIG_FAMILIES
from treadle.models.family import Family, Sizes, check, layers_of
from treadle.models.fields import Fields, Keys
from treadle.models.rope_fields import dynamic_positions, ropes_from_config
from treadle.models.tensors import TensorNames

CONFIG_KEYS: Keys = {
    "hidden": ("hidden_size",),
    "layers": ("num_hidden_layers",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size",),
    "max_positions": ("max_position_embeddings",),
    "norm_eps": ("rms_norm_eps",),
    "activation": ("hidden_activation", "hidden_act"),
    "query_scalar": ("query_pre_attn_scalar",),
    "attn_softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "bidirectional": ("use_bidirectional_attention",),
    "window": ("sliding_window",),
    "use_window": ("use_sliding_window",),
    "full_layers": ("max_window_layers",),
    "window_period": ("sliding_window_pattern",),
    "experts": ("num_local_experts", "num_experts"),
    "experts_used": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "renormalise": ("norm_topk_prob",),
    "dense_layers": ("mlp_only_layers",),
    "expert_layer_step": ("decoder_sparse_step",),
    "local_theta": ("rope_local_base_freq",),
    "rotary_dim": ("partial_rotary_factor", "head_dim"),
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
}
"""Facts that are not named here go by their own names."""


def config_family(config: Mapping[str, Any]) -> Family:
    fields = _fields(config, {})
    model_type = fields.text("model_type")
    if model_type not in CONFIG_FAMILIES:
        raise fields.bad("model_type", "one of " + ", ".join(CONFIG_FAMILIES))
    return CONFIG_FAMILIES[model_type]


def folder_names(family: Family, tensors: Mapping[str, RawTensor]) -> TensorNames:
    """The family's naming that the folder follows."""
    used = (names for names in family.folder if names.roles["embed"] in tensors)
    return next(used, family.folder[0])


def card_from_config(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tensors: Mapping[str, RawTensor],
    *,
    name: str,
) -> ModelCard:
    """Raises ModelFileError naming file and field."""
    family = config_family(config)
    fields = _fields({**family.taken_for_granted, **config}, family.keys)
    generation = Fields(
        generation_config, {"eos": ("eos_token_id",)}, "generation_config.json: field"
    )
    _refuse_quantised(fields)
    sizes = _sizes(fields, tensors)
    layers = layers_of(family, fields, sizes)
    rotates = any(layer.rope is not None for layer in layers)
    local = family.local_rope
    ropes = ropes_from_config(fields, sizes.head_dim, local=local) if rotates else ()
    vocab_size = fields.count("vocab_size")
    tied, names = fields.flag("tie_word_embeddings", False), folder_names(family, tensors)
    surplus = names.roles["head"] if tied and names.roles["head"] in tensors else None
    eos = [t for source in (fields, generation) for t in source.tokens("eos", vocab_size)]
    card = ModelCard(
        architecture=fields.text("model_type"),
        name=name,
        vocab_size=vocab_size,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=fields.count("kv_heads", sizes.heads),
        head_dim=sizes.head_dim,
        layer_cards=layers,
        ropes=ropes,
        wiring=family.wiring(fields, sizes),
        max_positions=dynamic_positions(ropes, fields.count("max_positions")),
        bos_id=next(iter(fields.tokens("bos", vocab_size)), None),
        eos_ids=tuple(dict.fromkeys(eos)),
        tied_head=tied,
        weight_bytes=_weight_bytes(names, tensors, surplus),
        weight_type=heaviest_type(tensors, names.ignores),
        speculators=_speculators(fields),
        notes=() if surplus is None else (_tied_note(surplus),),
    )
    check(card, fields)
    return card


def _fields(config: Mapping[str, Any], keys: Keys) -> Fields:
    return Fields(config, {**CONFIG_KEYS, **keys}, "config.json: field")


def _sizes(fields: Fields, tensors: Mapping[str, RawTensor]) -> Sizes:
    layers, hidden, heads = (fields.count(name) for name in ("layers", "hidden", "heads"))
    if layers > len(tensors):
        raise fields.bad("layers", "at most the number of tensors")
    return Sizes(layers, hidden, heads, fields.count("head_dim", hidden // heads))


def _refuse_quantised(fields: Fields) -> None:
    if fields.value("quantization_config") is not None:
        method = (fields.section("quantization_config") or fields).value("quant_method")
        raise ModelFileError(
            f"config.json: field 'quantization_config' names the method {method!r}; supported are"
            " folders with weights in f32, f16 or bf16"
        )


def _weight_bytes(names: TensorNames, tensors: Mapping[str, RawTensor], surplus: str | None) -> int:
    return sum(
        tensors[name].data.nbytes for name in tensors if name != surplus and not names.ignores(name)
    )


def _speculators(fields: Fields) -> str | None:
    """How the checkpoint wants its tokens drafted, if it says so."""
    section = fields.section("speculators_config")
    return None if section is None else section.text("algorithm")


def _tied_note(name: str) -> str:
    return (
        f"tensor '{name}' is not read: by config.json's tie_word_embeddings the embedding is the"
        " head"
    )
