"""What stops the start of a whole engine, in process and as a server; the window it starts with;
and where answers end, as a model's files say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import TinyLlama, save_tiny_folder
from treadle import LLM, SamplingParams
from treadle.errors import ModelFileError, PromptTooLong, StartError

SRC = Path(__file__).parents[2] / "src"
INDEX = "model.safetensors.index.json"
EOS_OF_CONFIG, EOS_OF_GENERATION, EOS_OF_TOKENIZER = 3, 5, 2
"""The last is `<|im_end|>`, which ends a turn by its spelling."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_folder(TinyLlama(), tmp_path_factory.mktemp("start") / "tiny")
    change(folder / "config.json", eos_token_id=EOS_OF_CONFIG)
    change(
        folder / "generation_config.json",
        eos_token_id=[EOS_OF_CONFIG, EOS_OF_GENERATION],
        temperature=0.5,
    )
    assert len(set(read(folder / INDEX)["weight_map"].values())) > 2
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**read(path), **changes}))


def second_shard(folder: Path) -> Path:
    return folder / sorted(set(read(folder / INDEX)["weight_map"].values()))[1]


def lose_a_shard(folder: Path) -> str:
    second_shard(folder).unlink()
    return second_shard(folder).name


def cut_a_shard(folder: Path) -> str:
    shard = second_shard(folder)
    shard.write_bytes(shard.read_bytes()[:-1])
    return shard.name


def empty_a_shard(folder: Path) -> str:
    second_shard(folder).write_bytes(b"")
    return second_shard(folder).name


def list_a_ghost(folder: Path) -> str:
    listed = read(folder / INDEX)["weight_map"]
    change(folder / INDEX, weight_map={**listed, "model.ghost": second_shard(folder).name})
    return "'model.ghost'"


def add_a_tensor(folder: Path) -> str:
    shard = second_shard(folder)
    save_file({**load_file(shard), "score.weight": torch.ones(3)}, shard, {"format": "pt"})
    listed = read(folder / INDEX)["weight_map"]
    change(folder / INDEX, weight_map={**listed, "score.weight": shard.name})
    return "'score.weight'"


def ask_for_a_layer_more(folder: Path) -> str:
    change(folder / "config.json", num_hidden_layers=3)
    return "'model.layers.2."


DAMAGES = (
    lose_a_shard,
    cut_a_shard,
    empty_a_shard,
    list_a_ghost,
    add_a_tensor,
    ask_for_a_layer_more,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_is_not_whole(copy: Path, damage: Callable[[Path], str]) -> None:
    named = damage(copy)
    with pytest.raises(ModelFileError) as refused:
        LLM(str(copy))
    assert str(copy) in refused.value.message
    assert named in refused.value.message


@pytest.mark.parametrize("damage", [lose_a_shard, ask_for_a_layer_more])
def test_a_server_that_cannot_load_ends(copy: Path, damage: Callable[[Path], str]) -> None:
    named = damage(copy)
    done = subprocess.run(
        [sys.executable, "-m", "treadle.cli.main", "serve", str(copy), "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("treadle: ")
    assert named in last


def test_the_window_asked_for_holds(whole: Path) -> None:
    """Nothing is cut: a prompt that does not fit is refused."""
    with LLM(str(whole), max_model_len=64) as llm:
        assert len(llm.generate([[9] * 63], SamplingParams(max_tokens=1))[0].prompt_token_ids) == 63
        with pytest.raises(PromptTooLong, match="64 tokens"):
            llm.generate([[9] * 64], SamplingParams(max_tokens=1))
    with pytest.raises(StartError, match="max_model_len is 513; the model's window is 512"):
        LLM(str(whole), max_model_len=513)


@pytest.mark.parametrize("generation_config", ["auto", "none"])
def test_every_end_that_a_file_names(whole: Path, generation_config: str) -> None:
    """Also where the file's sampling parameters are not wanted, or others are asked for."""
    with LLM(str(whole), generation_config=generation_config) as llm:
        for end in (EOS_OF_CONFIG, EOS_OF_GENERATION, EOS_OF_TOKENIZER):
            forced = {"logit_bias": {end: 100.0}, "max_tokens": 4, "temperature": 0.1}
            (answer,) = llm.generate([[9, 10]], SamplingParams(**forced))[0].outputs
            assert (answer.finish_reason, answer.token_ids, answer.text) == ("stop", [end], "")
            # What ends a turn by its spelling alone counts as a stop token.
            assert answer.stop_reason == (None if end == EOS_OF_CONFIG else end)
            ignoring = SamplingParams(**forced, ignore_eos=True)
            (answer,) = llm.generate([[9, 10]], ignoring)[0].outputs
            assert (answer.finish_reason, answer.token_ids) == ("length", [end] * 4)
