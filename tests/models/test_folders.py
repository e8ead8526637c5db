"""Hugging Face folders: heads that are tied or not, what is refused and how it is named, and what
else config.json and generation_config.json say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.models.parity import largest_difference, our_logits, reference_logits
from tests.tiny_models import FIRST_OF_KIND, VOCAB_SIZE, change_config, save_tiny, tiny_model
from treadle.errors import ModelFileError
from treadle.kernels.torch.backend import TorchBackend
from treadle.models.loader import load_model, read_card
from treadle.models.safetensors import SafetensorsFolder

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = list(range(0, 60, 3))
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

State = dict[str, torch.Tensor]
Rewrite = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@pytest.fixture
def backend() -> TorchBackend:
    return TorchBackend(threads=1)


@pytest.fixture
def rewritten(folder: Path, tmp_path: Path) -> Rewrite:
    """Copy a tiny model, with its tensors changed by `change` and other keys in its config."""

    def rewrite(
        name: str, change: Callable[[State], object] = lambda _: None, **config: Any
    ) -> Path:
        path = tmp_path / name
        shutil.copytree(save_tiny(name, folder), path)
        state = load_file(path / "model.safetensors")
        change(state)
        save_file(state, path / "model.safetensors", {"format": "pt"})
        change_config(path, **config)
        return path

    return rewrite


def difference(path: Path, name: str, backend: TorchBackend) -> float:
    ours = our_logits(backend, load_model(path, backend), IDS)
    return largest_difference(ours, reference_logits(tiny_model(name), IDS))


def from_transformers(path: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return reference_logits(model.eval(), IDS)


def refusal(path: Path, backend: TorchBackend) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(path, backend)
    message = caught.value.message
    assert message.startswith(f"{path}")
    assert message.count(str(path)) == 1
    assert "\n" not in message
    return message


def test_a_tied_head(rewritten: Rewrite, backend: TorchBackend) -> None:
    path = rewritten("qwen2")
    card = read_card(path)
    assert card.tied_head
    assert card.notes == ()
    assert difference(path, "qwen2", backend) < 1e-4


@pytest.mark.parametrize("factor", [1, -2])
def test_a_tied_head_wins_over_a_stored_one(
    rewritten: Rewrite, backend: TorchBackend, factor: float
) -> None:
    path = rewritten("qwen2", lambda state: state.update({HEAD: factor * state[EMBEDDING]}))
    (note,) = read_card(path).notes
    assert HEAD in note
    assert "tie_word_embeddings" in note
    assert read_card(path).weight_bytes == read_card(rewritten_copy(path)).weight_bytes
    assert difference(path, "qwen2", backend) < 1e-4


def rewritten_copy(path: Path) -> Path:
    """The same folder without a head."""
    copy = shutil.copytree(path, path.parent / "without-head")
    state = load_file(copy / "model.safetensors")
    del state[HEAD]
    save_file(state, copy / "model.safetensors", {"format": "pt"})
    return copy


def test_an_untied_head_must_be_there(rewritten: Rewrite, backend: TorchBackend) -> None:
    path = rewritten("llama3", lambda state: state.pop(HEAD))
    assert f"tensor '{HEAD}' is missing" in refusal(path, backend)


@pytest.mark.parametrize(("name", "tied"), [("llama3", False), ("gemma2", True), ("gpt2", True)])
def test_a_config_that_does_not_say_whether_the_head_is_tied(
    rewritten: Rewrite, backend: TorchBackend, name: str, tied: bool
) -> None:
    path = rewritten(name, tie_word_embeddings=...)
    assert read_card(path).tied_head is tied
    assert difference(path, name, backend) < 1e-4


def test_harmless_surplus(rewritten: Rewrite, backend: TorchBackend) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    path = rewritten("llama3", lambda state: state.update({name: torch.ones(8)}))
    assert difference(path, "llama3", backend) < 1e-4


@pytest.mark.parametrize(
    "name",
    ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight", "score.weight"],
)
def test_surplus(rewritten: Rewrite, backend: TorchBackend, name: str) -> None:
    path = rewritten("llama3", lambda state: state.update({name: torch.ones(8)}))
    assert f"tensor '{name}' is not part" in refusal(path, backend)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_missing(rewritten: Rewrite, backend: TorchBackend, name: str) -> None:
    path = rewritten("llama3", lambda state: state.pop(name))
    assert f"tensor '{name}' is missing" in refusal(path, backend)


def test_a_layer_more_than_the_weights(rewritten: Rewrite, backend: TorchBackend) -> None:
    path = rewritten("llama3", num_hidden_layers=3)
    assert "tensor 'model.layers.2." in refusal(path, backend)


def test_shape(rewritten: Rewrite, backend: TorchBackend) -> None:
    path = rewritten("gpt2", lambda s: s.update({"transformer.h.1.mlp.c_fc.weight": s_up(s)[1:]}))
    message = refusal(path, backend)
    assert "'transformer.h.1.mlp.c_fc.weight' has shape [63, 96]; expected [64, 96]" in message


def s_up(state: State) -> torch.Tensor:
    return state["transformer.h.1.mlp.c_fc.weight"]


@pytest.mark.parametrize("damage", ["gone", "short", "empty"])
def test_a_shard_that_is_not_whole(tmp_path: Path, backend: TorchBackend, damage: str) -> None:
    path = tmp_path / "shards"
    tiny_model("llama3").save_pretrained(path, max_shard_size="100KB")
    shard = sorted(path.glob("*-of-*.safetensors"))[1]
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1] if damage == "short" else b"")
    assert shard.name in refusal(path, backend)


def test_shards(tmp_path: Path, backend: TorchBackend) -> None:
    path = tmp_path / "shards"
    tiny_model("llama3").save_pretrained(path, max_shard_size="100KB")
    assert len(list(path.glob("*-of-*.safetensors"))) > 2
    assert difference(path, "llama3", backend) < 1e-4


@pytest.mark.parametrize("name", FIRST_OF_KIND)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(
    rewritten: Rewrite, backend: TorchBackend, name: str, dtype: torch.dtype
) -> None:
    path = rewritten(name, lambda s: s.update({key: w.to(dtype) for key, w in s.items()}))
    ours = our_logits(backend, load_model(path, backend), IDS)
    assert largest_difference(ours, from_transformers(path)) < 1e-4
    assert largest_difference(ours, reference_logits(tiny_model(name), IDS)) > 1e-4


def test_experts_in_one_tensor(rewritten: Rewrite, backend: TorchBackend) -> None:
    """As transformers holds them in memory, and some folders on disk."""

    def fuse(state: State) -> None:
        pattern = re.compile(r"model\.layers\.\d+\.mlp\.experts\.")
        for key in [key for key in state if pattern.match(key)]:
            del state[key]
        state.update(
            {k: w for k, w in tiny_model("qwen3-moe").state_dict().items() if pattern.match(k)}
        )
        assert "model.layers.0.mlp.experts.gate_up_proj" in state

    assert difference(rewritten("qwen3-moe", fuse), "qwen3-moe", backend) < 1e-4


def test_gpt2_as_first_published(rewritten: Rewrite, backend: TorchBackend) -> None:
    """Names without a prefix, causal masks among the weights, few keys."""

    def rename(state: State) -> None:
        for key in list(state):
            state[key.removeprefix("transformer.")] = state.pop(key)
        state["h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
        state["h.1.attn.masked_bias"] = torch.tensor([-1e4])

    path = rewritten("gpt2", rename, tie_word_embeddings=..., layer_norm_epsilon=1e-3)
    assert difference(path, "gpt2", backend) < 1e-4


def test_every_tensors_pages_are_given_back_once(
    folder: Path, backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []
    monkeypatch.setattr(SafetensorsFolder, "drop", lambda self, name: dropped.append(name))
    for name in ("mixtral", "phi3", "gemma2"):
        dropped.clear()
        path = save_tiny(name, folder)
        load_model(path, backend)
        assert sorted(dropped) == sorted(load_file(path / "model.safetensors"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, ["'model_type' is 'mamba'", "llama", "gemma3_text"]),
        ({"model_type": ...}, ["'model_type' is missing"]),
        ({"hidden_size": ...}, ["'hidden_size' is missing"]),
        ({"hidden_size": "64"}, ["'hidden_size' is '64'"]),
        ({"num_hidden_layers": 1000}, ["'num_hidden_layers' is 1000"]),
        ({"num_key_value_heads": 3}, ["'num_key_value_heads' is 3"]),
        ({"hidden_act": "relu"}, ["'hidden_act' is 'relu'", "silu"]),
        ({"eos_token_id": [2, VOCAB_SIZE]}, ["'eos_token_id' is [2, 97]"]),
        ({"eos_token_id": 2.5}, ["'eos_token_id' is 2.5"]),
        ({"partial_rotary_factor": 0.1}, ["'partial_rotary_factor' is 0.1"]),
        ({"rope_parameters": 5}, ["'rope_parameters' is 5"]),
        ({"rope_parameters": {"rope_type": "x"}}, ["'rope_parameters.rope_type' is 'x'", "yarn"]),
        (
            {"rope_parameters": ..., "rope_scaling": {"type": "mrope"}},
            ["'rope_scaling.type' is 'mrope'"],
        ),
        (
            {"rope_parameters": {"rope_type": "linear"}},
            ["'rope_parameters.factor' is missing"],
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, ["'gptq'", "bf16"]),
    ],
    ids=str,
)
def test_configs_that_cannot_be(
    rewritten: Rewrite, backend: TorchBackend, config: dict[str, Any], words: list[str]
) -> None:
    message = refusal(rewritten("llama3", **config), backend)
    for word in words:
        assert word in message


def test_layer_types_that_cannot_be(rewritten: Rewrite, backend: TorchBackend) -> None:
    for kinds in (["full_attention"], ["full_attention", "linear_attention", "full_attention"]):
        path = rewritten("gemma2", layer_types=kinds)
        assert "'layer_types'" in refusal(path, backend)
        shutil.rmtree(path)


def generation(path: Path, **content: Any) -> Path:
    (path / "generation_config.json").write_text(json.dumps(content))
    return path


def test_ends_are_those_of_both_configs(rewritten: Rewrite) -> None:
    path = generation(rewritten("llama3", eos_token_id=2), eos_token_id=[2, 5])
    assert read_card(path).eos_ids == (2, 5)
    assert read_card(generation(path, eos_token_id=7)).eos_ids == (2, 7)
    assert read_card(generation(path)).eos_ids == (2,)
    (path / "generation_config.json").unlink()
    assert read_card(path).eos_ids == (2,)
    change_config(path, eos_token_id=None, bos_token_id=None)
    assert (read_card(path).eos_ids, read_card(path).bos_id) == ((), None)
