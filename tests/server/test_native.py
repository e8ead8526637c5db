"""SGLang's /generate: its shapes, by script; its values are in test_native_values.py."""

from __future__ import annotations

import copy
import itertools
import json
import threading
from typing import Any

import httpx
import pytest

from tests.server import fake_engine as script
from tests.server.conftest import Start
from tests.server.served import DEADLINE_S, Served, eventually, read_until
from treadle.text.load import ModelText
from treadle.wire.sampling_params import MAX_LOGPROBS

PATH = "/generate"
IDS = [1100, 1101, 1102, 1103]


def generate(server: Served, **body: Any) -> httpx.Response:
    return server.post(PATH, **body)


def answer(server: Served, **body: Any) -> Any:
    response = generate(server, **body)
    assert response.status_code == 200, response.text
    return json.loads(response.content, parse_constant=pytest.fail)


def refusal(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = json.loads(response.content, parse_constant=pytest.fail)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


@pytest.fixture(autouse=True)
def _alive_afterwards(server: Served) -> Any:
    yield
    assert answer(server, input_ids=IDS, sampling_params={"max_new_tokens": 3})["output_ids"] == [
        *IDS[:3]
    ]
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_one_text(server: Served, text: ModelText) -> None:
    prompt = "Once upon a time"
    ids = text.tokenizer.encode(prompt)
    found = answer(server, text=prompt, sampling_params={"max_new_tokens": len(ids) + 1})
    meta = found["meta_info"]
    assert len(meta.pop("id")) == 32
    assert 0 < meta.pop("e2e_latency") < DEADLINE_S
    assert found == {
        "text": text.tokenizer.decode([*ids, ids[0]]),
        "output_ids": [*ids, ids[0]],
        "meta_info": {
            "finish_reason": {"type": "length", "length": len(ids) + 1},
            "prompt_tokens": len(ids),
            "completion_tokens": len(ids) + 1,
            "cached_tokens": 0,
            "weight_version": "default",
        },
    }


def test_put_does_the_same(server: Served) -> None:
    body = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 2}}
    assert httpx.put(f"{server.url}{PATH}", json=body).json()["output_ids"] == IDS[:2]


def test_new_tokens_by_default_and_null(server: Served) -> None:
    assert answer(server, input_ids=IDS)["meta_info"]["completion_tokens"] == 128
    found = answer(server, input_ids=IDS, sampling_params={"max_new_tokens": None})
    assert found["meta_info"]["completion_tokens"] == script.KV_TOKENS - len(IDS)


def test_nulls_are_absent_fields(server: Served) -> None:
    from treadle.text.sglang import GenerateRequest, Sampling

    sampling = dict.fromkeys(Sampling.__struct_fields__) | {"max_new_tokens": 4}
    nulls = dict.fromkeys(GenerateRequest.__struct_fields__)
    found = answer(server, **(nulls | {"input_ids": IDS, "sampling_params": sampling}))
    assert found["output_ids"] == IDS


def test_how_answers_end(server: Served, text: ModelText) -> None:
    ids = text.tokenizer.encode(" alpha beta gamma delta")
    sampling: dict[str, Any] = {"max_new_tokens": 40, "stop": ["ta gam"]}
    found = answer(server, input_ids=[1100, *ids], sampling_params=sampling)
    assert found["text"].endswith(" alpha be")
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": "ta gam"}
    found = answer(
        server, input_ids=[1100, *ids], sampling_params=sampling | {"no_stop_trim": True}
    )
    assert found["text"].endswith(" alpha beta gam")

    found = answer(server, input_ids=[*IDS, script.EOS])
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": script.EOS}
    assert found["output_ids"] == [*IDS, script.EOS]
    found = answer(server, input_ids=IDS, sampling_params={"stop_token_ids": [IDS[2]]})
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": IDS[2]}
    found = answer(
        server,
        input_ids=[*IDS, script.EOS],
        sampling_params={"ignore_eos": True, "max_new_tokens": 7},
    )
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 7}


def test_nothing_new_fills_the_cache(server: Served) -> None:
    ids = [1300, 1301, 1302]
    found = answer(server, input_ids=ids, sampling_params={"max_new_tokens": 0})
    assert (found["text"], found["output_ids"]) == ("", [])
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    again = answer(server, input_ids=ids, sampling_params={"max_new_tokens": 1})
    assert again["meta_info"]["cached_tokens"] == len(ids) - 1


