"""The three budgets: worked examples, their laws, and what they say when nothing is left."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.config.worked_examples import GB, example
from treadle.config.kv_capacity import (
    agreed,
    sglang_request_slots,
    sglang_tokens,
    trtllm_blocks,
    trtllm_tokens,
    vllm_blocks,
    vllm_group_layers,
)
from treadle.config.kv_layout import (
    AttentionShape,
    cell_bytes,
    layer_bytes,
    sglang_buffer_bytes,
    sglang_index_share,
    sglang_request_table_bytes,
    vector_bytes,
)
from treadle.config.kv_rules import (
    Budget,
    Memory,
    sglang_budget,
    trtllm_budget,
    trtllm_peak,
    vllm_budget,
)
from treadle.config.sglang_reserve import (
    SGLangShape,
    chunk_size,
    decode_rows,
    floor_reserve_mib,
    prefill_graph_sizes,
    reserve,
    reserve_after_capture,
    static_fraction,
)
from treadle.errors import StartError


def gb(amount: float) -> int:
    return round(amount * GB)


def test_bytes_of_a_token() -> None:
    inputs, expected = example("kv_bytes_per_token")
    shape = AttentionShape(
        kv_heads=inputs["num_kv_heads"], key_dim=inputs["head_dim"], value_dim=inputs["head_dim"]
    )
    tensor_parallel = inputs["tensor_parallel"]
    assert shape.heads_per_device(tensor_parallel) == expected["kv_heads_per_gpu"]
    per_device = inputs["num_layers"] * layer_bytes(shape, "bf16", tensor_parallel)
    assert per_device == expected["bytes_per_token_per_gpu"]
    assert per_device * tensor_parallel == expected["bytes_per_token_total"]


def test_bytes_of_a_cell() -> None:
    inputs, expected = example("vllm_cell_bytes")
    shape = AttentionShape(kv_heads=1, key_dim=inputs["head_dim_k"], value_dim=inputs["head_dim_v"])
    assert cell_bytes(shape, "f16") == expected["cell_bytes"]


def test_sglangs_buffers_and_tables() -> None:
    inputs, expected = example("kv_pool_buffer_bytes")
    shape = AttentionShape(
        kv_heads=inputs["kv_heads"], key_dim=inputs["head_dim"], value_dim=inputs["head_dim"]
    )
    buffer = sglang_buffer_bytes(inputs["pool_tokens"], inputs["page_size"], shape, "bf16")
    assert buffer == expected["buffer_bytes"]
    assert buffer * 2 * inputs["num_layers"] == expected["pool_bytes"]
    inputs, expected = example("req_to_token_bytes")
    table = sglang_request_table_bytes(inputs["requests"], inputs["max_context"])
    assert table == expected["bytes"]
    inputs, expected = example("page_size_one_overhead")
    share = sglang_index_share(inputs["kv_bytes_per_token"])
    assert round(100 * share, 3) == expected["overhead_percent"]


def test_heads_that_do_not_suffice_are_there_more_than_once() -> None:
    shape = AttentionShape(kv_heads=8, key_dim=128, value_dim=128)
    assert [shape.heads_per_device(n) for n in (1, 2, 4, 8, 16, 32)] == [8, 4, 2, 1, 1, 1]
    with pytest.raises(StartError, match="parallelism is 3: it neither divides the model's 8 KV"):
        shape.heads_per_device(3)


def test_a_latent_vector_is_on_every_device() -> None:
    shape = AttentionShape(kv_heads=128, key_dim=512 + 64, value_dim=0)
    assert [layer_bytes(shape, "bf16", n) for n in (1, 8, 7)] == [1152, 1152, 1152]


def test_formats_of_the_cache() -> None:
    """Scales count where each head and token has one."""
    assert [vector_bytes(128, kind) for kind in ("f32", "bf16", "fp8")] == [512, 256, 128]
    assert vector_bytes(128, "int8") == 128 + 2
    assert vector_bytes(80, "int4") == 40 + 2
    assert vector_bytes(0, "int8") == 0


def test_the_budgets_of_80_gb() -> None:
    inputs, expected = example("kv_budget_by_hand")
    memory = Memory(
        total_bytes=gb(inputs["gpu_gb"]),
        free_bytes=gb(inputs["gpu_gb"]),
        weights_bytes=gb(inputs["weights_per_gpu_gb"]),
        activation_bytes=gb(inputs["other_non_kv_gb"]),
    )
    by_hand = memory.total_bytes - memory.weights_bytes - memory.activation_bytes
    assert by_hand == gb(expected["kv_per_gpu_gb"])

    inputs, expected = example("kv_budget_vllm")
    budget = vllm_budget(memory, utilization=inputs["gpu_memory_utilization"])
    assert budget.terms[0].num_bytes == gb(expected["utilization_budget_gb"])
    assert budget.kv_bytes == gb(expected["kv_per_gpu_gb"])
    assert budget.kv_bytes * inputs["tensor_parallel"] == gb(expected["kv_total_gb"])

    inputs, expected = example("kv_budget_sglang")
    fraction = (inputs["gpu_gb"] - inputs["reserved_gb"]) / inputs["gpu_gb"]
    assert fraction == expected["mem_fraction_static"]
    budget = sglang_budget(memory, fraction)
    assert budget.kv_bytes == gb(expected["kv_per_gpu_gb"])
    assert budget.kv_bytes * inputs["tensor_parallel"] == gb(expected["kv_total_gb"])
    assert -budget.terms[-1].num_bytes == gb(expected["static_complement_gb"])

    inputs, expected = example("kv_budget_trtllm")
    budget = trtllm_budget(memory, fraction=inputs["free_gpu_memory_fraction"])
    assert budget.kv_bytes == gb(expected["kv_per_gpu_gb"])
    assert budget.kv_bytes * inputs["tensor_parallel"] == gb(expected["kv_total_gb"])


def test_sglangs_whole_reserve() -> None:
    inputs, expected = example("sglang_budget_full_rule")
    fraction = static_fraction(81920, reserve(SGLangShape(gpu_mib=81920, tensor_parallel=4)).mib)
    assert fraction == inputs["mem_fraction_static"]
    total = gb(inputs["gpu_gb"])
    memory = Memory(
        total_bytes=total, free_bytes=total, weights_bytes=gb(inputs["weights_per_gpu_gb"])
    )
    assert sglang_budget(memory, fraction).kv_bytes == gb(expected["kv_per_gpu_gb"])


def test_sglangs_fraction_by_card() -> None:
    for row in example("sglang_auto_fraction_table")[1]["rows"]:
        shape = SGLangShape(
            gpu_mib=row["gpu_mem_mib"], tensor_parallel=row["tp"], pipeline_parallel=row["pp"]
        )
        assert chunk_size(shape) == row["chunked_prefill_size"], row
        assert decode_rows(shape) == row["decode_graph_max_bs"], row
        assert len(prefill_graph_sizes(shape)) == row["num_prefill_graph_sizes"], row
        reserved = reserve(shape)
        assert reserved.before_floor_mib == row["reserved_mib_before_floor"], row
        assert reserved.mib == row["reserved_mib"], row
        fraction = static_fraction(shape.gpu_mib, reserved.mib)
        assert fraction == row["mem_fraction_static"], row


def test_what_else_sglang_reserves() -> None:
    """Each by the numbers of its rule, worked out by hand."""
    card = SGLangShape(gpu_mib=81920)

    def change(**changes: object) -> float:
        changed = reserve(msgspec.structs.replace(card, **changes))
        unbounded = sum(part.mib for part in changed.parts if part.name != "floor")
        return unbounded - reserve(card).mib

    assert change(deep_ep=True) == 2048
    assert change(data_parallel_attention=2) == 256 * 3 * 2
    assert change(data_parallel_attention=2, tensor_parallel=4) == (256 * 2 + 512 * 4.5 * 2 + 384)
    assert change(latent_attention=True) == 1536 - 58 * 8
    assert change(prefill_graphs=False) == -58 * 8
    assert change(chunked_prefill_size=-1) == (16384 - 8192) * 1.5 - 58 * 8
    assert change(role="prefill") == -512
    assert change(role="decode") == -58 * 8 + (2048 - 8192) * 1.5
    assert change(role="decode", max_running_requests=4096, draft_tokens=4) == (
        -58 * 8 + (4096 * 4 - 8192) * 1.5
    )
    small = reserve(msgspec.structs.replace(card, chunked_prefill_size=512, decode_max_rows=0))
    assert small.mib == 10240, "above 60 GiB at least 10 GiB"
    assert [part.name for part in small.parts][-1] == "floor"
    with_buffers = msgspec.structs.replace(card, chunked_prefill_size=512, deep_ep=True)
    assert reserve(with_buffers).mib == 10240 + 2048, "DeepEP's buffers come on top of the floor"
    assert (floor_reserve_mib(61440), floor_reserve_mib(61441)) == (0, 10240)


def test_a_card_that_cannot_be_read() -> None:
    shape = SGLangShape(gpu_mib=None)
    assert (chunk_size(shape), decode_rows(shape)) == (4096, 160)
    assert static_fraction(None, reserve(shape).mib) == 0.88


def test_sizing_after_capture_keeps_no_room_for_graphs() -> None:
    shape = SGLangShape(gpu_mib=81920, tensor_parallel=4)
    late = reserve_after_capture(shape)
    assert late.mib == 1536 + 512
    memory = Memory(
        total_bytes=gb(80), free_bytes=gb(80), weights_bytes=gb(35.25), capture_bytes=gb(3)
    )
    budget = sglang_budget(memory, static_fraction(81920, late.mib), after_capture=True)
    assert budget.kv_bytes == gb(80 - 35.25 - 3 - 0.025 * 80)


def test_tokens_and_blocks() -> None:
    inputs, expected = example("capacity_of_the_three_budgets")
    per_token = inputs["bytes_per_token_per_gpu"]
    kv = {name: gb(amount) for name, amount in inputs["kv_per_gpu_gb"].items()}
    blocks = vllm_blocks(kv["vllm"], inputs["vllm_page_bytes_per_layer"], inputs["layers"])
    assert blocks.blocks == expected["vllm"]["blocks"]
    assert blocks.usable == expected["vllm"]["usable_blocks_without_null"]
    assert blocks.blocks * 16 == expected["vllm"]["tokens"]
    assert sglang_tokens(kv["sglang"], per_token) == expected["sglang"]["tokens"]
    max_tokens = trtllm_tokens(kv["trtllm"], per_token)
    assert max_tokens == expected["trtllm"]["max_tokens"]
    assert trtllm_blocks(max_tokens) == expected["trtllm"]["blocks"]


def test_request_slots() -> None:
    inputs, expected = example("sglang_max_running_default")
    slots = [sglang_request_slots(case["tokens"], case["context"]) for case in inputs["cases"]]
    assert slots == expected["slots"]
    assert sglang_request_slots(10_000, 8192, asked=64, data_parallel=4) == 16
    with pytest.raises(StartError, match="comes to 0 with a pool of 1 tokens"):
        sglang_request_slots(1, 8192)


def test_pages_bounds_and_workers() -> None:
    assert sglang_tokens(1000, 10, page_size=16) == 96
    assert sglang_tokens(1000, 10, page_size=16, most_tokens=50) == 48
    assert sglang_tokens(1000, 10, page_size=16, most_tokens=5000) == 96
    assert vllm_blocks(0, 16, 2, override=7) == (7, 6)
    assert agreed([30, 10, 20]) == 10


@pytest.mark.parametrize(
    ("kinds", "layers"), [([30], 30), ([10, 20], 10), ([5, 25], 5), ([24, 28], 28)]
)
def test_groups_of_layers(kinds: list[int], layers: int) -> None:
    assert vllm_group_layers(kinds) == layers


def test_a_peak_counts_what_others_hold() -> None:
    assert trtllm_peak(torch_peak=50, total_used=40, torch_current=30) == 60
    assert trtllm_peak(torch_peak=50, total_used=20, torch_current=30) == 50


def test_the_trials_own_pool_is_given_back() -> None:
    memory = Memory(total_bytes=1000, free_bytes=1000, weights_bytes=400, activation_bytes=100)
    assert trtllm_budget(memory, temporary_pool_bytes=77).kv_bytes == 450
    assert trtllm_budget(memory, most_bytes=[0, 300, 420]).kv_bytes == 300
    assert trtllm_budget(memory, most_bytes=[0, 9999]).kv_bytes == 450


def test_switches_of_the_capture_estimate() -> None:
    memory = Memory(total_bytes=1000, free_bytes=1000, weights_bytes=400, capture_bytes=50)
    with_estimate, without = (
        vllm_budget(memory, estimate_capture=flag).kv_bytes for flag in (True, False)
    )
    assert (with_estimate, without) == (470, 520)


AMOUNTS = st.integers(min_value=0, max_value=2**40)
FRACTIONS = st.integers(min_value=1, max_value=1000).map(lambda n: n / 1000)


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    parts = [draw(AMOUNTS) for _ in range(4)]
    free = sum(parts) + draw(AMOUNTS) + 1
    return Memory(
        total_bytes=free + draw(AMOUNTS),
        free_bytes=free,
        weights_bytes=parts[0],
        activation_bytes=parts[1],
        other_bytes=parts[2],
        capture_bytes=parts[3],
    )


def budgets(memory: Memory, fraction: float) -> list[Budget | None]:
    """None where a rule refuses."""

    def of(rule: object, **how: object) -> Budget | None:
        try:
            return rule(memory, **how)  # type: ignore[operator, no-any-return]
        except StartError:
            return None

    return [
        of(vllm_budget, utilization=fraction),
        of(vllm_budget, utilization=fraction, estimate_capture=False),
        of(sglang_budget, fraction=fraction),
        of(sglang_budget, fraction=fraction, after_capture=True),
        of(trtllm_budget, fraction=fraction, temporary_pool_bytes=12345),
        of(trtllm_budget, fraction=fraction, most_bytes=[2**30]),
    ]


@given(memories(), FRACTIONS)
def test_terms_add_up_and_stay_within_the_device(memory: Memory, fraction: float) -> None:
    for budget in budgets(memory, fraction):
        if budget is not None:
            assert budget.kv_bytes == sum(term.num_bytes for term in budget.terms)
            assert 0 < budget.kv_bytes <= memory.total_bytes - memory.weights_bytes


@given(memories(), FRACTIONS, st.integers(min_value=1, max_value=2**40))
def test_more_memory_is_never_less_kv(memory: Memory, fraction: float, more: int) -> None:
    larger = msgspec.structs.replace(
        memory, total_bytes=memory.total_bytes + more, free_bytes=memory.free_bytes + more
    )
    for before, after in zip(budgets(memory, fraction), budgets(larger, fraction), strict=True):
        if before is not None:
            assert after is not None
            assert after.kv_bytes >= before.kv_bytes


@given(memories(), FRACTIONS, st.sampled_from(["weights_bytes", "activation_bytes"]), AMOUNTS)
def test_more_weights_or_larger_steps_are_never_more_kv(
    memory: Memory, fraction: float, field: str, more: int
) -> None:
    heavier = msgspec.structs.replace(memory, **{field: getattr(memory, field) + more})
    for before, after in zip(budgets(memory, fraction), budgets(heavier, fraction), strict=True):
        if after is not None:
            assert before is not None
            assert after.kv_bytes <= before.kv_bytes


@given(memories(), FRACTIONS, FRACTIONS)
def test_a_larger_fraction_is_never_less_kv(memory: Memory, one: float, other: float) -> None:
    low, high = sorted((one, other))
    for less, more in zip(budgets(memory, low), budgets(memory, high), strict=True):
        if less is not None and more is not None:
            assert less.kv_bytes <= more.kv_bytes


@given(memories())
def test_the_fraction_that_sglang_suggests_works(memory: Memory) -> None:
    assume(memory.weights_bytes < memory.free_bytes * 0.99)
    assume(memory.free_bytes > 1000)
    too_low = math.floor(memory.weights_bytes / memory.free_bytes * 1000) / 1000
    assume(too_low > 0)
    with pytest.raises(StartError, match="must be above") as refused:
        sglang_budget(memory, too_low)
    suggested = float(refused.value.message.rpartition("say ")[2])
    assert sglang_budget(memory, suggested).kv_bytes > 0
    assert suggested - too_low < 0.0021


def test_what_cannot_be_is_one_sentence_with_its_numbers() -> None:
    memory = Memory(total_bytes=gb(80), free_bytes=gb(60), weights_bytes=gb(70))
    with pytest.raises(StartError, match=r"asks for 73.6 GB of 80 GB, but 60 GB are free; .* 0.75"):
        vllm_budget(memory)
    with pytest.raises(StartError, match=r"0.7 leaves no memory for KV \(share 56 GB, weights -70"):
        vllm_budget(memory, utilization=0.7)
    with pytest.raises(
        StartError, match=r"mem_fraction_static 0.5 leaves .* need more than the device has"
    ):
        sglang_budget(memory, 0.5)
    with pytest.raises(StartError, match=r"free_gpu_memory_fraction 0.9 leaves no memory for KV"):
        trtllm_budget(msgspec.structs.replace(memory, weights_bytes=gb(80)))
    for wrong in (0, -1, 1.01, math.inf):
        with pytest.raises(StartError, match="must be above 0 and at most 1"):
            trtllm_budget(memory, fraction=wrong)


def test_the_budgets_as_whole_sums() -> None:
    memory = Memory(
        total_bytes=gb(80),
        free_bytes=gb(80),
        weights_bytes=gb(35.25),
        activation_bytes=gb(4),
        other_bytes=gb(1),
    )
    assert [(t.name, t.num_bytes / GB) for t in trtllm_budget(memory).terms] == [
        ("total", 80),
        ("peak", -40.25),
        ("kept free", -3.975),
    ]
