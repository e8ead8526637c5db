"""Starting, stopping and dying, in real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.server import fake_engine as script
from tests.server.served import Served, eventually, is_alive, read_all, read_until

PATH = "/v1/completions"
Start = Callable[..., Served]


def health(served: Served) -> int | None:
    try:
        return httpx.get(f"{served.url}/health").status_code
    except httpx.TransportError:
        return None


def test_port_in_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = start("fake", str(port))
        assert served.wait() == 1
    assert served.log == f"treadle: cannot listen on 127.0.0.1:{port}: address already in use\n"


def test_while_loading(start: Start) -> None:
    served = start("load-for-ever")
    _ = served.engine_pid
    response = httpx.get(f"{served.url}/health")
    assert response.status_code == 503
    assert response.json()["phase"] == "find pid"
    for path in ("/v1/completions", "/v1/chat/completions"):
        response = served.post(path, prompt="x", messages=[{"role": "user", "content": "x"}])
        assert response.status_code == 503
        assert "find pid" in response.json()["error"]["message"]
        assert response.headers["retry-after"] == "1"
    assert httpx.get(f"{served.url}/v1/models").status_code == 503
    assert httpx.get(f"{served.url}/metrics").status_code == 200
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    assert not is_alive(served.engine_pid)


def test_refusal_to_start_is_one_sentence(start: Start) -> None:
    served = start("refuse-to-start")
    assert served.wait() == 1
    assert served.log.splitlines()[-1].endswith("scripted refusal to start")
    assert "Traceback" not in served.log


def test_bug_while_loading(start: Start) -> None:
    served = start("break-while-loading")
    assert served.wait() == 1
    assert "scripted bug while loading" in served.log
    assert served.log.splitlines()[-1] == "treadle: the engine's process ended (exit status 1)"


def test_models_and_window(start: Start) -> None:
    served = start("tiny", "0", "64").wait_ready()
    [card] = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 64)
    assert httpx.get(f"{served.url}/v1/models/tiny").json() == card

    error = served.complete([1100] * 60, max_tokens=10).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("64", "60", "10"))
    for num_prompt in (64, 65, 10_000):
        assert served.complete([1100] * num_prompt, max_tokens=1).status_code == 400
    message = [{"role": "user", "content": "x"}]
    usage = served.post("/v1/chat/completions", messages=message, ignore_eos=True).json()["usage"]
    assert usage["total_tokens"] == 64


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("command", [script.HOLD, script.SLOW])
def test_client_goes(server: Served, command: int, *, stream: bool) -> None:
    # Before its first token, or amid its answer.
    body = {"prompt": [command, 1100], "max_tokens": 390, "n": 4, "stream": stream}
    with server.open_request(PATH, **body) as connection:
        eventually(lambda: server.running() == 4)
        if stream and command == script.SLOW:
            read_until(connection, b"data: ")
    eventually(lambda: server.running() == 0)


def test_one_client_goes_another_stays(server: Served) -> None:
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 60}
    with server.open_request(PATH, **body) as staying:
        with server.open_request(PATH, **body, stream=True) as going:
            read_until(going, b"data: ")
        assert json.loads(read_until(staying, b"}}}").split(b"\r\n\r\n", 1)[1])["choices"]


def test_client_that_does_not_read_holds_up_nobody(server: Served) -> None:
    # Far more text than the sockets' buffers take.
    body = {"prompt": [1100], "max_tokens": 300, "n": 100, "logprobs": 20, "stream": True}
    with server.open_request(PATH, **body):
        eventually(lambda: (server.running() or 0) == 0)
        assert server.complete("a b").status_code == 200


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_reader_that_never_reads_costs_others_nothing(start: Start) -> None:
    served = start("fake", "0", "512", "--max-num-seqs", "64").wait_ready()
    body = {"prompt": [1100], "max_tokens": 390, "ignore_eos": True}
    whole = served.complete(**body).json()["choices"][0]["text"]
    before = rss_bytes(served.process.pid)
    with served.open_request(PATH, **body, n=100, stream=True):
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: served.raw_events(PATH, **body), range(20)))
        for events in answers:
            texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
            assert "".join(texts) == whole
        eventually(lambda: (served.running() or 0) == 0)
        assert rss_bytes(served.process.pid) - before < 64 << 20
        assert health(served) == 200


def test_engine_killed(start: Start) -> None:
    served = start().wait_ready()
    body = {"prompt": [script.HOLD], "max_tokens": 9}
    slow = {"prompt": [script.SLOW], "max_tokens": 390, "stream": True}
    with (
        served.open_request(PATH, **body) as waiting,
        served.open_request(PATH, **slow) as streaming,
    ):
        read_until(streaming, b"data: ")
        eventually(lambda: served.running() == 2)
        began = time.monotonic()
        os.kill(served.engine_pid, signal.SIGKILL)
        whole, stream = read_all(waiting), read_all(streaming)
        assert time.monotonic() - began < 2
    assert whole.startswith(b"HTTP/1.1 500")
    assert b"killed by signal 9" in whole
    last = stream.rstrip(b"\r\n0").rpartition(b"data: ")[2]
    assert b'{"error":' in last
    assert b"[DONE]" not in stream
    assert health(served) in (503, None)
    assert served.wait() == 1
    assert served.log.splitlines()[-1] == "treadle: the engine's process ended (killed by signal 9)"


def test_engine_dies_by_itself(start: Start) -> None:
    served = start().wait_ready()
    response = served.complete([script.DIE], max_tokens=9)
    assert response.status_code == 500
    assert served.wait() == 1


def test_engine_raises(start: Start) -> None:
    served = start().wait_ready()
    with served.open_request(PATH, prompt=[script.HOLD], max_tokens=9) as waiting:
        eventually(lambda: served.running() == 1)
        response = served.complete([script.CRASH], max_tokens=9)
        assert response.status_code == 500
        message = response.json()["error"]["message"]
        assert message == "the engine failed: scripted crash"
        assert message.encode() in read_all(waiting)
    assert served.wait() == 1
    assert "RuntimeError: scripted crash" in served.log


def leftovers() -> set[Path]:
    """What a server could leave behind outside of memory."""
    folders = (tempfile.gettempdir(), "/dev/shm")
    return {path for folder in folders for path in Path(folder).glob("*treadle*")}


@pytest.mark.parametrize("phase", ["starting", "loading", "idle", "generating"])
def test_parent_killed(start: Start, phase: str) -> None:
    before = leftovers()
    served = start("load-for-ever" if phase == "loading" else "fake")
    _ = served.url
    if phase == "starting":
        pid = served.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        eventually(lambda: bool(children.read_text()))
        engine = int(children.read_text())
    else:
        engine = served.engine_pid
    if phase in ("idle", "generating"):
        served.wait_ready()
        assert served.complete("a b").status_code == 200
    with contextlib.ExitStack() as stack:
        if phase == "generating":
            body = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "stream": True}
            read_until(stack.enter_context(served.open_request(PATH, **body)), b"data: ")
        served.signal(signal.SIGKILL)
        eventually(lambda: not is_alive(engine), seconds=5)
    assert leftovers() <= before
    port = served.url.rpartition(":")[2]
    again = start("fake", port).wait_ready()
    assert again.complete("a b").status_code == 200


def test_term_waits_for_running_answers(start: Start) -> None:
    served = start().wait_ready()
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 60}
    with served.open_request(PATH, **body) as connection:
        eventually(lambda: served.running() == 1)
        served.signal(signal.SIGTERM)
        answer = read_all(connection)
    assert b'"finish_reason":"length"' in answer
    assert served.wait() == 0
    assert "stopping; 1 answers" in served.log
    assert not is_alive(served.engine_pid)


def test_new_requests_are_refused_while_the_old_end(start: Start) -> None:
    served = start("fake", "0", "512", "--shutdown-timeout", "30").wait_ready()
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "ignore_eos": True}
    with served.open_request(PATH, **body) as connection:
        eventually(lambda: served.running() == 1)
        served.signal(signal.SIGTERM)
        served.read_until(r"(stopping); 1 answers")
        refused = served.complete("a b")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["message"] == "the server is shutting down"
        assert health(served) == 503
        assert b'"finish_reason":"length"' in read_all(connection)
    assert served.wait() == 0


def test_term_aborts_after_the_grace(start: Start) -> None:
    served = start().wait_ready()
    body = {"prompt": [script.HOLD], "max_tokens": 60}
    with (
        served.open_request(PATH, **body) as whole,
        served.open_request(PATH, **body, stream=True) as stream,
    ):
        eventually(lambda: served.running() == 2)
        served.signal(signal.SIGTERM)
        assert b'"finish_reason":"abort"' in read_all(whole)
        assert b"data: [DONE]" in read_all(stream)
    assert served.wait() == 0
    assert "Traceback" not in served.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_is_at_once(start: Start, number: signal.Signals) -> None:
    served = start("fake", "0", "512", "--shutdown-timeout", "60").wait_ready()
    with served.open_request(PATH, prompt=[script.HOLD], max_tokens=60) as connection:
        eventually(lambda: served.running() == 1)
        served.signal(number)
        served.read_until(r"(stopping); 1 answers")
        began = time.monotonic()
        served.signal(number)
        read_all(connection)
        assert served.wait() == 0
        assert time.monotonic() - began < 5
    assert not is_alive(served.engine_pid)
    assert "Traceback" not in served.log


def test_signal_to_the_whole_group_keeps_the_grace(start: Start) -> None:
    served = start().wait_ready()
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 60}
    with served.open_request(PATH, **body) as connection:
        eventually(lambda: served.running() == 1)
        os.kill(served.engine_pid, signal.SIGTERM)
        os.kill(served.engine_pid, signal.SIGINT)
        served.signal(signal.SIGTERM)
        assert b'"finish_reason":"length"' in read_all(connection)
    assert served.wait() == 0


def test_idle_costs_nothing(start: Start) -> None:
    served = start().wait_ready()
    assert served.complete("a b").status_code == 200
    eventually(lambda: served.running() == 0)

    def ticks() -> int:
        fields = Path(f"/proc/{served.engine_pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    # The server's own polling is the clock: the engine has nothing to do with it.
    for _ in range(20):
        assert httpx.get(f"{served.url}/health").status_code == 200
    assert ticks() - before <= 1
