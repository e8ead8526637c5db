"""Cards from metadata: values, defaults, and every refusal naming its key."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.tiny import TinyLlama, rope_factors
from treadle.errors import ModelFileError
from treadle.kernels.ops import KVSpec, RawTensor, Routing, WeightType
from treadle.models.card import Experts, ModelCard
from treadle.models.gguf_card import card_from_gguf
from treadle.models.rope import Divided, Plain, Yarn, rope_table, yarn_magnitude

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "general.name": "A model",
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.eos_token_id": 7,
}
REQUIRED = [
    "general.architecture",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.layer_norm_rms_epsilon",
]


def tensors(*names: str) -> dict[str, RawTensor]:
    shape = (100, 64)
    data = np.zeros(100 * 64 * 4, np.uint8)
    every = ("token_embd.weight", "output_norm.weight", *names)
    return {name: RawTensor(name, WeightType.F32, shape, data) for name in every}


def with_factors(values: list[float]) -> dict[str, RawTensor]:
    data = np.array(values, np.float32).view(np.uint8)
    name = "rope_freqs.weight"
    return tensors() | {name: RawTensor(name, WeightType.F32, (len(values),), data)}


def card(*names: str, **changes: object) -> ModelCard:
    metadata = METADATA | {key.replace("__", "."): value for key, value in changes.items()}
    return card_from_gguf(metadata, tensors(*names))


def test_sizes() -> None:
    made = card(tokenizer__ggml__bos_token_id=1, tokenizer__ggml__eot_token_id=3)
    assert (made.vocab_size, made.hidden, made.layers, made.ffn) == (100, 64, 2, 96)
    assert (made.heads, made.kv_heads, made.head_dim, made.ropes[0].rotary_dim) == (4, 2, 16, 16)
    assert (made.wiring.norm_eps, made.ropes[0].theta) == (1e-5, 10000.0)
    assert made.ropes[0].scaling == Plain()
    assert (made.bos_id, made.eos_ids) == (1, (7, 3))
    assert (made.max_positions, made.weight_bytes) == (2048, 2 * 100 * 64 * 4)
    assert made.kv_specs(block_size=16, type="f16") == (KVSpec(2, 2, 16, 16, "f16"),)


def test_defaults() -> None:
    metadata = {key: METADATA[key] for key in REQUIRED}
    made = card_from_gguf(metadata, tensors())
    assert (made.kv_heads, made.bos_id, made.eos_ids, made.name) == (4, None, (), "")


def test_what_tensors_say() -> None:
    assert card().tied_head
    assert not card("output.weight").tied_head


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_keys_are_named(key: str) -> None:
    metadata = {name: value for name, value in METADATA.items() if name != key}
    with pytest.raises(ModelFileError, match=f"'{key}' is missing"):
        card_from_gguf(metadata, tensors())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", 5),
        ("llama.block_count", 0),
        ("llama.block_count", -1),
        ("llama.block_count", 2**40),
        ("llama.block_count", 1000),
        ("llama.block_count", True),
        ("llama.embedding_length", "64"),
        ("llama.attention.head_count", 4.0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", [2, 2]),
        ("llama.attention.value_length", 8),
        ("llama.attention.layer_norm_rms_epsilon", 0.0),
        ("llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama.rope.freq_base", float("inf")),
        ("llama.rope.dimension_count", 7),
        ("llama.rope.dimension_count", 18),
        ("llama.rope.scaling.type", "spiral"),
        ("llama.expert_count", -8),
        ("llama.expert_shared_count", 1),
        ("llama.attention.sliding_window", -1),
        ("tokenizer.ggml.eos_token_id", 100),
        ("tokenizer.ggml.bos_token_id", -1),
    ],
)
def test_bad_values_are_named(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=f"'{key}' is"):
        card_from_gguf(METADATA | {key: value}, tensors())


def test_a_file_without_embedding() -> None:
    with pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        card_from_gguf(METADATA, {})


def transformers_rope(positions: int, **rope: object) -> tuple[np.ndarray, np.ndarray]:
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=dict(rope)
    )
    rotary = LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(positions)[None])
    return cos[0, :, :8].numpy(), sin[0, :, :8].numpy()


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 5e5])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_rope_table(theta: float, scale: float) -> None:
    kind = {"rope_type": "default"} if scale == 1 else {"rope_type": "linear", "factor": scale}
    cos, sin = transformers_rope(8192, rope_theta=theta, **kind)
    scaling = {} if scale == 1 else {"llama__rope__scaling__type": "linear"}
    made = card(llama__rope__freq_base=theta, llama__rope__scaling__factor=scale, **scaling)

    table = rope_table(made.ropes[0], 8192)

    # A frequency may differ in its last bit: half a part in 10 million, times the position.
    np.testing.assert_allclose(table.cos, cos, atol=1e-3)
    np.testing.assert_allclose(table.sin, sin, atol=1e-3)
    np.testing.assert_allclose(table.cos[:300], cos[:300], atol=4e-5)
    assert table.interleaved


def test_rope_factors_slow_low_frequencies_down() -> None:
    factors = rope_factors(TinyLlama(llama3_rope=True))
    assert factors[0] == 1
    assert 7.9 < factors[-1] < 8.1
    made = card_from_gguf(METADATA, with_factors(factors.tolist()))
    assert made.ropes[0].scaling == Divided(tuple(factors.tolist()))
    plain, slowed = rope_table(card().ropes[0], 100), rope_table(made.ropes[0], 100)
    np.testing.assert_array_equal(plain.cos[:, 0], slowed.cos[:, 0])
    np.testing.assert_allclose(plain.sin[8, -1], slowed.sin[64, -1], rtol=1e-5)


def gguf_card(architecture: str, **own: object) -> ModelCard:
    """Of 12 layers, with nothing said that need not be."""
    said = {
        "block_count": 12,
        "context_length": 2048,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **{key.replace("__", "."): value for key, value in own.items()},
    }
    metadata = {f"{architecture}.{key}": value for key, value in said.items()}
    filler = tensors(*(f"{layer}" for layer in range(70)))
    return card_from_gguf({"general.architecture": architecture, **metadata}, filler)


def windows(made: ModelCard) -> list[int | None]:
    return [layer.masking.window for layer in made.layer_cards]


def test_what_gguf_does_not_say_of_gemma() -> None:
    second = gguf_card("gemma2", attention__sliding_window=512)
    assert windows(second) == [512, None] * 6
    assert (second.layer_cards[0].masking.softcap, second.wiring.logit_softcap) == (50, 30)
    third = gguf_card("gemma3", attention__sliding_window=512, rope__freq_base=1e6)
    assert windows(third) == [*[512] * 5, None] * 2
    assert [rope.theta for rope in third.ropes] == [1e6, 1e4]
    assert third.layer_cards[0].masking.softcap is third.wiring.logit_softcap is None
    for name, layers in (("gemma2", 46), ("gemma3", 62)):
        assert gguf_card(name).layer_cards[0].masking.scale == pytest.approx(32**-0.5)
        assert gguf_card(name, block_count=layers).layer_cards[0].masking.scale == (64 / 4) ** -0.5
    assert second.wiring.embed_scale == 8


def test_windows_as_gguf_lists_them() -> None:
    every_third = gguf_card("gemma3", attention__sliding_window_pattern=3)
    assert windows(every_third) == [4096, 4096, None] * 4
    listed = gguf_card("gemma3", attention__sliding_window_pattern=[True, False] * 6)
    assert windows(listed) == [4096, None] * 6
    assert windows(gguf_card("phi3", attention__sliding_window=0)) == [None] * 12
    assert windows(gguf_card("llama", attention__sliding_window=9)) == [9] * 12
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        gguf_card("gemma3", attention__sliding_window_pattern=[True])


def test_what_gguf_does_not_say_of_smollm3() -> None:
    assert [layer.rope for layer in gguf_card("smollm3").layer_cards] == [0, 0, 0, None] * 3


@pytest.mark.parametrize(
    ("name", "interleaved"),
    [("llama", True), ("smollm3", True), ("qwen2", False), ("phi3", False), ("gemma3", False)],
)
def test_which_files_hold_rope_pairs_side_by_side(name: str, interleaved: bool) -> None:
    assert {rope.interleaved for rope in gguf_card(name).ropes} == {interleaved}


def test_experts() -> None:
    mixtral = gguf_card("llama", expert_count=8, expert_used_count=2)
    assert mixtral.layer_cards[0].feed_forward == Experts(96, 8, Routing(2, renormalise=True))
    facts = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 40}
    qwen = gguf_card("qwen3moe", **facts)
    assert qwen.layer_cards[0].feed_forward == Experts(40, 8, Routing(2, renormalise=True))
    assert qwen.ffn == 80
    for key, value in (("expert_used_count", 9), ("expert_count", 10**6)):
        with pytest.raises(ModelFileError, match=f"'qwen3moe.{key}' is {value}"):
            gguf_card("qwen3moe", **facts | {key: value})


def test_yarn() -> None:
    facts = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    scaling = gguf_card("qwen2", **facts, rope__scaling__original_context_length=512)
    expected = Yarn(factor=4.0, original=512, magnitude=yarn_magnitude(4.0))
    assert scaling.ropes[0].scaling == expected
    assert gguf_card("qwen2", **facts).ropes[0].scaling == dataclasses.replace(
        expected, original=2048
    )
    with pytest.raises(ModelFileError, match="yarn_log_multiplier"):
        gguf_card("qwen2", **facts, rope__scaling__yarn_log_multiplier=0.1)
