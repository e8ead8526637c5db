"""Explanations: as written down, within 80 columns, and with the states that the audit found."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from tests.config.golden import DATA, goldens
from tests.config.setups import LAPTOP, SMALL
from tests.tiny import tiny_llama
from treadle.cli.main import run
from treadle.config.axis_states import absent_axes
from treadle.config.device import described
from treadle.config.difference import Difference
from treadle.config.explain import Case, Explanation, explain
from treadle.config.explain_text import WIDTH, show, show_differences
from treadle.config.given import engine_settings
from treadle.config.mechanisms import ROWS
from treadle.config.presets import PRESETS
from treadle.config.replay import parse_step
from treadle.config.resolve import resolve
from treadle.config.settings import (
    CacheSettings,
    EngineSettings,
    PresetName,
    ServerSettings,
)
from treadle.config.topics import CAUSES, TOPICS, Fixed, IsOn

PRESET_NAMES: tuple[PresetName, ...] = get_args(PresetName)
SERVER = ServerSettings(api_key=["a secret"], admin_api_key="another secret")


def case(preset: PresetName, device: str | None = None, **cache: Any) -> Case:
    settings = EngineSettings(preset=preset, usage="server", cache=CacheSettings(**cache))
    return Case(settings, SMALL, LAPTOP, described(device) if device else None, SERVER)


@pytest.mark.parametrize(("name", "content"), list(goldens()))
def test_it_reads_as_written_down(name: str, content: str) -> None:
    assert content == (DATA / name).read_text(), "python -m tests.config.golden writes it anew"


def test_the_documents_show_what_is_printed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert f"```\n{(DATA / 'explain.txt').read_text().rstrip()}\n```\n" in text


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("device", [None, "h100-80gb", "unknown-gpu"])
def test_no_line_is_wider_than_a_terminal(preset: PresetName, device: str | None) -> None:
    explanation = explain(case(preset, device), step=parse_step("decode 40"))
    for line in show(explanation):
        assert len(line) <= WIDTH, line
    for other in PRESET_NAMES:
        differing = explain(case("treadle", device), diff=(preset, other))
        lines = list(show_differences(differing, preset, other))
        assert all(len(line) <= WIDTH for line in lines)
        assert bool(differing.differences) == (preset != other)


@pytest.mark.parametrize("preset", get_args(PresetName))
def test_a_value_never_touches_its_reason(preset: PresetName) -> None:
    """prefill-first is exactly as long as the column is wide."""
    text = "\n".join(show(explain(case(preset))))
    assert not re.search(r"\S(preset|default|hardware|model card|data structure): ", text)


def test_keys_are_not_shown() -> None:
    explanation = explain(case("treadle"))
    text = "\n".join(show(explanation)) + msgspec.json.encode(explanation).decode()
    assert "secret" not in text


def test_the_audit_found_16_alike_and_4_different() -> None:
    assert len(ROWS) == 20
    assert sum(bool(row.cause) for row in ROWS) == 4
    for row in ROWS:
        assert (len({row.vllm, row.sglang, row.trtllm}) > 1) == (
            row.id in ("chunked_prefill", "speculative", "dp_attention", "hang_watchdog")
        )
        if row.id != "chunked_prefill":
            assert bool(row.cause) == (len({row.vllm, row.sglang, row.trtllm}) > 1)
    counts = {
        engine: Counter(getattr(row, engine) for row in ROWS)
        for engine in ("vllm", "sglang", "trtllm")
    }
    assert counts == {
        "vllm": {"on": 4, "conditional": 5, "off": 8, "unresolved": 3},
        "sglang": {"on": 5, "conditional": 4, "off": 10, "unresolved": 1},
        "trtllm": {"on": 5, "conditional": 3, "off": 11, "unresolved": 1},
    }


def test_our_states_follow_what_is_resolved() -> None:
    def here(explanation: Explanation) -> dict[str, str]:
        return {row.id: row.here for row in explanation.mechanisms}

    served, off = here(explain(case("treadle"))), explain(case("treadle", prefix_cache="none"))
    assert served["prefix_cache"] == "on"
    assert here(off)["prefix_cache"] == "off"
    assert "so it is not" in next(row.why for row in off.mechanisms if row.id == "kv_eviction")
    assert served["hang_watchdog"] == "on"
    alone = Case(EngineSettings(), SMALL, LAPTOP)
    assert here(explain(alone))["hang_watchdog"] == "off"
    assert served["lora"] == "absent"


def given(
    preset: PresetName = "treadle",
    diff: tuple[PresetName, PresetName] | None = None,
    **settings: Any,
) -> Explanation:
    user = engine_settings({"preset": preset, "usage": "server", **settings})
    return explain(Case(user, SMALL, LAPTOP), diff=diff)


PRIORITIES = {"order": "priority"}
ESTIMATE = {"composition": "prefill-first", "admission": "estimate"}


@pytest.mark.parametrize(
    ("row", "settings", "state", "says"),
    [
        ("chunked_prefill", {}, "on", "above a step's 512 tokens"),
        ("chunked_prefill", {"chunked_prefill": False}, "off", "waits for a step that holds all"),
        ("chunked_prefill", {"max_num_batched_tokens": 99}, "on", "above a step's 99 tokens"),
        ("chunked_prefill", {"long_prefill_token_threshold": 7}, "on", "at most 7 tokens each"),
        ("chunked_prefill", ESTIMATE, "on", "one prompt at a time"),
        ("chunked_prefill", {"composition": "two-stage"}, "on", "in units of 16, in-turn"),
        (
            "chunked_prefill",
            {
                "composition": "two-stage",
                "chunk_policy": "equal-progress",
                "chunk_unit_tokens": 48,
            },
            *("on", "in units of 48, equal-progress"),
        ),
        ("continuous_batching", {}, "on", "decodes and prompts together"),
        ("continuous_batching", ESTIMATE, "on", "prompts first, or decodes alone"),
        ("continuous_batching", {**ESTIMATE, "mixed_chunk": True}, "on", "decodes join in"),
        ("continuous_batching", {"composition": "two-stage"}, "on", "those that run, then"),
        (
            "continuous_batching",
            {"composition": "two-stage", "admission": "static"},
            *("off", "nobody joins before all"),
        ),
        ("admission_control", {}, "on", "blocks for a whole prompt"),
        ("admission_control", {"reserve_full_prompt": False}, "on", "a prompt's first chunk"),
        ("admission_control", {"watermark": 0.25}, "on", "25% of all kept free"),
        ("admission_control", {**ESTIMATE, "schedule_conservativeness": 1.5}, "on", "times 1.5"),
        ("admission_control", {"admission": "no-evict"}, "on", "up to the end of their answers"),
        ("admission_control", {"admission": "max-utilization"}, "on", "next step of all"),
        ("admission_control", {"admission": "static"}, "on", "and nobody running"),
        ("kv_eviction", {}, "conditional", "so it is: lru"),
        ("kv_eviction", {"eviction_policy": "lfu"}, "conditional", "so it is: lfu"),
        ("kv_eviction", {"prefix_cache": "none"}, "conditional", "so it is not"),
        ("priority_preemption", {}, "off", "--order priority"),
        ("priority_preemption", PRIORITIES, "on", "smaller ones first; when KV runs out the least"),
        (
            "priority_preemption",
            {**PRIORITIES, "low_priority_values_first": False},
            *("on", "larger ones first"),
        ),
        (
            "priority_preemption",
            {**PRIORITIES, **ESTIMATE, "priority_preemption_threshold": 4},
            *("on", "above it by more than 4"),
        ),
        ("paged_kv", {"block_size": 8}, "on", "blocks of 8 tokens"),
        ("prefix_cache", {"prefix_cache": "hashed"}, "on", "the index is hashed"),
    ],
)
def test_a_mechanism_follows_settings(
    row: str, settings: dict[str, Any], state: str, says: str
) -> None:
    found = next(one for one in given(**settings).mechanisms if one.id == row)
    assert found.here == state
    assert says in found.why


def test_priorities_that_displace_nobody_say_so() -> None:
    for settings in ({"priority_preemption": False}, {"composition": "unified"}):
        explanation = given(**{**PRIORITIES, **ESTIMATE, **settings})
        row = next(row for row in explanation.mechanisms if row.id == "priority_preemption")
        assert "by more than" not in row.why


@pytest.mark.parametrize(
    ("topic", "settings", "value"),
    [
        ("chunked prefill", {"chunked_prefill": False}, False),
        ("first in a step", ESTIMATE, "prompts"),
        ("composition of a step", {"composition": "two-stage"}, "two-stage"),
        ("admission", {"admission": "static"}, "static"),
        ("admission", {"composition": "two-stage"}, "no-evict"),
        ("when KV runs out", PRIORITIES, "preempt-lowest-priority"),
        ("waiting order", {"order": "lof"}, "lof"),
        ("tokens of a chunk", {"chunked_prefill": False}, "no chunks"),
        ("tokens of a chunk", ESTIMATE, 512),
        (
            "tokens of a chunk",
            {"long_prefill_token_threshold": 7},
            "what a step has left, at most 7",
        ),
        (
            "tokens of a chunk",
            {"composition": "two-stage", "chunk_unit_tokens": 48},
            "what a step has left, in units of 48",
        ),
        ("prompts in chunks at once", ESTIMATE, 1),
        (
            "who gives way",
            {"shortage": "preempt-lowest-priority"},
            "least important, then who arrived last",
        ),
        ("who gives way", ESTIMATE, "fewest generated, then longest input"),
        ("who gives way", {"admission": "no-evict"}, "nobody"),
        ("and waits", ESTIMATE, "at the end"),
        ("and waits", PRIORITIES, "where the order has it"),
        ("and waits", {"admission": "no-evict"}, "nobody does"),
        ("priorities", PRIORITIES, True),
        ("smaller goes first", {"low_priority_values_first": False}, False),
        (
            "priority above another's",
            {**PRIORITIES, **ESTIMATE, "priority_preemption_threshold": 4},
            4,
        ),
        ("when computed KV is found", {"publication": "postpone"}, "postpone"),
        ("processes", {"processes": "proxy+worker"}, "proxy+worker"),
        ("processes for a device", {"processes": "http+scheduler+detokenizer"}, 3),
        ("texts are made in", {"processes": "http+scheduler+detokenizer"}, "a process for it"),
        (
            "texts are made in",
            {"processes": "proxy+worker", "num_postprocess_workers": 2},
            "2 processes for it",
        ),
        ("structured output", {"grammar_backend": "none"}, "none"),
        ("tokens per block", {"block_size": 8}, 8),
        ("a prefix counts by", {"prefix_cache": "block-tree"}, "16, and part of one by copy"),
        ("computed at a full hit", {"prefix_cache": "block-tree"}, "the last token"),
        ("equal KV is kept once", {"prefix_cache": "radix"}, True),
    ],
)
def test_our_side_of_a_topic_follows_settings(
    topic: str, settings: dict[str, Any], value: Any
) -> None:
    """An engine's side does not."""
    for other in ("vllm", "sglang", "trtllm"):
        found, plain = (differing(other, one).get(topic) for one in (settings, {}))
        if found is not None:
            assert found.first == value
            assert plain is None or plain.second == found.second
    assert any(topic in differing(other, settings) for other in ("vllm", "sglang", "trtllm"))


