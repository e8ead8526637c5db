"""Keys and other origins."""

from __future__ import annotations

import signal
from typing import Any

import httpx
import pytest

from tests.server.conftest import Start
from tests.server.served import Served

KEY = "sesame-öffne"
OTHER = "second"
ADMIN = "boss"

WORK = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/generate"),
    ("PUT", "/generate"),
    ("POST", "/tokenize"),
    ("GET", "/server_info"),
    ("GET", "/get_model_info"),
    ("GET", "/load"),
]
ADMINISTRATION = [
    ("POST", "/abort_request"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/flush_cache"),
]
OPEN = ["/live", "/health", "/ping", "/metrics", "/version", "/openapi.json", "/health_generate"]


def ask(served: Served, method: str, path: str, authorization: bytes | None) -> httpx.Response:
    headers = {} if authorization is None else {"authorization": authorization}
    return httpx.request(method, f"{served.url}{path}", headers=headers, timeout=20)  # type: ignore[arg-type]


def bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def test_keys(start: Start) -> None:
    options = ("--api-key", KEY, "--api-key", OTHER, "--admin-api-key", ADMIN)
    served = start("fake", *options).wait_ready()
    wrong = (None, b"", b"Bearer", bearer("x"), bearer(KEY + "x"), bearer(KEY[:-1]))
    for method, path in WORK:
        for authorization in (*wrong, f"Basic {KEY}".encode(), KEY.encode()):
            response = ask(served, method, path, authorization)
            assert response.status_code == 401, (path, authorization)
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json() == {
                "error": {
                    "message": "a valid API key is needed",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
            }
        for key in (KEY, OTHER, ADMIN):
            assert ask(served, method, path, bearer(key)).status_code in (200, 400)
    for method, path in ADMINISTRATION:
        response = ask(served, method, path, bearer(KEY))
        assert (response.status_code, response.json()["error"]["code"]) == (
            403,
            "admin_api_key_needed",
        )
        assert ask(served, method, path, bearer("x")).status_code == 401
        assert ask(served, method, path, bearer(ADMIN)).status_code in (200, 400)
    for path in OPEN:
        assert ask(served, "GET", path, None).status_code == 200
    assert ask(served, "GET", "/nowhere", None).status_code == 404
    assert ask(served, "POST", "/resume", bearer(ADMIN)).status_code == 200

    info = ask(served, "GET", "/server_info", bearer(KEY)).text
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    for key in (KEY, OTHER, ADMIN):
        assert key not in info
        assert key not in served.log


def test_an_admin_key_alone_guards_administration_alone(start: Start) -> None:
    served = start("fake", "--admin-api-key", ADMIN).wait_ready()
    assert ask(served, "GET", "/v1/models", None).status_code == 200
    assert ask(served, "POST", "/flush_cache", None).status_code == 401
    assert ask(served, "POST", "/flush_cache", bearer(ADMIN)).status_code == 200


def test_a_key_alone_guards_both(start: Start) -> None:
    served = start("fake", "--api-key", KEY).wait_ready()
    assert ask(served, "POST", "/flush_cache", None).status_code == 401
    assert ask(served, "POST", "/flush_cache", bearer(KEY)).status_code == 200


def preflight(served: Served, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return httpx.options(f"{served.url}/v1/completions", headers=headers)


def test_other_origins(start: Start, server: Served) -> None:
    page = "https://page.example"
    assert "access-control-allow-origin" not in preflight(server, page).headers

    served = start("fake", "--allowed-origins", page, "--api-key", KEY).wait_ready()
    response = preflight(served, page)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == page
    assert "authorization" in response.headers["access-control-allow-headers"].lower()
    assert preflight(served, "https://other.example").status_code == 400

    body: dict[str, Any] = {"prompt": "a b", "max_tokens": 1}
    for key, status in ((KEY, 200), ("x", 401)):
        headers: Any = {"origin": page, "authorization": bearer(key)}
        response = httpx.post(f"{served.url}/v1/completions", json=body, headers=headers)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == page


@pytest.mark.parametrize("keyed", [False, True])
def test_listening_to_all_without_a_key_is_said(start: Start, *, keyed: bool) -> None:
    options = ("--host", "0.0.0.0", *(("--api-key", KEY) if keyed else ()))
    served = start("fake", *options)
    served.read_until(r"serving (\S+) at http")
    assert ("anybody who reaches it" in served.log) == (not keyed)
