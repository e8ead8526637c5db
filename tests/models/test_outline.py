"""Outlines against what they outline: transformers' own models, and files' own sums."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from tests.tiny import tiny_llama
from tests.tiny_models import save_tiny
from treadle.errors import ModelFileError
from treadle.models.loader import read_card
from treadle.models.outline import Outline
from treadle.models.outline_config import outline_from_config
from treadle.models.outline_files import outline_of
from treadle.models.weight_formats import FORMATS, num_bytes

SIZED = {"num_hidden_layers": 5, "vocab_size": 32000}


def default_config(kind: str, **options: Any) -> dict[str, Any]:
    """As transformers would save it; sizes that nobody names are the architecture's own."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZED, **options})
    return dict(json.loads(config.to_json_string(use_diff=False)))


def num_parameters(config: dict[str, Any]) -> int:
    auto = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(auto)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Llama", {}),
        ("Mistral", {}),
        ("Qwen2", {}),
        ("Qwen3", {}),
        ("Phi3", {"pad_token_id": 0}),
        ("Gemma2", {}),
        ("Gemma3Text", {}),
        ("Olmo2", {}),
        ("SmolLM3", {"pad_token_id": 0}),
        ("GPT2", {"n_layer": 5}),
        ("Mixtral", {}),
        ("Qwen2Moe", {}),
        ("Qwen3Moe", {}),
        ("Qwen3Moe", {"mlp_only_layers": [0, 3], "decoder_sparse_step": 2}),
        ("DeepseekV3", {"first_k_dense_replace": 2}),
        ("DeepseekV2", {"first_k_dense_replace": 1, "q_lora_rank": None}),
    ],
)
def test_a_configuration_says_how_many_weights_there_are(
    kind: str, options: dict[str, Any]
) -> None:
    config = default_config(kind, **options)
    outline = outline_from_config(config, name="x")
    assert outline.weights.values == pytest.approx(num_parameters(config), rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3-moe", "phi3", "gpt2"])
def test_headers_of_a_folder(name: str, tmp_path: Path) -> None:
    path = save_tiny(name, tmp_path)
    card, outline = read_card(path), outline_of(path)
    assert outline.weights.num_bytes == card.weight_bytes
    assert outline.max_positions == card.max_positions
    assert_same_kv(outline, path)
    assert bool(outline.head.values) != card.tied_head


@pytest.mark.parametrize("weight_type", ["f16", "q4_0"])
def test_the_header_of_a_gguf_file(weight_type: str, tmp_path: Path) -> None:
    path = tiny_llama(weight_type, tmp_path)
    outline = outline_of(path)
    assert outline.weights.num_bytes == read_card(path).weight_bytes
    assert_same_kv(outline, path)
    values = sum(a.values for layer in outline.layers for a in layer.weights.values())
    assert values > 0
    dense = outline_of(path, "f32")
    assert dense.weights.values == outline.weights.values
    assert dense.weights.num_bytes == 4 * dense.weights.values
    quantised = outline_of(path, "int4")
    assert quantised.embed == outline.embed, "embeddings stay as they are"
    assert quantised.weights.num_bytes < outline_of(path, "int8").weights.num_bytes


def test_weights_in_a_type_that_does_not_run_here(tmp_path: Path) -> None:
    """fp8 with its scales beside it: all of it counts, and goes where its matrix goes."""
    path = save_tiny("llama", tmp_path)
    stored = safetensors.torch.load_file(path / "model.safetensors")
    for name in [name for name in stored if name.endswith("_proj.weight")]:
        stored[name] = stored[name].to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = torch.ones(1, 1)
    safetensors.torch.save_file(stored, path / "model.safetensors")
    outline = outline_of(path)
    held = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    assert outline.weights.num_bytes == held
    kv = [t for name, t in stored.items() if re.search(r"layers\.0\..*[kv]_proj\.weight", name)]
    assert len(kv) == 4
    size = sum(tensor.numel() * tensor.element_size() for tensor in kv)
    assert outline.layers[0].weights["kv"].num_bytes == size


def test_an_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "foo"}')
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(ModelFileError, match=f"^{tmp_path}/config.json: field 'num_hidden"):
            outline_of(path)


def test_some_shards_are_no_weights(tmp_path: Path) -> None:
    """As where a download has ended early: then the configuration says how much there is."""
    path = save_tiny("llama", tmp_path)
    whole = outline_of(path)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    listed = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    outline = outline_of(path)
    assert outline.source.startswith("config.json")
    assert outline.weights.values == pytest.approx(whole.weights.values, rel=0.02)


