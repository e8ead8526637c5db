"""Clients that are slow, silent, too many, half gone, or speak HTTP in unusual ways."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.server import fake_engine as script
from tests.server.served import DEADLINE_S, Served, eventually, read_all, read_until

Start = Callable[..., Served]

PATH = "/v1/completions"
HASTE = ("fake", "0", "512", "--http-timeout", "0.6", "--keep-alive-timeout", "0.6")


@pytest.fixture(scope="module")
def hasty(demo_gguf: object) -> Iterator[Served]:
    served = Served(*HASTE)
    try:
        yield served.wait_ready()
        assert served.process.poll() is None, served.wait()
    finally:
        served.close()


@contextlib.contextmanager
def connection(served: Served, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(served.address, timeout=DEADLINE_S) as client:
        client.sendall(data)
        yield client


def post(body: dict[str, object], *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {PATH} HTTP/1.1", "host: x", f"content-length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


def error_of(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert isinstance(error, dict)
    return error


SLOW = {"prompt": [script.SLOW, 1100], "max_tokens": 100, "ignore_eos": True}


def test_silence_is_closed(hasty: Served) -> None:
    with connection(hasty) as client:
        assert read_all(client) == b""


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /health HTTP/1.1\r\nhost:",
        post({"prompt": "a b"})[:-3],
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
    ],
)
def test_half_a_request_is_refused(hasty: Served, begin: bytes) -> None:
    with connection(hasty, begin) as client:
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert error_of(answer)["type"] == "invalid_request_error"


def test_a_head_that_drips_is_not_kept_for_ever(hasty: Served) -> None:
    with connection(hasty, b"GET /health HTTP/1.1\r\n") as client, contextlib.suppress(OSError):
        for _ in range(40):
            client.sendall(b"a: b\r\n")
            time.sleep(0.1)
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert client.recv(100).startswith(b"HTTP/1.1 408")
                return
            client.setblocking(True)
        pytest.fail("never refused")


def test_a_body_that_comes_slowly_but_comes_is_taken(hasty: Served) -> None:
    data = post({"prompt": "a b", "max_tokens": 2})
    with connection(hasty) as client:
        begin = data.index(b"\r\n\r\n") + 4
        client.sendall(data[:begin])
        for at in range(begin, len(data), 4):  # in all, longer than the limit
            client.sendall(data[at : at + 4])
            time.sleep(0.1)
        assert read_until(client, b"}}}").startswith(b"HTTP/1.1 200")


def test_a_long_answer_is_no_silence(hasty: Served) -> None:
    body = {"prompt": [script.SLOW, 1100], "max_tokens": 390, "ignore_eos": True}
    assert hasty.complete(**body).status_code == 200


def test_idle_connections_are_closed(hasty: Served) -> None:
    with connection(hasty, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") as client:
        began = time.monotonic()
        assert read_all(client).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"GET /health HTTP/1.1\r\na: " + b"b" * 300_000,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_long_heads_are_refused(server: Served, head: bytes) -> None:
    with connection(server) as client:
        with contextlib.suppress(OSError):
            client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"FOO / HTTP/1.1\r\n"]
)
def test_what_is_not_http(server: Served, garbage: bytes) -> None:
    with connection(server, garbage) as client:
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400")
    assert error_of(answer)["message"] == "this is not a valid HTTP request"


def test_long_bodies_are_no_long_heads(server: Served) -> None:
    filler = "x" * 200_000
    data = post({"prompt": "a b", "max_tokens": 2, "user": filler})
    with connection(server, data + data[:40]) as client:
        read_until(client, b"}}}")
        client.sendall(data[40:])
        assert read_until(client, b"}}}").startswith(b"HTTP/1.1 200")


def test_too_many_connections_are_refused_politely(start: Start) -> None:
    served = start("fake", "0", "512", "--max-connections", "3").wait_ready()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(served.open_request(PATH, prompt=[script.HOLD], max_tokens=9))
        time.sleep(0.5)  # /metrics cannot tell: there is no connection left
        response = httpx.get(f"{served.url}/health")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "too many connections" in response.json()["error"]["message"]
    assert eventually_healthy(served)


def eventually_healthy(served: Served) -> bool:
    eventually(lambda: httpx.get(f"{served.url}/health").status_code == 200)
    return True


def test_idle_connections_make_room(start: Start) -> None:
    served = start("fake", "0", "512", "--max-connections", "3").wait_ready()
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connection(served)) for _ in range(3)]
        time.sleep(0.3)
        for _ in range(4):
            assert httpx.get(f"{served.url}/health").status_code == 200
        assert read_all(idle[0]) == b""


def test_files_do_not_run_out(start: Start) -> None:
    """A flood of connections, each with a request that does not end."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 900, "of our own"
    served = start("fake", "0", "512")
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    served.wait_ready()
    head = post({"prompt": [script.HOLD], "max_tokens": 9})
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(served.address, timeout=DEADLINE_S))
            for _ in range(600)
        ]
        for client in clients:
            with contextlib.suppress(OSError):
                client.sendall(head)
        time.sleep(1.0)
    assert eventually_healthy(served)
    eventually(lambda: served.running() == 0)
    served.process.terminate()
    assert served.wait() == 0
    assert "out of system resource" not in served.log
    assert served.log.count("\n") < 30


