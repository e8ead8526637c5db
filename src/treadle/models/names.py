"""What files call tensors: one table for GGUF, and one for each naming in Hugging Face folders.

Tables only. A role stands for the same weight in all of them; `tensors` says which there are.
"""

from __future__ import annotations

from treadle.models.tensors import TensorNames
from treadle.models.transforms import PlusOne, Transposed

GGUF = TensorNames(
    {
        "embed": "token_embd.weight",
        "positions": "position_embd.weight",
        "norm": "output_norm.weight",
        "head": "output.weight",
        "attn_norm": "blk.{layer}.attn_norm.weight",
        "qkv": "blk.{layer}.attn_qkv.weight",
        "q": "blk.{layer}.attn_q.weight",
        "k": "blk.{layer}.attn_k.weight",
        "v": "blk.{layer}.attn_v.weight",
        "q_norm": "blk.{layer}.attn_q_norm.weight",
        "k_norm": "blk.{layer}.attn_k_norm.weight",
        "attn_out": "blk.{layer}.attn_output.weight",
        "post_attn_norm": "blk.{layer}.post_attention_norm.weight",
        "ffn_norm": "blk.{layer}.ffn_norm.weight",
        "gate": "blk.{layer}.ffn_gate.weight",
        "up": "blk.{layer}.ffn_up.weight",
        "down": "blk.{layer}.ffn_down.weight",
        "post_ffn_norm": "blk.{layer}.post_ffw_norm.weight",
        "router": "blk.{layer}.ffn_gate_inp.weight",
        "expert_gate": "blk.{layer}.ffn_gate_exps.weight",
        "expert_up": "blk.{layer}.ffn_up_exps.weight",
        "expert_down": "blk.{layer}.ffn_down_exps.weight",
        # Until 2024 each expert had tensors of its own.
        "old_expert_gate": "blk.{layer}.ffn_gate.{expert}.weight",
        "old_expert_up": "blk.{layer}.ffn_up.{expert}.weight",
        "old_expert_down": "blk.{layer}.ffn_down.{expert}.weight",
    },
    # Divisors of the rotary frequencies belong to the card.
    ignored=(r"rope_freqs\.weight", r"rope_factors_(short|long)\.weight"),
)

GGUF_PHI3 = TensorNames(
    # Both halves lie in the tensor that elsewhere holds `up` alone.
    {**GGUF.roles, "gate_up": GGUF.roles["up"]},
    ignored=GGUF.ignored,
)

_ROTARY = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)

LLAMA = TensorNames(
    {
        "embed": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
        "attn_norm": "model.layers.{layer}.input_layernorm.weight",
        "q": "model.layers.{layer}.self_attn.q_proj.weight",
        "k": "model.layers.{layer}.self_attn.k_proj.weight",
        "v": "model.layers.{layer}.self_attn.v_proj.weight",
        "q_norm": "model.layers.{layer}.self_attn.q_norm.weight",
        "k_norm": "model.layers.{layer}.self_attn.k_norm.weight",
        "attn_out": "model.layers.{layer}.self_attn.o_proj.weight",
        "ffn_norm": "model.layers.{layer}.post_attention_layernorm.weight",
        "gate": "model.layers.{layer}.mlp.gate_proj.weight",
        "up": "model.layers.{layer}.mlp.up_proj.weight",
        "down": "model.layers.{layer}.mlp.down_proj.weight",
    },
    ignored=_ROTARY,
)

PHI3 = TensorNames(
    {
        **LLAMA.roles,
        "qkv": "model.layers.{layer}.self_attn.qkv_proj.weight",
        "gate_up": "model.layers.{layer}.mlp.gate_up_proj.weight",
    },
    ignored=_ROTARY,
)

OLMO2 = TensorNames(
    {
        **LLAMA.roles,
        "post_attn_norm": "model.layers.{layer}.post_attention_layernorm.weight",
        "post_ffn_norm": "model.layers.{layer}.post_feedforward_layernorm.weight",
    },
    ignored=_ROTARY,
)

GEMMA = TensorNames(
    {
        **OLMO2.roles,
        "ffn_norm": "model.layers.{layer}.pre_feedforward_layernorm.weight",
    },
    # GGUF files hold 1 + w already.
    dict.fromkeys(
        (
            "norm",
            "attn_norm",
            "post_attn_norm",
            "ffn_norm",
            "post_ffn_norm",
            "q_norm",
            "k_norm",
        ),
        PlusOne(),
    ),
    _ROTARY,
)

MIXTRAL = TensorNames(
    {
        **LLAMA.roles,
        "router": "model.layers.{layer}.block_sparse_moe.gate.weight",
        "expert_gate": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight",
        "expert_up": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight",
        "expert_down": "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
    },
    ignored=_ROTARY,
)

QWEN3_MOE = TensorNames(
    {
        **LLAMA.roles,
        "router": "model.layers.{layer}.mlp.gate.weight",
        "experts_gate_up": "model.layers.{layer}.mlp.experts.gate_up_proj",
        "experts_down": "model.layers.{layer}.mlp.experts.down_proj",
        "expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "expert_down": "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
    },
    ignored=_ROTARY,
)


def _gpt2(prefix: str) -> TensorNames:
    """Folders of the model alone have no prefix, those of the model with its head have one."""
    roles = {
        "embed": "wte.weight",
        "positions": "wpe.weight",
        "norm": "ln_f.weight",
        "attn_norm": "h.{layer}.ln_1.weight",
        "qkv": "h.{layer}.attn.c_attn.weight",
        "attn_out": "h.{layer}.attn.c_proj.weight",
        "ffn_norm": "h.{layer}.ln_2.weight",
        "up": "h.{layer}.mlp.c_fc.weight",
        "down": "h.{layer}.mlp.c_proj.weight",
    }
    return TensorNames(
        {**{role: prefix + name for role, name in roles.items()}, "head": "lm_head.weight"},
        dict.fromkeys(("qkv", "attn_out", "up", "down"), Transposed()),
        # The causal mask used to be saved.
        (prefix.replace(".", r"\.") + r"h\.\d+\.attn\.(masked_)?bias",),
    )


GPT2 = _gpt2("transformer.")
GPT2_BARE = _gpt2("")
