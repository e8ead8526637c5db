"""However a server is split into processes, it answers alike, and none of them dies alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.server import fake_engine as script
from tests.server.served import Served, eventually, is_alive, read_all, read_until
from tests.server.test_real_engine import RealServed
from treadle.text.load import ModelText
from treadle.text.workers import FromWorker
from treadle.wire.channel import Link
from treadle.wire.child import EXIT_NOT_STARTED, Child
from treadle.wire.ends import WorkerStart
from treadle.wire.messages import Failed

Start = Callable[..., Served]

LAYOUTS = {
    "api+engine": (),
    "http+scheduler+detokenizer": ("--processes", "http+scheduler+detokenizer"),
    "proxy+worker": ("--processes", "proxy+worker"),
    "proxy+worker+2": ("--processes", "proxy+worker", "--num-postprocess-workers", "2"),
}
SPLIT = ("http+scheduler+detokenizer", "proxy+worker+2")
"""Those in which texts are made elsewhere."""

OF_ONE_ANSWER = {"id", "created", "system_fingerprint", "e2e_latency"}


def children(pid: int) -> list[int]:
    """The engine, then the processes that make texts."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def plain(value: Any) -> Any:
    """An answer without what no two have in common."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in OF_ONE_ANSWER}
    return [plain(each) for each in value] if isinstance(value, list) else value


def told(served: Served, path: str, body: dict[str, Any]) -> Any:
    """What a client gets. How a stream is cut hangs on how fast it is read, so of each choice its
    text and its last chunk count, and all that is not text."""
    if not body.get("stream"):
        answer = served.post(path, **body)
        return answer.status_code, plain(answer.json())
    events = served.raw_events(path, **{k: v for k, v in body.items() if k != "stream"})
    assert events.pop() == "[DONE]"
    texts: dict[int, str] = {}
    last: dict[int, Any] = {}
    scores: dict[int, list[Any]] = {}
    usage = None
    for event in map(json.loads, events):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            index = choice["index"]
            texts[index] = texts.get(index, "") + _text_of(choice)
            if choice["finish_reason"]:
                last[index] = (choice["finish_reason"], choice.get("stop_reason"))
            scores.setdefault(index, []).extend(_scores_of(choice))
        if "text" in event:
            last[event.get("index", 0)] = plain({**event, "meta_info": _lasting(event)})
    return texts, last, scores, usage


def _text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


def _scores_of(choice: dict[str, Any]) -> list[Any]:
    logprobs = choice.get("logprobs") or {}
    return logprobs.get("content") or list(
        zip(*(logprobs.get(name, []) for name in ("tokens", "token_logprobs")), strict=True)
    )


def _lasting(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event["meta_info"].items() if key != "id"}


@pytest.fixture(scope="module")
def servers(demo_gguf: Path) -> Iterator[dict[str, Served]]:
    del demo_gguf
    with contextlib.ExitStack() as stack:
        started = {}
        for name, options in LAYOUTS.items():
            started[name] = Served("fake", "0", "512", "--enable-timings", *options)
            stack.callback(started[name].close)
        yield {name: served.wait_ready() for name, served in started.items()}


@pytest.fixture
def start(demo_gguf: Path) -> Iterator[Start]:
    del demo_gguf
    with contextlib.ExitStack() as stack:

        def launch(layout: str, *options: str) -> Served:
            served = Served("fake", "0", "512", *LAYOUTS[layout], *options)
            stack.callback(served.close)
            return served

        yield launch


def requests(text: ModelText) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fake engine repeats its prompt."""
    encode = text.tokenizer.encode
    completions, chat = "/v1/completions", "/v1/chat/completions"
    emoji = encode("a 🦩🪿 b ñ ", add_special=False)
    assert len(emoji) > len("a 🦩🪿 b ñ ")  # characters of several tokens
    words = encode(" the quick brown fox jumps over it", add_special=False)
    for stream in (False, True):
        common = {"stream": stream, "max_tokens": 40}
        yield completions, {**common, "prompt": emoji}
        yield completions, {**common, "prompt": emoji, "max_tokens": 3}  # amid a character
        yield completions, {**common, "prompt": words, "stop": ["own fo", "jum"]}
        yield (
            completions,
            {**common, "prompt": words, "stop": "own fo", "include_stop_str_in_output": True},
        )
        yield completions, {**common, "prompt": words, "stop": "quick", "min_tokens": 9}
        yield completions, {**common, "prompt": words, "n": 3, "logprobs": 2, "stop": " over"}
        yield completions, {**common, "prompt": [script.BURST, *words], "stop": ["fox j"]}
        yield completions, {**common, "prompt": words, "echo": True, "logprobs": 1}
        yield completions, {**common, "prompt": words, "stop_token_ids": [words[3]]}
        yield completions, {**common, "prompt": [*words, script.EOS], "ignore_eos": False}
        if not stream:
            yield completions, {**common, "prompt": [words, emoji], "prompt_logprobs": 1}
            yield completions, {**common, "prompt": [script.REFUSE, *words]}
            yield completions, {**common, "prompt": [script.REFUSE_AT_ONCE]}
        message = [{"role": "user", "content": "🦩 the quick brown fox"}]
        yield chat, {**common, "messages": message, "stop": ["brown"], "ignore_eos": True}
        yield (
            chat,
            {**common, "messages": message, "logprobs": True, "top_logprobs": 2, "n": 2},
        )
        options = {"max_new_tokens": 30, "stop": ["own fo"]}
        yield (
            "/generate",
            {
                "input_ids": words,
                "sampling_params": options,
                "stream": stream,
                "return_logprob": True,
                "top_logprobs_num": 1,
            },
        )


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "api+engine"])
def test_all_answers_are_the_same(servers: dict[str, Served], text: ModelText, layout: str) -> None:
    for path, body in requests(text):
        for name in (layout, "api+engine"):
            told(servers[name], path, body)  # from now on the engine's cache has the prompt
        assert told(servers[layout], path, body) == told(servers["api+engine"], path, body), body


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stop_string_ends_the_request_in_the_engine(
    servers: dict[str, Served], text: ModelText, layout: str
) -> None:
    served = servers[layout]
    words = text.tokenizer.encode(" the quick brown fox", add_special=False)
    began = time.monotonic()
    choice = served.complete(
        [script.SLOW, *words], max_tokens=390, stop="own f", ignore_eos=True
    ).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "own f")
    eventually(lambda: served.running() == 0)
    assert time.monotonic() - began < 390 * script.SLOW_TOKEN_S


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("layout", SPLIT)
def test_a_client_that_goes_ends_its_request(
    servers: dict[str, Served], layout: str, *, stream: bool
) -> None:
    served = servers[layout]
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "n": 4, "stream": stream}
    with served.open_request("/v1/completions", **body) as connection:
        eventually(lambda: served.running() == 4)
        if stream:
            read_until(connection, b"data: ")
    eventually(lambda: served.running() == 0)


