"""`treadle bench serve` as a command, against treadle's own server with the scripted engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.served import Served
from treadle.cli.main import run


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with contextlib.closing(Served()) as served:
        yield served.wait_ready()


SMALL = ("--num-requests", "3", "--input-len", "16", "--output-len", "5")


def test_the_command_prints_a_table_and_writes_json_and_plot(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path, plot_path = tmp_path / "a.json", tmp_path / "a.png"
    options = ["--json", str(json_path), "--plot", str(plot_path), "--seed", "4"]
    # The limits as users of vLLM write them, with spaces between.
    goodput = ["--goodput", "ttft:60000", "tpot:60000"]
    assert run(["bench", "serve", "--url", server.url, *SMALL, *goodput, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for label, value in [
        ("Successful requests", "3"),
        ("Total input tokens", "48"),
        ("Total generated tokens", "15"),
        ("  share of requests, ttft:60000 tpot:60000", "100%"),
    ]:
        (line,) = (line for line in lines if line.startswith(label))
        assert line.split()[-1] == value
    report = json.loads(json_path.read_text())
    assert report["plan"]["workload"]["seed"] == 4
    assert report["server"]["prompts"] == "token ids"
    assert [one["completion_tokens"] for one in report["requests"]] == [5, 5, 5]
    assert plot_path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["single", "poisson", "shared-prefix", "multi-turn"])
def test_workloads_run(server: Served, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"shared-prefix": ("--prefix-len", "32"), "poisson": ("--rate", "100")}
    command = ["bench", "serve", "--url", server.url, "--workload", name, *SMALL]
    assert run([*command, *sizes.get(name, ())]) == 0
    out = capsys.readouterr().out
    assert "Failed requests" in out
    assert "were not counted as they were built" not in out


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--url", "127.0.0.1:1"], 1, "127.0.0.1:1: an address is http://host:port"),
        (["--url", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1: Connection refused"),
        (["--workload", "single", "--rate", "2"], 1, "--rate has no meaning for single"),
        (["--cached-prefix"], 1, "--cached-prefix has no meaning for concurrent"),
        (["--goodput", "speed:3"], 1, "--goodput speed:3: a limit is"),
        (["ttft:3"], 2, "unexpected extra argument (ttft:3)"),
        (["--workload", "chaos"], 2, "'chaos' is not one of"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[str], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "serve", *options]) == status
    assert sentence in capsys.readouterr().err


def test_a_run_without_any_answer_fails(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts beyond the window are refused by the server; the command says so and exits with 1."""
    command = ["bench", "serve", "--url", server.url, *SMALL, "--input-len", "4000"]
    assert run(command) == 1
    assert "Failed 3 times: status 400" in capsys.readouterr().out


def test_the_group_names_its_members(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--help"]) == 0
    assert "serve" in capsys.readouterr().out
    assert run(["bench", "nonsense"]) == 2


def test_keys_are_sent_and_their_refusal_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(Served("fake", "0", "512", "--api-key", "right")) as served:
        url = served.wait_ready().url
        command = ["bench", "serve", "--url", url, "--workload", "single", *SMALL]
        assert run([*command, "--api-key", "right"]) == 0
        assert "status" not in capsys.readouterr().out
        for model in ([], ["--model", "fake"]):
            assert run([*command, "--api-key", "wrong", *model]) == 1
            assert "status 401" in capsys.readouterr().err
