"""benchmarks/: the comparison's own arithmetic, its drivers' protocol, and a whole small run."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import compare, peers
from benchmarks.drivers.protocol import Times
from benchmarks.floors import Work, least_s
from benchmarks.peers import Peer, Setting, Unable
from benchmarks.process_tree import Watch, tree
from tests.server.served import ROOT, Served
from treadle.bench.drive import Plan
from treadle.bench.floors import Machine
from treadle.bench.workloads import workload
from treadle.models.loader import read_card

DRIVER = """
import sys, time
sys.path.insert(0, {root!r})
from benchmarks.drivers.protocol import run

def load(model, threads):
    print("libraries print what they like")
    def ask(prompts, output_len, times):
        for _ in range(output_len {shorten}):
            time.sleep(0.01)
            for at in range(len(prompts)):
                times.note(at)
    return ask

run(load)
"""


def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shorten: str = "") -> Peer:
    """A driver by script in the place of OpenVINO GenAI's."""
    (tmp_path / "drivers").mkdir()
    text = DRIVER.format(root=str(ROOT), shorten=shorten)
    (tmp_path / "drivers" / "openvino_genai.py").write_text(text)
    monkeypatch.setattr(peers, "HERE", tmp_path)
    return Peer.parse(f"openvino_genai={sys.executable}")


def plan(**given: int) -> Plan:
    sizes = {"num_requests": 6, "concurrency": 3, "input_len": 8, "output_len": 5, **given}
    return Plan(workload=workload("concurrent", seed=1, **sizes), num_warmup=1)


SETTING = Setting(Path("model.gguf"), 2000, 2)


def test_a_driver_is_asked_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with driver(tmp_path, monkeypatch).session(SETTING) as session:
        found = session.running.ask(plan())
        assert session.watch is not None
        time.sleep(0.2)
        assert session.watch.stop() > 1  # MiB of a Python
    assert (found.completed, found.total_input_tokens, found.total_output_tokens) == (6, 48, 30)
    assert found.duration_s > 2 * 5 * 0.01  # two batches of three
    assert found.tpot_ms is not None
    assert found.tpot_ms.min >= 9.9
    assert session.ready_s is not None


def test_answers_that_end_early_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        driver(tmp_path, monkeypatch, "- 1").session(SETTING) as session,
        pytest.raises(Unable, match="6 short answers"),
    ):
        session.running.ask(plan())


def test_a_peer_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    broken.chmod(0o755)
    peer = Peer.parse(f"llama-server={broken}")
    with pytest.raises(Unable, match=r"status 3.*no such model"), peer.session(SETTING):
        pass


@pytest.mark.parametrize("text", ["vllm", "unknown=/bin/sh", "vllm=/not/there", "=http://x"])
def test_peers_that_cannot_be_are_refused(text: str) -> None:
    if text.startswith("="):
        assert Peer.parse(text).where == "http://x"
        return
    with pytest.raises(click.UsageError, match=re.escape(text)):
        Peer.parse(text)


def test_times_are_told_per_request() -> None:
    times = Times([[1, 2, 3], [4]])
    times.note(0)
    times.note(1, 2)
    times.note(0)
    report = times.report()
    first, second = report["requests"]
    assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 2)
    assert (second["prompt_tokens"], second["completion_tokens"]) == (1, 2)
    assert first["ttft_s"] < second["ttft_s"] == second["latency_s"] < first["latency_s"]
    assert first["latency_s"] <= report["duration_s"]


def test_floors_are_those_computed_by_hand(demo_gguf: Path) -> None:
    """SmolLM2 135M: 30 layers of 576, 9 heads of 64 over 3, 1,536 wide inside, 49,152 words."""
    card = read_card(demo_gguf)
    layers = 30 * (576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536)
    head = 576 * 49152
    machine = Machine(read_bytes_per_s=1e9, byte_operations_per_s=1e12, float_operations_per_s=1e11)
    read = card.weight_bytes / 1e9
    assert least_s(machine, card, Work(0, 0, 1, 1)) == pytest.approx(read)
    prefill = 2 * (layers * 2048 + head) / 1e12
    assert least_s(machine, card, Work(2048, 1, 0, 1)) == pytest.approx(prefill)
    # With memory that fast, steps of 32 rows are bound by operations; floats have their own peak.
    fast = machine.__class__(1e15, 1e12, 1e11)
    step = 2 * (layers + head) * 32 / 1e12
    assert least_s(fast, card, Work(0, 0, 10, 32)) == pytest.approx(10 * step)
    wide = dataclasses.replace(card, weight_bytes=2 * (layers + head))
    assert least_s(fast, wide, Work(0, 0, 10, 32)) == pytest.approx(100 * step)


def test_memory_is_that_of_children_too() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    hold = "x = bytearray(b'1') * (100 << 20); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        watch = Watch(process.pid)
        process.stdout.readline()
        assert len(tree(process.pid)) == 2
        time.sleep(0.2)
        process.communicate(b"\n")
    assert watch.stop() > 100


def test_sizes_count_what_is_required() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "sizes.py"), "click"],
        capture_output=True,
        text=True,
        check=True,
    )
    size, version = done.stdout.split()
    assert int(size) > 100_000
    assert version == importlib.metadata.version("click")


def test_a_comparison_is_written_down(
    tmp_path: Path, demo_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names for one scripted server, two rounds; figures, ratios, and what failed."""
    machine = Machine(1e10, 1e12, 1e11)
    monkeypatch.setattr("benchmarks.performance.measure_machine", lambda threads: machine)
    turns: list[str] = []
    session = Peer.session

    def noted(peer: Peer, setting: Setting) -> contextlib.AbstractContextManager[peers.Session]:
        turns.append(peer.name)
        return session(peer, setting)

    monkeypatch.setattr(Peer, "session", noted)
    with contextlib.closing(Served("fake", "0", "4096")) as served:
        url = served.wait_ready().url
        options = ["--peer", f"a={url}", "--peer", f"b={url}", "--rounds", "2"]
        chosen = ["--only", "stream", "--only", "prefill-512"]
        done = CliRunner().invoke(
            compare.main,
            ["--model", str(demo_gguf), *options, *chosen, "--out", str(tmp_path)],
            catch_exceptions=False,
        )
    assert done.exit_code == 0, done.output
    assert turns == ["a", "b", "a", "b"]
    text = (tmp_path / "performance.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith("| one stream"))
    assert re.fullmatch(r"\| one stream, .* \| [\d,]+ \| [\d,]+ \([\d.]+\) \| [\d,]+ \|", row)
    assert "rounds: 2;" in text
    pictures = sorted(os.listdir(tmp_path))
    assert pictures == ["performance-prefill-512.png", "performance-stream.png", "performance.md"]


def test_the_protocol_is_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, monkeypatch)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "drivers" / "openvino_genai.py"), "model", "2"],
        input='{"prompts": [[1, 2]], "output_len": 1}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True}
    assert [one["completion_tokens"] for one in answer["requests"]] == [1]
