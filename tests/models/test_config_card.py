"""Cards from config.json: layers and their KV groups, RoPE under old and new keys, and what is
taken for granted where a config says nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from treadle.errors import ModelFileError
from treadle.kernels.ops import KVLayer, KVSpec, RawTensor, WeightType
from treadle.models.card import Experts, KVGroup, ModelCard
from treadle.models.config_card import card_from_config
from treadle.models.families import CONFIG_FAMILIES
from treadle.models.rope import Dynamic, LongRope, Plain, rope_table

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}

EXPERTS = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
}


def tensors() -> dict[str, RawTensor]:
    data = np.zeros(4, np.uint8)
    return {str(i): RawTensor(str(i), WeightType.F32, (1,), data) for i in range(100)}


def card(model_type: str, **config: Any) -> ModelCard:
    said = {"model_type": model_type, **SIZES, **EXPERTS.get(model_type, {}), **config}
    return card_from_config(said, {}, tensors(), name="tiny")


def windows(made: ModelCard) -> list[int | None]:
    return [layer.masking.window for layer in made.layer_cards]


def test_layers_with_and_without_a_window_are_two_groups() -> None:
    made = card("gemma3_text", sliding_window=512)
    assert made.kv_groups == (KVGroup(2, 2, 16, None), KVGroup(10, 2, 16, 512))
    assert made.kv_specs(block_size=8, type="bf16") == (
        KVSpec(2, 2, 16, 8, "bf16"),
        KVSpec(10, 2, 16, 8, "bf16"),
    )
    places = [layer.kv for layer in made.layer_cards]
    assert places[4:8] == [KVLayer(1, 4), KVLayer(0, 0), KVLayer(1, 5), KVLayer(1, 6)]
    assert [layer.rope for layer in made.layer_cards[4:7]] == [1, 0, 1]
    assert len(set(places)) == 12


def test_layers_that_all_slide_are_one_group() -> None:
    assert card("mistral", sliding_window=100).kv_groups == (KVGroup(12, 2, 16, 100),)
    assert card("mistral", sliding_window=None).kv_groups == (KVGroup(12, 2, 16, None),)


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", {"sliding_window": 7}),
        ("mistral", {}),
        ("mistral", {"sliding_window": 7}),
        ("mistral", {"sliding_window": None}),
        ("phi3", {"sliding_window": 7}),
        ("phi3", {}),
        ("mixtral", {}),
        ("mixtral", {"sliding_window": 7}),
        ("qwen2", {"sliding_window": 7}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 5}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}),
        ("qwen3_moe", {"sliding_window": 7}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 7}),
        ("smollm3", {"sliding_window": 7}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 7}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 7, "no_rope_layers": [1] * 12}),
        ("gemma2", {}),
        ("gemma2", {"sliding_window": 7, "layer_types": ["full_attention"] * 12}),
        ("gemma3_text", {}),
        ("gemma3_text", {"sliding_window_pattern": 4}),
        ("olmo2", {"sliding_window": 7}),
    ],
    ids=str,
)
def test_windows_are_those_of_transformers(model_type: str, config: dict[str, Any]) -> None:
    """Its config classes say which layers slide; models without layer types slide as one."""
    settled = AutoConfig.for_model(model_type, **SIZES, **config)
    made = card(model_type, **config)
    if model_type in ("llama", "olmo2"):
        expected: list[int | None] = [None] * 12
    elif getattr(settled, "layer_types", None) is None or model_type == "mistral":
        expected = [settled.sliding_window] * 12
    else:
        kinds = settled.layer_types
        expected = [settled.sliding_window if k == "sliding_attention" else None for k in kinds]
    assert windows(made) == expected


@pytest.mark.parametrize(
    "model_type",
    ["llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "smollm3", "gemma2", "olmo2"],
)
def test_what_is_taken_for_granted(model_type: str) -> None:
    settled = AutoConfig.for_model(model_type, **SIZES)
    made = card(model_type)
    assert made.tied_head == settled.tie_word_embeddings
    assert made.ropes[0].theta == settled.rope_parameters["rope_theta"]
    assert made.max_positions == settled.max_position_embeddings
    if model_type == "gemma2":
        masking = made.layer_cards[0].masking
        assert masking.scale == settled.query_pre_attn_scalar**-0.5
        assert masking.softcap == settled.attn_logit_softcapping
        assert made.wiring.logit_softcap == settled.final_logit_softcapping
        assert card("gemma2", attn_logit_softcapping=None).layer_cards[0].masking.softcap is None


def test_layers_without_rope() -> None:
    made = card("smollm3")
    assert [layer.rope for layer in made.layer_cards] == [0, 0, 0, None] * 3
    listed = card("smollm3", no_rope_layers=[0, 1] * 6)
    assert [layer.rope for layer in listed.layer_cards] == [None, 0] * 6


def test_experts() -> None:
    made = card("qwen3_moe", mlp_only_layers=[2, 3], decoder_sparse_step=2)
    blocks = [layer.feed_forward for layer in made.layer_cards]
    assert [isinstance(block, Experts) for block in blocks] == [
        i % 2 == 1 and i != 3 for i in range(12)
    ]
    assert made.ffn == 120
    block = blocks[1]
    assert isinstance(block, Experts)
    assert not block.routing.renormalise


LONG = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {**YARN, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "llama3", **{k: v for k, v in LLAMA3.items() if "original" not in k}},
    {"rope_type": "yarn", **YARN},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", **YARN, "attention_factor": 1.5},
    {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", **YARN, "mscale": 0.7},
    {"rope_type": "yarn", **YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "yarn", **YARN, "beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 512},
    {"rope_type": "longrope", **LONG, "factor": 2.0, "original_max_position_embeddings": 512},
    {"rope_type": "longrope", **LONG, "attention_factor": 1.2},
]


def expected_rope(scaling: dict[str, Any], seq_len: int | None) -> tuple[np.ndarray, float]:
    config = AutoConfig.for_model("llama", **SIZES, rope_parameters=dict(scaling))
    kind = scaling["rope_type"]
    if kind == "default":
        rope = config.rope_parameters
        dim = int(16 * rope.get("partial_rotary_factor", 1))
        exponents = torch.arange(0, dim, 2).float() / dim
        return (1 / rope["rope_theta"] ** exponents).numpy(), 1.0
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)
    return frequencies.numpy(), magnitude


def check_rope(made: ModelCard, scaling: dict[str, Any], positions: int) -> None:
    (rope,) = made.ropes
    frequencies, magnitude = expected_rope(scaling, positions)
    ours = rope.scaling.frequencies(rope.theta, rope.rotary_dim, positions)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, frequencies, rtol=1e-6)
    assert rope.scaling.magnitude == pytest.approx(magnitude, rel=1e-12)
    table = rope_table(rope, 20)
    angles = np.arange(20)[:, None] * rope.scaling.frequencies(rope.theta, rope.rotary_dim, 20)
    np.testing.assert_allclose(table.cos, np.cos(angles) * magnitude, atol=1e-5)
    np.testing.assert_allclose(table.sin, np.sin(angles) * magnitude, atol=1e-5)


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("positions", [2048, 300])
def test_rope_under_all_keys(scaling: dict[str, Any], positions: int) -> None:
    made = card("llama", rope_parameters=scaling)
    check_rope(made, scaling, positions)
    assert made.max_positions == 2048
    old = {"rope_scaling": dict(scaling), "rope_theta": scaling.get("rope_theta", 10000.0)}
    older = {**old, "rope_scaling": {**scaling, "type": scaling["rope_type"]}}
    older["rope_scaling"].pop("rope_type")
    assert card("llama", **old) == card("llama", **older) == made


def test_rope_keys_outside_the_scaling() -> None:
    """Phi-3 has some facts beside its scaling, and has called LongRoPE by other names."""
    made = card("phi3", rope_scaling={"type": "longrope", **LONG}, rope_theta=1e5)
    for kind in ("su", "yarn"):
        assert card("phi3", rope_scaling={"type": kind, **LONG}, rope_theta=1e5) == made
    for outside in ({}, {"original_max_position_embeddings": 256}):
        told = {"rope_scaling": {"type": "longrope", **LONG}, **outside}
        settled = AutoConfig.for_model("phi3", **SIZES, **copy.deepcopy(told))
        _, magnitude = ROPE_INIT_FUNCTIONS["longrope"](settled, torch.device("cpu"))
        scaling = card("phi3", **told).ropes[0].scaling
        assert isinstance(scaling, LongRope)
        assert scaling.original == settled.rope_parameters["original_max_position_embeddings"]
        assert scaling.magnitude == pytest.approx(magnitude, rel=1e-12)
    assert card("phi3", partial_rotary_factor=0.75).ropes[0].rotary_dim == 12


def test_dynamic_scaling_depends_on_the_positions_served_alone() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    made = card("llama", rope_parameters=scaling)
    assert made.max_positions == 2 * 2048  # what the scaling is for
    assert made.ropes[0].scaling == Dynamic(2.0, 2048)
    for positions in (100, 2048, 3000, 4096):
        check_rope(made, scaling, positions)


def test_gemma3_under_old_keys() -> None:
    scaled = {"rope_type": "linear", "factor": 8.0}
    made = card("gemma3_text", rope_theta=5e5, rope_local_base_freq=5e3, rope_scaling=scaled)
    new = {
        "full_attention": {**scaled, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    assert card("gemma3_text", rope_parameters=new) == made
    plain = card("gemma3_text")
    assert [rope.theta for rope in plain.ropes] == [1e6, 1e4]
    assert all(rope.scaling == Plain() for rope in plain.ropes)


ODD: list[Any] = [True, False, -1, 0, 1, 7, 2**40, 1.5, float("nan"), 1e308, "x", "", [], [1], {}]
NESTED = [
    {"rope_type": kind, **facts, key: odd}
    for kind, facts in (("llama3", LLAMA3), ("yarn", YARN), ("longrope", LONG))
    for key in (*facts, "rope_theta", "rope_type", "attention_factor", "mscale", "mscale_all_dim")
    for odd in (*ODD, None, [1.0] * 8)
]


def card_or_refusal(config: dict[str, Any]) -> ModelCard | str:
    try:
        return card_from_config(config, {}, tensors(), name="tiny")
    except ModelFileError as error:
        return error.message


@pytest.mark.parametrize("model_type", CONFIG_FAMILIES)
def test_any_config_gives_a_card_or_one_sentence(model_type: str) -> None:
    """Whatever stands under a key: nothing else is ever raised."""
    settled = AutoConfig.for_model(model_type, **SIZES, **EXPERTS.get(model_type, {})).to_dict()
    base = {**settled, "model_type": model_type, "num_hidden_layers": 4, "layer_types": None}
    changes = [{key: odd} for key in base for odd in (*ODD, None)]
    changes += [{"rope_parameters": nested} for nested in NESTED]
    changes += [{"rope_parameters": {"full_attention": nested}} for nested in (*NESTED[:40], 5)]
    refused = 0
    for change in changes:
        made = card_or_refusal({**base, **change})
        if isinstance(made, str):
            refused += 1
            assert "\n" not in made
            continue
        for rope in made.ropes:
            assert np.isfinite(rope_table(rope, 30).cos).all(), change
    assert refused > 100
