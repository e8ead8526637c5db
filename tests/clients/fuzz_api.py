"""schemathesis reads /openapi.json and makes thousands of requests, in and out of what it says.

No 5xx, nothing left running, and the answers that it had before. Run by `make fuzz-api`;
EXAMPLES=20 makes it short.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation

from tests.clients.conftest import COUNTED, COUNTING
from tests.clients.serving import DEADLINE_S, Serving

EXAMPLES = int(os.environ.get("EXAMPLES", "150"))
"""For each route, of valid and of invalid requests."""

BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 2}},
}
"""Of every second request to these, only a few fields are as generated: among fifty that each may
take any value of their type, one is always out of bounds."""

LEAST_ANSWERS = 0.05
"""Share of requests to these that must be answered, and refused; else the description, or server,
would prove nothing."""

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture
def fuzzed(serving_python: Path, tmp_path: Path) -> Iterator[Serving]:
    """A server with a small window, so that random answers are short."""
    limits = ("--max-model-len", "64", "--max-num-seqs", "8")
    serving = Serving(serving_python, tmp_path / "log", *limits)
    try:
        yield serving.wait_ready()
    finally:
        serving.close()


@pytest.mark.timeout(1200)
def test_any_request(fuzzed: Serving) -> None:
    schema = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    statuses: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        own: Counter[int] = Counter()
        for mode in MODES:
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing can be wrong
                fuzz(operation, mode, own)
            recover(fuzzed)
        print(f"{operation.label}: {dict(sorted(own.items()))}")
        if operation.path in BASES:
            assert min(own[200], own[400]) >= LEAST_ANSWERS * own.total(), own
        statuses += own
    total = statuses.total()
    print(f"{total} requests: {dict(sorted(statuses.items()))}")
    assert total >= 20 * EXAMPLES


def fuzz(operation: APIOperation, mode: GenerationMode, statuses: Counter[int]) -> None:
    base = BASES.get(operation.path) if mode is GenerationMode.POSITIVE else None

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def probe(case: schemathesis.Case, data: st.DataObject) -> None:
        if base is not None and isinstance(case.body, dict) and data.draw(st.booleans()):
            names = data.draw(st.permutations(sorted(case.body)))[: data.draw(st.integers(0, 2))]
            case.body = {**base, **{name: case.body[name] for name in names}}
        response = case.call(timeout=DEADLINE_S)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=[not_a_server_error])
        if response.status_code >= 400 and case.method != "HEAD":
            assert response.json()["error"]["message"]

    probe()


def recover(serving: Serving) -> None:
    """The server is as it was; one of the requests may have been to pause."""
    assert serving.process.poll() is None, serving.log
    assert httpx.post(f"{serving.url}/resume", timeout=DEADLINE_S).status_code == 200
    serving.wait_idle()
    answer = httpx.post(f"{serving.url}/v1/completions", json=COUNTING, timeout=DEADLINE_S)
    assert answer.json()["choices"][0]["text"] == COUNTED
    assert serving.metric("vllm:kv_cache_usage_perc") == 0
