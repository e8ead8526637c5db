"""Cards from metadata: values, defaults, and every refusal naming its key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.tiny import TinyLlama, rope_factors
from treadle.errors import ModelFileError
from treadle.kernels.ops import KVSpec, RawTensor, WeightType
from treadle.models.card import ModelCard
from treadle.models.gguf_card import card_from_gguf
from treadle.models.rope import Divided, Plain, rope_table

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
    assert (made.bos_id, made.eos_ids) == (1, (3, 7))
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
