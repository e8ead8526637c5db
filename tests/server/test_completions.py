"""POST /v1/completions against the scripted engine; streams must equal whole answers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.server import fake_engine as script
from tests.server.served import Served
from treadle.text.load import ModelText

PATH = "/v1/completions"
PROMPT = "One two three four five six seven"


def joined(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Per choice: its text, its reason, and how often a reason was given."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": "", "reasons": []})
    for event in events:
        for choice in event["choices"]:
            held = choices[choice["index"]]
            assert not held["reasons"], "a part after the last one"
            held["text"] += choice["text"]
            if choice["finish_reason"] is not None:
                held["reasons"].append((choice["finish_reason"], choice["stop_reason"]))
    return dict(choices)


def both(server: Served, **body: Any) -> dict[str, Any]:
    """The whole answer, after checking that the stream says the same."""
    whole = server.post(PATH, **body).json()
    events = server.events(PATH, stream_options={"include_usage": True}, **body)
    usage = events.pop()
    assert usage["choices"] == []
    assert all(event["usage"] is None for event in events)
    assert {(event["id"], event["model"], event["created"]) for event in events} == {
        (usage["id"], "fake", usage["created"])
    }
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]
    expected = {
        choice["index"]: {
            "text": choice["text"],
            "reasons": [(choice["finish_reason"], choice["stop_reason"])],
        }
        for choice in whole["choices"]
    }
    assert joined(events) == expected
    return whole


def test_answer_and_usage(server: Served) -> None:
    answer = both(server, prompt=PROMPT, max_tokens=9)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": PROMPT + "One two",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 9,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_cached_tokens_are_the_engines(server: Served) -> None:
    prompt = "A prompt that only this test sends"
    first, second = (server.complete(prompt, n=2).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == second["prompt_tokens"] - 1


def test_default_is_sixteen_tokens(server: Served) -> None:
    assert server.complete("a b c").json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize("include", [False, True])
def test_stop_string_across_tokens(
    server: Served, text: ModelText, *, burst: bool, include: bool
) -> None:
    command = [script.BURST] if burst else [1100]
    ids = command + text.tokenizer.encode(" alpha beta gamma delta")
    answer = both(
        server, prompt=ids, max_tokens=40, stop=["ta gam"], include_stop_str_in_output=include
    )
    [choice] = answer["choices"]
    assert choice["text"].endswith(" alpha beta gam" if include else " alpha be")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "ta gam")
    # The tokens of the stop string were generated, those after it do not count.
    assert answer["usage"]["completion_tokens"] == 4


def test_eos_and_stop_tokens(server: Served, text: ModelText) -> None:
    ids = text.tokenizer.encode("stop here now")
    answer = both(server, prompt=[*ids, script.EOS], max_tokens=20)
    assert answer["choices"][0]["text"] == "stop here now"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] is None
    assert answer["usage"]["completion_tokens"] == len(ids) + 1

    answer = both(server, prompt=ids, max_tokens=20, stop_token_ids=[ids[1]])
    assert answer["choices"][0]["stop_reason"] == ids[1]

    answer = both(server, prompt=[*ids, script.EOS], max_tokens=7, ignore_eos=True)
    assert answer["choices"][0]["text"] == "stop here nowstop here now"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_prompts_times_n(server: Served, text: ModelText) -> None:
    prompts = ["one two three", "four five six", "seven eight nine"]
    answer = both(server, prompt=prompts, n=2, max_tokens=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    for index, choice in enumerate(answer["choices"]):
        ids = text.tokenizer.encode(prompts[index // 2])
        shift = index % 2
        assert choice["text"] == text.tokenizer.decode([*ids[shift:], *ids[:shift]])
    assert answer["usage"]["prompt_tokens"] == 9
    assert answer["usage"]["completion_tokens"] == 18

    ids_lists = [text.tokenizer.encode(prompt) for prompt in prompts]
    assert both(server, prompt=ids_lists, n=2, max_tokens=3)["choices"] == answer["choices"]


def test_echo(server: Served, text: ModelText) -> None:
    prompts = ["one two", "three four"]
    answer = both(server, prompt=prompts, n=2, max_tokens=2, echo=True)
    assert [choice["text"] for choice in answer["choices"]] == [
        "one twoone two",
        "one two twoone",
        "three fourthree four",
        "three four fourthree",
    ]
    ids = text.tokenizer.encode("one two")
    answer = both(server, prompt=ids, max_tokens=2, echo=True)
    assert answer["choices"][0]["text"] == "one twoone two"


def test_characters_over_several_tokens(server: Served, text: ModelText) -> None:
    prompt = "😀漢é👩‍👩‍👧 x"
    ids = text.tokenizer.encode(prompt)
    answer = both(server, prompt=prompt, max_tokens=2 * len(ids))
    assert answer["choices"][0]["text"] == prompt * 2
    for event in server.raw_events(PATH, prompt=prompt, max_tokens=2 * len(ids)):
        assert "\ufffd" not in event
    # Cut inside a character, stream and whole still agree.
    both(server, prompt=prompt, max_tokens=len(ids) + 1)


def test_logprobs(server: Served, text: ModelText) -> None:
    body = {"prompt": "é漢 ab", "max_tokens": 12, "logprobs": 2}
    [choice] = server.post(PATH, **body).json()["choices"]
    logprobs = choice["logprobs"]
    ids = (text.tokenizer.encode("é漢 ab") * 12)[:12]
    assert logprobs["token_logprobs"] == [-0.5] * 12
    assert logprobs["tokens"] == [
        text.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids
    ]
    for position, token in enumerate(ids):
        # Complete characters before the token; the bytes of a broken one are still to come.
        before = b"".join(text.tokenizer.token_bytes(earlier) for earlier in ids[:position])
        assert logprobs["text_offset"][position] == len(before.decode("utf-8", "ignore"))
        top = logprobs["top_logprobs"][position]
        assert top[logprobs["tokens"][position]] == -0.5
        assert token in ids

    merged: dict[str, list[Any]] = defaultdict(list)
    for event in server.events(PATH, **body):
        for name, values in event["choices"][0]["logprobs"].items():
            merged[name] += values
    assert merged == logprobs


def test_logprob_zero_still_names_the_token(server: Served) -> None:
    [choice] = server.complete("a b", max_tokens=2, logprobs=0).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -0.5}, {" b": -0.5}]


def test_minus_infinity_is_a_number(server: Served) -> None:
    response = server.complete([script.UNLIKELY], max_tokens=1, logprobs=1)
    assert response.json()["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


def test_nulls_are_absent_fields(server: Served) -> None:
    fields = ("max_tokens", "temperature", "top_p", "stop", "n", "logprobs", "seed", "stream")
    fields += ("user", "logit_bias", "stream_options", "echo", "best_of", "suffix", "top_k")
    fields += ("min_p", "repetition_penalty", "stop_token_ids", "cache_salt", "response_format")
    plain = server.complete("a b c").json()
    nulls = server.complete("a b c", **dict.fromkeys(fields)).json()
    assert nulls["choices"] == plain["choices"]
    assert nulls["usage"]["completion_tokens"] == 16


def test_unknown_fields_are_ignored(server: Served) -> None:
    assert server.complete("a b", nonsense={"x": [1]}).status_code == 200


def test_stream_without_usage_has_none(server: Served) -> None:
    assert all("usage" not in event for event in server.events(PATH, prompt="a b"))


def test_failure_in_mid_stream_is_the_last_event(server: Served) -> None:
    body = {"prompt": [[1100, 1101], [script.REFUSE, 1100]], "max_tokens": 300}
    *_, last = server.raw_events(PATH, **body)
    assert '"message":"scripted refusal"' in last
    assert server.complete("a b").status_code == 200


def test_failure_before_the_first_token_has_a_status(server: Served) -> None:
    for stream in (False, True):
        response = server.complete([script.REFUSE_AT_ONCE], stream=stream)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "scripted refusal"