def test_a_list_answers_a_list(server: Served, text: ModelText) -> None:
    [one] = answer(server, text=["one two"], sampling_params={"max_new_tokens": 1})
    assert one["output_ids"] == text.tokenizer.encode("one two")[:1]
    prompts = [IDS, IDS[1:], IDS[2:]]
    limits = [{"max_new_tokens": limit} for limit in (1, 2, 3)]
    found = answer(server, input_ids=prompts, sampling_params=limits)
    assert [each["output_ids"] for each in found] == [
        (ids * 3)[: limit["max_new_tokens"]] for ids, limit in zip(prompts, limits, strict=True)
    ]
    assert all("index" not in each for each in found)


def test_n_answers_a_list(server: Served) -> None:
    found = answer(server, input_ids=IDS, sampling_params={"max_new_tokens": 2, "n": 3})
    assert [each["output_ids"][0] for each in found] == IDS[:3]
    assert len({each["meta_info"]["id"] for each in found}) == 3
    found = answer(
        server,
        input_ids=[IDS, IDS[::-1]],
        sampling_params={"max_new_tokens": 1, "n": 2},
    )
    assert [each["output_ids"] for each in found] == [[1100], [1101], [1103], [1102]]


def test_ids(server: Served) -> None:
    short = {"max_new_tokens": 1}
    found = answer(server, input_ids=IDS, rid="mine", sampling_params=short)
    assert found["meta_info"]["id"] == "mine"
    found = answer(server, input_ids=[IDS, IDS], rid=["a", "b"], sampling_params=short)
    assert [each["meta_info"]["id"] for each in found] == ["a", "b"]
    found = answer(server, input_ids=[IDS, IDS], rid="batch", sampling_params=short)
    assert [each["meta_info"]["id"] for each in found] == ["batch_0", "batch_1"]


@pytest.mark.parametrize("rid", ["held", ["other", "held"]])
def test_an_id_in_flight_is_refused(server: Served, rid: Any) -> None:
    ids = [script.HOLD]
    with server.open_request(PATH, input_ids=ids, rid="held"):
        eventually(lambda: server.running() == 1)
        prompts = [IDS, IDS] if isinstance(rid, list) else IDS
        error = refusal(generate(server, input_ids=prompts, rid=rid))
        assert error["param"] == "rid"
        assert "held" in error["message"]
        assert server.running() == 1
    eventually(lambda: server.running() == 0)


def events(server: Served, **body: Any) -> list[dict[str, Any]]:
    return server.events(PATH, **body)


def test_a_stream_tells_the_answer_so_far(server: Served, text: ModelText) -> None:
    prompt = "😀漢é x"
    ids = text.tokenizer.encode(prompt)
    body: dict[str, Any] = {
        "text": prompt,
        "sampling_params": {"max_new_tokens": len(ids)},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
    }
    whole = answer(server, **body)
    told = events(server, **body)
    for earlier, later in itertools.pairwise(told):
        assert later["text"].startswith(earlier["text"])
        assert "\ufffd" not in earlier["text"]
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert earlier["meta_info"]["finish_reason"] is None
        assert "e2e_latency" not in earlier["meta_info"]
    assert all("index" not in each for each in told)
    for each in (told[-1], whole):
        del each["meta_info"]["e2e_latency"], each["meta_info"]["id"]
        del each["meta_info"]["cached_tokens"]
    assert told[-1] == whole


def joined(told: list[dict[str, Any]]) -> dict[str, Any]:
    last = copy.deepcopy(told[-1])
    lists = [name for name, value in last["meta_info"].items() if isinstance(value, list)]
    for name in lists:
        last["meta_info"][name] = [entry for each in told for entry in each["meta_info"][name]]
    last["text"] = "".join(each["text"] for each in told)
    last["output_ids"] = [token for each in told for token in each["output_ids"]]
    return last


def test_a_stream_of_what_is_new(start: Start, server: Served) -> None:
    fresh = start("fake", "--incremental-streaming-output").wait_ready()
    body: dict[str, Any] = {
        "input_ids": [[*IDS, 1104], IDS],
        "sampling_params": {"max_new_tokens": 9, "n": 2},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5, 6],
    }
    whole = answer(server, **body)
    told = fresh.events(PATH, **body)
    for index, one in enumerate(whole):
        mine = joined([each for each in told if each["index"] == index])
        assert mine.pop("index") == index
        for each in (mine, one):
            for name in ("id", "e2e_latency", "cached_tokens"):
                del each["meta_info"][name]
        assert mine == one


