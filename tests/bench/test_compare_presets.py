"""`bench compare-presets`: the same work for all, and figures that say what the engine did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tiny import tiny_llama
from treadle.bench import scenarios
from treadle.bench.compare_presets import (
    Comparison,
    Variant,
    compare_presets,
    variants_of,
    vary,
)
from treadle.bench.compare_show import show_comparison
from treadle.bench.report import WIDTH
from treadle.bench.scenarios import SCENARIOS, Scenario, draw
from treadle.bench.workloads import Workload
from treadle.cli.main import run
from treadle.errors import StartError

CHAT = Scenario(
    name="chat",
    about="2 conversations of 3 turns",
    parts=(
        Workload(
            name="multi-turn", num_requests=2, concurrency=9, input_len=16, output_len=8, turns=3
        ),
    ),
    pool_tokens=512,
)
BURST = Scenario(
    name="bursts",
    about="6 requests over few blocks",
    parts=(
        Workload(name="concurrent", num_requests=6, concurrency=9, input_len=20, output_len=40),
    ),
    burst=6,
    pool_tokens=96,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("compare"))


def compared(
    path: Path, variants: Sequence[Variant], *asked: Scenario, rounds: int = 1
) -> Comparison:
    return compare_presets(path, variants, asked, rounds=rounds, seed=3, progress=lambda: None)


def common(path: Path, **more: Any) -> dict[str, Any]:
    return {"model": str(path), "threads": 1, "block_size": 16, **more}


def test_conversations_are_those_of_the_seed() -> None:
    for scenario in SCENARIOS.values():
        first, again, other = (draw(scenario, range(100), seed) for seed in (1, 1, 2))
        assert first == again != other
        assert len(first) == sum(part.num_requests for part in scenario.parts)
        longest = max(sum(map(len, one.turns)) + len(one.turns) * one.output_len for one in first)
        assert longest == scenario.longest <= scenario.pool_tokens
        assert [one.due_s for one in first] == sorted(one.due_s for one in first)
    burst = draw(SCENARIOS["bursts"], range(100), 1)
    times = [one.due_s for one in burst]
    assert len(set(times)) == 2
    assert all(times.count(time) == 8 for time in times)
    shared = draw(SCENARIOS["shared-prefix"], range(100), 1)
    assert len({tuple(one.turns[0][:384]) for one in shared}) == 1
    assert len({tuple(one.turns[0]) for one in shared}) == 24


def test_policies_differ_where_they_should_and_answers_do_not(path: Path) -> None:
    found = compared(path, vary("prefix_index=radix,hashed,none", common(path)), CHAT, rounds=2)
    rates = {v.name: found.median("chat", v.name).hit_rate for v in found.variants}
    # Turns of 16, 40 and 64 tokens; a block counts once the request before has computed all of it.
    assert rates["none"] == 0
    assert rates["radix"] == rates["hashed"] == (16 + 32) / (16 + 40 + 64)
    assert found.alike("chat"), "no policy changes an answer"
    assert len({each.answers for each in found.runs}) == 2, "each round has prompts of its own"
    changed = msgspec.structs.replace(found.runs[0], answers="others")
    assert not msgspec.structs.replace(found, runs=[*found.runs[1:], changed]).alike("chat")
    for each in found.runs:
        assert each.figures.completed == 6
        assert each.figures.num_short == each.figures.failed == 0
        assert each.figures.total_input_tokens == 2 * (16 + 40 + 64)
        assert each.figures.total_output_tokens == 2 * 3 * 8
        assert each.counts.hit_rate == pytest.approx(
            (each.figures.total_cached_tokens or 0) / each.figures.total_input_tokens
        )
        for one in each.requests:
            assert one.ttft_s is not None
            assert one.latency_s == pytest.approx(one.ttft_s + sum(one.itl_s))
    texts = list(show_comparison(found))
    assert max(map(len, texts)) <= WIDTH
    assert any(line.startswith("none ") and " 0% " in line for line in texts)


def test_a_small_pool_makes_requests_give_way(path: Path) -> None:
    found = compared(path, variants_of(common(path), "treadle", None), BURST)
    assert found.median("bursts", "treadle").preemptions > 0
    roomy = compared(
        path,
        variants_of(common(path), "treadle", None),
        msgspec.structs.replace(BURST, pool_tokens=1024),
    )
    assert roomy.median("bursts", "treadle").preemptions == 0
    assert {run.answers for run in found.runs} == {run.answers for run in roomy.runs}


def test_every_preset_has_the_same_memory(path: Path) -> None:
    variants = variants_of({"model": str(path), "threads": 1}, None, None)
    found = compared(path, variants, CHAT)
    assert [variant.name for variant in variants] == ["treadle", "vllm", "sglang", "trtllm"]
    sizes = {values["kv_budget_bytes"] for values in found.resolved.values()}
    assert len(sizes) == 1
    assert found.resolved["sglang"]["block_size"] == 1
    assert found.resolved["vllm"]["block_size"] == 16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("composition", "write an axis or a setting, =, and values"),
        ("colour=red,blue", "write an axis or a setting"),
        ("port=1,2", "write an axis or a setting"),
        ("capture=program,eager", "there is one way on the axis capture so far"),
    ],
)
def test_what_cannot_be_varied(text: str, says: str) -> None:
    with pytest.raises(StartError, match=says):
        vary(text, {})


def test_what_does_not_fit_is_said_before_anything_runs(path: Path) -> None:
    with pytest.raises(StartError, match="prefix_cache is 'bush': it must be one of"):
        compared(path, vary("prefix_index=radix,bush", common(path)), CHAT)
    part = msgspec.structs.replace(CHAT.parts[0], input_len=10**6)
    long = msgspec.structs.replace(CHAT, parts=(part,))
    with pytest.raises(StartError, match=r"requests of \d+ tokens; the model's window is"):
        compared(path, variants_of({}, "treadle", None), long)
    with pytest.raises(StartError, match="preset is 'vlm'"):
        variants_of({}, "vlm", None)


def test_the_command(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenarios, "SCENARIOS", {"chat": CHAT})
    report, plot = tmp_path / "c.json", tmp_path / "c.png"
    words = ["bench", "compare-presets", str(path), "--scenario", "chat", "--rounds", "1"]
    words += ["--seed", "3", "--threads", "1", "--json", str(report), "--plot", str(plot)]
    assert run([*words, "--vary", "overlap=0,1"]) == 0
    assert "by overlap_depth; times" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(report.read_text())
    assert [one["name"] for one in found["variants"]] == ["0", "1"]
    assert found["resolved"]["1"]["overlap_depth"] == 1
    assert run([*words, "--presets", "vllm", "--vary", "overlap=0,1"]) == 1
    assert "give --presets, or --vary" in capsys.readouterr().err
