"""`bench latency` and `bench throughput`: definitions on scripted answers, counts on a tiny
model."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from treadle.bench.burners import Burners
from treadle.bench.latency import Batch, iteration_of, measure_latency, show_latency
from treadle.bench.load import Answer
from treadle.bench.throughput import Requests, measure_throughput, show_throughput
from treadle.cli.main import run
from treadle.config.given import engine_settings
from treadle.config.settings import EngineSettings
from treadle.errors import StartError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("latency"))


def settings(path: Path, **given: object) -> EngineSettings:
    return engine_settings({"model": str(path), "threads": 1, "max_model_len": 256, **given})


def test_figures_of_one_batch() -> None:
    early = Answer(num_prompt=10, num_output=5, first_s=0.2, last_s=1.0)
    late = Answer(num_prompt=30, num_output=5, first_s=0.4, last_s=2.4)
    figures = iteration_of([early, late])
    assert figures.prefill_s == 0.4
    assert figures.ttft_s == pytest.approx(0.3)
    assert figures.tpot_s == pytest.approx((0.8 / 4 + 2.0 / 4) / 2)
    assert figures.latency_s == 2.4
    assert figures.prefill_tokens_per_s == pytest.approx(40 / 0.4)
    assert figures.decode_tokens_per_s == pytest.approx(8 / 2.0)
    assert figures.output_tokens_per_s == pytest.approx(10 / 2.4)


def test_one_token_has_no_time_per_token() -> None:
    figures = iteration_of([Answer(num_prompt=4, num_output=1, first_s=0.5, last_s=0.5)])
    assert figures.tpot_s is None
    assert figures.decode_tokens_per_s is None


def test_latency_of_a_model(path: Path) -> None:
    batch = Batch(input_len=20, output_len=6, batch_size=3, iterations=4, warmup=1)
    report = measure_latency(settings(path), path, batch)
    assert len(report.iterations) == 4
    for each in report.iterations:
        assert 0 < each.ttft_s <= each.prefill_s < each.latency_s
        assert each.output_tokens_per_s == pytest.approx(18 / each.latency_s)
        assert each.prefill_tokens_per_s == pytest.approx(60 / each.prefill_s)
    tpot = report.summary["tpot_s"]
    assert tpot.min <= tpot.p50 <= tpot.p90 <= tpot.p99 <= tpot.max
    assert report.floor is not None
    assert report.floor.reached == pytest.approx(report.floor.step_s / tpot.p50)


def test_latency_beside_burners(path: Path) -> None:
    batch = Batch(input_len=8, output_len=6, iterations=3, warmup=0, burners=2)
    report = measure_latency(settings(path), path, batch)
    burdened = report.burdened
    assert burdened is not None
    assert len(report.iterations) == len(burdened.iterations) == 3
    quiet, loud = report.summary["tpot_s"].p50, burdened.summary["tpot_s"].p50
    assert burdened.slow_down == pytest.approx(loud / quiet)
    text = "\n".join(show_latency(report))
    assert "beside 2 burners" in text
    assert "Slow-down of the median" in text


def test_burners_use_processors_only_while_they_burn() -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    others = children()  # of tests before this one

    def used() -> float:
        ticks = 0
        for child in children() - others:
            ticks += sum(map(int, Path(f"/proc/{child}/stat").read_text().split()[13:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    with Burners(1) as burners:
        with burners.burning():
            deadline = time.monotonic() + 10
            while used() < 0.1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert used() >= 0.1
        time.sleep(0.02)  # until it has stopped
        before = used()
        time.sleep(0.1)
        assert used() == before
    assert used() == 0, "they have ended"


def test_what_has_no_floor(path: Path) -> None:
    one = Batch(input_len=4, output_len=1, iterations=1, warmup=0)
    report = measure_latency(settings(path), path, one)
    assert report.floor is None
    assert "tpot_s" not in report.summary
    assert not any("TPOT" in line for line in show_latency(report))
    two = Batch(input_len=4, output_len=2, iterations=1, warmup=0)
    assert measure_latency(settings(path, backend="torch"), path, two).floor is None


def test_lengths_that_do_not_fit(path: Path) -> None:
    with pytest.raises(StartError, match="250 tokens in and 7 out exceed the window of 256"):
        measure_latency(settings(path), path, Batch(input_len=250, output_len=7))


def test_throughput_counts(path: Path) -> None:
    """One request at a time: all but the first find the prefix, and each step has one row."""
    asked = Requests(num_prompts=4, input_len=8, output_len=5, shared_prefix=64)
    one_by_one = settings(path, max_num_seqs=1, overlap_depth=0, block_size=16)
    report = measure_throughput(one_by_one, path, asked)
    assert report.prompt_tokens == 4 * 72
    assert report.prefix_hits == 3 * 64
    assert report.steps == 4 * 5
    assert report.tokens_per_step == (4 * 72 - 3 * 64 + 4 * 4) / 20
    assert report.preemptions == 0
    assert report.requests_per_s == pytest.approx(4 / report.duration_s)
    assert report.output_tokens_per_s == pytest.approx(20 / report.duration_s)
    assert report.total_tokens_per_s == pytest.approx((4 * 72 + 20) / report.duration_s)


def test_throughput_without_room_preempts(path: Path) -> None:
    """KV for 112 tokens; two requests want 80 each at their ends."""
    token = 2 * 2 * 2 * 16 * 2  # K and V of 2 layers, 2 heads of 16, two bytes
    small = settings(path, kv_cache_memory_bytes=112 * token, block_size=16, max_model_len=96)
    report = measure_throughput(small, path, Requests(num_prompts=2, input_len=40, output_len=40))
    assert report.preemptions > 0
    assert any("Preemptions" in line for line in show_throughput(report))


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_the_commands(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    target = tmp_path / "report.json"
    lengths = ["--input-len", "5", "--output-len", "3", "--threads", "1", "--json", str(target)]
    assert run(["bench", command, str(path), *lengths]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert command.capitalize() in shown
    assert json.loads(target.read_text())["model"] == str(path)
