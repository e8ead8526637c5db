"""`treadle plan`: the text for a model whose figures are known, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from treadle.cli.main import run

DATA = Path(__file__).parent / "data"
MODEL = str(DATA / "llama-70b.json")
DEEPSEEK = str(DATA / "deepseek-v3.json")
EXAMPLE = [MODEL, "--gpu-memory", "80GB", "--tp", "4", "--overhead", "5GB"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["plan", *arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    return dict(json.loads(planned(capsys, *arguments, "--json")))


def test_four_cards_of_80_gb(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of the page, as it is in docs/planning.md."""
    text = planned(capsys, *EXAMPLE, "--weights", "141GB")
    assert text == (DATA / "plan-llama-70b.txt").read_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    assert text in page


@pytest.mark.parametrize(
    "figure",
    ["80 KiB", "320 KiB", "33.35 GB", "34.75 GB", "35.775 GB", "133.4 GB", "139 GB", "143.1 GB",
     "14,800", "0.819", "30.27 GB", "121.08 GB", "407,104", "424,194", "436,706", "25,444",
     "13,647"],
)  # fmt: skip
def test_its_figures(capsys: pytest.CaptureFixture[str], figure: str) -> None:
    assert figure in planned(capsys, *EXAMPLE, "--weights", "141GB")


def test_weights_as_the_configuration_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    values = as_json(capsys, *EXAMPLE)
    assert values["model"]["parameters"] == pytest.approx(70.55e9, rel=1e-3)  # type: ignore[index]


def test_latent_attention_over_eight_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """671 billion weights in fp8; 61 × 576 numbers a token, on every device."""
    arguments = [DEEPSEEK, "--device", "h200-141gb", "--tp", "8", "--ep", "8"]
    values = as_json(capsys, *arguments)
    assert values["model"]["parameters"] == pytest.approx(671e9, rel=2e-3)  # type: ignore[index]
    stage = values["stages"][0]  # type: ignore[index]
    assert stage["kv_bytes_per_token_per_device"] == 61 * 576 * 2
    text = planned(capsys, *arguments)
    assert "61 layers × 576 numbers in bf16, the same on every device" in text
    assert "tensor parallel 8, expert parallel 8" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_options_change_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    plain = planned(capsys, *EXAMPLE)
    assert "KV of a token    40 KiB a device" in planned(capsys, *EXAMPLE, "--kv-dtype", "fp8")
    assert "layers in int4" in planned(capsys, *EXAMPLE, "--weight-dtype", "int4")
    assert "of 1,000" in planned(capsys, *EXAMPLE, "--request-tokens", "1000")
    assert "mem_fraction_static 0.7\n" in planned(capsys, *EXAMPLE, "--mem-fraction-static", "0.7")
    assert "of 8,192" in planned(capsys, *EXAMPLE, "--max-model-len", "8192")
    for option in ("--gpu-memory-utilization", "--free-gpu-memory-fraction"):
        assert planned(capsys, *EXAMPLE, option, "0.8") != plain
    assert "No --overhead was given" in planned(capsys, MODEL, "--gpu-memory", "160GB")
    told = planned(capsys, *EXAMPLE[:-1], "estimate")
    assert "1.671 GB a device, estimated: 8,192 tokens × (2 × 8,192 + 3 ×" in told
    assert "-     1.671 GB  activations: estimated" in told
    assert "No --overhead" not in told
    assert max(len(line) for line in told.splitlines()) <= 80


def test_layers_with_windows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Gemma 3 270M: 15 of 18 layers look back 512 tokens, and there is one KV head."""
    config = {
        "model_type": "gemma3_text",
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "vocab_size": 262144,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    lengths = [option for n in (10, 100, 1000, 10_000) for option in ("--request-tokens", str(n))]
    text = planned(capsys, str(path), "--gpu-memory", "24GB", "--kv-dtype", "int8", *lengths)
    assert "18 layers, 1 KV head of 256; 15 look back 512 tokens" in text
    assert "blocks of 16 among 6 groups of layers, one of them null" in " ".join(text.split())
    assert text.count("requests at once") == 2, "three lengths have room side by side"
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_gguf_file_by_its_header(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = planned(capsys, str(tiny_llama("q4_0", tmp_path)), "--gpu-memory", "24GB")
    assert "its header" in text


def test_several_devices_in_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        planned(capsys, MODEL, "--gpu-memory", *rest)
        for rest in (["4x80GB"], ["80GB", "--tp", "4"])
    ]
    assert words[0] == words[1]


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(capsys, MODEL, "--gpu-memory", "24GB")
    assert "requests at once" not in text
    flowing = " ".join(text.split())
    assert flowing.count("what a step takes need more than the device has") == 3
    assert "kept free" not in flowing


def test_a_rule_that_leaves_nothing_is_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(capsys, MODEL, "--gpu-memory", "80GB", "--tp", "2", "--overhead", "6GB")
    assert "vllm                       none" in text
    assert "gpu_memory_utilization 0.92 leaves no memory for KV" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "2"], "name a device's memory with --gpu-memory, or a device with --device"),
        (["--gpu-memory", "80XB"], "there is no device '80XB'"),
        (["--device", "unknown-gpu"], "the memory of 'unknown-gpu' is not known"),
        (["--gpu-memory", "4x80GB", "--tp", "2"], "'4 × 80GB' and --tp 2 say different numbers"),
        (["--gpu-memory", "80GB", "--tp", "3"], "tensor parallelism is 3"),
        (["--gpu-memory", "80GB", "--max-model-len", "200000"], "the model's window is 131072"),
        (["--gpu-memory", "80GB", "--overhead", "much"], "overhead is 'much'"),
        (["--gpu-memory", "80GB", "--device", "l4-24gb"], "both say what memory there is"),
        (
            ["--gpu-memory", "80GB", "--max-model-len", "4096", "--request-tokens", "8192"],
            "request_tokens is 8192; a window holds 4096 tokens",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", MODEL, *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_fraction_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", MODEL, "--gpu-memory", "80GB", "--gpu-memory-utilization", "nan"]
    assert run(arguments) == 2
    assert "nan is not in the range 0<x<=1" in capsys.readouterr().err
