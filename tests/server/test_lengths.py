"""SGLang's length rule over HTTP: refused with 400, or cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.served import RealServed
from tests.server.test_bad_input import refusal

WINDOW = 64
IDS = list(range(1000, 1100))


def serving(model: Path, *options: str) -> Iterator[RealServed]:
    served = RealServed(model, "--max-model-len", str(WINDOW), "--max-num-seqs", "2", *options)
    try:
        yield served.wait_ready()
    finally:
        served.close()


@pytest.fixture(scope="module")
def refusing(demo_gguf: Path) -> Iterator[RealServed]:
    yield from serving(demo_gguf, "--length-rule", "sglang")


@pytest.fixture(scope="module")
def cutting(demo_gguf: Path) -> Iterator[RealServed]:
    yield from serving(demo_gguf, "--length-rule", "sglang", "--allow-auto-truncate")


def generate(served: RealServed, num_prompt: int, num_new: int | None) -> object:
    sampling = {"max_new_tokens": num_new, "ignore_eos": True}
    return served.post("/generate", input_ids=IDS[:num_prompt], sampling_params=sampling)


def test_what_does_not_fit_is_400(refusing: RealServed) -> None:
    for num_prompt, num_new in ((58, 1), (40, 25), (64, 0)):
        refusal(generate(refusing, num_prompt, num_new))
        error = refusal(
            refusing.post("/v1/completions", prompt=IDS[:num_prompt], max_tokens=num_new)
        )
        assert error["code"] == "context_length_exceeded"


def test_what_the_pool_cannot_hold_is_taken_off_the_answer(refusing: RealServed) -> None:
    answer = generate(refusing, 40, 24).json()
    assert answer["meta_info"]["completion_tokens"] == 63 - 40 - 1
    body = {"prompt": IDS[:57], "max_tokens": 7, "ignore_eos": True}
    assert refusing.post("/v1/completions", **body).json()["usage"]["completion_tokens"] == 5


def test_what_is_too_long_is_cut(cutting: RealServed) -> None:
    answer = generate(cutting, 100, 50).json()
    meta = answer["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (58, 4)
    body = {"prompt": IDS, "max_tokens": 50, "ignore_eos": True}
    usage = cutting.post("/v1/completions", **body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (58, 4)
    assert usage["prompt_tokens_details"]["truncated_tokens"] == 42
    text = cutting.post("/generate", text="word " * 500, sampling_params={"max_new_tokens": 1})
    assert text.json()["meta_info"]["prompt_tokens"] == 58


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_no_new_tokens_only_fill_the_cache(refusing: RealServed, path: str) -> None:
    """SGLang's prefix hint: nothing is generated, and the next request finds the prompt."""
    first = 2000 if path == "/generate" else 3000
    prompt = list(range(first, first + 50))
    if path == "/generate":
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}}
        hint = refusing.post(path, **body).json()
        assert (hint["output_ids"], hint["meta_info"]["completion_tokens"]) == ([], 0)
    else:
        hint = refusing.post(path, prompt=prompt, max_tokens=0).json()
        assert hint["usage"]["completion_tokens"] == 0
        assert hint["choices"][0]["finish_reason"] == "length"
    again = refusing.post("/v1/completions", prompt=prompt, max_tokens=1).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
