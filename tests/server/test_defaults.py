"""The model's own sampling defaults hold where a request is silent, and nowhere else."""

from __future__ import annotations

import msgspec

from treadle.server.schema.chat import ChatRequest
from treadle.server.schema.completions import CompletionRequest

DEFAULTS = {"temperature": 0.01, "top_k": 1, "repetition_penalty": 1.3}


def completion(**fields: object) -> CompletionRequest:
    return msgspec.convert({"prompt": "x", **fields}, CompletionRequest)


def test_a_silent_request_takes_the_models() -> None:
    for request in (completion(), completion(temperature=None, top_k=None)):
        params = request.params(DEFAULTS)
        assert (params.temperature, params.top_k, params.repetition_penalty) == (0.01, 1, 1.3)
        assert params.max_tokens == 16, "OpenAI's default, whatever the model suggests"


def test_what_a_request_says_wins() -> None:
    params = completion(temperature=0.9, top_k=-1).params(DEFAULTS)
    assert (params.temperature, params.top_k, params.repetition_penalty) == (0.9, -1, 1.3)
    chat = msgspec.convert({"messages": [], "repetition_penalty": 1.0}, ChatRequest)
    assert chat.params(DEFAULTS).repetition_penalty == 1.0


def test_without_suggestions_openais_defaults_hold() -> None:
    params = completion().params({})
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
