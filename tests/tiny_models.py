"""Tiny random models of every architecture: transformers builds them, and saves them as folders.

Weights are scaled, and constants chosen, so that logits vary and every part of the arithmetic shows
in them. Windows and original contexts are shorter than the texts that tests use. Weight types whose
blocks have 256 values need wider rows than most of these models have: `WIDE` and `UNEVEN`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

VOCAB_SIZE = 97
POSITIONS = 256

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A model: its classes in transformers, and what its config says beyond what all say."""

    kind: str
    """Prefix of the classes' names."""
    options: Mapping[str, Any]
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Common options that this config calls otherwise; to nothing where it has none."""

    def config_options(self) -> dict[str, Any]:
        named = {self.renamed.get(name, name): value for name, value in _COMMON.items()}
        return {name: value for name, value in {**named, **self.options}.items() if name}


def _rope(theta: float = 10000.0, **scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **scaling}}


_GEMMA = {
    "head_dim": 24,
    "sliding_window": 40,
    "query_pre_attn_scalar": 10,
    "rms_norm_eps": 0.2,
    "hidden_activation": "gelu_pytorch_tanh",
}
_PAIRS = 8
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(_PAIRS)],
    "long_factor": [1.5 + 0.5 * i for i in range(_PAIRS)],
}
_EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 3}

MODELS: Mapping[str, Tiny] = {
    "llama": Tiny("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3": Tiny(
        "Llama",
        {
            "head_dim": 24,
            **_rope(
                5e5,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        },
    ),
    "smollm3": Tiny("SmolLM3", {"num_hidden_layers": 4, **_rope()}),
    "smollm3-window": Tiny(
        "SmolLM3",
        {
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 40,
            **_rope(),
        },
    ),
    "mistral": Tiny("Mistral", {"head_dim": 24, "sliding_window": 40}),
    "mistral-all": Tiny("Mistral", {"sliding_window": None}),
    "phi3": Tiny("Phi3", {"sliding_window": 40}),
    "phi3-partial": Tiny("Phi3", {"partial_rotary_factor": 0.5}),
    "phi3-long": Tiny("Phi3", {"original_max_position_embeddings": 64, **_rope(**_LONG)}),
    "qwen2": Tiny("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": Tiny(
        "Qwen2",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 40,
            "max_window_layers": 1,
        },
    ),
    "qwen3": Tiny("Qwen3", {"head_dim": 24}),
    "gemma2": Tiny(
        "Gemma2",
        {
            **_GEMMA,
            "num_hidden_layers": 3,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": Tiny(
        "Gemma3",
        {
            **_GEMMA,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
            },
        },
    ),
    "olmo2": Tiny("Olmo2", {}),
    "gpt2": Tiny(
        "GPT2",
        {"n_inner": 96, "activation_function": "gelu_new"},
        {
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "rms_norm_eps": "layer_norm_epsilon",
            "intermediate_size": "",
            "num_key_value_heads": "",
        },
    ),
    "mixtral": Tiny("Mixtral", {**_EXPERTS, "num_local_experts": 4}),
    "qwen3-moe": Tiny(
        "Qwen3Moe",
        {
            **_EXPERTS,
            "head_dim": 24,
            "num_experts": 6,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-raw": Tiny("Qwen3Moe", {**_EXPERTS, "num_experts": 5, "moe_intermediate_size": 40}),
    "linear": Tiny("Llama", _rope(rope_type="linear", factor=4.0)),
    "dynamic": Tiny(
        "Llama", {"max_position_embeddings": 75, **_rope(rope_type="dynamic", factor=2.0)}
    ),
    "yarn": Tiny(
        "Llama",
        _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=60),
    ),
    "yarn-scaled": Tiny(
        "Llama",
        _rope(
            rope_type="yarn",
            factor=8.0,
            original_max_position_embeddings=64,
            mscale=1.0,
            mscale_all_dim=0.5,
            beta_fast=4.0,
            beta_slow=1.2,
            truncate=False,
        ),
    ),
    "yarn-attention": Tiny(
        "Llama",
        _rope(
            rope_type="yarn",
            factor=4.0,
            original_max_position_embeddings=60,
            attention_factor=1.3,
        ),
    ),
}


FIRST_OF_KIND = tuple({tiny.kind: name for name, tiny in reversed(MODELS.items())}.values())
WITH_EXPERTS = ("mixtral", "qwen3-moe")


def _wider(name: str, **widths: int) -> Tiny:
    """With 256 values in the rows of all matrices that read the hidden state or attention."""
    tiny = MODELS[name]
    options = {**tiny.options, tiny.renamed.get("hidden_size", "hidden_size"): 256}
    options |= {key: value for key, value in widths.items() if key in options or key in _COMMON}
    if "head_dim" in options:
        options["head_dim"] = 64
    if "num_experts_per_tok" in options:
        options["num_hidden_layers"] = 2
    return dataclasses.replace(tiny, options=options)


WIDE = {
    f"{name}-wide": _wider(name, intermediate_size=256, n_inner=256, moe_intermediate_size=256)
    for name in FIRST_OF_KIND
}
"""Rows of 256 everywhere."""
UNEVEN = {f"{name}-uneven": _wider(name) for name in FIRST_OF_KIND}
"""Rows of 256, but of 96 or 40 in what leaves a feed-forward block."""

_ALL = {**MODELS, **WIDE, **UNEVEN}

Rounding = Callable[[str, np.ndarray], np.ndarray]
"""What a file's weight type makes of a tensor."""