UPGRADE = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk")


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_upgrade_is_not_taken(server: Served, pieces: int) -> None:
    data = post({"prompt": "a b", "max_tokens": 2}, *UPGRADE) * 2
    with connection(server) as client:
        size = -(-len(data) // pieces)
        for at in range(0, len(data), size):
            client.sendall(data[at : at + size])
            time.sleep(0.05)
        first = read_until(client, b"}}}")
        second = b"" if first.count(b"}}}") == 2 else read_until(client, b"}}}")
    assert (first + second).count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_with_http2(server: Served) -> None:
    command = ["curl", "-sS", "--http2", "-d", '{"prompt": "a b", "max_tokens": 2}']
    done = subprocess.run(
        [*command, f"{server.url}{PATH}"], capture_output=True, check=True, timeout=DEADLINE_S
    )
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 2


def test_connect_is_refused(server: Served) -> None:
    with connection(server, b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n") as client:
        assert read_all(client).startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("stream", [False, True])
def test_half_closed_is_answered(server: Served, *, stream: bool) -> None:
    with connection(server, post({**SLOW, "stream": stream})) as client:
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    # Words of no meaning may come first; every client of HTTP/1.1 must skip them.
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"finish_reason":"length"' in answer
    assert b"connection: close" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_gone_after_half_closing(server: Served, *, stream: bool) -> None:
    body = {"prompt": [script.HOLD], "max_tokens": 9, "stream": stream}
    with connection(server, post(body)) as client:
        client.shutdown(socket.SHUT_WR)
        eventually(lambda: server.running() == 1)
        time.sleep(0.3)
        assert server.running() == 1
    eventually(lambda: server.running() == 0, seconds=8)


def test_pipelining(server: Served) -> None:
    requests = [post({"prompt": [1100 + n], "max_tokens": 2 + n}) for n in range(4)]
    health = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with connection(server, b"".join(requests) + health) as client:
        answer = read_all(client)
    lengths = [int(piece.split(b",")[0]) for piece in answer.split(b'"completion_tokens":')[1:]]
    assert lengths == [2, 3, 4, 5]
    assert answer.count(b"HTTP/1.1 200 OK") == 5
    assert answer.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_http_behind_a_request(server: Served, stream: bool) -> None:
    """The request is answered whole, then the connection closes."""
    request = post({**SLOW, "max_tokens": 20, "stream": stream})
    with connection(server, request) as client:
        if stream:
            begun = read_until(client, b"data: ")
            client.sendall(b"\x16\x03\x01garbage\r\n\r\n")
        else:
            begun = b""
            client.sendall(b"\x16\x03\x01garbage\r\n\r\n")
        answer = begun + read_all(client)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert (b"data: [DONE]" in answer) if stream else (b'"completion_tokens":20' in answer)


def test_pipelining_and_half_closing(server: Served) -> None:
    requests = [post(SLOW), post({"prompt": [1100], "max_tokens": 2})]
    with connection(server, b"".join(requests)) as client:
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"HTTP/1.1 100") <= 1


def test_head(server: Served) -> None:
    response = httpx.head(f"{server.url}/health")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0


def test_expect_100_continue(server: Served) -> None:
    data = post({"prompt": "a b", "max_tokens": 2}, "expect: 100-continue")
    begin = data.index(b"\r\n\r\n") + 4
    with connection(server, data[:begin]) as client:
        assert read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(data[begin:])
        assert read_until(client, b"}}}").startswith(b"HTTP/1.1 200")


def test_http_1_0(server: Served) -> None:
    data = post({"prompt": "a b", "max_tokens": 2}).replace(b"HTTP/1.1", b"HTTP/1.0")
    with connection(server, data) as client:
        assert b'"completion_tokens":2' in read_all(client)
