"""benchmarks/: the comparison's own arithmetic, its drivers' protocol, and whole small runs."""

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
import gguf
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import compare, launch, performance, publish, tasks
from benchmarks.drivers.llama_cpp import WORTH_SHARING, shared_length
from benchmarks.drivers.protocol import Asked, Times
from benchmarks.floors import Shape, Work, least, shape_of
from benchmarks.memory import Watch
from benchmarks.peers import Peer, Session, Setting
from benchmarks.requantize import requantize
from benchmarks.result import Comparison, Outcome
from benchmarks.running import Unable
from tests.server.served import ROOT, Served
from tests.tiny import tiny_llama
from treadle.bench.drive import Plan
from treadle.bench.floors import Machine
from treadle.bench.startup import process_tree
from treadle.bench.workloads import workload
from treadle.models.loader import read_card

DRIVER = """
import sys, time
sys.path.insert(0, {root!r})
from benchmarks.drivers.protocol import run

def load(model, threads):
    print("libraries print what they like")
    def ask(asked, times):
        assert asked.cached_len in (0, 6), asked
        time.sleep(0.2)  # the clock has not started
        times.start()
        for _ in range(asked.output_len {shorten}):
            time.sleep(0.01)
            for at in range(len(asked.prompts)):
                times.note(at)
    return ask

run(load)
"""


def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shorten: str = "") -> Peer:
    """A driver by script in the place of OpenVINO GenAI's."""
    (tmp_path / "drivers").mkdir()
    text = DRIVER.format(root=str(ROOT), shorten=shorten)
    (tmp_path / "drivers" / "openvino_genai.py").write_text(text)
    monkeypatch.setattr(launch, "HERE", tmp_path)
    return Peer.parse(f"openvino_genai:int4={sys.executable}")


def plan(**given: int) -> Plan:
    sizes = {"num_requests": 6, "concurrency": 3, "input_len": 8, "output_len": 5, **given}
    return Plan(workload=workload("concurrent", seed=1, **sizes), num_warmup=1)


SETTING = Setting(Path("model.gguf"), range(1000, 2000), 2)


def test_a_driver_is_asked_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with driver(tmp_path, monkeypatch).session(SETTING) as session:
        found = session.running.ask(plan())
        assert session.watch is not None
        time.sleep(0.2)
        assert session.watch.stop() > 5  # MiB of a Python
    assert (found.completed, found.total_input_tokens, found.total_output_tokens) == (6, 48, 30)
    assert 2 * 5 * 0.01 < found.duration_s < 2 * (5 * 0.01 + 0.2)  # two batches of three
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
    shape = shape_of(card)
    layers = 30 * (576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536)
    head = 576 * 49152
    assert shape == Shape(card.weight_bytes, layers, head, 30 * 2 * 3 * 64 * 2)
    assert shape.on_bytes
    read = (card.weight_bytes + 100 * shape.kv_bytes) / 1e9
    stream = least(shape, Work(0, 0, 1, 1, 100), 1e9, 1e12)
    assert stream == (pytest.approx(read), "bytes")
    prefill = 2 * (layers * 2048 + head) / 1e12
    assert least(shape, Work(2048, 1, 0, 1), 1e9, 1e12) == (pytest.approx(prefill), "operations")
    # With memory that fast, steps of 32 rows are bound by operations.
    step = 2 * (layers + head) * 32 / 1e12
    assert least(shape, Work(0, 0, 10, 32), 1e15, 1e12) == (pytest.approx(10 * step), "operations")
    both = least(shape, Work(2048, 1, 10, 1), 1e9, 1e12)
    plain = card.weight_bytes / 1e9
    assert both == (pytest.approx(prefill + 10 * plain), "bytes and operations")


def test_every_engine_has_the_floor_of_its_moment(demo_gguf: Path) -> None:
    """Half the rate at half the bandwidth is the same share; other weights have none."""
    rows = compare.rows_of([tasks.stream()])
    outcomes = [
        Outcome(
            name=name, kind="a", form=form, form_mb=1,
            values={"stream": [rate]}, reads={"stream": [read]},
        )
        for name, form, rate, read in (
            ("a", "m", 200.0, 4e10), ("b", "m", 100.0, 2e10), ("c", "other", 100.0, 2e10)
        )
    ]  # fmt: skip
    found = Comparison(
        title="t", command="c", date="d", model="m", shape=shape_of(read_card(demo_gguf)),
        peak=1e15, rounds=1, threads=2, rows=rows, outcomes=outcomes,
    )  # fmt: skip
    best, bound = found.floor(rows[0], outcomes[0]) or (0.0, "")
    share = f"{200 / best:.0%}"
    assert bound == "bytes"
    line = performance._rates(found).splitlines()[-1]
    assert line == f"| {rows[0].name}: share of its own floor ↑ | {share} | {share} | – |  |  |"