def assert_same_kv(outline: Outline, path: Path) -> None:
    card = read_card(path)
    assert [layer.window for layer in outline.layers] == [
        layer.masking.window for layer in card.layer_cards
    ]
    for layer in outline.layers:
        assert (layer.kv_heads, layer.key_dim) == (card.kv_heads, card.head_dim)
        assert layer.value_dim == card.head_dim


def test_a_fused_tensor_is_shared_as_its_parts_are(tmp_path: Path) -> None:
    """Phi-3 has q, k and v in one."""
    path = save_tiny("phi3", tmp_path)
    layer = outline_of(path).layers[0]
    hidden = json.loads((path / "config.json").read_text())["hidden_size"]
    assert layer.weights["kv"].values == 2 * layer.kv_heads * layer.key_dim * hidden


def test_latent_attention_is_one_vector() -> None:
    outline = outline_from_config(default_config("DeepseekV3"), name="x")
    for layer in outline.layers:
        assert (layer.kv_heads, layer.key_dim, layer.value_dim) == (1, 512 + 64, 0)
    assert [layer.num_experts for layer in outline.layers] == [0, 0, 0, 256, 256]


def test_listed_windows_of_an_architecture_that_does_not_run_here() -> None:
    config = {**default_config("Llama"), "model_type": "strange", "sliding_window": 128}
    kinds = ["full_attention", "sliding_attention", "chunked_attention"]
    listed = outline_from_config(
        {**config, "num_hidden_layers": 3, "layer_types": kinds, "attention_chunk_size": 64},
        name="x",
    )
    assert [layer.window for layer in listed.layers] == [None, 128, 64]
    assert not listed.notes
    unlisted = outline_from_config(config, name="x")
    assert {layer.window for layer in unlisted.layers} == {None}
    assert "count as seeing everything" in unlisted.notes[0]
    with pytest.raises(ModelFileError, match="field 'layer_types' is"):
        outline_from_config({**config, "layer_types": ["mamba"] * 5}, name="x")


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
    ],
)
def test_formats_that_a_configuration_names(section: dict[str, Any], found: str) -> None:
    config = {**default_config("Llama", dtype="bfloat16"), "quantization_config": section}
    outline = outline_from_config(config, name="x")
    assert outline.source == f"config.json, layers in {found}"
    assert outline.embed.num_bytes == 2 * outline.embed.values


def test_a_format_that_is_not_known_is_named() -> None:
    config = {**default_config("Llama"), "quantization_config": {"quant_method": "hqq"}}
    with pytest.raises(ModelFileError, match=r"names the method 'hqq', .* f32, bf16"):
        outline_from_config(config, name="x")
    assert outline_from_config(config, name="x", weight_format="int4").weights.num_bytes


def test_formats_with_their_scales() -> None:
    """By hand, for 2²⁰ weights."""
    found = {kind: num_bytes(kind, 2**20) for kind in FORMATS}
    assert found == {
        "f32": 2**22,
        "bf16": 2**21,
        "f16": 2**21,
        "fp8": 2**20 + 64 * 4,
        "int8": 2**20 + 8192 * 3,
        "int4": 2**19 + 8192 * 2 + 8192 // 2,
        "mxfp4": 2**19 + 32768,
        "nvfp4": 2**19 + 65536,
    }


def test_the_language_model_inside_one_that_sees() -> None:
    inner = default_config("Gemma3Text")
    outer = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 9}}
    found = outline_from_config(outer, name="x")
    assert found.notes == ("the weights of its vision encoder are not counted",)
    assert dataclasses.replace(found, notes=()) == outline_from_config(inner, name="x")


def test_gemma_3_as_its_makers_publish_it() -> None:
    """They leave out what transformers takes for granted."""
    published = {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    whole = json.loads(transformers.Gemma3TextConfig(**published).to_json_string(use_diff=False))
    found = outline_from_config({"model_type": "gemma3", "text_config": published}, name="x")
    assert found == outline_from_config(whole, name="x")
    assert found.weights.values == pytest.approx(num_parameters(whole), rel=1e-3)
    assert found.max_positions == 131072
    windows = [layer.window for layer in found.layers]
    assert (windows.count(1024), windows.count(None)) == (52, 10)
