"""`Engine`: SGLang's answers, in every way of asking for them; values equal to `LLM`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import tiny_llama
from treadle import LLM, Engine, SamplingParams
from treadle.errors import EngineError, InvalidRequest, StartError

GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
LONG = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("sglang"))


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with Engine(model_path=str(path), max_num_seqs=4) as made:
        yield made


def plain(answer: Any) -> Any:
    """An answer without what differs from call to call."""
    meta = {key: answer["meta_info"][key] for key in ("finish_reason", "completion_tokens")}
    return answer["text"], answer["output_ids"], meta


def test_one_prompt_or_several(engine: Engine, path: Path) -> None:
    with LLM(str(path)) as llm:
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        expected = llm.generate(["The weaver", "The loom"], params)
    one = engine.generate("The weaver", GREEDY)
    assert isinstance(one, dict)
    assert one["text"] == expected[0].outputs[0].text
    assert one["output_ids"] == expected[0].outputs[0].token_ids
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    assert one["meta_info"]["prompt_tokens"] == len(expected[0].prompt_token_ids)
    both = engine.generate(["The weaver", "The loom"], [GREEDY, GREEDY])
    assert [answer["text"] for answer in both] == [each.outputs[0].text for each in expected]
    ids = expected[0].prompt_token_ids
    for given in (ids, np.array(ids)):
        assert plain(engine.generate(input_ids=given, sampling_params=GREEDY)) == plain(one)
    twice = engine.generate(input_ids=[ids, np.array(ids)], sampling_params=GREEDY)
    assert [plain(answer) for answer in twice] == [plain(one)] * 2
    assert len(engine.generate("x", {**GREEDY, "n": 3})) == 3


def test_a_stream_grows_to_the_whole(engine: Engine) -> None:
    whole = engine.generate("The weaver", GREEDY)
    parts = list(engine.generate("The weaver", GREEDY, stream=True))
    assert plain(parts[-1]) == plain(whole)
    lengths = [len(part["output_ids"]) for part in parts]
    assert lengths == sorted(lengths), "each part is a snapshot"
    assert all(part["meta_info"]["finish_reason"] is None for part in parts[:-1])

    async def run() -> None:
        source: Any = await engine.async_generate("The weaver", GREEDY, stream=True)
        assert plain([part async for part in source][-1]) == plain(whole)
        answers = await asyncio.gather(
            *(engine.async_generate("The weaver", GREEDY) for _ in range(3))
        )
        assert [plain(answer) for answer in answers] == [plain(whole)] * 3

    asyncio.run(run())


def test_incremental_streams_add_up(path: Path) -> None:
    with Engine(str(path), incremental_streaming_output=True) as engine:
        whole: Any = engine.generate("The weaver", GREEDY)
        parts: Any = list(engine.generate("The weaver", GREEDY, stream=True))
        assert "".join(part["text"] for part in parts) == whole["text"]
        assert [token for part in parts for token in part["output_ids"]] == whole["output_ids"]


def test_scores(engine: Engine) -> None:
    answer: Any = engine.generate(
        "The weaver",
        {**GREEDY, "max_new_tokens": 2},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        token_ids_logprob=[5],
        return_text_in_logprobs=True,
    )
    meta = answer["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert meta["input_token_logprobs"][0][0] is None
    assert "".join(entry[2] for entry in meta["input_token_logprobs"]) == "The weaver"
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [len(entry) for entry in meta["output_top_logprobs"]] == [2, 2]
    assert [entry[0][1] for entry in meta["output_token_ids_logprobs"]] == [5, 5]


def test_aborts(engine: Engine) -> None:
    stream: Any = engine.generate(["a", "b"], LONG, stream=True, rid="both")
    next(stream)
    with pytest.raises(InvalidRequest, match="rid 'both' is running already"):
        engine.generate(["x", "y"], GREEDY, rid="both")
    engine.abort_request("both")
    ended = [part["meta_info"]["finish_reason"] for part in stream]
    assert [reason["type"] for reason in ended if reason] == ["abort", "abort"]
    stream = engine.generate("a", LONG, stream=True)
    next(stream)
    engine.abort_request(abort_all=True)
    assert list(stream)[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_what_it_says_of_itself(engine: Engine) -> None:
    engine.generate("The weaver set the warp upon the loom " * 4, GREEDY)
    info = engine.get_server_info()
    assert info["max_num_seqs"] == 4
    (state,) = info["internal_states"]
    assert state["generation_tokens"] > 0
    assert engine.flush_cache()
    answer: Any = engine.generate("The weaver set the warp upon the loom " * 4, GREEDY)
    assert answer["meta_info"]["cached_tokens"] == 0


def test_wrong_requests(engine: Engine) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prompt": 5}, "prompt: expected"),
        ({}, "exactly one of text and input_ids"),
        ({"prompt": "x", "sampling_params": {"max_tokens": 5}}, "max_tokens"),
        ({"prompt": "x", "sampling_params": {"regex": "("}}, "sampling_params.regex: the regex"),
        ({"prompt": "x", "lora_path": "y"}, "lora_path is not supported"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"prompt": "x", "rid": ["a", "b"]}, "rid is a list of 2"),
    ]
    for fields, match in wrong:
        with pytest.raises(InvalidRequest, match=match):
            engine.generate(**fields)
    with pytest.raises(TypeError, match="no argument 'promt'"):
        engine.generate(promt="x")


def test_the_end(path: Path) -> None:
    engine = Engine(str(path))
    stream: Any = engine.generate("x", LONG, stream=True)
    next(stream)
    engine.shutdown()
    with pytest.raises(EngineError, match="closed"):
        list(stream)
    with pytest.raises(EngineError, match="closed"):
        engine.generate("x", GREEDY)
    with pytest.raises(StartError, match="did you mean max_num_seqs"):
        Engine(str(path), max_num_seq=4)
