"""Models on the Hugging Face hub, through its own library, from a hub on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from tests.models.fake_hub import COMMIT, FakeHub, fake_hub
from tests.text.vocabularies import byte_level_json

SRC = Path(__file__).parents[2] / "src"

CHAT = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
NEEDED = {
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}
GGUF_FILES = {
    "one": ["one-f16.gguf", "mmproj-one-f16.gguf", "README.md", "config.json"],
    "several": ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-Q8_0.gguf", "sub/m-BF16.gguf"],
    "split": ["m-q8_0-00001-of-00002.gguf", "m-q8_0-00002-of-00002.gguf", "m-q2_k.gguf"],
    "nothing": ["README.md", "config.json", "pytorch_model.bin"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as transformers fills one, and what others put beside it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1206,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config)
    logging.disable_progress_bar()
    model.save_pretrained(folder, max_shard_size="200KB")
    logging.enable_progress_bar()
    (folder / "tokenizer.json").write_text(byte_level_json())
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "chat_template.jinja").write_text(CHAT)
    (folder / "onnx").mkdir()
    for other in ("README.md", "pytorch_model.bin", "onnx/model.onnx", "modeling_tiny.py"):
        (folder / other).write_text("not wanted")
    return folder


@pytest.fixture
def hub(checkpoint: Path, tmp_path: Path) -> Iterator[FakeHub]:
    repositories = {"org/tiny": checkpoint, "org/gated": checkpoint}
    for name, files in GGUF_FILES.items():
        for file in files:
            path = tmp_path / "repositories" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"GGUF" + file.encode())
        repositories[f"org/{name}"] = tmp_path / "repositories" / name
    with fake_hub(repositories) as running:
        running.gated.add("org/gated")
        yield running


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    """The library reads it at import, so all of these tests take processes of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    home = str(tmp_path / "home")
    return {**kept, "PYTHONPATH": str(SRC), "HF_ENDPOINT": hub.url, "HF_HOME": home}


