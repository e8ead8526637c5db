"""How devices share a model, and what their pools hold."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.setups import LAPTOP, SMALL
from tests.config.worked_examples import example
from treadle.config.device import described
from treadle.config.kv_layout import AttentionShape
from treadle.config.kv_pools import (
    SGLANG_PAGE,
    TRTLLM_BLOCK,
    VLLM_BLOCK,
    LayerKind,
    sglang_pool,
    trtllm_pool,
    vllm_pool,
)
from treadle.config.memory_plan import MemoryPlan, RulePlan, Wish, plan
from treadle.config.model_shape import (
    LayerShape,
    ModelShape,
    Topology,
    device_layer_bytes,
    layers_of_stages,
    stages_of,
)
from treadle.config.resolve import resolve
from treadle.config.settings import EngineSettings
from treadle.config.step_estimate import StepWidths, estimate
from treadle.errors import StartError

GB = 10**9
GQA = AttentionShape(kv_heads=8, key_dim=128, value_dim=128)
LATENT = AttentionShape(kv_heads=1, key_dim=576, value_dim=0)


def model(attention: AttentionShape = GQA, layers: int = 80, **bytes_of: int) -> ModelShape:
    layer = LayerShape(attention=attention, **{"split_bytes": GB, **bytes_of})
    return ModelShape(
        name="x",
        max_positions=131072,
        layers=(layer,) * layers,
        embed_bytes=2 * GB,
        head_bytes=2 * GB,
    )


def wish(**changes: object) -> Wish:
    base = Wish(
        device_name="80GB",
        device_bytes=80 * GB,
        device_mib=81920,
        topology=Topology(tensor=4),
        kv_format="bf16",
        window=131072,
        lengths=(4096,),
    )
    return msgspec.structs.replace(base, **changes)


def rule(found: MemoryPlan, name: str) -> RulePlan:
    return next(rule for rule in found.rules if rule.rule == name)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(min_value=1, max_value=8))
def test_with_heads_for_all_every_weight_is_somewhere_once(tensor: int, pipeline: int) -> None:
    shape = model(kv_bytes=8 * 10**6)
    topology = Topology(tensor=tensor, pipeline=pipeline)
    held = sum(stage.weights_bytes for stage in stages_of(shape, topology, "bf16")) * tensor
    assert held == shape.weights_bytes


def test_an_even_share_of_weights_that_somebody_knows() -> None:
    inputs, expected = example("weights_per_gpu")
    weights = round(inputs["total_params_billion"] * GB) * inputs["bytes_per_value"]
    assert weights == expected["weights_total_gb"] * GB
    topology = Topology(tensor=inputs["tensor_parallel"])
    found = plan(model(), wish(topology=topology, weights_bytes=weights))
    assert found.weights_bytes == weights
    assert found.fullest.weights_bytes == expected["weights_per_gpu_gb"] * GB


def test_tokens_of_a_block() -> None:
    _, expected = example("block_granularity")
    assert expected["vllm_block_size"] == VLLM_BLOCK
    assert expected["sglang_page_size_cuda"] == SGLANG_PAGE
    assert expected["trtllm_tokens_per_block"] == TRTLLM_BLOCK


def test_heads_that_do_not_suffice_cost_weights_and_kv() -> None:
    layer = LayerShape(attention=GQA, kv_bytes=8 * 10**6, split_bytes=16 * 10**6)
    assert [device_layer_bytes(layer, Topology(tensor=n)) for n in (1, 4, 8, 16)] == [
        24_000_000,
        6_000_000,
        3_000_000,
        2_000_000,
    ]
    found = [stages_of(model(), Topology(tensor=n), "bf16")[0].token_bytes for n in (4, 8, 16)]
    assert found == [80 * 1024, 40 * 1024, 40 * 1024]


def test_experts_are_dealt_out_whole() -> None:
    layer = LayerShape(attention=GQA, expert_bytes=60 * 10**6, num_experts=60)
    sizes = [
        device_layer_bytes(layer, Topology(tensor=8, experts=experts)) for experts in (1, 2, 4, 8)
    ]
    assert sizes == [7_500_000, 7_500_000, 7_500_000, 8_000_000], "60 of 8: one has 8, not 7.5"


def test_a_tied_embedding_is_at_both_ends() -> None:
    tied = msgspec.structs.replace(model(layers=4), head_bytes=0)
    stages = stages_of(tied, Topology(pipeline=2), "bf16")
    assert [stage.weights_bytes for stage in stages] == [4 * GB, 4 * GB]
    assert stages_of(tied, Topology(), "bf16")[0].weights_bytes == 6 * GB


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(80, 4, (20, 20, 20, 20)), (61, 4, (15, 15, 16, 15)), (7, 3, (2, 3, 2)), (3, 3, (1, 1, 1))],
)
def test_layers_of_stages(layers: int, stages: int, counts: tuple[int, ...]) -> None:
    assert layers_of_stages(layers, stages) == counts


@pytest.mark.parametrize(
    ("shape", "topology", "what"),
    [
        (model(), Topology(tensor=3), "neither divides the model's 8 KV heads"),
        (model(layers=3), Topology(pipeline=4), "is 4; the model has 3 layers"),
        (model(), Topology(tensor=4, experts=2), "is 2, but the model has no experts"),
        (model(num_experts=8, expert_bytes=8), Topology(tensor=4, experts=3), "must divide tensor"),
        (model(num_experts=2, expert_bytes=8), Topology(tensor=4, experts=4), "at most the number"),
    ],
)  # fmt: skip
def test_what_devices_cannot_share(shape: ModelShape, topology: Topology, what: str) -> None:
    with pytest.raises(StartError, match=what):
        plan(shape, wish(topology=topology))


def test_latent_kv_is_on_every_device() -> None:
    for tensor in (1, 8):
        found = plan(model(LATENT, layers=61), wish(topology=Topology(tensor=tensor)))
        assert found.fullest.token_bytes == 61 * 576 * 2
        assert found.token_bytes(tensor) == tensor * 61 * 576 * 2


def test_the_scarcest_stage_decides() -> None:
    """Three stages of 27, 27 and 26 layers: what fits is what the fullest can hold."""
    found = plan(model(), wish(topology=Topology(tensor=4, pipeline=3), lengths=(1000,)))
    vllm = rule(found, "vllm")
    assert vllm.budget is not None
    alone = [vllm_pool(vllm.budget.kv_bytes, stage.kinds).tokens for stage in found.stages]
    assert vllm.tokens == min(alone)
    assert vllm.all_devices_bytes > 4 * 3 * vllm.budget.kv_bytes


def test_a_rule_that_refuses_says_why_and_the_others_go_on() -> None:
    heavy = wish(weights_bytes=4 * 70 * GB)
    found = plan(model(), heavy)
    refused = rule(found, "sglang").refused
    assert refused is not None
    assert "leaves no memory for KV" in refused
    assert rule(found, "trtllm").tokens > 0
    tiny = plan(model(layers=1), wish(device_bytes=3 * GB, device_mib=3072, weights_bytes=GB))
    assert "the reserve of 4,448 MiB is more" in str(rule(tiny, "sglang").refused)


def test_the_window_that_fits() -> None:
    """One request may have all there is, and not a token more."""
    found = plan(model(), wish(weights_bytes=4 * 70 * GB, window=10**6))
    for one in found.rules:
        if one.refused is None:
            longest, counts = one.largest_window, one.tokens
            assert 0 < longest <= counts
            assert counts - longest <= 32
    assert rule(plan(model(), wish()), "vllm").largest_window == 131072, "the model's window"


KINDS = st.lists(
    st.builds(
        LayerKind,
        st.integers(min_value=1, max_value=60),
        st.one_of(st.none(), st.integers(min_value=1, max_value=5000)),
        st.just(4096),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda kind: kind.window,
)


@given(KINDS, st.integers(min_value=10**7, max_value=10**12), st.integers(1, 50_000))
def test_pools_never_promise_more_than_their_memory(
    kinds: list[LayerKind], kv_bytes: int, length: int
) -> None:
    needed = sum(kind.token_bytes * kind.kept(length) for kind in kinds)
    for pool in (vllm_pool, sglang_pool, trtllm_pool):
        held = pool(kv_bytes, kinds)
        assert held.requests(length) * needed <= kv_bytes
        assert held.requests(length) >= held.requests(length + 1)
        assert pool(2 * kv_bytes, kinds).requests(length) >= held.requests(length)
        assert pool(2 * kv_bytes, kinds).tokens >= held.tokens


def test_windows_make_room_for_more_requests() -> None:
    """Gemma's shape: of 6 layers 5 look back 512 tokens."""
    kinds = [LayerKind(5, None, 2048), LayerKind(25, 512, 2048)]
    whole = [LayerKind(30, None, 2048)]
    for pool in (vllm_pool, sglang_pool, trtllm_pool):
        assert pool(10**10, kinds).requests(32768) > pool(10**10, whole).requests(32768)
    assert vllm_pool(10**10, kinds).group_windows == (None, 512, 512, 512, 512, 512)
    sglang = sglang_pool(10**10, kinds)
    assert sglang.window_tokens == sglang.tokens * 8 // 10


