"""What answers tell of the prompt: its text, its tokens' ids and log-probabilities, its cutting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server import fake_engine as script
from tests.server.served import Served
from treadle.text.load import ModelText

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi é"}]


def spellings(text: ModelText, ids: list[int]) -> list[str]:
    return [text.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]


def only(server: Served, prompt: Any, **body: Any) -> dict[str, Any]:
    response = server.complete(prompt, **body)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    assert isinstance(choice, dict)
    return choice


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_with_logprobs(
    server: Served, text: ModelText, *, max_tokens: int, as_ids: bool
) -> None:
    prompt = "one two é漢 four"
    ids = text.tokenizer.encode(prompt)
    answer = (ids * 2)[: len(ids) + max_tokens]
    given = ids if as_ids else prompt
    choice = only(server, given, echo=True, logprobs=2, max_tokens=max_tokens)
    assert choice["text"] == text.tokenizer.decode(answer)
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == spellings(text, answer)
    values = [-float(at) for at in range(1, len(ids))] + [-0.5] * max_tokens
    assert logprobs["token_logprobs"] == [None, *values]
    assert logprobs["top_logprobs"][0] is None
    tops = logprobs["top_logprobs"][1:]
    for token, value, top in zip(answer[1:], values, tops, strict=True):
        mine, other = spellings(text, [token, token + 1])
        assert top == {other: value - 1, mine: value}
    for position, offset in enumerate(logprobs["text_offset"]):
        before = b"".join(map(text.tokenizer.token_bytes, answer[:position]))
        assert offset == len(before.decode("utf-8", "ignore"))


def test_echo_and_prompt_logprobs_may_want_different_numbers(server: Served) -> None:
    body = {"echo": True, "max_tokens": 1}
    choice = only(server, "a b c", logprobs=1, prompt_logprobs=3, **body)
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [1, 1, 1]
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [3, 3]
    choice = only(server, "a b c", logprobs=3, prompt_logprobs=0, **body)
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [3, 3, 3]
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [1, 1]


def test_no_token_wanted(server: Served) -> None:
    response = server.complete("a b c", max_tokens=0).json()
    assert response["choices"][0]["text"] == ""
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["completion_tokens"] == 0
    [event] = server.events(PATH, prompt="a b c", max_tokens=0, echo=True)
    assert event["choices"][0]["text"] == "a b c"
    assert event["choices"][0]["finish_reason"] == "length"


def test_prompt_logprobs(server: Served, text: ModelText) -> None:
    prompts = ["one two three four five", "six"]
    asked = 77
    body = {"max_tokens": 1, "prompt_logprobs": 2, "logprobs": 0, "logprob_token_ids": [asked]}
    answer = server.complete(prompts, **body).json()
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        ids = text.tokenizer.encode(prompt)
        first, *others = choice["prompt_logprobs"]
        assert first is None
        assert others == [
            {
                str(token): {"logprob": -float(at), "rank": 1, "decoded_token": spelling},
                str(token + 1): {
                    "logprob": -float(at) - 1,
                    "rank": 2,
                    "decoded_token": text.tokenizer.token_text(token + 1),
                },
                str(asked): {
                    "logprob": -asked / 4,
                    "rank": None,
                    "decoded_token": text.tokenizer.token_text(asked),
                },
            }
            for at, (token, spelling) in enumerate(zip(ids, spellings(text, ids), strict=True))
            if at
        ]


def test_prompt_logprobs_of_a_chat_stand_beside_its_choices(server: Served) -> None:
    answer = server.post(CHAT, messages=MESSAGES, max_tokens=1, n=2, prompt_logprobs=1).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])


def test_every_choice_has_the_scores_of_its_prompt(server: Served) -> None:
    scored = server.post(
        PATH,
        prompt=["one two three", "four five"],
        n=2,
        max_tokens=2,
        echo=True,
        logprobs=1,
        prompt_logprobs=1,
    ).json()
    first, second, third, fourth = scored["choices"]
    assert first["prompt_logprobs"] == second["prompt_logprobs"]
    assert third["prompt_logprobs"] == fourth["prompt_logprobs"] != first["prompt_logprobs"]
    for choice in scored["choices"]:
        logprobs = choice["logprobs"]["token_logprobs"]
        assert logprobs[0] is None
        assert None not in logprobs[1:]
        assert len(logprobs) == len(choice["prompt_logprobs"]) + 2


def test_minus_infinity_in_a_prompt_is_a_number(server: Served) -> None:
    body = {"max_tokens": 0, "prompt_logprobs": 1, "echo": True, "logprobs": 1}
    choice = only(server, [script.UNLIKELY, 1100], **body)
    assert choice["prompt_logprobs"][1]["1100"]["logprob"] == -9999.0
    assert choice["logprobs"]["token_logprobs"] == [None, -9999.0]


def test_token_ids(server: Served, text: ModelText) -> None:
    ids = text.tokenizer.encode("one two three")
    choice = only(server, "one two three", max_tokens=4, return_token_ids=True)
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == [*ids, ids[0]]
    assert not {"prompt_token_ids", "token_ids"} & set(only(server, "one two", max_tokens=4))

    answer = server.post(CHAT, messages=MESSAGES, max_tokens=4, return_token_ids=True).json()
    assert answer["choices"][0]["token_ids"] == answer["prompt_token_ids"][:4]

    first, *others = server.events(CHAT, messages=MESSAGES, max_tokens=4, return_token_ids=True)
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert all("prompt_token_ids" not in event for event in others)
    told = [token for event in others for token in event["choices"][0]["token_ids"]]
    assert told == answer["choices"][0]["token_ids"]


def test_tokens_named_by_their_ids(server: Served, text: ModelText) -> None:
    ids = text.tokenizer.encode("one two")
    body = {"max_tokens": 2, "return_tokens_as_token_ids": True}
    logprobs = only(server, ids, logprobs=2, **body)["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token}" for token in ids]
    assert logprobs["top_logprobs"][0] == {
        f"token_id:{ids[0]}": -0.5,
        f"token_id:{ids[0] + 1}": -1.5,
    }
    assert logprobs["text_offset"] == [0, 3]
    answer = server.post(CHAT, messages=MESSAGES, logprobs=True, top_logprobs=1, **body).json()
    [entry, _] = answer["choices"][0]["logprobs"]["content"]
    assert entry["token"] == entry["top_logprobs"][0]["token"]
    assert entry["token"].startswith("token_id:")
    token = int(entry["token"].removeprefix("token_id:"))
    assert bytes(entry["bytes"]) == text.tokenizer.token_bytes(token)


def test_ids_asked_for(server: Served, text: ModelText) -> None:
    body = {"max_tokens": 1, "logprob_token_ids": [70, 1100]}
    logprobs = only(server, [1100], logprobs=0, **body)["logprobs"]
    mine, other = spellings(text, [1100, 70])
    assert logprobs["top_logprobs"] == [{mine: -0.5, other: -70 / 4}]
    answer = server.post(CHAT, messages=MESSAGES, logprobs=True, **body).json()
    [entry] = answer["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in entry["top_logprobs"]] == [other, mine]


@pytest.mark.parametrize("stream", [False, True])
def test_truncation(server: Served, text: ModelText, *, stream: bool) -> None:
    prompt = "one two three four five six"
    ids = text.tokenizer.encode(prompt)

    def cut(side: str | None, longest: int, given: Any = prompt) -> tuple[list[int], str, Any]:
        body = {"truncate_prompt_tokens": longest, "truncation_side": side, "max_tokens": 0}
        body |= {"prompt": given, "return_token_ids": True, "echo": True}
        if not stream:
            answer = server.post(PATH, **body).json()
            [choice], usage = answer["choices"], answer["usage"]
        else:
            event, end = server.events(PATH, stream_options={"include_usage": True}, **body)
            [choice], usage = event["choices"], end["usage"]
        details = usage["prompt_tokens_details"]
        assert usage["prompt_tokens"] == len(choice["prompt_token_ids"])
        return choice["prompt_token_ids"], choice["text"], details["truncated_tokens"]

    for given in (prompt, ids):
        assert cut(None, 2, given) == (ids[-2:], " five six", 4)
        assert cut("left", 2, given) == (ids[-2:], " five six", 4)
        assert cut("right", 2, given) == (ids[:2], "one two", 4)
        assert cut(None, 6, given) == (ids, prompt, 0)
        assert cut(None, 500, given) == (ids, prompt, 0)


def test_truncation_to_the_window(server: Served) -> None:
    capacity = script.KV_TOKENS
    prompt = " word" * 5000
    assert server.complete(prompt).status_code == 400
    body: dict[str, Any] = {"truncate_prompt_tokens": -1}
    usage = server.complete(prompt, max_tokens=5, **body).json()["usage"]
    assert usage["prompt_tokens"] == capacity - 5
    assert usage["prompt_tokens_details"]["truncated_tokens"] == 5000 - (capacity - 5)
    assert server.complete(prompt, **body).json()["usage"]["prompt_tokens"] == capacity - 16
    messages = [{"role": "user", "content": prompt}]
    usage = server.post(CHAT, messages=messages, **body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (capacity - 1, 1)


def test_only_cut_prompts_say_so(server: Served) -> None:
    usage = server.complete("a b").json()["usage"]
    assert set(usage["prompt_tokens_details"]) == {"cached_tokens"}


def test_too_long_to_be_cut(server: Served) -> None:
    response = server.complete("word " * 1_000_000, truncate_prompt_tokens=5)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