def tiny_model(name: str, rounding: Rounding | None = None, **changes: Any) -> PreTrainedModel:
    """The model in float32; `changes` are made to its config, not to its weights."""
    tiny = _ALL[name]
    options = {**tiny.config_options(), **changes}
    model = _build(tiny, options)
    state = tiny_weights(name)
    if rounding is not None:
        state = {key: rounding(key, values) for key, values in state.items()}
    # What a change leaves out has no weights to load.
    model.load_state_dict({key: torch.from_numpy(state[key]) for key in model.state_dict()})
    return model.eval()


def tiny_config(name: str) -> PreTrainedConfig:
    return _config(_ALL[name], _ALL[name].config_options())


def model_type(name: str) -> str:
    found: str = _config_class(_ALL[name].kind).model_type
    return found


def save_tiny(name: str, folder: Path) -> Path:
    path = folder / name
    if not path.exists():
        logging.disable_progress_bar()
        tiny_model(name).save_pretrained(path)
        logging.enable_progress_bar()
    return path


def change_config(path: Path, **changes: Any) -> None:
    """Rewrite config.json; a value of `...` takes the key out."""
    file = path / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def _build(tiny: Tiny, options: Mapping[str, Any]) -> PreTrainedModel:
    head = "LMHeadModel" if tiny.kind == "GPT2" else "ForCausalLM"
    with no_init_weights():
        model: PreTrainedModel = getattr(transformers, f"{tiny.kind}{head}")(_config(tiny, options))
    model.tie_weights()  # part of what was left out
    return model


def _config(tiny: Tiny, options: Mapping[str, Any]) -> PreTrainedConfig:
    # transformers writes into what it is given.
    config: PreTrainedConfig = _config_class(tiny.kind)(**copy.deepcopy(dict(options)))
    return config


def _config_class(kind: str) -> Any:
    text = "Text" if kind == "Gemma3" else ""
    return getattr(transformers, f"{kind}{text}Config")


@functools.cache
def tiny_weights(name: str) -> Mapping[str, np.ndarray]:
    """Under transformers' names."""
    tiny = _ALL[name]
    model = _build(tiny, tiny.config_options())
    rng = np.random.default_rng(0)
    state = {}
    for key, old in sorted(model.state_dict().items()):
        values = rng.normal(size=tuple(old.shape)) * _spread(key, tiny)
        if values.ndim > 1 and not _is_embedding(key):
            # A sum of more terms needs smaller ones to be as large.
            values *= (64 / model.config.hidden_size) ** 0.5
        if _is_norm(key) and not tiny.kind.startswith("Gemma"):
            values += 1
        state[key] = values.astype(np.float32)
    if model.config.tie_word_embeddings:
        embedding = "transformer.wte.weight" if tiny.kind == "GPT2" else "model.embed_tokens.weight"
        state["lm_head.weight"] = state[embedding]
    return state


def _is_norm(key: str) -> bool:
    return key.endswith("weight") and ("norm" in key or ".ln_" in key)


def _is_embedding(key: str) -> bool:
    return "embed" in key or ".wte" in key or ".wpe" in key


def _spread(key: str, tiny: Tiny) -> float:
    """Small embeddings, so that epsilon matters; large logits, so that everything does."""
    if _is_norm(key) or key.endswith("bias"):
        return 0.2
    if _is_embedding(key):
        return 0.15 if tiny.kind.startswith("Gemma") else 0.05
    if "lm_head" in key:
        return 0.3
    return 0.25 if "q_proj" in key or "k_proj" in key or "gate.weight" in key else 0.15
