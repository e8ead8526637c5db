"""Tiny random Llama models: GGUF files as llama.cpp's converter writes them, and the transformers
models they come from, with the weights that the files really hold.

Weights are scaled so that logits vary and every part of the arithmetic shows in them: a RoPE base
10 % off, another epsilon or another mapping of heads moves log-probabilities by more than 1e-2.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.blocks import SIZES, dequantised, quantised
from treadle.kernels.ops import WeightType

VOCAB_SIZE = 331
WINDOW = 512

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "The weaver set the warp upon the loom and pressed the treadle with her foot. "
    "Up went the one half of the threads, down went the other; the shuttle ran between them, "
    "and there was a line of cloth. Then she pressed the other treadle, and there was another. "
    "All day the loom went round and round, and in the evening there was enough for a coat."
)

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclasses.dataclass(frozen=True)
class TinyLlama:
    """What sets one tiny model apart from another."""

    weight_type: str = "f32"
    """Of the matrices, as WeightType names it. Types whose blocks have 256 values make the model
    wider, and those that the gguf package cannot quantise get random weights of the same spread."""
    heads: int = 4
    kv_heads: int = 2
    tied: bool = False
    llama3_rope: bool = False
    """Slow down low frequencies as Llama 3 does."""
    seed: int = 0

    @property
    def width(self) -> int:
        """Of the hidden state."""
        return max(64, SIZES[WeightType(self.weight_type)][0])

    @property
    def file_name(self) -> str:
        return "tiny-" + "-".join(str(v) for v in dataclasses.astuple(self)) + ".gguf"


def tiny_llama(weight_type: str, tmp: Path) -> Path:
    """The path of a tiny model file in `tmp`, written if it is not there yet."""
    return write_tiny(TinyLlama(weight_type), tmp)


def write_tiny(tiny: TinyLlama, folder: Path) -> Path:
    path = folder / tiny.file_name
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        _write(tiny, part)
        part.rename(path)
    return path


def save_tiny_folder(tiny: TinyLlama, folder: Path) -> Path:
    """The same model and tokenizer as a Hugging Face folder, in more than two shards."""
    tiny_reference(tiny).save_pretrained(folder, max_shard_size="100KB")
    tokens, merges = _vocabulary()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    ids = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, pairs))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tiny_config(tiny: TinyLlama, **changes: Any) -> LlamaConfig:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if tiny.llama3_rope:
        rope |= {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    options: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": tiny.width,
        "intermediate_size": 96 if tiny.width == 64 else 2 * tiny.width,
        "num_hidden_layers": 2,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": 16 if tiny.width == 64 else tiny.width // tiny.heads,
        "max_position_embeddings": WINDOW,
        "rms_norm_eps": 1e-5,
        "rope_parameters": rope,
        "tie_word_embeddings": tiny.tied,
        "attn_implementation": "eager",
    }
    return LlamaConfig(**options | changes)


def tiny_reference(tiny: TinyLlama, **changes: Any) -> LlamaForCausalLM:
    """The transformers model, float32, with the weights as the file's type rounds them."""
    model = LlamaForCausalLM(tiny_config(tiny, **changes)).eval()
    state = {name: _round_trip(w, tiny.weight_type) for name, w in _initial_weights(tiny).items()}
    if tiny.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(w) for name, w in state.items()})
    return model


@functools.cache
def _initial_weights(tiny: TinyLlama) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(tiny.seed)
    model = LlamaForCausalLM(tiny_config(tiny))
    weights = {}
    for name, parameter in sorted(model.state_dict().items()):
        if tiny.tied and name == "lm_head.weight":
            continue
        # A sum of more terms needs smaller ones to be as large.
        spread = _spread(name) * (1 if "norm" in name else (64 / tiny.width) ** 0.5)
        values = rng.normal(size=tuple(parameter.shape)) * spread
        weights[name] = (values + 1 if "norm" in name else values).astype(np.float32)
    return weights


def _spread(name: str) -> float:
    if "norm" in name:
        return 0.2
    if "embed" in name:
        return 0.05  # small, so that epsilon matters
    return 0.25 if "q_proj" in name or "k_proj" in name else 0.15


def _round_trip(weight: np.ndarray, weight_type: str) -> np.ndarray:
    if weight.ndim == 1 or weight_type == "f32":
        return weight
    kind = WeightType(weight_type)
    return dequantised(quantised(weight, kind), kind, len(weight))


def _neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder each head's rows from (first half, second half) to pairs side by side."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _write(tiny: TinyLlama, path: Path) -> None:
    config = tiny_config(tiny)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny llama")
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_tokenizer(writer)
    for name, weight in _initial_weights(tiny).items():
        _add_weight(writer, tiny, name, weight)
    if tiny.llama3_rope:
        writer.add_tensor("rope_freqs.weight", rope_factors(tiny))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rope_factors(tiny: TinyLlama) -> np.ndarray:
    """By how much transformers divides each frequency."""
    model = LlamaForCausalLM(tiny_config(tiny))
    plain = LlamaForCausalLM(tiny_config(dataclasses.replace(tiny, llama3_rope=False)))
    scaled = model.model.rotary_emb.inv_freq
    return (plain.model.rotary_emb.inv_freq / scaled).numpy().astype(np.float32)


def _add_weight(writer: gguf.GGUFWriter, tiny: TinyLlama, name: str, weight: np.ndarray) -> None:
    if weight.ndim == 1:
        writer.add_tensor(_gguf_name(name), weight)
        return
    data = quantised(weight, WeightType(tiny.weight_type))
    if "q_proj" in name:
        data = _neighbours(data, tiny.heads)
    if "k_proj" in name:
        data = _neighbours(data, tiny.kv_heads)
    kind = gguf.GGMLQuantizationType[tiny.weight_type.upper()]
    writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)


def _gguf_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER_NAMES[part.removesuffix('.weight')]}.weight"


@functools.cache
def _vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE learnt from the corpus."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = byte_level
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        show_progress=False,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(byte_level.alphabet()),
    )
    learner.train_from_iterator([_CORPUS], trainer)
    model = json.loads(learner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert len(tokens) == VOCAB_SIZE
    return tokens, [
        merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]
    ]


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens, merges = _vocabulary()
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(SPECIAL.index("<|im_start|>"))
    writer.add_eos_token_id(SPECIAL.index("<|im_end|>"))
    writer.add_unk_token_id(SPECIAL.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)