def test_an_embedding_that_is_no_head_is_not_read(demo_gguf: Path) -> None:
    card = read_card(demo_gguf)
    tied = shape_of(card)
    untied = shape_of(dataclasses.replace(card, tied_head=False))
    share = 1 - untied.weight_bytes / card.weight_bytes
    head, all_weights = tied.head_weights, tied.layer_weights + 2 * tied.head_weights
    assert share == pytest.approx(head / all_weights, rel=1e-3)
    wide = dataclasses.replace(card, weight_bytes=2 * (tied.layer_weights + head))
    assert not shape_of(wide).on_bytes


def test_memory_is_that_of_children_too() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    hold = "x = bytearray(b'1') * (100 << 20); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program, hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        watch = Watch(process.pid)
        process.stdout.readline()
        assert len(process_tree(process.pid)) == 2
        peak = watch.stop()
        process.communicate(b"\n")
    assert peak > 100


def test_sizes_count_what_is_required() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "sizes.py"), "click", "click"],
        capture_output=True,
        text=True,
        check=True,
    )
    size, version = done.stdout.split()
    assert int(size) > 100_000
    assert version == importlib.metadata.version("click")


def test_a_cached_prefix_is_told_to_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = driver(tmp_path, monkeypatch)
    sizes = {"num_requests": 2, "concurrency": 2, "prefix_len": 6, "input_len": 3, "output_len": 2}
    asked = Plan(workload=workload("shared-prefix", **sizes), num_warmup=1, cached_prefix=True)
    with peer.session(SETTING) as session:
        assert session.running.ask(asked).total_input_tokens == 2 * 9
    monkeypatch.setattr("benchmarks.peers.SHARING", ())
    with (
        peer.session(SETTING) as session,
        pytest.raises(Unable, match="answers from no prefix"),
    ):
        session.running.ask(asked)


def test_what_prompts_share() -> None:
    prefix = list(range(WORTH_SHARING))
    assert shared_length([[*prefix, 1], [*prefix, 2, 3]]) == WORTH_SHARING
    assert shared_length([[*prefix, 1], [*prefix, 1]]) == WORTH_SHARING, "each keeps a token"
    assert shared_length([prefix, [*prefix, 1]]) == WORTH_SHARING - 1
    assert shared_length([prefix[:9], prefix[:9]]) == 0, "not worth it"
    assert shared_length([[*prefix, 1]]) == 0, "alone"
    assert Asked([[5, 6, 7]], 1, 2).prefix == [5, 6]


def test_one_engine_under_two_names() -> None:
    text = f"transformers:{{}}={sys.executable}"
    plain, other = (Peer.parse(text.format(label)) for label in ("bf16", "gguf"))
    assert plain.kind == other.kind == "transformers"
    forms = {"transformers:bf16": "folder"}
    assert plain.reading(forms).model == Path("folder")
    assert other.reading(forms).model is None


def fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "measure_machine", lambda threads: Machine(1e10, 1e12, 1e11))
    monkeypatch.setattr(compare, "read_bandwidth", lambda threads: 1e10)


