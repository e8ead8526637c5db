"""Scored prompts, prompts alone, and restricted choices, on a real engine: against transformers'
log-softmax, and with the same bits whatever the schedule."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.bits import Schedule, start
from tests.tiny import VOCAB_SIZE, TinyLlama, tiny_llama, tiny_reference
from treadle.wire.messages import Delta, Failed, Generate, TokenLogprob
from treadle.wire.sampling_params import SamplingParams

LENGTH = 50
TOP = 2
ASKED = [3, 77]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("f32", tmp_path_factory.mktemp("scores"))


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    rng = random.Random(5)
    return [rng.randrange(VOCAB_SIZE) for _ in range(LENGTH)]


@pytest.fixture(scope="module")
def reference(prompt: list[int]) -> np.ndarray:
    """Log-probabilities [position, token] in float64."""
    model = tiny_reference(TinyLlama("f32"))
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
    return logits.double().log_softmax(dim=-1).numpy()


class Answers:
    """What one engine says to requests that are served together."""

    def __init__(self, path: Path, schedule: Schedule, messages: list[Generate]) -> None:
        self.scores: dict[str, list[TokenLogprob]] = {m.request_id: [] for m in messages}
        self.tokens: dict[str, list[int]] = {m.request_id: [] for m in messages}
        self.last: dict[str, Delta] = {}
        engine = start(path, schedule, kv_dtype="f32")
        for _ in range(2):  # the second time everything is cached
            for message in messages:
                self.scores[message.request_id].clear()
                self.tokens[message.request_id].clear()
                engine.handle(message)
            while engine.has_work:
                for delta in engine.step():
                    assert isinstance(delta, Delta), delta
                    self.scores[delta.request_id] += delta.prompt_logprobs or []
                    self.tokens[delta.request_id] += delta.tokens
                    if delta.finish:
                        self.last[delta.request_id] = delta
        engine.close()


def scoring(prompt: list[int], start_at: int, max_tokens: int = 2) -> Generate:
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        ignore_eos=True,
        prompt_logprobs=TOP,
        prompt_logprobs_start=start_at,
        logprob_token_ids=ASKED,
    )
    return Generate(request_id=f"s{start_at}.{max_tokens}", prompt=prompt, params=params, seed=0)


def plain(prompt: list[int], name: str, **fields: object) -> Generate:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, **fields)  # type: ignore[arg-type]
    return Generate(request_id=name, prompt=prompt, params=params, seed=0)


SCHEDULES = [
    Schedule(index=index, block_size=block, rows=8, budget=budget, depth=depth)
    for (index, block), (budget, depth) in zip(
        itertools.cycle([("none", 16), ("radix", 1), ("hashed", 16)]),
        [(512, 0), (9, 0), (14, 1), (50, 1), (512, 1), (65, 0)],
        strict=False,
    )
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scores_are_transformers_and_the_same_in_any_schedule(
    path: Path, prompt: list[int], reference: np.ndarray, schedule: Schedule
) -> None:
    starts = [0, 1, 7, LENGTH - 2, LENGTH - 1, LENGTH]
    messages = [scoring(prompt, at) for at in starts]
    messages += [scoring(prompt, 0, 0), plain(prompt, "plain"), plain(prompt[:30], "short")]
    answers = Answers(path, schedule, messages)
    alone = Answers(path, Schedule(), messages[:1])
    whole = alone.scores["s0.2"]
    assert answers.scores["plain"] == []
    assert answers.tokens["s0.0"] == []
    for at in starts:
        assert answers.scores[f"s{at}.2"] == whole[max(at, 1) - 1 :], "bit for bit"
        assert answers.tokens[f"s{at}.2"] == answers.tokens["plain"][:2]
    assert answers.scores["s0.0"] == whole
    for position, entry in enumerate(whole):
        logprobs = reference[position]
        assert entry.token == prompt[position + 1]
        assert entry.logprob == pytest.approx(logprobs[entry.token], abs=1e-4)
        assert entry.rank == 1 + np.count_nonzero(logprobs > logprobs[entry.token])
        best = np.argsort(-logprobs, kind="stable")[:TOP].tolist()
        assert [token for token, _ in entry.top] == best
        assert [value for _, value in entry.top] == pytest.approx(logprobs[best], abs=1e-4)
        assert [token for token, _ in entry.asked] == ASKED
        assert [value for _, value in entry.asked] == pytest.approx(logprobs[ASKED], abs=1e-4)


def test_a_prompt_alone_fills_the_cache(path: Path, prompt: list[int]) -> None:
    params = SamplingParams(max_tokens=0)
    fill = Generate(request_id="fill", prompt=prompt, params=params, seed=0)
    answers = Answers(path, Schedule(index="radix", block_size=1), [fill])
    end = answers.last["fill"]
    assert (end.finish, end.tokens, end.cached_tokens) == ("length", [], LENGTH - 1)
    assert end.timings is not None
    assert end.timings.decode_s == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_restricted_choices_restrict_nobody_else(path: Path, prompt: list[int], depth: int) -> None:
    free = Answers(path, Schedule(), [plain(prompt, "free")]).tokens["free"]
    bad = plain(prompt, "bad")
    bad.bad_words = [[free[0]], free[1:3]]
    allowed = sorted({5, 6, VOCAB_SIZE - 1})
    messages = [
        plain(prompt, "free"),
        plain(prompt, "allowed", allowed_token_ids=allowed, logprobs=1),
        bad,
        plain(prompt, "again"),
    ]
    answers = Answers(path, Schedule(rows=4, depth=depth), messages)
    assert answers.tokens["free"] == answers.tokens["again"] == free
    assert set(answers.tokens["allowed"]) <= set(allowed)
    rest = answers.tokens["bad"]
    assert free[0] not in rest
    assert free[1:3] not in [rest[at : at + 2] for at in range(len(rest))]


@pytest.mark.parametrize("depth", [0, 1])
def test_where_nothing_is_left_to_choose_one_request_fails(
    path: Path, prompt: list[int], depth: int
) -> None:
    engine = start(path, Schedule(rows=4, depth=depth), kv_dtype="f32")
    eos = engine.ready().eos_token_ids[0]
    params = SamplingParams(max_tokens=8, min_tokens=3, allowed_token_ids=[eos])
    engine.handle(Generate(request_id="none", prompt=prompt, params=params, seed=0))
    engine.handle(plain(prompt, "free"))
    said: dict[str, list[Delta | Failed]] = {"none": [], "free": []}
    while engine.has_work:
        for message in engine.step():
            assert isinstance(message, Delta | Failed)
            said[message.request_id].append(message)
    engine.close()
    (failed,) = said["none"]
    assert isinstance(failed, Failed)
    assert (failed.status, failed.param) == (400, "allowed_token_ids")
    assert "no token is left" in failed.message
    tokens = [token for delta in said["free"] if isinstance(delta, Delta) for token in delta.tokens]
    assert tokens == Answers(path, Schedule(), [plain(prompt, "free")]).tokens["free"]