def test_a_cache_in_fewer_bits_holds_more() -> None:
    tokens = [
        rule(plan(model(), wish(kv_format=kind)), "vllm").tokens
        for kind in ("f32", "bf16", "int8", "fp8", "int4")
    ]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 5


def test_a_step_is_estimated_by_widths() -> None:
    llama = StepWidths(hidden=4096, ffn=14336, vocab=128256)
    found = estimate(llama, tokens=8192, rows=256)
    assert found.num_bytes == 2 * 8192 * (2 * 4096 + 3 * 14336) + 8 * 256 * 128256
    shared = estimate(llama, tokens=8192, rows=256, devices=4)
    assert found.num_bytes - shared.num_bytes == 2 * 8192 * 3 * (14336 - 3584)
    assert "8,192 tokens × (2 × 4,096 + 3 × 14,336 / 4)" in shared.how


def test_an_estimate_is_taken_off_where_nothing_can_be_measured() -> None:
    user = EngineSettings(preset="vllm", usage="server")
    with_step = resolve(user, SMALL, LAPTOP, described("h100-80gb"))
    blind = msgspec.structs.replace(SMALL, widths=None)
    without = resolve(user, blind, LAPTOP, described("h100-80gb"))
    step = 2 * 8192 * (2 * 576 + 3 * 1536) + 8 * 1024 * 49152
    assert without.cache.kv_budget_bytes - with_step.cache.kv_budget_bytes == step
    assert "(estimated: 8,192 tokens" in with_step.reasons["kv_budget_bytes"].sentence
    here = (resolve(EngineSettings(), model, LAPTOP).cache for model in (SMALL, blind))
    assert len({cache.kv_budget_bytes for cache in here}) == 1, "a trial measures it"