@pytest.mark.parametrize(
    ("layout", "victim", "name"),
    [
        ("api+engine", 0, "engine"),
        ("proxy+worker", 0, "engine"),
        ("http+scheduler+detokenizer", 0, "engine"),
        ("http+scheduler+detokenizer", 1, "detokenizer"),
        ("proxy+worker+2", 0, "engine"),
        ("proxy+worker+2", 1, "detokenizer 1"),
        ("proxy+worker+2", 2, "detokenizer 2"),
    ],
)
def test_a_killed_process_ends_the_server(
    start: Start, layout: str, victim: int, name: str
) -> None:
    served = start(layout).wait_ready()
    family = children(served.process.pid)
    assert len(family) == {"http+scheduler+detokenizer": 2, "proxy+worker+2": 3}.get(layout, 1)
    hold = {"prompt": [script.HOLD], "max_tokens": 9}
    slow = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "stream": True}
    with (
        served.open_request("/v1/completions", **hold) as waiting,
        served.open_request("/v1/completions", **slow) as reading,
    ):
        read_until(reading, b"data: ")
        eventually(lambda: served.running() == 2)
        os.kill(family[victim], signal.SIGKILL)
        said = f"the {name}'s process ended (killed by signal 9)"
        answer = read_all(waiting)
        assert answer.startswith(b"HTTP/1.1 500")
        assert said in answer.decode()
        *_, last = read_all(reading).decode().split("data: ")
        assert said in last
    assert served.wait() == 1
    assert served.log.splitlines()[-1] == f"treadle: {said}"
    assert not any(map(is_alive, family))


@pytest.mark.parametrize("layout", SPLIT)
def test_no_process_outlives_the_server(start: Start, layout: str) -> None:
    served = start(layout).wait_ready()
    family = children(served.process.pid)
    served.signal(signal.SIGKILL)
    served.wait()
    eventually(lambda: not any(map(is_alive, family)))


