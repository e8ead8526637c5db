"""The command line: options, errors, exit statuses. Models are not loaded here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec
import pytest

from tests.tiny import tiny_llama
from treadle.cli import serve as serve_module
from treadle.cli.doctor import examine_machine
from treadle.cli.main import COMMANDS, run
from treadle.config.settings import EngineSettings, ServerSettings

SRC = Path(__file__).parents[2] / "src"


def treadle(
    *arguments: str, stdin: str = "", stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treadle.cli.main", *arguments],
        input=stdin,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from treadle.cli.main import run; run(['serve', '--help']); "
        "print(sorted({'numpy', 'uvicorn', 'starlette', 'tokenizers', 'jinja2', "
        "'prometheus_client', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n"


def test_every_field_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[EngineSettings, ServerSettings]] = []
    monkeypatch.setattr(serve_module, "run", lambda *settings: seen.append(settings) or 0)
    values = {
        "served_model_name": ["n", "m"],
        "chat_template": "{{ messages }}",
        "generation_config": "none",
        "max_model_len": 64,
        "prefix_cache": "hashed",
        "eviction_policy": "slru",
        "publication": "postpone",
        "prefix_wait_tokens": 7,
        "partial_reuse": True,
        "copy_on_partial_reuse": True,
        "block_size": 32,
        "kv_dtype": "bf16",
        "kv_cache_memory_bytes": 1000,
        "kv_soft_limit_bytes": 500,
        "kv_memory_rule": "reserve",
        "kv_memory_fraction": 0.25,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 4,
        "overlap_depth": 1,
        "length_rule": "sglang",
        "allow_auto_truncate": True,
        "order": "lof",
        "priorities": "count",
        "low_priority_values_first": True,
        "missing_priority": "worst",
        "priority_preemption": True,
        "priority_preemption_threshold": 2,
        "in_batch_check_threshold": -1,
        "in_batch_share_threshold": 3,
        "sort_limit": 4,
        "order_seed": 5,
        "backend": "torch",
        "isa": "avx2",
        "threads": 5,
        "context_form": "block-list",
        "write_and_attend": True,
        "grammar_backend": "xgrammar",
        "processes": "proxy+worker",
        "num_postprocess_workers": 2,
        "host": "::1",
        "port": 0,
        "max_queued_requests": 7,
        "queue_timeout": 1.5,
        "running_timeout": 2.5,
        "watchdog_timeout": 0.0,
        "shutdown_timeout": 2.5,
        "http_timeout": 3.5,
        "keep_alive_timeout": 4.5,
        "max_connections": 8,
        "metrics_names": "both",
        "log_stats_interval": 5.5,
        "log_requests": True,
        "api_key": ["one", "two"],
        "admin_api_key": "three",
        "allowed_origins": ["https://a.example", "*"],
        "incremental_streaming_output": True,
        "health_generate_timeout": 1.5,
        "max_output_tokens": 100,
        "max_answers": 7,
        "enable_timings": True,
        "trust_request_chat_template": True,
    }
    arguments = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(option)
        else:
            for item in value if isinstance(value, list) else [value]:
                arguments += [option, str(item)]
    assert run(["serve", "some.gguf", *arguments]) == 0
    engine, server = seen.pop()
    flat: dict[str, object] = {}
    sections = (engine.model, engine.cache, engine.schedule, engine.order, engine.runtime, server)
    for section in sections:
        flat |= msgspec.structs.asdict(section)
    assert flat == {"model": "some.gguf", **values}

    assert run(["serve"]) == 0
    assert seen.pop() == (EngineSettings(usage="server"), ServerSettings())

    monkeypatch.setenv("TREADLE_API_KEY", "from-the-environment")
    monkeypatch.setenv("TREADLE_ADMIN_API_KEY", "this-too")
    assert run(["serve"]) == 0
    assert seen[0][1].api_key == ["from-the-environment"]
    assert seen[0][1].admin_api_key == "this-too"


def test_an_empty_key_is_refused_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--api-key", "secret", "--api-key", ""]) == 1
    err = capsys.readouterr().err
    assert err == "treadle: api_key: it must be a list, each of it text that is not empty\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["serve", "--nonsense"],
        ["serve", "a", "b"],
        ["serve", "--port", "70000"],
        ["serve", "--block-size", "3"],
        ["serve", "--threads", "0"],
        ["serve", "--max-model-len", "x"],
        ["generate"],
        ["generate", "x", "--temperature", "hot"],
    ],
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error:" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "x", "--model", "/no/model.gguf"], "/no/model.gguf: no such file"),
        (["chat", "/no/model.gguf"], "/no/model.gguf: no such file"),
        (["pull", "/no/model.gguf"], "/no/model.gguf: no such file"),
        (["serve", "/no/model.gguf", "--port", "0"], "/no/model.gguf: no such file"),
        (["serve", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8000"),
        (["serve", "--host", "no such host"], "cannot listen on no such host:8000"),
        (["chat", "--url", "ftp://x"], "an address starts with http"),
        (["chat", "--url", "http://127.0.0.1:9"], "http://127.0.0.1:9/v1"),
    ],
)
def test_user_errors_are_one_line(arguments: list[str], message: str) -> None:
    done = treadle(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("treadle: ")
    assert message in last
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("cli"))


GENERATE = ("generate", "x", "--max-tokens", "3", "--max-model-len", "64", "--model")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["doctor"], ["pull", "PATH"], [*GENERATE, "PATH"],
                  [*GENERATE, "PATH", "--json"]]
)  # fmt: skip
def test_output_that_cannot_be_written_is_one_line(tiny: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = treadle(*(str(tiny) if a == "PATH" else a for a in arguments), stdout=full)
    assert done.returncode == 1
    assert done.stderr == "treadle: the output cannot be written: No space left on device\n"


def test_a_path_that_is_no_text(tiny: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.gguf"
    os.symlink(tiny, path)

    def run(*arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "treadle.cli.main", *arguments],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            capture_output=True,
            check=False,
        )

    pulled = run("pull", path)
    assert (pulled.returncode, pulled.stdout) == (0, path + b"\n")
    answered = run(*GENERATE, path)
    assert answered.returncode == 0
    assert treadle(*GENERATE, str(tiny)).stdout.encode() == answered.stdout
    missing = run("pull", path + b"x")
    assert missing.returncode == 1
    start = b"treadle: " + os.fsencode(tmp_path) + b"/m\\udcff.ggufx: no such file; "
    assert missing.stderr.startswith(start)


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii"},
    ],
)
def test_answers_that_a_terminal_cannot_show(locale: dict[str, str]) -> None:
    """What it lacks shows as a question mark, and the answer goes on."""
    script = (
        "from treadle.cli import main\n"
        "from treadle.cli.generate import show\n"
        "main.run = lambda _: show(iter(['a \\xe9 ', '\\u65e5', ' end'])) and 0\n"
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SRC), **locale},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"a ")
    assert done.stdout.endswith(b" end\n")


def test_a_prompt_that_is_no_text_is_one_line(tiny: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treadle.cli.main", *GENERATE[:1], b"a\xffb", *GENERATE[2:], tiny],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"treadle: the text holds a lone surrogate, half of a character\n"


def test_doctor() -> None:
    done = treadle("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["use"]["kernels_ok"] else 1)
    assert report["machine"]["cores_usable"] <= report["machine"]["cores_online"]
    assert report["machine"]["cores_allowed"] == sorted(os.sched_getaffinity(0))
    assert report["machine"]["available_bytes"] <= report["machine"]["memory_bytes"]
    if report["use"]["demo_cached"]:
        settings = report["use"]["settings"]
        assert settings["max_model_len"]["value"] == 8192
        assert all(choice["reason"] for choice in settings.values())
    readable = treadle("doctor")
    assert report["machine"]["cpu"] in readable.stdout
    assert report["use"]["kernels"] in readable.stdout


def test_doctor_reads_another_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor : 0\nmodel name\t: Imaginary 9000\nflags\t\t: fpu avx2 avx512f nonsense\n"
    )
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    machine = examine_machine(tmp_path)
    assert machine.cpu == "Imaginary 9000"
    assert machine.features == ["avx2", "avx512f"]
    assert machine.memory_bytes == 8192 * 1024