def differing(other: PresetName, settings: dict[str, Any]) -> dict[str, Difference]:
    found = given(diff=("treadle", other), **settings).differences
    return {difference.topic: difference for difference in found}


def test_our_side_is_that_of_our_preset_whatever_else_is_explained() -> None:
    both: tuple[PresetName, PresetName] = ("treadle", "trtllm")
    under = [given(preset, diff=both, block_size=8).differences for preset in PRESET_NAMES]
    assert all(differences == under[0] for differences in under)


def test_a_topic_names_knobs_that_are_there() -> None:
    for topic in TOPICS:
        for preset in PRESET_NAMES:
            side = getattr(topic, preset)
            name = side.knob if isinstance(side, IsOn) else side
            assert bool(topic.axis) <= (side is None)
            if isinstance(name, str):
                assert name in PRESETS[preset].knobs(), name


COMMON = json.loads((DATA / "common_view.json").read_text())
"""What an audit of the engines' sources put side by side; the facts are not ours."""


def test_every_topic_that_the_audit_put_side_by_side_is_one_here() -> None:
    assert len(COMMON) == 55
    assert {topic.key for topic in TOPICS} == {*COMMON, "publication", "capture", "processes"}


def test_two_engines_differ_where_the_audit_found_them_to() -> None:
    """On an H100; where the audit names a rule, its value there is what is compared."""
    same_there = {
        # The rules differ, and give the same on this device and model.
        ("vllm", "sglang"): {"chunked_prefill", "speculative_method"},
        ("vllm", "trtllm"): {"max_batched_tokens", "speculative_method"},
        ("sglang", "trtllm"): set(),
    }
    spelled = {"prefix_cache", "weight_quantization"}
    by_title = {topic.title: topic.key for topic in TOPICS}
    for (first, second), same in same_there.items():
        found = explain(case("treadle", "h100-80gb"), diff=(first, second)).differences
        differing = {by_title[difference.topic] for difference in found}
        audited = {key for key, row in COMMON.items() if row[first] != row[second]}
        wanted = audited - same - spelled
        assert differing - {"publication", "capture", "processes"} == wanted, (first, second)


