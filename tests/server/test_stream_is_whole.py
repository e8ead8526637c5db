"""Whatever is asked for, a stream adds up to the whole answer: text, ends, ids, log-probabilities,
usage and times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server import fake_engine as script
from tests.server.served import Served
from tests.server.streams import CHAT, PATH, assert_equal, streamed, whole
from treadle.text.load import ModelText

WORDS = [" alpha", " be", "ta", "漢", "😀", "é", " END", "x"]

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 30),
    "stop": st.lists(st.sampled_from([" END", "ta", "x x", "漢", "ha", "END漢"]), max_size=2),
    "include_stop_str_in_output": st.booleans(),
    "min_tokens": st.integers(0, 12),
    "stop_token_ids": st.lists(st.integers(1000, 1004), max_size=2),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "timings": st.booleans(),
    "truncate_prompt_tokens": st.sampled_from([-1, 3, 8, 100]),
}
COMPLETION: dict[str, st.SearchStrategy[Any]] = {
    "echo": st.booleans(),
    "logprobs": st.integers(0, 3),
    "max_tokens": st.integers(0, 30),
}
CHATS: dict[str, st.SearchStrategy[Any]] = {
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 3),
}


def bodies(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields).map(sound)


def sound(body: dict[str, Any]) -> dict[str, Any]:
    """Without the contradictions that are refused."""
    if body.get("min_tokens", 0) > body.get("max_tokens", 0):
        body.pop("min_tokens", None)
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    return body


def prompts(text: ModelText) -> st.SearchStrategy[list[list[int]]]:
    words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map("".join)
    ids = words.map(text.tokenizer.encode)
    command = st.sampled_from([[], [script.BURST], [script.UNLIKELY]])
    end = st.sampled_from([[], [script.EOS]])
    prompt = st.tuples(command, ids, end).map(lambda parts: [*parts[0], *parts[1], *parts[2]])
    return st.lists(prompt, min_size=1, max_size=3)


QUIET = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_completions(server: Served, text: ModelText) -> None:
    @QUIET
    @given(prompt=prompts(text), body=bodies(**{**FIELDS, **COMPLETION}))
    def check(prompt: list[list[int]], body: dict[str, Any]) -> None:
        expected = whole(server, PATH, prompt=prompt, **body)
        times = {"timings"} & set(expected)
        for _ in range(2):  # the cache is as full the second time
            stream = streamed(server, PATH, prompt=prompt, **body)
        assert times == {"timings"} & set(stream)
        assert_equal(stream, expected, ignoring="timings")

    check()


@pytest.mark.parametrize("field", [{"logprobs": 1}, {"return_token_ids": True}])
def test_tokens_without_text_are_told(
    server: Served, text: ModelText, field: dict[str, Any]
) -> None:
    """They arrive one by one, and most of them are a part of a character."""
    ids = [script.SLOW, *text.tokenizer.encode("漢😀x漢")]
    body = {"prompt": ids, "max_tokens": 2 * len(ids) - 1, **field}
    stream = streamed(server, PATH, **body)
    assert stream["choices"][0]["chunks"] > len(ids)
    assert_equal(stream, whole(server, PATH, **body))


def test_chats(server: Served) -> None:
    content = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map("".join)

    @QUIET
    @given(content=content, body=bodies(**{**FIELDS, **CHATS}))
    def check(content: str, body: dict[str, Any]) -> None:
        messages = [{"role": "user", "content": content}]
        expected = whole(server, CHAT, messages=messages, **body)
        stream = streamed(server, CHAT, messages=messages, **body)
        assert_equal(stream, expected, ignoring="timings")

    check()
