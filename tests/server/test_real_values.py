"""A tiny random model behind the real server: values against transformers, and streams against
whole answers where tokens are sampled."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.served import RealServed
from tests.server.streams import CHAT, PATH, assert_equal, streamed, whole
from tests.tiny import VOCAB_SIZE, TinyLlama, tiny_reference, write_tiny
from treadle.text.load import ModelText, load_text

PROMPT = "The weaver set the warp upon the loom and pressed the treadle with her foot."
EOS = 2

MODEL = TinyLlama("f32")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServed]:
    model = write_tiny(MODEL, tmp_path_factory.mktemp("tiny"))
    options = ("--kv-dtype", "f32", "--max-num-seqs", "8", "--max-num-batched-tokens", "24")
    server = RealServed(model, *options)
    try:
        yield server.wait_ready()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        server.close()


@pytest.fixture(scope="module")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return load_text(write_tiny(MODEL, tmp_path_factory.mktemp("text")))


@functools.cache
def expected(ids: tuple[int, ...]) -> np.ndarray:
    """The log-probabilities of what follows each token, by transformers."""
    with torch.no_grad():
        logits = tiny_reference(MODEL)(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()


def one(served: RealServed, path: str = PATH, **body: Any) -> dict[str, Any]:
    """The only choice; its stream says the same."""
    answer = whole(served, path, **body)
    assert_equal(streamed(served, path, **body), whole(served, path, **body))
    [choice] = answer["choices"]
    assert isinstance(choice, dict)
    return choice


def letters(text: ModelText) -> list[int]:
    """Tokens of one letter each."""
    tokens = range(VOCAB_SIZE)
    return [token for token in tokens if text.tokenizer.token_bytes(token).isalpha()]


def test_echoed_log_probabilities(served: RealServed, tiny_text: ModelText) -> None:
    ids = tiny_text.tokenizer.encode(PROMPT)
    body: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 2, "temperature": 0}
    answers = []
    for more in ("", "", " And"):
        prompt = [*ids, *tiny_text.tokenizer.encode(more)] if more else ids
        response = served.post(PATH, **{**body, "prompt": PROMPT + more}, max_tokens=2)
        [choice] = response.json()["choices"]
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(prompt) + 2
        assert "".join(logprobs["tokens"][: len(prompt)]) == PROMPT + more
        table = expected(tuple(prompt))
        own = [table[at - 1][token] for at, token in enumerate(prompt) if at]
        got = logprobs["token_logprobs"]
        assert got[0] is None
        np.testing.assert_allclose(got[1 : len(prompt)], own, atol=1e-4)
        answers.append(logprobs)
        named = {**body, "prompt": PROMPT + more, "return_tokens_as_token_ids": True}
        tops = served.post(PATH, **named).json()["choices"][0]["logprobs"]["top_logprobs"]
        for row, top in zip(table[:-1], tops[1 : len(prompt)], strict=True):
            for token in np.argsort(row)[-2:]:
                assert top[f"token_id:{token}"] == pytest.approx(row[token], abs=1e-4)
    assert answers[0] == answers[1], "the second time the prefix is cached"


def test_scoring_alone(served: RealServed, tiny_text: ModelText) -> None:
    """As evaluation harnesses score: no token of the answer."""
    ids = tiny_text.tokenizer.encode(PROMPT)
    scored = one(served, prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    assert scored["text"] == PROMPT
    assert len(scored["logprobs"]["token_logprobs"]) == len(ids)
    answer = served.complete(PROMPT, prompt_logprobs=1, max_tokens=0).json()["choices"][0]
    own = [
        entry[str(token)]["logprob"]
        for token, entry in zip(ids[1:], answer["prompt_logprobs"][1:], strict=True)
    ]
    assert own == scored["logprobs"]["token_logprobs"][1:]
    table = expected(tuple(ids))
    for at, (token, entry) in enumerate(zip(ids[1:], answer["prompt_logprobs"][1:], strict=True)):
        rank = int((table[at] > table[at][token]).sum()) + 1
        assert entry[str(token)]["rank"] == rank


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 32, 48])
def test_the_same_prompt_again(served: RealServed, num_tokens: int) -> None:
    ids = [40 + (7 * at + num_tokens) % 200 for at in range(num_tokens)]
    body: dict[str, Any] = {"temperature": 0, "echo": True, "logprobs": 1, "ignore_eos": True}
    plain: dict[str, Any] = {"temperature": 0, "logprobs": 1, "ignore_eos": True}
    for fields in (body, plain, {**body, "max_tokens": 1}, {**plain, "n": 2}):
        answers = [served.complete(ids, **fields).json() for _ in range(3)]
        for answer in answers[1:]:
            assert answer["choices"] == answers[0]["choices"]
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached <= num_tokens - 1


def test_stop_strings_across_tokens(served: RealServed, tiny_text: ModelText) -> None:
    body = {"prompt": PROMPT, "max_tokens": 32, "seed": 5, "temperature": 1.0}
    body |= {"allowed_token_ids": letters(tiny_text)}
    text = one(served, **body)["text"]
    assert len(text) >= 32
    stop = text[10:14]
    where = text.index(stop)
    for others in ([], [text[20:23]], [stop + "never"]):
        choice = one(served, **body, stop=[*others, stop])
        assert choice["text"] == text[:where]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        choice = one(served, **body, stop=[*others, stop], include_stop_str_in_output=True)
        assert choice["text"] == text[: where + len(stop)]
    # Of two, the one that ends first; before min_tokens, none.
    assert one(served, **body, stop=[stop, text[11:13]])["stop_reason"] == text[11:13]
    late = one(served, **body, stop=[stop], min_tokens=30, return_token_ids=True)
    assert len(late["token_ids"]) >= 30


def test_min_tokens_holds_off_every_end(served: RealServed) -> None:
    letter = 70
    for end in ({"stop_token_ids": [letter]}, {"stop": ["x"]}, {}):
        forced = EOS if not end else letter
        body = {"prompt": PROMPT, "logit_bias": {str(forced): 100}, "max_tokens": 20, **end}
        choice = one(served, **body, min_tokens=10, return_token_ids=True, temperature=0)
        assert len(choice["token_ids"]) >= 10


def test_forced_ends(served: RealServed) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 5, "return_token_ids": True}
    choice = one(served, **body, logit_bias={str(EOS): 100})
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", None)
    assert choice["token_ids"] == [EOS]
    choice = one(served, **body, logit_bias={str(EOS): 100}, ignore_eos=True)
    assert (choice["finish_reason"], len(choice["token_ids"])) == ("length", 5)
    choice = one(served, **body, logit_bias={"70": 100}, stop_token_ids=[70])
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", 70)


def test_allowed_tokens_and_bad_words(served: RealServed, tiny_text: ModelText) -> None:
    allowed = letters(tiny_text)[:2]
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "return_token_ids": True}
    choice = one(served, **body, allowed_token_ids=allowed, logprobs=5, seed=1)
    assert set(choice["token_ids"]) <= set(allowed)
    assert all(value > -100 for value in choice["logprobs"]["token_logprobs"])
    free = one(served, **body, temperature=0, allowed_token_ids=letters(tiny_text))
    token = free["token_ids"][0]
    word = tiny_text.tokenizer.token_text(token)
    assert tiny_text.tokenizer.encode(word) == [token]
    kept = one(
        served, **body, temperature=0, allowed_token_ids=letters(tiny_text), bad_words=[word]
    )
    assert token not in kept["token_ids"]


def test_answers_of_one_seed(served: RealServed) -> None:
    body: dict[str, Any] = {"prompt": "once", "n": 4, "max_tokens": 24, "temperature": 1.0}
    first = whole(served, PATH, **body, seed=11)
    assert whole(served, PATH, **body, seed=11)["choices"] == first["choices"]
    assert len({choice["text"] for choice in first["choices"]}) > 1
    assert_equal(streamed(served, PATH, **body, seed=11), first)
    ending = {**body, "seed": 11, "stop": ["e", "a"]}
    assert_equal(streamed(served, PATH, **ending), whole(served, PATH, **ending))
    greedy = whole(served, PATH, **{**body, "temperature": 0})
    assert len({choice["text"] for choice in greedy["choices"]}) == 1
    unseeded = [whole(served, PATH, **body)["choices"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_characters_in_pieces(served: RealServed, tiny_text: ModelText) -> None:
    """Single bytes of several characters in any order, so most of it is broken."""
    size = range(VOCAB_SIZE)
    bytes_of = tiny_text.tokenizer.token_bytes
    pieces = [token for token in size if bytes_of(token) in list(map(bytes, zip("😀漢é".encode())))]
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 40, "return_token_ids": True}
    for seed in range(5):
        choice = one(served, **body, seed=seed, allowed_token_ids=pieces)
        told = b"".join(map(bytes_of, choice["token_ids"]))
        assert choice["text"] == told.decode("utf-8", "replace")


def test_times_are_there(served: RealServed) -> None:
    timings = served.complete(PROMPT, max_tokens=8, timings=True).json()["timings"]
    assert timings["predicted_n"] == 8
    assert timings["queue_ms"] >= 0
    assert timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] > 0


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 3),
    "max_tokens": st.integers(1, 20),
    "temperature": st.sampled_from([0.0, 0.7, 2.0]),
    "top_k": st.sampled_from([0, 1, 5]),
    "top_p": st.sampled_from([0.5, 1.0]),
    "presence_penalty": st.sampled_from([-1.0, 1.5]),
    "repetition_penalty": st.sampled_from([0.9, 1.3]),
    "stop": st.lists(st.sampled_from(["e", " t", "th", "he "]), max_size=2),
    "min_tokens": st.integers(0, 5),
    "ignore_eos": st.booleans(),
    "logit_bias": st.dictionaries(st.sampled_from(["2", "70", "75"]), st.integers(-5, 5)),
    "allowed_token_ids": st.just(list(range(2, 120))),
    "bad_words": st.just(["e", "th"]),
    "return_token_ids": st.booleans(),
    "logprob_token_ids": st.just([70, 2]),
}


def body_of(fields: dict[str, Any]) -> dict[str, Any]:
    body = {"seed": 3, "max_tokens": 12, "logprobs": 2, **fields}
    return {**body, "min_tokens": min(body.get("min_tokens", 0), body["max_tokens"])}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.fixed_dictionaries({}, optional=FIELDS), echo=st.booleans())
def test_a_stream_is_the_whole(served: RealServed, fields: dict[str, Any], *, echo: bool) -> None:
    body = {**body_of(fields), "prompt": ["the loom", PROMPT], "echo": echo}
    answer = whole(served, PATH, **body)
    assert_equal(streamed(served, PATH, **body), answer)
    if not echo:
        chat = {**body_of(fields), "logprobs": True, "top_logprobs": 2}
        chat["messages"] = [{"role": "user", "content": "weave"}]
        assert_equal(streamed(served, CHAT, **chat), whole(served, CHAT, **chat))
