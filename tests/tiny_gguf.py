"""Tiny models of every architecture as GGUF files, written the way llama.cpp's converter does.

Names come from the gguf package's own map. The permutation of q and k, norms of 1 + w, transposed
matrices and stacked experts are the converter's conventions; types are given by `gguf_types`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from tests.blocks import dequantised, quantised
from tests.gguf_types import Facts, mix_of
from tests.tiny_models import tiny_config, tiny_model, tiny_weights
from treadle.kernels.ops import WeightType

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


def write_tiny_gguf(
    name: str, folder: Path, types: str = "f32", *, experts_apart: bool = False
) -> Path:
    """`types` names a mix or a weight type; experts lie apart in the oldest files."""
    path = folder / f"{name}-{types}{'-apart' * experts_apart}.gguf"
    if not path.exists():
        config = tiny_config(name)
        writer = gguf.GGUFWriter(path, gguf_architecture(config.model_type))
        _add_sizes(writer, config)
        _add_rope(writer, config)
        _add_quantiser(writer)
        for tensor in _tensors(name, types):
            kind = gguf.GGMLQuantizationType[tensor.kind.name]
            for key, data in _apart(tensor) if experts_apart else [(tensor.name, tensor.data)]:
                writer.add_tensor(key, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def gguf_architecture(model_type: str) -> str:
    return _OTHER_NAMES.get(model_type, model_type)


def rounded_model(name: str, types: str) -> PreTrainedModel:
    """The model with the weights that such a file holds."""
    stored = _stored(name, types)

    def rounding(key: str, values: np.ndarray) -> np.ndarray:
        kind, blocks = stored[key]
        if kind is WeightType.F32:
            return values
        shape = _rows(key, values).shape
        rows = dequantised(blocks, kind, values.size // shape[-1]).reshape(shape)
        return rows.T.copy() if _is_transposed(key) else rows

    return tiny_model(name, rounding)


def quantised_keys(name: str, types: str) -> list[str]:
    """The weights that are quantised in such a file."""
    return [key for key, (kind, _) in _stored(name, types).items() if kind.quantised]


@functools.lru_cache(maxsize=4)
def _stored(name: str, types: str) -> dict[str, tuple[WeightType, np.ndarray]]:
    """Under transformers' names: of vectors the values, of others rows of bytes, their last axis
    being the inputs of a product."""
    config, mix = tiny_config(name), mix_of(types)
    facts = Facts(config.num_hidden_layers, config.tie_word_embeddings)
    stored = {}
    for key, values in tiny_weights(name).items():
        rows = _rows(key, values)
        kind = mix(_gguf_names(key, config)[0], rows.shape, facts)
        stored[key] = kind, _blocks(rows, kind)
    return stored


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


def _add_quantiser(writer: gguf.GGUFWriter) -> None:
    """What llama-quantize adds when it goes by an importance matrix."""
    writer.add_quantization_version(2)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_string("quantize.imatrix.file", "imatrix.gguf")
    writer.add_string("quantize.imatrix.dataset", "calibration.txt")
    writer.add_int32("quantize.imatrix.entries_count", 12)
    writer.add_int32("quantize.imatrix.chunks_count", 100)


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


@dataclasses.dataclass(frozen=True)
class _Tensor:
    name: str
    kind: WeightType
    data: np.ndarray
    """Values of one axis, or rows of bytes."""


def _tensors(name: str, types: str) -> Iterator[_Tensor]:
    config = tiny_config(name)
    for key, (kind, blocks) in _stored(name, types).items():
        if config.tie_word_embeddings and key == "lm_head.weight":
            continue
        data = _permuted(key, blocks, config)
        if "norm" in key and config.model_type.startswith("gemma"):
            data = data + 1
        names = _gguf_names(key, config)
        parts = [data] if len(names) == 1 else np.split(data, len(names), axis=1)
        for own_name, part in zip(names, parts, strict=True):
            yield _Tensor(own_name, kind, np.ascontiguousarray(part))
    for own_name, factors in _rope_factors(name).items():
        yield _Tensor(own_name, WeightType.F32, factors)


def _gguf_names(key: str, config: PreTrainedConfig) -> tuple[str, ...]:
    """More than one where the file has parts of the tensor under names of their own."""
    if "experts" in key:
        layer = key.split(".")[2]
        parts = ("down",) if key.endswith("down_proj") else ("gate", "up")
        return tuple(f"blk.{layer}.ffn_{part}_exps.weight" for part in parts)
    if key == "lm_head.weight" and config.tie_word_embeddings:
        return ("token_embd.weight",)
    # transformers 5 has Mixtral's router under a name that the map does not know.
    known = key.replace(".mlp.gate.", ".block_sparse_moe.gate.")
    names = _name_map(gguf_architecture(config.model_type), config.num_hidden_layers)
    name = names.get_name(known, try_suffixes=(".weight", ".bias"))
    assert name is not None, key
    return (name,)


@functools.cache
def _name_map(architecture: str, layers: int) -> gguf.TensorNameMap:
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, layers)


def _rows(key: str, values: np.ndarray) -> np.ndarray:
    """With the inputs of a product along the last axis."""
    return np.ascontiguousarray(values.T) if _is_transposed(key) else values


def _blocks(rows: np.ndarray, kind: WeightType) -> np.ndarray:
    """Vectors stay as they are; of others the last axis becomes bytes."""
    if rows.ndim == 1:
        return rows
    return quantised(rows.reshape(-1, rows.shape[-1]), kind).reshape(*rows.shape[:-1], -1)


def _permuted(key: str, data: np.ndarray, config: PreTrainedConfig) -> np.ndarray:
    if gguf_architecture(config.model_type) not in _PERMUTED:
        return data
    if "q_proj" not in key and "k_proj" not in key:
        return data
    heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
    halves = data.reshape(heads, 2, -1, *data.shape[1:])
    return halves.swapaxes(1, 2).reshape(data.shape)


def _apart(tensor: _Tensor) -> list[tuple[str, np.ndarray]]:
    """Each expert by itself, as files were until March 2024."""
    if "_exps" not in tensor.name:
        return [(tensor.name, tensor.data)]
    name = tensor.name.replace("_exps.weight", ".{}.weight")
    return [(name.format(expert), data) for expert, data in enumerate(tensor.data)]


def _rope_factors(name: str) -> dict[str, np.ndarray]:
    rope: dict[str, Any] = getattr(tiny_config(name), "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
            for which in ("long", "short")
        }
    if rope.get("rope_type") == "llama3":
        scaled: torch.Tensor = tiny_model(name).model.rotary_emb.inv_freq
        pairs = len(scaled)
        plain = rope["rope_theta"] ** -(np.arange(pairs) / pairs)
        return {"rope_freqs.weight": (plain / scaled.numpy()).astype(np.float32)}
    return {}
