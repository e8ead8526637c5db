"""curl, the way the READMEs of such servers show it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.clients.conftest import COUNTED, COUNTING

BODY = json.dumps(COUNTING)
JSON = ("-H", "Content-Type: application/json")

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str, stdin: str = "") -> str:
    """What curl writes; it must succeed, and get no error status."""
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60"]
    done = subprocess.run(
        [*command, *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def text_of(answer: str) -> str:
    return str(json.loads(answer)["choices"][0]["text"])


def test_one_request(url: str) -> None:
    assert text_of(curl(f"{url}/v1/completions", *JSON, "-d", BODY)) == COUNTED


def test_a_stream_comes_line_by_line(url: str) -> None:
    body = json.dumps({**COUNTING, "stream": True})
    lines = curl("--no-buffer", f"{url}/v1/completions", *JSON, "-d", body).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [line.removeprefix("data: ") for line in lines[:-2]]
    assert "".join(text_of(event) for event in events) == COUNTED


@pytest.mark.parametrize(
    "options",
    [
        (),  # curl's own type for a form, as many examples are copied
        (*JSON, "-H", "Expect: 100-continue"),
        (*JSON, "-H", "Transfer-Encoding: chunked"),
        (*JSON, "--http1.0"),
        (*JSON, "--http2"),  # asks for an upgrade that need not be granted
    ],
)
def test_ways_to_send_a_body(url: str, options: tuple[str, ...]) -> None:
    answer = curl(f"{url}/v1/completions", *options, "--data-binary", "@-", stdin=BODY)
    assert text_of(answer) == COUNTED


def test_two_requests_over_one_connection(url: str) -> None:
    request = (f"{url}/v1/completions", *JSON, "-d", BODY, "-w", "\n%{num_connects}\n")
    answers = curl(*request, "--next", "--silent", *request).rstrip()
    first, opened, second, reused = answers.split("\n")
    assert [text_of(first), text_of(second)] == [COUNTED, COUNTED]
    assert (opened, reused) == ("1", "0")


def test_head_and_health(url: str) -> None:
    assert curl("--head", f"{url}/health").startswith("HTTP/1.1 200")
    assert curl(f"{url}/health")
