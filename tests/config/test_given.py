"""Names, files and other engines' flags: what they become, and what goes before what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.config.setups import LAPTOP, SMALL
from treadle.cli import serve as serve_module
from treadle.cli.main import run
from treadle.config.aliases import ALIASES, meaning
from treadle.config.given import PLACES, engine_settings, server_settings
from treadle.config.resolve import resolve
from treadle.config.settings import EngineSettings, Given, ServerSettings
from treadle.errors import StartError

Seen = list[tuple[EngineSettings, ServerSettings]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found: Seen = []
    monkeypatch.setattr(serve_module, "run", lambda *settings: found.append(settings) or 0)
    return found


def flat(settings: EngineSettings) -> dict[str, Any]:
    return {
        name: value
        for section in (
            *(settings.model, settings.cache, settings.schedule, settings.policy),
            *(settings.order, settings.runtime),
        )
        for name, value in msgspec.structs.asdict(section).items()
        if value not in (None, [])
    }


STRATEGIES = (
    "policy",
    "order",
)
"""Sections of parameters that single strategies have."""


def test_there_are_at_most_sixty_settings() -> None:
    general = [name for name, section in PLACES.items() if section not in STRATEGIES]
    assert len(general) + 1 <= 60, "and the preset"


def test_every_alias_is_of_a_setting() -> None:
    for alias in ALIASES.values():
        assert not alias.setting or alias.setting in PLACES
        assert alias.name not in PLACES, "our own name needs no alias"
        if alias.refused:
            assert alias.note, alias.name


@pytest.mark.parametrize(
    ("flags", "became"),
    [
        (["--max-running-requests", "8"], {"max_num_seqs": 8}),
        (["--max_batch_size=8"], {"max_num_seqs": 8}),
        (["-np", "8"], {"max_num_seqs": 8}),
        (["--max_num_tokens", "100"], {"max_num_batched_tokens": 100}),
        (["--chunked-prefill-size", "100"], {"max_num_batched_tokens": 100}),
        (["--context-length", "99"], {"max_model_len": 99}),
        (["-c", "99", "-t", "3"], {"max_model_len": 99, "threads": 3}),
        (["--page-size", "1"], {"block_size": 1}),
        (["--kv-cache-dtype", "bfloat16"], {"kv_dtype": "bf16"}),
        (["--kv-cache-dtype", "auto"], {}),
        (["--disable-radix-cache"], {"prefix_cache": "none"}),
        (["--no-async-scheduling"], {"overlap_depth": 0}),
        (["--tp", "1", "--schedule-policy", "fcfs"], {}),
        (["--enable-chunked-prefill"], {"chunked_prefill": True}),
        (["--no-enable-chunked-prefill"], {"chunked_prefill": False}),
        (["--disable-chunked-prefill"], {"chunked_prefill": False}),
        (["--chunked-prefill-size", "-1"], {"chunked_prefill": False}),
        (["--chunked_prefill_size=0"], {"chunked_prefill": False}),
        (["--enable-mixed-chunk"], {"mixed_chunk": True}),
        (["--scheduler-reserve-full-isl"], {"reserve_full_prompt": True}),
        (["--no-scheduler-reserve-full-isl"], {"reserve_full_prompt": False}),
        (["--capacity_scheduler_policy", "GUARANTEED_NO_EVICT"], {"admission": "no-evict"}),
        (["--capacity-scheduler-policy=MAX_UTILIZATION"], {"admission": "max-utilization"}),
        (["--capacity-scheduler-policy", "STATIC_BATCH"], {"admission": "static"}),
        (["--context_chunking_policy", "EQUAL_PROGRESS"], {"chunk_policy": "equal-progress"}),
        (
            ["--context_chunking_policy", "FIRST_COME_FIRST_SERVED"],
            {"chunk_policy": "in-turn"},
        ),
        (["--retraction-policy", "length"], {"shortage": "retract-by-length"}),
        (["--retraction-policy", "priority"], {"shortage": "retract-by-priority"}),
        (["-tp", "1", "--swap-space", "0", "--task", "generate", "-fa", "on", "-cb"], {}),
        (["--enable_prefix_caching", "--max_logprobs=20"], {}),
        (["--scheduling-policy", "priority"], {"order": "priority"}),
        (["--schedule-policy", "lpm"], {"order": "lpm"}),
        (
            ["--schedule-policy", "fcfs", "--enable-priority-scheduling"],
            {"priorities": "count"},
        ),
        (["--abort-on-priority-when-disabled"], {"priorities": "abort"}),
        (
            ["--disable-priority-preemption", "--priority-scheduling-preemption-threshold=3"],
            {"priority_preemption": False, "priority_preemption_threshold": 3},
        ),
        (
            ["--schedule-policy=lof", "--schedule-low-priority-values-first"],
            {"order": "lof", "low_priority_values_first": True},
        ),
        (
            ["--gpu-memory-utilization", "0.5"],
            {"kv_memory_fraction": 0.5, "kv_memory_rule": "of-total"},
        ),
        (
            ["--mem-fraction-static", "0.5"],
            {"kv_memory_fraction": 0.5, "kv_memory_rule": "reserve"},
        ),
        (
            ["--kv_cache_free_gpu_memory_fraction", "0.5"],
            {"kv_memory_fraction": 0.5, "kv_memory_rule": "after-peak"},
        ),
    ],
)
def test_flags_of_others(flags: list[str], became: dict[str, Any], seen: Seen) -> None:
    assert run(["serve", "some.gguf", *flags]) == 0
    settings = seen.pop()[0]
    assert flat(settings) == {"model": "some.gguf", "generation_config": "auto", **became}
    words = " ".join(flags)
    for name in became:
        assert settings.given[name].words in words.replace("=", " ") + words
    if not became:
        assert settings.given, "what was asked for is not forgotten"


def test_a_model_may_be_named_by_a_flag(seen: Seen) -> None:
    for flag in ("--model-path", "-m", "--model"):
        assert run(["serve", flag, "some.gguf", "--port", "0"]) == 0
        assert seen.pop()[0].model.model == "some.gguf"


def test_values_are_not_taken_for_flags(seen: Seen) -> None:
    assert run(["serve", "--api-key", "--max-running-requests", "--", "m.gguf"]) == 0
    assert seen.pop()[1].api_key == ["--max-running-requests"]


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (["--tp", "2"], 1, "--tp 2 (SGLang) is 2; here it may be 1; several devices"),
        (["--enable-lora"], 1, "--enable-lora (vLLM, SGLang): LoRA adapters are not there"),
        (["--lora-modules", "a=b", "c=d"], 1, "--lora-modules a=b c=d (vLLM): LoRA"),
        (["--speculative-config", "{}"], 1, "speculative decoding is not there yet"),
        (["--schedule-policy", "edf"], 1, "--schedule-policy edf (SGLang) is edf"),
        (["--scheduling-policy", "lpm"], 1, "here it may be fcfs, priority"),
        (["--kv-cache-dtype", "fp8"], 1, "here it may be auto, float16"),
        (["--trust-remote-code"], 1, "none of their code is run"),
        (["-ngl", "99"], 1, "no kernels for GPUs"),
        (
            ["--chunked-prefill-size", "-2"],
            2,
            "--chunked-prefill-size (max_num_batched_tokens here): -2 is not in the range",
        ),
        (["--capacity-scheduler-policy", "LATER"], 1, "here it may be GUARANTEED_NO_EVICT, MAX_"),
        (
            ["--chunked-prefill-size", "-1", "--enable-chunked-prefill"],
            *(2, "--chunked-prefill-size and --enable-chunked-prefill both set chunked_prefill"),
        ),
        (["--max-num-batched-tokens", "0"], 2, "'--max-num-batched-tokens': 0 is not"),
        (["--max-num-seqs", "9" * 20], 2, "is not in the range 1<=x<=65536"),
        (["--gpu-memory-utilization", "nan"], 1, "kv_memory_fraction is nan: it must be a number"),
        (["--queue-timeout", "inf"], 1, "queue_timeout is inf: it must be a number, at least 0"),
        (["--api-key", ""], 1, "api_key: it must be a list, each of it text that is not empty"),
        (["--served-model-name", ""], 1, "each of it text that is not empty"),
        (
            ["--enable-prefix-caching", "--no-enable-prefix-caching"],
            1,
            "--enable-prefix-caching asks for what prefix_cache none turns off",
        ),
        (["--prefix-cache", "none", "--enable-prefix-caching"], 1, "prefix_cache none turns off"),
        (["--seed", "0"], 1, "--seed 0 (vLLM): a seed is a request's"),
        (["--log-level", "debug"], 1, "here it may be info; the log has one level"),
        (["--max-running-requests"], 2, "--max-running-requests needs a value"),
        (["--max-num-seqs", "4", "--max-running-requests", "5"], 2, "both set max_num_seqs"),
        (["--max-running-requests", "5", "--max-num-seqs", "4"], 2, "both set max_num_seqs"),
        (
            ["--gpu-memory-utilization", "0.5", "--mem-fraction-static", "0.5"],
            2,
            "both set kv_memory_fraction",
        ),
    ],
)
def test_what_cannot_be_is_said(
    flags: list[str], status: int, says: str, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *flags]) == status
    assert says in capsys.readouterr().err
    assert not seen


def test_every_refused_flag_is_refused_by_its_name() -> None:
    for alias in ALIASES.values():
        if alias.refused:
            with pytest.raises(StartError, match=f"^--{alias.name} "):
                meaning(alias, f"--{alias.name}", "1")


def test_a_caller_may_use_other_names_too() -> None:
    settings = engine_settings(
        {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 1, "enforce_eager": False}
    )
    assert settings.cache.kv_memory_fraction == 0.5
    assert settings.given["kv_memory_rule"].words == "gpu_memory_utilization=0.5"
    assert engine_settings({"enable_prefix_caching": False}).cache.prefix_cache == "none"
    with pytest.raises(StartError, match="enforce_eager=True"):
        engine_settings({"enforce_eager": True})
    with pytest.raises(StartError, match="kv_memory_fraction is set twice"):
        engine_settings({"gpu_memory_utilization": 0.5, "mem_fraction_static": 0.6})
    with pytest.raises(StartError, match="preset is 'vlm': it must be one of sglang, treadle"):
        engine_settings({"preset": "vlm"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.toml"
    path.write_text(
        'preset = "vllm"\n[model]\nmodel = "m.gguf"\n[cache]\nblock_size = 1\n'
        "[schedule]\nmax_num_seqs = 9\noverlap_depth = 0\n"
        '[server]\nport = 1234\napi_key = ["in-file"]\n'
    )
    return path


def test_what_goes_before_what(file: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_API_KEY", "in-environment")
    assert run(["serve", "--config", str(file), "--max-num-seqs", "5"]) == 0
    settings, server = seen.pop()
    assert settings.model.model == "m.gguf"
    assert (server.port, server.api_key) == (1234, ["in-environment"])
    resolved = resolve(settings, SMALL, LAPTOP)
    sources = {name: reason.source for name, reason in resolved.reasons.items()}
    assert resolved.schedule.max_num_seqs == 5
    assert sources["max_num_seqs"] == "argument"
    assert (resolved.cache.block_size, sources["block_size"]) == (1, "config file")
    assert resolved.reasons["block_size"].sentence == f"in {file}"
    assert (resolved.schedule.overlap_depth, sources["overlap_depth"]) == (0, "config file")
    assert (resolved.cache.prefix_cache, sources["prefix_cache"]) == ("hashed", "preset")
    assert sources["backend"] == "default"
    assert settings.given["api_key"].source == "environment"

    assert run(["serve", "other.gguf", "--config", str(file), "--preset", "sglang"]) == 0
    settings, server = seen.pop()
    assert (settings.model.model, settings.preset) == ("other.gguf", "sglang")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[cache]\nblok_size = 1", r"\[cache\] has no 'blok_size'; the nearest is block_size"),
        ("[cach]\nblock_size = 1", r"there is no 'cach'; .*; did you mean cache\?"),
        (
            "[cache]\ngpu_memory_utilization = 0.5",
            r"it is kv_memory_fraction under \[cache\], with kv_memory_rule = \"of-total\" beside",
        ),
        (
            "[policy]\nwatermark = 1.0",
            r"watermark is 1.0: it must be a number, at least 0 and below 1",
        ),
        ("[cache]\nmax_num_seqs = 1", r"no 'max_num_seqs'; it is max_num_seqs under \[schedule\]"),
        ("[schedule]\nmax_running_requests = 1", r"it is max_num_seqs under \[schedule\]"),
        ("max_num_seqs = 1", r"'max_num_seqs' belongs under \[schedule\]"),
        ("[cach]\n", r"there is no 'cach'; a file has preset, and the tables \[model\]"),
        ("cache = 1", "cache is a table of settings"),
        ("[cache]\nblock_size = 3", r"toml: \[cache\] block_size is 3: it must be one of 1, 2, 4"),
        ("[cache]\nkv_memory_fraction = nan", "is nan: it must be a number, above 0 and at most 1"),
        ("[cache]\nkv_cache_memory_bytes = '2GiB'", "is '2GiB': it must be a whole number"),
        ("[schedule]\nmax_num_seqs = true", "is true: it must be a whole number, at least 1 and"),
        ("[schedule]\nmax_num_seqs = '16'", r"is '16': it must be a whole number"),
        ("[schedule]\nmax_num_seqs = -3", r"wrong.toml: \[schedule\] max_num_seqs is -3"),
        ("[model]\nserved_model_name = 'x'", "it must be a list, each of it text"),
        ("[server]\nport = 70000", r"\[server\] port is 70000: .* at least 0 and at most 65,535"),
        ("[server]\nhttp_timeout = inf", "http_timeout is inf: it must be a number, above 0"),
        ("[server]\nenable_timings = 1", "it must be true or false"),
        ("preset = 3", "wrong.toml: preset is 3: it must be one of sglang, treadle"),
        ("[cache", "not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(StartError, match=says):
        engine_settings({"config": path})
    path.unlink()
    with pytest.raises(StartError, match="No such file"):
        server_settings({}, path)


def test_a_key_in_a_file_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    for text in ('api_key = "hush-hush"', "api_key = ['hush-hush', 3]", "admin_api_key = ['hush']"):
        path.write_text(f"[server]\n{text}\n")
        with pytest.raises(StartError, match="api_key: it must be") as caught:
            server_settings({}, path)
        assert "hush" not in caught.value.message


def test_our_own_names_may_have_underscores(seen: Seen) -> None:
    assert run(["serve", "--max_num_seqs", "5", "--kv_dtype=f32", "m.gguf"]) == 0
    assert flat(seen.pop()[0]) == {
        "model": "m.gguf",
        "generation_config": "auto",
        "max_num_seqs": 5,
        "kv_dtype": "f32",
    }


def test_marks_cross_to_the_engine() -> None:
    settings = engine_settings({"max_running_requests": 3})
    assert msgspec.json.decode(msgspec.json.encode(settings), type=EngineSettings) == settings
    assert settings.given["max_num_seqs"] == Given("argument", "max_running_requests=3")


def test_chunks_are_switched_off_from_python_too() -> None:
    for settings in ({"chunked_prefill_size": -1}, {"enable_chunked_prefill": False}):
        found = engine_settings(settings)
        assert found.policy.chunked_prefill is False
        assert found.schedule.max_num_batched_tokens is None