def test_what_an_engine_always_does_is_as_the_audit_says() -> None:
    """Plain values letter for letter; the rest is in words of ours."""
    for topic in TOPICS:
        for engine in ("vllm", "sglang", "trtllm"):
            side = getattr(topic, engine)
            stated = COMMON.get(topic.key, {}).get(engine)
            if isinstance(side, Fixed) and not isinstance(side.value, str | tuple):
                assert side.value == (stated if topic.key != "chunked_prefill" else True)


def test_differences_are_by_cause() -> None:
    found = explain(case("treadle", "h100-80gb"), diff=("vllm", "sglang")).differences
    by_topic = {difference.topic: difference for difference in found}
    assert by_topic["KV memory fraction"].cause == "different rule"
    assert by_topic["composition of a step"].cause == "different structure"
    assert by_topic["structured output"].cause == "different default"
    tokens = by_topic["tokens of a step"]
    assert (tokens.first, tokens.second) == (8192, 16384)
    assert by_topic["where memory is unread"].second == 0.88
    order = [CAUSES.index(difference.cause) for difference in found]
    assert order == sorted(order)
    small = explain(case("treadle", "l4-24gb"), diff=("vllm", "trtllm")).differences
    few = next(d for d in small if d.topic == "tokens of a step")
    assert (few.first, few.second) == (2048, 8192)


