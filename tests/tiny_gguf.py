"""Tiny models of every architecture as GGUF files, written the way llama.cpp's converter does.

Names come from the gguf package's own map. The permutation of q and k, norms of 1 + w, transposed
matrices and stacked experts are the converter's conventions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from tests.tiny_models import Rounding, tiny_model

_OTHER_NAMES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}
"""Where GGUF has another name."""

_PERMUTED = ("llama", "smollm3")

NOT_IN_GGUF = ("dynamic", "yarn-scaled", "qwen2-window", "smollm3-window", "qwen3-moe-raw")
"""Models with something that GGUF has no key for."""


def write_tiny_gguf(name: str, folder: Path, weight_type: str = "f32") -> Path:
    """`weight_type` is that of matrices whose rows it divides; others stay f32."""
    path = folder / f"{name}-{weight_type}.gguf"
    if not path.exists():
        model = tiny_model(name)
        config = model.config
        architecture = gguf_architecture(config.model_type)
        writer = gguf.GGUFWriter(path, architecture)
        _add_sizes(writer, config)
        _add_rope(writer, config)
        for key, values in _tensors(model, architecture).items():
            kind = _type_of(key, values, weight_type)
            writer.add_tensor(key, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def gguf_architecture(model_type: str) -> str:
    return _OTHER_NAMES.get(model_type, model_type)


def rounded_as(weight_type: str) -> Rounding:
    """What weights become in such a file: blocks run along the inputs of a matrix."""

    def rounding(key: str, values: np.ndarray) -> np.ndarray:
        rows = values.T if _is_transposed(key) else values
        kind = _type_of(key, rows, weight_type)
        rounded = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
        return rounded.T.copy() if _is_transposed(key) else rounded

    return rounding


def _type_of(key: str, values: np.ndarray, weight_type: str) -> gguf.GGMLQuantizationType:
    """Under its name in either file."""
    kind = gguf.GGMLQuantizationType[weight_type.upper()]
    plain = values.ndim == 1 or any(part in key for part in ("gate_inp", "mlp.gate.", "rope"))
    whole = values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
    return kind if whole and not plain else gguf.GGMLQuantizationType.F32


def _is_transposed(key: str) -> bool:
    return key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def _add_sizes(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    heads = config.num_attention_heads
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or config.n_inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", heads))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if config.model_type == "gpt2":
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None) is not None:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma3_text":
        writer.add_sliding_window_pattern([k == "sliding_attention" for k in config.layer_types])
    _add_optional(writer, config)


def _add_optional(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    facts = {
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "num_local_experts": writer.add_expert_count,
        "num_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "norm_topk_prob": writer.add_expert_weights_norm,
        "query_pre_attn_scalar": lambda scalar: writer.add_attention_scale(scalar**-0.5),
    }
    written = set()
    for key, add in facts.items():
        value = getattr(config, key, None)
        if value is not None and add not in written:
            written.add(add)
            add(value)


def _add_rope(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("longrope", "yarn"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = math.log(config.max_position_embeddings / original) / math.log(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + stretch))
    if "attention_factor" in rope:
        usual = 0.1 * math.log(rope["factor"]) + 1
        writer.add_rope_scaling_attn_factors(rope["attention_factor"] / usual)


def _tensors(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    config = model.config
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    tensors: dict[str, np.ndarray] = {}
    for key, tensor in model.state_dict().items():
        values = tensor.numpy()
        if "experts" in key:
            tensors |= _experts(key, values)
            continue
        if config.tie_word_embeddings and key == "lm_head.weight":
            continue
        name = names.get_name(_spelled(key), try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        tensors[name] = np.ascontiguousarray(_converted(key, values, config, architecture))
    return tensors | _rope_factors(model)


def _spelled(key: str) -> str:
    """transformers 5 has Mixtral's router under a name that the map does not know."""
    return key.replace(".mlp.gate.", ".block_sparse_moe.gate.") if ".mlp.gate." in key else key


def _converted(
    key: str, values: np.ndarray, config: PreTrainedConfig, architecture: str
) -> np.ndarray:
    if architecture in _PERMUTED and ("q_proj" in key or "k_proj" in key):
        q = "q_proj" in key
        heads = config.num_attention_heads if q else config.num_key_value_heads
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if architecture.startswith("gemma") and "norm" in key:
        return values + 1
    return values.T if _is_transposed(key) else values


def _experts(key: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """[experts, n, k] as they are, or gate and up of each expert apart."""
    layer = key.split(".")[2]
    if key.endswith("down_proj"):
        return {f"blk.{layer}.ffn_down_exps.weight": values}
    gate, up = np.split(values, 2, axis=1)
    return {
        f"blk.{layer}.ffn_gate_exps.weight": np.ascontiguousarray(gate),
        f"blk.{layer}.ffn_up_exps.weight": np.ascontiguousarray(up),
    }


def _rope_factors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    rope: dict[str, Any] = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
            for which in ("long", "short")
        }
    if rope.get("rope_type") == "llama3":
        scaled: torch.Tensor = model.model.rotary_emb.inv_freq
        pairs = len(scaled)
        plain = rope["rope_theta"] ** -(np.arange(pairs) / pairs)
        return {"rope_freqs.weight": (plain / scaled.numpy()).astype(np.float32)}
    return {}
