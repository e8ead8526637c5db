"""What `LLM` takes and tells: prompts, parameters, scores, metrics; scores are transformers'."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import TinyLlama, tiny_reference, write_tiny
from treadle import LLM, SamplingParams
from treadle.errors import InvalidRequest, StartError

MODEL = TinyLlama("f32")
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(MODEL, tmp_path_factory.mktemp("asking"))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(str(path), max_num_seqs=4, max_num_batched_tokens=16, kv_dtype="f32") as made:
        yield made


@pytest.fixture(scope="module")
def log_softmax() -> Any:
    model = tiny_reference(MODEL)

    def run(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)

    return run


def test_arrays_are_prompts(llm: LLM) -> None:
    ids = [300, 5, 9]
    expected = llm.generate(ids, GREEDY)[0].outputs
    forms = (np.array(ids), np.array(ids, np.uint16), tuple(ids), [np.int64(i) for i in ids])
    for form in forms:
        assert llm.generate(form, GREEDY)[0].outputs == expected
        assert llm.generate([form, form], GREEDY)[1].outputs == expected
    assert [o.outputs for o in llm.generate(np.array([ids, ids]), GREEDY)] == [expected] * 2
    (output,) = llm.generate({"prompt": "a name for it", "prompt_token_ids": ids}, GREEDY)
    assert (output.prompt, output.outputs) == ("a name for it", expected)
    assert all(type(token) is int for token in output.prompt_token_ids)


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        (b"bytes", "of type bytes"),
        ([b"bytes"], r"prompts\[0\] is of type bytes"),
        (None, "of type NoneType"),
        (5, "of type int"),
        ([True, 1], "holds True"),
        ([1, 2.5], "holds 2.5"),
        ([1, "a"], "holds 'a'"),
        (["a", 1], r"prompts\[1\] is of type int"),
        ([["a"]], r"prompts\[0\] holds 'a'"),
        ([[[1]]], r"prompts\[0\] holds \[1\]"),
        (np.array([1.5]), "1 dimensions of float64"),
        (np.array(5), "0 dimensions of int64"),
        (np.array([[[1]]]), r"prompts\[0\] is an array of 2 dimensions"),
        ({"prompt_token_ids": "text"}, "of type str"),
        ({"prompt": 5}, "prompt is of type int, not text"),
        ({"prompt": "x", "cache_salt": 5}, "cache_salt is of type int"),
        ({"prompt": "x", "multi_modal_data": {}}, "a field 'multi_modal_data'"),
        ({}, "neither prompt nor prompt_token_ids"),
        ([[]], "no token"),
        ({1, 2}, "of type set"),
    ],
)
def test_what_is_no_prompt_is_named(llm: LLM, prompt: Any, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        llm.generate(prompt, GREEDY)


@pytest.mark.parametrize("params", [{"n": 1}, [{"n": 1}], "x", 5])
def test_what_are_no_parameters_is_named(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequest, match="sampling_params must be"):
        llm.generate(["x"], params)


@pytest.mark.parametrize("messages", [None, "x", [1], ["x"], {"role": "user"}, [[{}], "x"]])
def test_what_are_no_messages_is_named(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="messages must be"):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize("start", [0, 3, 21])
def test_prompt_logprobs(llm: LLM, log_softmax: Any, start: int) -> None:
    ids = [int(token) for token in np.random.default_rng(4).integers(0, 331, 40)]
    params = SamplingParams(
        max_tokens=0,
        prompt_logprobs=2,
        prompt_logprobs_start=start,
        logprob_token_ids=[7, 8],
    )
    (output,) = llm.generate([ids], params)
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].finish_reason == "length"
    expected = log_softmax(ids)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(ids)
    first = max(start, 1)
    assert output.prompt_logprobs[:first] == [None] * first
    for at, entry in enumerate(output.prompt_logprobs[first:], first):
        assert entry is not None
        row = expected[at - 1]
        assert {ids[at], 7, 8, *row.topk(2).indices.tolist()} == set(entry)
        for token, found in entry.items():
            assert found.logprob == pytest.approx(row[token].item(), abs=2e-4)
        assert entry[ids[at]].rank == 1 + int((row > row[ids[at]]).sum())


def test_logprobs_of_the_answer(llm: LLM, log_softmax: Any) -> None:
    ids = [300, 5, 9]
    params = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, logprobs=3, logprob_token_ids=[11]
    )
    (answer,) = llm.generate([ids], params)[0].outputs
    expected = log_softmax(ids + answer.token_ids)
    assert answer.logprobs is not None
    total = 0.0
    for at, (token, entry) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        row = expected[len(ids) + at - 1]
        assert token == int(row.argmax())
        assert 11 in entry
        for each, found in entry.items():
            assert found.logprob == pytest.approx(row[each].item(), abs=2e-4)
        total += row[token].item()
    assert answer.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_masks(llm: LLM) -> None:
    allowed = SamplingParams(
        temperature=1, seed=1, max_tokens=20, ignore_eos=True, allowed_token_ids=[40, 41]
    )
    assert set(llm.generate("x", allowed)[0].outputs[0].token_ids) == {40, 41}
    (token,) = llm.get_tokenizer().encode("e")
    for bad_words, expected in ((None, {token}), (["e"], set())):
        forced = SamplingParams(
            temperature=0,
            max_tokens=6,
            ignore_eos=True,
            logit_bias={token: 100},
            bad_words=bad_words,
        )
        answer = llm.generate("The loom", forced)[0].outputs[0]
        assert set(answer.token_ids) & {token} == expected


def test_metrics_of_a_request_and_of_the_engine(llm: LLM) -> None:
    before = {metric.name: metric.value for metric in llm.get_metrics()}
    (output,) = llm.generate("The loom went round and round", GREEDY)
    metrics = output.metrics
    assert metrics.first_scheduled_time is not None
    assert metrics.first_token_time is not None
    assert metrics.finished_time is not None
    assert (
        metrics.arrival_time
        <= metrics.first_scheduled_time
        <= metrics.first_token_time
        <= metrics.finished_time
    )
    after = {metric.name: metric.value for metric in llm.get_metrics()}
    assert after["vllm:generation_tokens"] - before["vllm:generation_tokens"] == 6
    assert after["vllm:num_requests_running"] == 0


def test_reset_prefix_cache(llm: LLM) -> None:
    prompt = list(range(100, 164))
    counts = []
    for reset in (False, False, True):
        if reset:
            assert llm.reset_prefix_cache()
        counts.append(llm.generate([prompt], GREEDY)[0].num_cached_tokens)
    assert counts[0] == counts[2] == 0
    assert counts[1] > 0


def test_salts_of_single_prompts(llm: LLM) -> None:
    ids = list(range(200, 264))
    salts = ["a", "b", "a"]
    counts = [
        llm.generate([{"prompt_token_ids": ids, "cache_salt": salt}], GREEDY)[0].num_cached_tokens
        for salt in salts
    ]
    assert counts[:2] == [0, 0]
    assert counts[2] > 0


def test_a_seed_repeats_a_run(path: Path) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)

    def run(seed: int | None) -> list[list[int]]:
        with LLM(str(path), seed=seed) as llm:
            outputs = llm.generate(["x", "x"], params) + llm.generate(["x"], params)
            return [output.outputs[0].token_ids for output in outputs]

    assert run(1) == run(1) != run(2)
    first = run(1)
    assert first[0] != first[1] != first[2], "each call draws anew"
    with pytest.raises(InvalidRequest, match="seed"):
        run("x")  # type: ignore[arg-type]


def test_a_bar_on_a_terminal_only(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], GREEDY)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tok/s" in shown


def test_a_wrong_setting_is_told_with_its_like(path: Path) -> None:
    with pytest.raises(StartError, match="did you mean max_model_len"):
        LLM(str(path), max_model_length=5)


def test_many_prompts_cost_no_more_each_than_few(llm: LLM) -> None:
    params = SamplingParams(max_tokens=0)
    seconds_each = []
    for count in (500, 4000):
        began = time.process_time()
        assert len(llm.generate([[5, 6, 7]] * count, params)) == count
        seconds_each.append((time.process_time() - began) / count)
    assert seconds_each[1] < 4 * seconds_each[0]
