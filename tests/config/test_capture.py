"""Captured sizes and who replays them: worked examples, and laws that hold for every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.worked_examples import example
from treadle.config.capture import (
    sglang_decode_sizes,
    sglang_prefill_sizes,
    trtllm_sizes,
    vllm_sizes,
)
from treadle.config.replay import (
    CaptureRule,
    ProgramReplay,
    SGLangCapture,
    Step,
    TrtllmCapture,
    VllmCapture,
    VllmMode,
    parse_step,
)
from treadle.errors import StartError


def test_vllms_sizes() -> None:
    inputs, expected = example("vllm_graph_sizes")
    found = [
        vllm_sizes(case["max_num_seqs"], case["max_num_batched_tokens"]) for case in inputs["cases"]
    ]
    assert [list(sizes) for sizes in found] == expected["sizes"]
    assert [sizes[-1] for sizes in found] == expected["max"]


def test_vllms_sizes_where_the_user_or_drafts_say() -> None:
    assert vllm_sizes(8, 2048, asked=[8, 1, 8, 5000, 4]) == (1, 4, 8)
    assert vllm_sizes(1024, 100)[-2:] == (96, 100), "a small budget is a size of its own"
    with_drafts = vllm_sizes(16, 2048, draft_tokens=2)
    assert with_drafts[:4] == (3, 6, 9, 18)
    assert all(size % 3 == 0 for size in with_drafts)
    assert vllm_sizes(16, 2048, sequence_parallel=4) == (4, 8, 16, 24, 32)


def test_sglangs_sizes() -> None:
    inputs, expected = example("sglang_decode_graph_sizes")
    for largest in inputs["max_bs"]:
        assert list(sglang_decode_sizes(largest)) == expected["sizes"][str(largest)]
    inputs, expected = example("sglang_prefill_graph_sizes")
    for largest in inputs["max_tokens"]:
        assert list(sglang_prefill_sizes(largest)) == expected["sizes"][str(largest)]
    for largest, count in expected["counts"].items():
        assert len(sglang_prefill_sizes(int(largest))) == count


def test_sglangs_other_lists() -> None:
    assert sglang_decode_sizes(30) == (1, 2, 4, 8, 12, 16, 24, 30), "the largest is added"
    assert sglang_decode_sizes(5, padding=False) == (1, 2, 3, 4, 5)
    assert sglang_decode_sizes(256, request_slots=20) == (1, 2, 4, 8, 12, 16, 20)
    assert sglang_decode_sizes(40, multiple_of=8) == (8, 16, 24, 32, 40)
    drafts = sglang_decode_sizes(320, speculative=True)
    assert drafts[:10] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    assert drafts[-5:] == (256, 272, 288, 304, 320)
    assert {40, 44, 64, 72, 80} <= set(drafts)
    assert not {36, 68, 84} & set(drafts)
    assert sglang_decode_sizes(0) == ()


def test_tensorrt_llms_sizes() -> None:
    inputs, expected = example("trtllm_graph_sizes_default")
    default = trtllm_sizes(inputs["max_batch_size_for_graphs"], padding=inputs["enable_padding"])
    assert list(default) == expected["sizes"]
    assert len(default) == expected["count"]
    inputs, expected = example("trtllm_graph_sizes_padding")
    found = [trtllm_sizes(case["max"], padding=case["padding"]) for case in inputs["cases"]]
    assert [list(sizes) for sizes in found] == expected["sizes"]


def test_vllm_dispatches() -> None:
    inputs, expected = example("vllm_graph_dispatch")
    rule = VllmCapture(
        max_num_seqs=inputs["max_num_seqs"],
        max_num_batched_tokens=8192,
        draft_tokens=inputs["num_spec"],
    )
    assert rule.captured()[-1] == inputs["max_size"]
    names = {"full": "FULL", "piecewise": "PIECEWISE", "eager": "NONE"}
    for batch, result in zip(inputs["batches"], expected["result"], strict=True):
        lengths = batch["query_lens"]
        step = Step(lengths.count(1), tuple(n for n in lengths if n != 1))
        replay = rule.which(step)
        assert (names[replay.kind], replay.size) == (result["mode"], result["padded"])
        assert replay.padded_by == replay.size - sum(lengths)


def test_a_batch_of_40_decodes_under_tensorrt_llm() -> None:
    inputs, expected = example("trtllm_batch_40_not_captured")
    rule = TrtllmCapture(padding=inputs["enable_padding"])
    assert list(rule.sizes()) == inputs["sizes"]
    replay = rule.which(Step(inputs["batch_size"]))
    assert (replay.kind != "eager") == expected["graph_used"]
    assert replay.why == expected["reason"]
    padded = TrtllmCapture(padding=True)
    assert padded.which(Step(40))[:3] == ("full", 40, 0)
    assert padded.which(Step(41))[:3] == ("full", 48, 7)


@pytest.mark.parametrize(
    ("rule", "step", "kind", "size", "why"),
    [
        (VllmCapture(max_num_seqs=100, max_num_batched_tokens=2048), "decode 100", "piecewise", 104,
         "104 are more than the 100 rows that may run, 100 tokens pad to 104"),
        (VllmCapture(max_num_seqs=256, max_num_batched_tokens=2048, mode="NONE"), "decode 1",
         "eager", 1, "the mode is NONE: nothing is captured"),
        (VllmCapture(max_num_seqs=256, max_num_batched_tokens=2048, mode="PIECEWISE"), "decode 7",
         "piecewise", 8, "nothing is captured whole, 7 tokens pad to 8"),
        (VllmCapture(max_num_seqs=256, max_num_batched_tokens=2048, mode="FULL_DECODE_ONLY"),
         "decode 3 prefill 20", "eager", 23,
         "FULL_DECODE_ONLY has no graph for steps that also prefill"),
        (VllmCapture(max_num_seqs=256, max_num_batched_tokens=2048, mode="FULL"),
         "decode 3 prefill 20", "full", 24, "every row decodes, 23 tokens pad to 24"),
        (VllmCapture(max_num_seqs=256, max_num_batched_tokens=2048, cascade=True), "decode 8",
         "piecewise", 8, "attention takes what all rows share once, 8 is captured"),
        (SGLangCapture(decode_max_rows=256, prefill_max_tokens=8192), "decode 40", "full", 40,
         "40 requests are captured"),
        (SGLangCapture(decode_max_rows=24, prefill_max_tokens=8192), "decode 40", "eager", 40,
         "40 requests: above the largest size, 24"),
        (SGLangCapture(decode_max_rows=24, prefill_max_tokens=8192), "prefill 500,100 decode 2",
         "breakable", 640, "602 tokens pad to 640"),
        (SGLangCapture(decode_max_rows=24, prefill_max_tokens=0), "prefill 9", "eager", 9,
         "no prefill is captured"),
        (SGLangCapture(decode_max_rows=24, prefill_max_tokens=0, hindrance="input embeddings"),
         "decode 9", "eager", 9, "the step has input embeddings"),
        (TrtllmCapture(), "decode 32 prefill 4", "eager", 36,
         "a batch with a prompt in it is never replayed"),
        (TrtllmCapture(padding=True), "decode 129", "eager", 129,
         "129 requests: above the largest size, 128"),
        (TrtllmCapture(padding=True, max_batch_size=42), "decode 41", "eager", 41,
         "48 requests are above max_batch_size 42"),
        (TrtllmCapture(padding=True, free_blocks=False), "decode 41", "eager", 41,
         "no blocks are free for 7 dummy requests"),
        (ProgramReplay(), "decode 3 prefill 7", "program", 10,
         "the recorded step program runs any shape, without padding"),
    ],
)  # fmt: skip
def test_which_and_why(rule: CaptureRule, step: str, kind: str, size: int, why: str) -> None:
    replay = rule.which(parse_step(step))
    assert (replay.kind, replay.size, replay.why) == (kind, size, why)


def test_drafts_make_decode_rows_longer() -> None:
    rule = VllmCapture(max_num_seqs=64, max_num_batched_tokens=4096, draft_tokens=3)
    assert rule.which(Step(5, draft_tokens=3))[:3] == ("full", 24, 4)
    assert rule.which(Step(5))[0] == "piecewise", "rows without drafts are not uniform"


STEPS = st.builds(
    Step,
    st.integers(min_value=1, max_value=600),
    st.lists(st.integers(min_value=1, max_value=3000), max_size=3).map(tuple),
)


@given(STEPS, st.integers(min_value=1, max_value=600), st.booleans(), st.data())
def test_no_rule_cuts_a_step_or_pads_further_than_it_must(
    step: Step, rows: int, padding: bool, data: st.DataObject
) -> None:
    modes: list[VllmMode] = ["FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "NONE"]
    vllm = VllmCapture(
        max_num_seqs=rows, max_num_batched_tokens=8192, mode=data.draw(st.sampled_from(modes))
    )
    sglang = SGLangCapture(decode_max_rows=rows, prefill_max_tokens=8192, padding=padding)
    trtllm = TrtllmCapture(largest=rows, padding=padding)
    prefills = bool(step.prefills)
    lists: list[tuple[CaptureRule, tuple[int, ...], int]] = [
        (vllm, vllm.captured(), step.tokens),
        (sglang, sglang.prefill_sizes() if prefills else sglang.decode_sizes(),
         step.tokens if prefills else step.decode_rows),
        (trtllm, trtllm.sizes(), step.tokens if prefills else step.decode_rows),
    ]  # fmt: skip
    for rule, sizes, amount in lists:
        replay = rule.which(step)
        assert replay.size - replay.padded_by == amount
        if replay.kind == "eager":
            assert replay.padded_by == 0
        else:
            assert replay.size == min(size for size in sizes if size >= amount)
    assert trtllm.which(step).kind == "eager" or not prefills


@given(st.integers(min_value=1, max_value=20_000))
def test_lists_ascend_and_end_where_they_should(largest: int) -> None:
    for sizes in (
        sglang_decode_sizes(largest),
        sglang_decode_sizes(largest, speculative=True),
        trtllm_sizes(largest),
        trtllm_sizes(largest, padding=True),
    ):
        assert sizes[-1] == largest
        assert list(sizes) == sorted(set(sizes))
    assert vllm_sizes(largest, 8192)[-1] <= min(2 * largest, 512)


@pytest.mark.parametrize("text", ["", "decode", "decode 0", "prefill 3,0", "40", "encode 4",
                                  "decode 4;", "decode -1"])  # fmt: skip
def test_a_step_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="write 'decode 40', 'prefill 512' or"):
        parse_step(text)


def test_a_step_beyond_all_machines_is_refused() -> None:
    with pytest.raises(StartError, match="more tokens than any engine computes"):
        parse_step(f"decode {'9' * 24}")
    assert parse_step("prefill 999999").tokens == 999999
