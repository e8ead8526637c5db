"""SGLang's /generate on a real engine: scores are transformers' log-softmax, whatever the chunks in
which prompts are computed, what is cached, and what else is in the batch."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.server.served import RealServed
from tests.tiny import VOCAB_SIZE, TinyLlama, tiny_llama, tiny_reference

LENGTH = 50
STARTS = (-1, 0, 1, 7, 48, 49, 50)
ASKED = [3, 77]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("f32", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    rng = random.Random(5)
    return [rng.randrange(VOCAB_SIZE) for _ in range(LENGTH)]


@pytest.fixture(scope="module", params=[(4, "radix"), (7, "hashed"), (None, "none")], ids=str)
def real(path: Path, request: pytest.FixtureRequest) -> Iterator[RealServed]:
    chunk, cache = request.param
    options = ["--kv-dtype", "f32", "--prefix-cache", cache]
    if chunk is not None:
        options += ["--max-num-batched-tokens", str(chunk), "--max-num-seqs", str(chunk)]
    served = RealServed(path, *options)
    try:
        yield served.wait_ready()
    finally:
        served.close()


def expected(tokens: list[int]) -> np.ndarray:
    """Log-probabilities [position, token] in float64."""
    model = tiny_reference(TinyLlama("f32"))
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    return logits.double().log_softmax(dim=-1).numpy()


def ask(real: RealServed, **body: Any) -> Any:
    response = httpx.post(f"{real.url}/generate", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return json.loads(response.content, parse_constant=pytest.fail)


def scoring(prompt: list[int], start: int) -> dict[str, Any]:
    return {
        "input_ids": prompt,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 2,
        "token_ids_logprob": ASKED,
        "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True},
    }


def check(found: dict[str, Any], prompt: list[int], start: int) -> None:
    meta, tokens = found["meta_info"], prompt + found["output_ids"]
    reference = expected(tokens)
    first = start if start >= 0 else len(prompt)
    inputs = zip(
        meta["input_token_logprobs"],
        meta["input_top_logprobs"],
        meta["input_token_ids_logprobs"],
        strict=True,
    )
    outputs = zip(
        meta["output_token_logprobs"],
        meta["output_top_logprobs"],
        meta["output_token_ids_logprobs"],
        strict=True,
    )
    entries = [*inputs, *outputs]
    assert len(entries) == len(tokens) - first
    for place, (one, top, asked) in enumerate(entries, first):
        assert one[1:] == [tokens[place], None]
        if place == 0:
            assert (one[0], top, asked) == (None, None, None)
            continue
        row = reference[place - 1]
        best = np.argsort(-row)[:2]
        assert [pair[1] for pair in top] == best.tolist()
        assert [pair[1] for pair in asked] == ASKED
        for value, token, _ in [one, *top, *asked]:
            assert abs(value - row[token]) < 1e-4, (place, token)


def test_scores_are_the_reference(real: RealServed, prompt: list[int]) -> None:
    def bystander(at: int) -> Any:
        body = {"input_ids": prompt[at:], "sampling_params": {"max_new_tokens": 9}}
        return ask(real, **body)

    bodies = [scoring(prompt, start) for start in STARTS]
    for _ in range(2):  # the second time, what was cached must be scored again
        with ThreadPoolExecutor(len(bodies) + 3) as pool:
            beside = [pool.submit(bystander, at) for at in (1, 9, 30)]
            found = list(pool.map(lambda body: ask(real, **body), bodies))
            assert all(len(each.result()["output_ids"]) for each in beside)
        for start, each in zip(STARTS, found, strict=True):
            check(each, prompt, start)
    longer = [*prompt, 5, 6, 7]
    check(ask(real, **scoring(longer, 0)), longer, 0)


def test_a_start_beyond_the_end_is_refused(real: RealServed, prompt: list[int]) -> None:
    response = httpx.post(f"{real.url}/generate", json=scoring(prompt, LENGTH + 1))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprob_start_len"
    assert "50" in response.json()["error"]["message"]


def test_scores_without_an_answer(real: RealServed, prompt: list[int]) -> None:
    body = scoring(prompt, 0) | {"sampling_params": {"max_new_tokens": 0}}
    for _ in range(2):
        found = ask(real, **body)
        assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        check(found, prompt, 0)


def test_streams_say_the_same(real: RealServed, prompt: list[int]) -> None:
    body = scoring(prompt, 0)
    *_, last = real.events("/generate", **body)
    check(last, prompt, 0)
    assert last["output_ids"] == ask(real, **body)["output_ids"]


def test_impossible_alternatives_are_numbers(real: RealServed, prompt: list[int]) -> None:
    sampling = {"logit_bias": {"5": 100}, "top_k": 1, "max_new_tokens": 3}
    body = {"return_logprob": True, "top_logprobs_num": 5, "sampling_params": sampling}
    found = ask(real, input_ids=prompt, **body)
    assert found["output_ids"] == [5, 5, 5]
    values = [entry[0] for top in found["meta_info"]["output_top_logprobs"] for entry in top]
    assert len(values) == 15
    assert all(-9999 <= value <= 0 for value in values)


def test_pausing_and_forgetting(real: RealServed, prompt: list[int]) -> None:
    def cached() -> int:
        found = ask(real, input_ids=prompt, sampling_params={"max_new_tokens": 1})
        return int(found["meta_info"]["cached_tokens"])

    cached()
    again = cached()
    assert httpx.post(f"{real.url}/flush_cache", timeout=60).status_code == 200
    assert cached() == 0
    assert cached() == again
    assert httpx.post(f"{real.url}/pause?mode=wait", timeout=60).status_code == 200
    assert httpx.get(f"{real.url}/is_paused").json() == {"is_paused": True}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cached)
        time.sleep(0.2)
        assert not waiting.done()
        assert httpx.post(f"{real.url}/resume", timeout=60).status_code == 200
        assert waiting.result() == 0  # a pause forgets, unless told not to
    assert httpx.post(f"{real.url}/pause?clear_cache=false", timeout=60).status_code == 200
    assert httpx.post(f"{real.url}/resume", timeout=60).status_code == 200
    assert cached() == again
    info = httpx.get(f"{real.url}/server_info").json()
    assert info["resolved"]["kv_dtype"] == "f32"
    told = {v["name"]: v for section in info["explanation"]["sections"] for v in section["values"]}
    assert told["kv_dtype"]["value"] == "f32"
    assert told["num_blocks"]["value"] == info["resolved"]["num_blocks"]
    assert told["kv_dtype"]["sentence"] == info["resolved"]["reasons"]["kv_dtype"]["sentence"]