def test_a_preset_says_how_much_of_it_is_absent() -> None:
    def line(preset: PresetName, **cache: Any) -> str:
        chosen = EngineSettings(preset=preset, cache=CacheSettings(**cache))
        return absent_axes(resolve(chosen, SMALL, LAPTOP))

    assert line("treadle") == ""
    assert line("vllm").startswith("preset vllm: 1 of 11 axes are not here yet (capture")
    assert "capture and replay" in line("trtllm")
    assert "prefix index" not in line("trtllm", prefix_cache="hashed"), "it was asked for"


def test_a_step_under_each_capture_rule() -> None:
    step = explain(case("treadle", "h100-80gb"), step=parse_step("decode 40")).step
    kinds = {replay.engine: (replay.kind, replay.size) for replay in step}
    assert kinds == {
        "treadle": ("program", 40),
        "vLLM": ("full", 40),
        "SGLang": ("full", 40),
        "TensorRT-LLM": ("eager", 40),
    }


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_llama("q8_0", tmp_path))
    arguments = ["explain", model, "--max-running-requests", "3", "--kv-memory-fraction", "0.1"]
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    values = {v["name"]: v for section in report["sections"] for v in section["values"]}
    assert values["max_num_seqs"]["value"] == 3
    assert values["max_num_seqs"]["sentence"] == "--max-running-requests 3"
    assert values["block_size"]["source"] == "default"
    assert run([*arguments, "--diff", "vllm", "sglang", "--device", "h100-80gb"]) == 0
    assert "Different rule" in capsys.readouterr().out
    assert run(["explain", model, "--device", "gpu9"]) == 1
    assert "there is no device 'gpu9'" in capsys.readouterr().err


LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
DEEPSEEK = {
    **LLAMA_70B,
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def test_a_model_of_which_there_is_a_configuration_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory or a file; on devices that share it, where it would not fit on one."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    words = ["explain", str(tmp_path), "--preset", "sglang", "--device", "h100-80gb"]
    assert run(words) == 1
    assert "weights -141.107 GB" in capsys.readouterr().err
    assert run([*words, "--tp", "8", "--step", "decode 300", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == "8 × h100-80gb"
    assert [fact["name"] for fact in report["path"]][:2] == ["NOT HERE", "NOT RUN"]
    values = {v["name"]: v for section in report["sections"] for v in section["values"]}
    assert values["kv_memory_fraction"]["value"] == 0.812, "(81559 - 15312) / 81559 MiB"
    assert "device.count" in values["kv_memory_fraction"]["inputs"]
    weights, token = -(-141_107_412_992 // 8), 80 * 1 * 256 * 2
    kept = -(-81559 * 2**20 * (1000 - 812) // 1000)
    assert values["kv_budget_bytes"]["value"] == 81559 * 2**20 - weights - kept
    assert "estimated" not in values["kv_budget_bytes"]["sentence"], "SGLang measures nothing"
    assert values["num_blocks"]["value"] == [values["kv_budget_bytes"]["value"] // token]
    step = {one["engine"]: (one["kind"], one["size"]) for one in report["step"]}
    assert step["SGLang"] == ("full", 304), "512 rows are captured from four ranks on"

    path = tmp_path / "deepseek.json"
    path.write_text(json.dumps(DEEPSEEK))
    assert run(["explain", str(path), "--preset", "trtllm", "--device", "4xa100-80gb"]) == 0
    shown = capsys.readouterr().out
    assert "treadle does not run deepseek_v3" in shown
    assert "prefix_cache            none" in shown, "latent attention on that generation"
    assert all(len(line) <= WIDTH for line in shown.splitlines())
    assert run(["explain", str(path), "--tp", "2"]) == 1
    assert "name devices to explain it for with --device" in capsys.readouterr().err
    assert run(["explain", str(path), "--tp", "2", "--device", "4x80GB"]) == 1
    assert "say different numbers of devices" in capsys.readouterr().err


def test_a_knob_that_a_setting_overrides_says_so() -> None:
    user = engine_settings({"preset": "vllm", "max_num_seqs": 7, "prefix_cache": "none"})
    knobs = {knob.name: knob for knob in explain(Case(user, SMALL, LAPTOP)).knobs}
    said = {name: (knobs[name].state, knobs[name].here) for name in knobs}
    assert said["scheduler.max_num_seqs"] == ("overridden", "max_num_seqs is 7")
    assert said["prefix_cache.enable_prefix_caching"] == ("overridden", "prefix_cache is none")
    server = engine_settings({"preset": "vllm", "usage": "server"})
    plain = explain(Case(server, SMALL, LAPTOP)).knobs
    assert all(knob.state != "overridden" for knob in plain)