@pytest.mark.parametrize("layout", SPLIT)
def test_a_stop_lets_answers_end(start: Start, layout: str) -> None:
    served = start(layout).wait_ready()
    family = children(served.process.pid)
    quick = {"prompt": [script.SLOW, 1100], "max_tokens": 60, "stream": True}
    endless = {"prompt": [script.HOLD], "max_tokens": 9, "stream": True}
    with (
        served.open_request("/v1/completions", **quick) as reading,
        served.open_request("/v1/completions", **endless) as waiting,
    ):
        read_until(reading, b"data: ")
        eventually(lambda: served.running() == 2)
        served.signal(signal.SIGTERM)
        assert b'"finish_reason":"length"' in read_all(reading)
        assert b'"finish_reason":"abort"' in read_all(waiting)
    assert served.wait() == 0
    assert not any(map(is_alive, family))


def is_on_its_way(pid: int) -> bool:
    """Whether a child ignores SIGTERM, and so has bound its life to its parent's."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("layout", SPLIT)
def test_ready_waits_for_all(start: Start, layout: str) -> None:
    served = start(layout)
    _ = served.url
    num_children = 2 if layout == "http+scheduler+detokenizer" else 3
    eventually(lambda: len(children(served.process.pid)) == num_children)
    *_, worker = children(served.process.pid)
    eventually(lambda: is_on_its_way(worker))
    os.kill(worker, signal.SIGSTOP)  # long before it has loaded
    served.read_until(r"(find pid)")
    time.sleep(0.5)
    assert httpx.get(f"{served.url}/health").status_code == 503
    os.kill(worker, signal.SIGCONT)
    served.wait_ready()
    assert httpx.get(f"{served.url}/health").status_code == 200


@pytest.mark.parametrize("layout", SPLIT)
def test_a_worker_that_stands_still_is_noticed(start: Start, layout: str) -> None:
    served = start(layout, "--watchdog-timeout", "1").wait_ready()
    *_, worker = children(served.process.pid)
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "n": 2, "stream": True}
    with served.open_request("/v1/completions", **body) as reading:
        read_until(reading, b"data: ")
        os.kill(worker, signal.SIGSTOP)
        assert b"is stuck: no progress for 1 s" in read_all(reading)
    assert served.wait() == 1
    assert served.log.splitlines()[-1].startswith("treadle: the detokenizer")
    assert not is_alive(worker)


def test_a_worker_that_cannot_load_says_why(tmp_path: Path) -> None:
    """And ends, so that whoever started it does as well."""
    ours, theirs = socket.socketpair()
    fed, end = socket.socketpair()
    child = Child("treadle.text.process", [theirs, end])
    theirs_fd, end_fd = theirs.fileno(), end.fileno()
    child.start(WorkerStart(str(tmp_path / "none.gguf"), engine=end_fd, text=theirs_fd))
    theirs.close()
    end.close()
    assert asyncio.run(child.wait()) == EXIT_NOT_STARTED
    link = Link(ours)
    [frame] = link.frames()
    [failed] = msgspec.msgpack.decode(frame, type=list[FromWorker])
    assert isinstance(failed, Failed)
    assert "none.gguf" in failed.message
    child.terminate()
    link.close()
    fed.close()


@pytest.mark.parametrize("layout", SPLIT)
def test_idle_costs_nothing(servers: dict[str, Served], layout: str) -> None:
    served = servers[layout]
    family = [served.process.pid, *children(served.process.pid)]
    before = [_cpu_s(pid) for pid in family]
    time.sleep(1.0)
    spent = [_cpu_s(pid) - b for pid, b in zip(family, before, strict=True)]
    assert max(spent) < 0.05, spent


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_real_engine_answers_alike(demo_gguf: Path) -> None:
    answers = []
    bodies = [
        {"prompt": "Once upon a time", "seed": 7, "temperature": 0.9, "max_tokens": 24, "n": 2},
        {"prompt": "One, two,", "temperature": 0, "max_tokens": 24, "logprobs": 2, "stop": ["e,"]},
    ]
    with contextlib.ExitStack() as stack:
        started = [RealServed(demo_gguf, *options) for options in LAYOUTS.values()]
        for served in started:
            stack.callback(served.close)
        for served in started:
            served.wait_ready()
            answers.append([told(served, "/v1/completions", body) for body in bodies])
    assert all(answer == answers[0] for answer in answers)
