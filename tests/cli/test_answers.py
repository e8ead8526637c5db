"""`generate` and `chat`: with the real engine and the demo model, and against a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_main import treadle
from tests.server.served import Served
from treadle.cli.generate import RAW_MAX_TOKENS
from treadle.engine.llm import LLM
from treadle.errors import StartError
from treadle.text.load import load_text
from treadle.wire.sampling_params import SamplingParams

PROMPT = "Say hello."
SHORT = ("--max-tokens", "6")


@pytest.fixture(scope="module")
def server(demo_gguf: Path) -> Iterator[Served]:
    del demo_gguf
    served = Served()
    try:
        yield served.wait_ready()
    finally:
        served.close()


def test_generate_prints_only_the_answer(demo_gguf: Path) -> None:
    done = treadle("generate", PROMPT, "--model", str(demo_gguf), *SHORT)
    assert done.returncode == 0
    assert done.stderr == ""
    report = json.loads(treadle("generate", "-", *SHORT, "--json", stdin=PROMPT).stdout)
    assert report["text"] == done.stdout.removesuffix("\n")
    assert report["finish_reason"] == "length"
    assert report["usage"]["completion_tokens"] == 6
    text = load_text(demo_gguf)
    rendered = text.require_template().render([{"role": "user", "content": PROMPT}])
    assert report["usage"]["prompt_tokens"] == len(text.tokenizer.encode(rendered))
    assert 0 < report["timings"]["first_token_s"] <= report["timings"]["total_s"]


def test_generate_raw_continues_the_prompt(demo_gguf: Path) -> None:
    prompt = "The capital of France is"
    done = treadle("generate", prompt, "--raw", "--json", *SHORT, "--stop", ".")
    report = json.loads(done.stdout)
    assert report["text"] == " Paris"
    assert report["finish_reason"] == "stop"
    assert report["usage"]["prompt_tokens"] == len(load_text(demo_gguf).tokenizer.encode(prompt))


def test_a_file_may_name_the_model(demo_gguf: Path, tmp_path: Path) -> None:
    """For a command and for a caller; an argument goes before it."""
    file = tmp_path / "t.toml"
    file.write_text('[model]\nmodel = "not-there.gguf"\n[schedule]\nmax_num_seqs = 3\n')
    config = ("--config", str(file))
    for words in (("generate", PROMPT), ("chat",), ("explain",)):
        done = treadle(*words, *config, stdin="")
        assert done.returncode == 1
        assert "not-there.gguf: no such file" in done.stderr, words
    done = treadle("generate", PROMPT, *config, "--model", str(demo_gguf), *SHORT)
    assert done.returncode == 0
    with pytest.raises(StartError, match=r"not-there\.gguf"):
        LLM(config=str(file))
    file.write_text(file.read_text().replace("not-there.gguf", str(demo_gguf)))
    with LLM(config=str(file)) as llm:
        assert llm.model == str(demo_gguf)
        assert len(llm.generate([[1, 2], [3, 4]], SamplingParams(max_tokens=1), False)) == 2


def test_a_text_that_is_continued_has_an_end(demo_gguf: Path) -> None:
    del demo_gguf
    report = json.loads(treadle("generate", "1, 2, 3,", "--raw", "--json").stdout)
    assert report["usage"]["completion_tokens"] <= RAW_MAX_TOKENS


def test_a_pipe_sees_the_answer_come(demo_gguf: Path) -> None:
    """And keeps what has come when it breaks off."""
    command = ["generate", "Tell a long story.", "--model", str(demo_gguf)]
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle.cli.main", *command], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.read(1), "before the answer is whole"
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert rest.endswith(b"\n")


def test_chat_through_pipes(demo_gguf: Path) -> None:
    del demo_gguf
    done = treadle(
        "chat",
        *SHORT,
        "--temperature",
        "0",
        stdin=f"{PROMPT}\n/clear\n{PROMPT}\n/exit\nnever asked\n",
    )
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first == second
    assert done.stderr == ""


def test_chat_with_a_server(server: Served) -> None:
    # The scripted engine answers with the prompt, so the answer shows the history.
    done = treadle(
        *("chat", "--url", server.url, "--system", "S"),
        stdin="one\n\ntwo\n/clear\nthree\n",
    )
    assert done.returncode == 0, done.stderr
    # Each answer ends at the first end of turn, that of the system's message.
    assert done.stdout.count("system\nS\n") == 3


def test_chat_drops_the_oldest_exchanges_when_the_window_is_full(demo_gguf: Path) -> None:
    del demo_gguf
    turns = "\n".join(f"Say something about the number {n}, in short." for n in range(6))
    done = treadle("chat", *SHORT, "--max-model-len", "90", stdin=f"{turns}\n/nosuch\n/exit\n")
    assert done.returncode == 0
    assert "the oldest exchange was dropped" in done.stderr
    assert "there is no command /nosuch" in done.stderr


def test_chat_reports_a_refusal_and_goes_on(server: Served) -> None:
    long = "word " * 500
    done = treadle("chat", "--url", f"{server.url}/v1/", "--system", "S", stdin=f"{long}\nhi\n")
    assert done.returncode == 1, "a turn found no answer"
    assert "KV cache holds 400 tokens" in done.stderr
    assert done.stdout == "system\nS\n"


def test_chat_with_an_unknown_model(server: Served) -> None:
    done = treadle("chat", "other", "--url", server.url, stdin="hi\n")
    assert "the model 'other' does not exist" in done.stderr
    assert done.stdout.strip() == ""