def test_a_comparison_is_written_down(
    tmp_path: Path, demo_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names for one scripted server, two rounds for the first; figures, ratios, and floors."""
    fast_machine(monkeypatch)
    turns: list[str] = []
    session = Peer.session

    def noted(peer: Peer, setting: Setting) -> contextlib.AbstractContextManager[Session]:
        turns.append(peer.name)
        return session(peer, setting)

    monkeypatch.setattr(Peer, "session", noted)
    path = tmp_path / "found.json"
    with contextlib.closing(Served("fake", "0", "4096")) as served:
        url = served.wait_ready().url
        options = ["--peer", f"a={url}", "--peer", f"b={url}", "--rounds", "2", "--rounds-of"]
        chosen = ["b=1", "--only", "stream", "--only", "streams", "--only", "disturbed"]
        done = CliRunner().invoke(
            compare.main,
            ["--model", str(demo_gguf), *options, *chosen, "--json", str(path), "--title", "T 1"],
            catch_exceptions=False,
        )
    assert done.exit_code == 0, done.output
    assert turns == ["a", "b", "a"]
    found = msgspec.json.decode(path.read_bytes(), type=Comparison)
    assert [len(one.values["stream"]) for one in found.outcomes] == [2, 1]
    done = CliRunner().invoke(
        performance.main, [str(path), "--out", str(tmp_path / "out")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "performance.md").read_text()
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    value, ratio = r"[\d.,]+", r"[\d.,]+ \([\d.]+\)"
    stream = rows["| one stream, 32 in, 128 out, tok/s out ↑"]
    assert re.search(rf" \| {value} \| {ratio} \| 101 \(bytes\) \| \d+% \|$", stream), stream
    ttft = next(line for name, line in rows.items() if "mean TTFT, ms ↓" in name)
    assert re.search(rf" \| {value} \| {ratio} \|  \|  \|$", ttft), ttft
    assert "slower by a burnt core ↓" in text
    assert sorted(os.listdir(tmp_path / "out")) == ["performance-t-1.png", "performance.md"]


def test_ratios_and_shares(demo_gguf: Path) -> None:
    """Rates are shares of their floor, times the floor's share of them."""
    chosen = [tasks.prefill(512, 1), tasks.shared(cached=False)]
    rows = compare.rows_of(chosen)
    values = {"prefill-512": [100.0], "shared-cold-wall": [40.0]}
    reads = {"prefill-512": [1e10], "shared-cold": [1e10]}
    ours = Outcome(name="a", kind="a", form="m", form_mb=1, values=values, reads=reads)
    theirs = Outcome(name="b", kind="b", form="m", form_mb=1, values={"prefill-512": [50.0]})
    theirs.faults["shared-cold"] = "1 failed"
    found = Comparison(
        title="t", command="c", date="d", model="m", shape=shape_of(read_card(demo_gguf)),
        peak=1e11, rounds=1, threads=2, rows=rows, outcomes=[ours, theirs],
    )  # fmt: skip
    wall = next(row for row in rows if row.key == "shared-cold-wall")
    best, _ = found.floor(wall, ours) or (0.0, "")
    lines = performance._rates(found).splitlines()
    prefill = next(line for line in lines if "prompt of 512" in line)
    assert "| 100 | 50.0 (0.50) |" in prefill
    assert next(line for line in lines if "all answered" in line).endswith(f" {best / 40:.0%} |")
    assert not any("its own floor" in line for line in lines), "operations bind these"
    assert "- b, shared-cold: 1 failed" in performance._faults(found)


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (9.996, "10.0"), (99.96, "100"), (12345.6, "12,346")]
)
def test_numbers(value: float, text: str) -> None:
    assert performance.number(value) == text


def test_everything_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of ours, on a tiny model and on a random one; llama.cpp is missing and left out."""
    fast_machine(monkeypatch)
    tiny = publish.GEMMA._replace(
        model=str(tiny_llama("q8_0", tmp_path)), tasks=(tasks.stream(4, 32, 512), tasks.streams())
    )
    # Of answers so long that not all of one is told at once, though only a sixteenth is asked for.
    random = publish.PARTS[2]._replace(tasks=(tasks.stream(2, 32, 512),))
    monkeypatch.setattr(publish, "PARTS", [tiny, random])
    peers = tmp_path / "peers"
    peers.mkdir()
    folders = ["--models", tmp_path / "m", "--work", tmp_path / "w", "--out", tmp_path / "out"]
    done = CliRunner().invoke(
        publish.main, [str(peers), "--quick", *map(str, folders)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "llama_cpp is left out" in done.output
    text = (tmp_path / "out" / "performance.md").read_text()
    assert "\n## Gemma 3 270M, Q4_K_M\n" in text
    assert "\n## Random weights of Llama's 1B shape, Q4_0\n" in text
    assert "`treadle serve demo` is ready after" in text
    assert not re.search(r"out ↑ \|.* – \|", text), "every rate of ours was measured"
    assert os.listdir(tmp_path / "m") == [], "the random model is gone"


def test_another_type_for_matrices(tmp_path: Path) -> None:
    """What changes, what stays, and that values are those of the gguf package."""
    source, target = tiny_llama("q8_0", tmp_path), tmp_path / "q4_0.gguf"
    num_changed = requantize(source, gguf.GGMLQuantizationType.Q4_0, target)
    old, new = (gguf.GGUFReader(path) for path in (source, target))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in new.tensors}
    assert kinds["token_embd.weight"] != "Q4_0"
    assert kinds["blk.0.attn_q.weight"] == "Q4_0"
    assert num_changed == list(kinds.values()).count("Q4_0") > 0
    assert [tensor.name for tensor in old.tensors] == list(kinds)
    for before, after in zip(old.tensors, new.tensors, strict=True):
        was = gguf.dequantize(before.data, before.tensor_type)
        now = gguf.dequantize(after.data, after.tensor_type)
        assert np.abs(was - now).max() <= np.abs(was).max() / 7, before.name
    changed = {"general.file_type", "GGUF.tensor_count", "GGUF.kv_count"}
    for name, field in old.fields.items():
        if name not in changed:
            assert new.fields[name].contents() == field.contents(), name


def test_the_protocol_is_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tmp_path, monkeypatch)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "drivers" / "openvino_genai.py"), "model", "2"],
        input='{"prompts": [[1, 2]], "output_len": 1, "cached_len": 0}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True}
    assert [one["completion_tokens"] for one in answer["requests"]] == [1]