def test_a_list_streams_with_indices(server: Served) -> None:
    told = events(server, input_ids=[IDS, IDS[2:]], sampling_params={"max_new_tokens": 3})
    last = {each["index"]: each for each in told}
    assert last[0]["output_ids"] == IDS[:3]
    assert last[1]["output_ids"] == [1102, 1103, 1102]
    finished = [each["index"] for each in told if each["meta_info"]["finish_reason"]]
    assert sorted(finished) == [0, 1]


def test_failures(server: Served) -> None:
    *told, error, done = server.raw_events(
        PATH, input_ids=[IDS, [script.REFUSE, 1100]], sampling_params={"max_new_tokens": 300}
    )
    assert told
    assert json.loads(error)["error"]["message"] == "scripted refusal"
    assert done == "[DONE]"
    for stream in (False, True):
        response = generate(server, input_ids=[script.REFUSE_AT_ONCE], stream=stream)
        assert refusal(response)["message"] == "scripted refusal"
    eventually(lambda: server.running() == 0)


@pytest.mark.parametrize("start", [-1, 0, 1, 3, 4])
def test_scores(server: Served, text: ModelText, start: int) -> None:
    spell = text.tokenizer.token_text
    found = answer(
        server,
        input_ids=IDS,
        sampling_params={"max_new_tokens": 1},
        return_logprob=True,
        logprob_start_len=start,
        top_logprobs_num=2,
        token_ids_logprob=[8],
        return_text_in_logprobs=True,
    )["meta_info"]
    first = start if start >= 0 else len(IDS)
    places = range(first, len(IDS))
    values = {at: -float(at) if at else None for at in places}
    assert found["input_token_logprobs"] == [[values[at], IDS[at], spell(IDS[at])] for at in places]
    assert found["input_top_logprobs"] == [
        [[-at - i, IDS[at] + i, spell(IDS[at] + i)] for i in (0, 1)] if at else None
        for at in places
    ]
    assert found["input_token_ids_logprobs"] == [
        [[-2.0, 8, spell(8)]] if at else None for at in places
    ]
    assert found["output_token_logprobs"] == [[-0.5, 1100, spell(1100)]]
    assert found["output_top_logprobs"] == [[[-0.5, 1100, spell(1100)], [-1.5, 1101, spell(1101)]]]
    assert found["output_token_ids_logprobs"] == [[[-2.0, 8, spell(8)]]]


def test_scores_only_where_asked(server: Served) -> None:
    scored, plain = answer(
        server,
        input_ids=[IDS, IDS],
        sampling_params={"max_new_tokens": 1},
        return_logprob=[True, False],
        top_logprobs_num=[0, 3],
        token_ids_logprob=[None, [1]],
        logprob_start_len=2,
    )
    meta = scored["meta_info"]
    assert meta["input_token_logprobs"] == [[-2.0, 1102, None], [-3.0, 1103, None]]
    assert meta["output_token_logprobs"] == [[-0.5, 1100, None]]
    assert not [name for name in meta if "top" in name or "ids_log" in name]
    assert not [name for name in plain["meta_info"] if "logprobs" in name]


