"""Probes, information and control."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import httpx
import pytest

from tests.server import fake_engine as script
from tests.server.conftest import Start
from tests.server.served import Served, eventually
from treadle.server.probes import VERSION


def get(served: Served, path: str) -> httpx.Response:
    return httpx.get(f"{served.url}{path}", timeout=20)


def test_well(server: Served) -> None:
    for path in ("/live", "/health", "/ping", "/health_generate"):
        response = get(server, path)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        assert httpx.head(f"{server.url}{path}").status_code == 200
    assert get(server, "/version").json() == {"version": VERSION}


def test_while_loading(start: Start) -> None:
    served = start("load-for-ever")
    _ = served.engine_pid
    assert get(served, "/live").status_code == 200
    for path in ("/health", "/ping", "/health_generate"):
        response = get(served, path)
        assert response.status_code == 503
        assert response.json()["status"] == "unavailable"
        assert response.json()["phase"] == "find pid"
    for path in ("/server_info", "/get_model_info", "/get_load", "/load", "/is_paused"):
        assert get(served, path).status_code == 503
    for path in ("/pause", "/resume", "/flush_cache", "/reset_prefix_cache"):
        assert served.post(path).status_code == 503
    for path, body in (("/generate", {"text": "a"}), ("/tokenize", {"prompt": "a"})):
        response = served.post(path, **body)
        assert response.status_code == 503
        assert "find pid" in response.json()["error"]["message"]


def test_an_engine_that_makes_no_tokens_is_not_well(start: Start) -> None:
    served = start("fake", "--health-generate-timeout", "0.4").wait_ready()
    assert get(served, "/health_generate").status_code == 200
    assert served.post("/pause_generation", mode="in_place").status_code == 200
    began = time.monotonic()
    response = get(served, "/health_generate")
    assert response.status_code == 503
    assert response.json()["message"] == "the engine made no token within 0.4 s"
    assert time.monotonic() - began >= 0.4
    assert get(served, "/health").status_code == 200
    assert served.post("/continue_generation").status_code == 200
    assert get(served, "/health_generate").status_code == 200
    eventually(lambda: served.running() == 0)


def test_information(start: Start) -> None:
    served = start("named", "0", "64", "--threads", "3").wait_ready()
    info = get(served, "/server_info").json()
    assert info == get(served, "/get_server_info").json()
    assert info["served_model_name"] == "named"
    assert (info["version"], info["max_model_len"]) == (VERSION, 64)
    assert info["max_total_num_tokens"] == script.KV_TOKENS
    assert info["settings"].items() >= {"threads": 3, "max_model_len": 64, "port": 0}.items()
    assert "kv_dtype" not in info["settings"]  # left open, so it is resolved
    assert info["resolved"]["kv_dtype"] == "f32"
    assert info["internal_states"][0]["running"] == 0
    assert get(served, "/get_weight_version").json() == {"weight_version": "default"}
    model = get(served, "/get_model_info").json()
    assert (model["model_path"], model["is_generation"]) == ("demo", True)


def test_load(server: Served) -> None:
    assert get(server, "/load").json() == {"server_load": 0}
    with server.open_request("/v1/completions", prompt=[script.HOLD], n=2):
        eventually(lambda: server.running() == 2)
        assert get(server, "/load").json() == {"server_load": 2}
        [load] = get(server, "/get_load").json()
        assert load == {"dp_rank": 0, "num_reqs": 2, "num_waiting_reqs": 0, "num_tokens": 0}
    eventually(lambda: server.running() == 0)


def test_pausing(server: Served) -> None:
    def is_paused() -> Any:
        return get(server, "/is_paused").json()

    with server.open_request("/v1/completions", prompt=[script.HOLD]) as running:
        eventually(lambda: server.running() == 1)
        assert server.post("/pause?mode=keep").json() == {"status": "paused"}
        assert is_paused() == {"is_paused": True}
        assert server.running() == 1
        later: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: later.append(server.complete("a b")))
        thread.start()
        eventually(lambda: get(server, "/load").json() == {"server_load": 2})
        assert not later
        assert server.post("/resume").json() == {"status": "resumed"}
        thread.join(20)
        assert later[0].status_code == 200
        assert is_paused() == {"is_paused": False}
        assert server.post("/pause").json() == {"status": "paused"}  # aborts, and forgets
        assert b'"finish_reason":"abort"' in running.recv(65536)
        assert server.post("/continue_generation").json()["status"] == "ok"


@pytest.mark.parametrize("query", ["mode=nonsense", "clear_cache=maybe"])
def test_wrong_queries(server: Served, query: str) -> None:
    response = server.post(f"/pause?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]
    assert get(server, "/is_paused").json() == {"is_paused": False}


def test_forgetting(server: Served) -> None:
    def cached() -> int:
        usage = server.complete("A prompt to be forgotten").json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    ask = (
        lambda: httpx.get(f"{server.url}/flush_cache"),
        lambda: server.post("/flush_cache"),
        lambda: server.post("/reset_prefix_cache"),
    )
    for forget in ask:
        cached()
        assert cached() > 0
        assert forget().status_code == 200
        assert cached() == 0
        with server.open_request("/v1/completions", prompt=[script.HOLD]):
            eventually(lambda: server.running() == 1)
            response = forget()
            assert response.status_code == 400
            assert "running" in response.json()["error"]["message"]
        eventually(lambda: server.running() == 0)
    assert server.post("/reset_prefix_cache?reset_running_requests=true").status_code == 400


def test_metrics_and_others_are_text(server: Served) -> None:
    assert re.search(r"^# TYPE vllm:", get(server, "/metrics").text, re.MULTILINE)
    assert get(server, "/flush_cache").text == "Cache flushed.\n"