def treadle(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treadle.cli.main", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def resolve(environment: dict[str, str], *names: str) -> list[str]:
    """For each name the path below its snapshot, or why there is none."""
    script = (
        "import sys\n"
        "from treadle.errors import StartError\n"
        "from treadle.models.source import resolve_model\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        print(resolve_model(name, False))\n"
        "    except StartError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return [line.rpartition(f"{COMMIT}/")[2] for line in done.stdout.splitlines()]


def test_a_checkpoint_is_pulled_once_and_then_used(
    hub: FakeHub, environment: dict[str, str], checkpoint: Path
) -> None:
    first = treadle(environment, "pull", "--no-progress", "org/tiny")
    assert (first.returncode, first.stderr) == (0, "")
    folder = Path(first.stdout.strip())
    shards = {path.name for path in checkpoint.glob("model-*.safetensors")}
    assert len(shards) > 2
    assert set(hub.fetched) == NEEDED | shards
    assert len(hub.fetched) == len(set(hub.fetched))
    assert {path.name for path in folder.iterdir()} == NEEDED | shards

    arguments = ("generate", "hello", "--max-tokens", "8", "--max-model-len", "64", "--model")
    expected = treadle(environment, *arguments, str(checkpoint))
    assert expected.returncode == 0
    again = treadle(environment, *arguments, "org/tiny")
    assert (again.returncode, again.stdout) == (0, expected.stdout)
    assert len(hub.fetched) == len(set(hub.fetched))
    hub.close()
    down = treadle(environment, *arguments, "org/tiny")
    assert (down.returncode, down.stdout) == (0, expected.stdout)


def test_a_plan_fetches_the_configuration_alone(
    hub: FakeHub, environment: dict[str, str], checkpoint: Path
) -> None:
    size = ("--gpu-memory", "24GB", "--json")
    planned = treadle(environment, "plan", "org/tiny", *size)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert hub.fetched == ["config.json"]
    whole = json.loads(treadle(environment, "plan", str(checkpoint), *size).stdout)
    from_config = json.loads(planned.stdout)
    assert whole["stages"][0]["kv_bytes_per_token_per_device"] == 2 * 2 * 4 * 16 * 4
    assert from_config["stages"] == whole["stages"]
    refused = treadle(environment, "plan", "org/gated", *size)
    assert "its owner asks for terms" in refused.stderr


def test_which_gguf_file_is_meant(hub: FakeHub, environment: dict[str, str]) -> None:
    answers = resolve(
        environment,
        "org/one",
        "org/several:Q8_0",
        "org/several:bf16",
        "org/several:m-BF16.gguf",
        "org/several:ud-q4_k_m",
        "org/several:m-Q4_K_M.gguf",
        "org/split:Q8_0",
        "org/split:m-q8_0-00002-of-00002.gguf",
        "org/tiny@v1",
    )
    assert answers[:-1] == [
        "one-f16.gguf",
        "m-Q8_0.gguf",
        "sub/m-BF16.gguf",
        "sub/m-BF16.gguf",
        "m-UD-Q4_K_M.gguf",
        "m-Q4_K_M.gguf",
        "m-q8_0-00001-of-00002.gguf",
        "m-q8_0-00001-of-00002.gguf",
    ]
    assert Path(answers[-1]).is_dir()
    weights = [name for name in hub.fetched if name.endswith(".gguf")]
    assert sorted(weights) == sorted({*answers[:-1], "m-q8_0-00002-of-00002.gguf"})


def test_gguf_files_in_the_cache_need_no_hub(hub: FakeHub, environment: dict[str, str]) -> None:
    asked = ("org/one", "org/several:Q8_0", "org/split:q8_0")
    answers = resolve(environment, *asked)
    hub.status = 503
    assert resolve(environment, *asked) == answers
    hub.close()
    *found, missing = resolve(environment, *asked, "org/several:BF16")
    assert found == answers
    assert "has no GGUF file 'BF16'; it has m-Q8_0.gguf" in missing


REFUSED = {
    "org/several": "several GGUF files, so name one as in org/several:FILE: m-Q4_K_M.gguf, ",
    "org/several:Q4_K_M": "several GGUF files, .*: m-Q4_K_M.gguf, m-UD-Q4_K_M.gguf$",
    "org/several:Q5_0": "has no GGUF file 'Q5_0'; it has m-Q4_K_M.gguf, m-Q8_0.gguf, ",
    "org/nothing": "no model in safetensors with config.json, and no GGUF file$",
    "org/unknown": "there is no such model, or none that you may see$",
    "org/gated": "its owner asks for terms to be accepted on its page first",
    "org/tiny:Q4_0": "no model in safetensors with config.json, and no GGUF file$",
    "org/tiny@v9": "it has no revision 'v9'$",
}


def test_what_cannot_be_had_is_one_sentence(hub: FakeHub, environment: dict[str, str]) -> None:
    for (name, why), line in zip(REFUSED.items(), resolve(environment, *REFUSED), strict=True):
        assert re.split("[@:]", name)[0] in line
        assert re.search(why, line), line
    assert hub.fetched == []
    done = treadle(environment, "pull", "org/several")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("treadle: org/several on the Hugging Face hub has several GGUF files")


def test_a_cache_that_cannot_be_written(environment: dict[str, str]) -> None:
    (line,) = resolve({**environment, "HF_HOME": "/proc/cache"}, "org/one")
    assert re.match("cannot get org/one from the Hugging Face hub: .*/proc/cache", line)


def test_a_hub_that_goes_away_midway(hub: FakeHub, environment: dict[str, str]) -> None:
    hub.broken.add("m-Q8_0.gguf")
    (why,) = resolve(environment, "org/several:Q8_0")
    assert why.startswith("cannot get org/several from the Hugging Face hub: ")
    hub.broken.clear()
    assert resolve(environment, "org/several:Q8_0") == ["m-Q8_0.gguf"]


def test_a_killed_download_harms_no_later_one(hub: FakeHub, environment: dict[str, str]) -> None:
    hub.stalls.add("m-Q8_0.gguf")
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle.cli.main", "pull", "--no-progress", "org/several:Q8_0"],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert hub.stalled.wait(15)
    finally:
        process.kill()
        process.wait()
    hub.stalls.clear()
    assert resolve(environment, "org/several:Q8_0") == ["m-Q8_0.gguf"]