def test_minus_infinity_is_a_number(server: Served) -> None:
    meta = answer(
        server,
        input_ids=[script.UNLIKELY],
        sampling_params={"max_new_tokens": 1},
        return_logprob=True,
        top_logprobs_num=1,
    )["meta_info"]
    assert meta["output_token_logprobs"] == [[-9999.0, script.UNLIKELY, None]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": ""}, "prompt"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "prompt"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "prompt"),
        ({}, "text"),
        ({"text": "a", "input_ids": [5]}, "text"),
        ({"input_ids": [5, [6]]}, "input_ids"),
        ({"input_ids": ["a"]}, "input_ids[0]"),
        ({"text": 5}, "text"),
        ({"text": "a", "sampling_params": {"nonsense": 1}}, "sampling_params.nonsense"),
        ({"text": "a", "sampling_params": {"max_tokens": 1}}, "sampling_params.max_tokens"),
        ({"text": "a", "sampling_params": 5}, "sampling_params"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        (
            {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 1}},
            "min_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"sampling_seed": 2**64}}, "sampling_seed"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 10**6}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        (
            {"text": "a", "sampling_params": {"logit_bias": {"abc": 1}}},
            "sampling_params.logit_bias",
        ),
        ({"text": "a", "rid": ["a"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["a", "a"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["a"]}, "rid"),
        ({"text": "a", "rid": ""}, "rid"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"input_ids": IDS, "return_logprob": True, "logprob_start_len": 5}, "logprob_start_len"),
        ({"input_ids": IDS, "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [[1], 2]}, "token_ids_logprob"),
        ({"text": "a", "cache_salt": "x" * 1025}, "cache_salt"),
        ({"text": ["a"] * 1025}, "prompt"),
    ],
)
def test_refusals_name_the_field(server: Served, body: dict[str, Any], param: str) -> None:
    assert refusal(generate(server, **body))["param"] == param
    assert MAX_LOGPROBS == 20


@pytest.mark.parametrize(
    "bad", [script.VOCAB_SIZE, script.VOCAB_SIZE + 1000, -1, 2**31, 2**63], ids=str
)
def test_tokens_outside_the_vocabulary(server: Served, bad: int) -> None:
    for body, param in (
        ({"input_ids": [1, bad]}, "prompt"),
        ({"sampling_params": {"logit_bias": {str(bad): 1}}}, "logit_bias"),
        ({"sampling_params": {"stop_token_ids": [bad]}}, "stop_token_ids"),
        ({"return_logprob": True, "token_ids_logprob": [bad]}, "token_ids_logprob"),
    ):
        error = refusal(generate(server, **({"input_ids": IDS} | body)))
        assert error["param"] == param
        assert str(script.VOCAB_SIZE - 1) in error["message"]


@pytest.mark.parametrize(
    "name",
    ["image_data", "lora_path", "session_params", "return_hidden_states", "input_embeds"],
)
def test_what_is_not_there_is_refused_by_name(server: Served, name: str) -> None:
    error = refusal(generate(server, text="a", **{name: ["x"]}))
    assert error["message"] == f"{name} is not supported"
    # Said to be absent, it is.
    assert generate(server, text="a", **{name: False}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"regex": ""}, "regex"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": "[]"}, "json_schema"),
        ({"ebnf": ""}, "ebnf"),
        ({"structural_tag": "x"}, "structural_tag"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ({"regx": "a"}, "regx"),
    ],
)
def test_wrong_constraints_are_refused_by_name(
    server: Served, fields: dict[str, str], name: str
) -> None:
    error = refusal(generate(server, text="a", sampling_params=fields))
    assert error["param"] == f"sampling_params.{name}"


@pytest.mark.parametrize("stream", [False, True])
def test_client_goes(server: Served, *, stream: bool) -> None:
    prompts = [[script.SLOW, 1100], [script.HOLD], [script.SLOW, 1101]]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 390}, "stream": stream}
    with server.open_request(PATH, **body) as connection:
        eventually(lambda: server.running() == 3)
        if stream:
            read_until(connection, b"data: ")
    eventually(lambda: server.running() == 0)


def test_aborting_by_id(server: Served) -> None:
    def abort(**body: Any) -> None:
        response = server.post("/abort_request", **body)
        assert (response.status_code, response.content) == (200, b"")

    found: dict[str, Any] = {}

    def ask(name: str, **body: Any) -> threading.Thread:
        def run() -> None:
            found[name] = answer(server, rid=name, **body)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    asking = [
        ask("one", input_ids=[script.HOLD]),
        ask("two", input_ids=[[script.HOLD], [script.HOLD]]),
        ask("three", input_ids=[script.HOLD]),
    ]
    eventually(lambda: server.running() == 4)
    abort(rid="nobody")
    abort(rid="tw")
    abort(rid="one")
    eventually(lambda: server.running() == 3)
    abort(rid="two")
    eventually(lambda: server.running() == 1)
    abort(abort_all=True)
    for thread in asking:
        thread.join(DEADLINE_S)
    for each in (found["one"], *found["two"], found["three"]):
        assert each["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "the request was aborted",
        }
    assert refusal(server.post("/abort_request"))["param"] == "rid"
    assert refusal(server.post("/abort_request", rid=""))["param"] == "rid"
