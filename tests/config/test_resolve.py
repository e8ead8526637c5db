"""Resolution is pure: every value has a reason, and changes with the inputs the reason names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from treadle.cache.prefix import Window
from treadle.config.facts import KVGroupFacts, ModelFacts
from treadle.config.given import engine_settings
from treadle.config.hardware import Hardware
from treadle.config.resolve import Resolved, resolve
from treadle.config.rules import RULES
from treadle.config.settings import (
    CacheSettings,
    EngineSettings,
    ModelSettings,
    OrderName,
    OrderSettings,
    PolicySettings,
    PresetName,
    RuntimeSettings,
    ScheduleSettings,
)
from treadle.errors import StartError

FACTS = ModelFacts(
    max_positions=8192,
    kv_groups=(KVGroupFacts(values_per_token=2 * 30 * 3 * 64),),
    weights_bytes=98 * 2**20,
)
MACHINE = Hardware(
    cpu="any",
    cores=2,
    multiplies_bf16=False,
    memory_bytes=24 * 2**30,
    available_bytes=23 * 2**30,
    available_from="free memory",
)


def test_every_value_has_a_reason() -> None:
    resolved = resolve(EngineSettings(), FACTS, MACHINE)
    sections = (
        *(resolved.model, resolved.cache, resolved.schedule, resolved.policy, resolved.order),
        resolved.runtime,
    )
    assert {f.name for f in msgspec.structs.fields(Resolved)} == {
        *("preset", "model", "cache", "schedule", "policy", "order", "runtime", "reasons")
    }
    names = [f.name for section in sections for f in msgspec.structs.fields(section)]
    assert sorted(resolved.reasons) == sorted(names) == sorted(rule.name for rule in RULES)
    assert all(reason.sentence for reason in resolved.reasons.values())


def test_what_is_asked_for_holds() -> None:
    asked = EngineSettings(
        model=ModelSettings(max_model_len=1000),
        cache=CacheSettings(
            prefix_cache="hashed",
            eviction_policy="free-queue",
            publication="postpone",
            prefix_wait_tokens=7,
            block_size=32,
            kv_dtype="f32",
            kv_cache_memory_bytes=10**7,
            kv_soft_limit_bytes=10**6,
        ),
        schedule=ScheduleSettings(
            max_num_seqs=3,
            max_num_batched_tokens=40,
            overlap_depth=1,
            length_rule="sglang",
            allow_auto_truncate=True,
        ),
        policy=PolicySettings(
            composition="prefill-first",
            admission="estimate",
            shortage="retract-by-length",
            chunked_prefill=False,
            long_prefill_token_threshold=5,
            max_prefill_tokens=6,
            mixed_chunk=True,
            chunk_policy="equal-progress",
            chunk_unit_tokens=7,
            reserve_full_prompt=False,
            watermark=0.1,
            schedule_conservativeness=2.0,
        ),
        order=OrderSettings(
            order="lof",
            priorities="count",
            low_priority_values_first=False,
            missing_priority="worst",
            priority_preemption=False,
            priority_preemption_threshold=3,
            in_batch_check_threshold=-1,
            in_batch_share_threshold=5,
            sort_limit=6,
            order_seed=7,
        ),
        runtime=RuntimeSettings(
            backend="torch",
            threads=7,
            context_form="block-list",
            write_and_attend=True,
            grammar_backend="none",
            processes="proxy+worker",
            num_postprocess_workers=2,
        ),
        usage="server",
    )
    resolved = resolve(asked, FACTS, MACHINE)
    assert resolved.model.max_model_len == 1000
    cache, schedule = resolved.cache, resolved.schedule
    assert (cache.prefix_cache, cache.block_size, cache.kv_dtype) == ("hashed", 32, "f32")
    assert (cache.eviction_policy, cache.publication) == ("free-queue", "postpone")
    assert cache.prefix_wait_tokens == 7
    assert cache.num_blocks == (6,) == (10**7 // (11520 * 4 * 32),)
    assert cache.num_soft_blocks == (0,) == (10**6 // (11520 * 4 * 32),)
    assert (schedule.max_num_seqs, schedule.max_num_batched_tokens) == (3, 40)
    assert schedule.overlap_depth == 1
    assert msgspec.structs.asdict(resolved.policy) == msgspec.structs.asdict(asked.policy)
    assert msgspec.structs.asdict(resolved.order) == msgspec.structs.asdict(asked.order)
    runtime = resolved.runtime
    assert (runtime.backend, runtime.threads, runtime.grammar_backend) == ("torch", 7, "none")
    assert (runtime.processes, runtime.num_postprocess_workers) == ("proxy+worker", 2)
    others = {"isa", "kv_memory_rule", "kv_memory_fraction", "num_blocks"}
    others |= {"partial_reuse", "copy_on_partial_reuse"}
    sources = {name: reason.source for name, reason in resolved.reasons.items()}
    assert {name for name, source in sources.items() if source != "argument"} == others


@pytest.mark.parametrize(
    ("multiplies", "runtime", "kv_dtype"),
    [
        (True, RuntimeSettings(), "bf16"),
        (True, RuntimeSettings(isa="avx512bf16"), "bf16"),
        (True, RuntimeSettings(isa="avx512"), "f16"),
        (True, RuntimeSettings(backend="torch"), "f16"),
        (False, RuntimeSettings(), "f16"),
    ],
)
def test_kv_is_bf16_where_the_kernels_multiply_it(
    multiplies: bool, runtime: RuntimeSettings, kv_dtype: str
) -> None:
    machine = msgspec.structs.replace(MACHINE, multiplies_bf16=multiplies)
    resolved = resolve(EngineSettings(runtime=runtime), FACTS, machine)
    assert resolved.cache.kv_dtype == kv_dtype
    reason = resolved.reasons["kv_dtype"]
    assert (reason.source == "hardware") == ("multiplies bf16 itself" in reason.sentence)
    assert (reason.source == "hardware") == (kv_dtype == "bf16")


def test_kv_is_capped_by_what_can_be_used() -> None:
    settings = EngineSettings(
        model=ModelSettings(max_model_len=100), schedule=ScheduleSettings(max_num_seqs=2)
    )
    resolved = resolve(settings, FACTS, MACHINE)
    assert resolved.cache.num_blocks == (14,), "2 × 100, in blocks of 16"
    assert resolved.reasons["num_blocks"].source == "data structure"


def test_kv_takes_half_of_what_is_left() -> None:
    small = msgspec.structs.replace(MACHINE, available_bytes=300 * 2**20)
    resolved = resolve(EngineSettings(), FACTS, small)
    assert resolved.cache.num_blocks == (101 * 2**20 // (11520 * 2 * 16),)
    assert resolved.reasons["kv_budget_bytes"].source == "hardware"
    assert "202 MiB" in resolved.reasons["kv_budget_bytes"].sentence


def test_what_a_step_takes_is_not_for_kv() -> None:
    small = msgspec.structs.replace(MACHINE, available_bytes=300 * 2**20)
    resolved = [
        resolve(EngineSettings(), msgspec.structs.replace(FACTS, step_bytes=step), small)
        for step in (None, 20 * 2**20, 40 * 2**20)
    ]
    block_bytes = 11520 * 2 * 16
    assert [found.cache.num_blocks for found in resolved] == [
        ((300 - 98 - step) * 2**20 // 2 // block_bytes,) for step in (0, 20, 40)
    ]
    sentences = [found.reasons["kv_budget_bytes"].sentence for found in resolved]
    assert sentences[1].endswith("leaves beside the weights and 20 MiB for a step")
    assert len(set(sentences)) == 3


def test_what_cannot_hold_is_one_sentence() -> None:
    def start(settings: EngineSettings, machine: Hardware = MACHINE) -> None:
        resolve(settings, FACTS, machine)

    with pytest.raises(StartError, match="max_model_len is 9000; the model's window is 8192"):
        start(EngineSettings(model=ModelSettings(max_model_len=9000)))
    with pytest.raises(StartError, match="1000 bytes of memory for KV are too little"):
        start(EngineSettings(cache=CacheSettings(kv_cache_memory_bytes=1000)))
    with pytest.raises(StartError, match="max_num_batched_tokens is 5; max_num_seqs is 8"):
        start(EngineSettings(schedule=ScheduleSettings(max_num_seqs=8, max_num_batched_tokens=5)))
    with pytest.raises(StartError, match="nothing is left for KV"):
        start(EngineSettings(), msgspec.structs.replace(MACHINE, available_bytes=98 * 2**20))


def test_groups_with_a_window_get_their_windows_and_the_others_the_rest() -> None:
    """15 layers see 512 tokens, 3 see all; KV of one head of 256."""
    facts = ModelFacts(
        max_positions=32768,
        kv_groups=(
            KVGroupFacts(values_per_token=2 * 3 * 256),
            KVGroupFacts(values_per_token=2 * 15 * 256, window=512),
        ),
        weights_bytes=0,
    )
    schedule = ScheduleSettings(max_num_seqs=4, max_num_batched_tokens=256)
    roomy = resolve(EngineSettings(schedule=schedule), facts, MACHINE)
    held = (511 + 256 + 15) // 16 + 1
    assert held == Window(512, step_tokens=256).most_blocks(16), "what the cache will ask for"
    assert roomy.cache.num_blocks == (4 * 2048, 4 * held)
    budget = 20 * 2**20
    tight = resolve(
        EngineSettings(schedule=schedule, cache=CacheSettings(kv_cache_memory_bytes=budget)),
        facts,
        MACHINE,
    )
    full, windowed = tight.cache.num_blocks
    assert windowed >= held, "a window is whole or of no use"
    used = 16 * 2 * (full * 2 * 3 * 256 + windowed * 2 * 15 * 256)
    assert 0.98 * budget < used <= budget
    with pytest.raises(StartError, match="one request takes"):
        resolve(
            EngineSettings(schedule=schedule, cache=CacheSettings(kv_cache_memory_bytes=2**20)),
            facts,
            MACHINE,
        )


@pytest.mark.parametrize(
    ("preset", "order", "expected"),
    [
        ("treadle", OrderSettings(), ("fcfs", "refuse", True, "zero")),
        ("vllm", OrderSettings(), ("fcfs", "refuse", True, "zero")),
        ("vllm", OrderSettings(order="priority"), ("priority", "count", True, "zero")),
        ("sglang", OrderSettings(), ("fcfs", "ignore", False, "worst")),
        ("sglang", OrderSettings(priorities="abort"), ("fcfs", "abort", False, "worst")),
        ("sglang", OrderSettings(priorities="count"), ("priority", "count", False, "worst")),
        (
            "sglang",
            OrderSettings(priorities="count", order="lof", low_priority_values_first=True),
            ("lof", "count", True, "worst"),
        ),
    ],
)
def test_what_priorities_do(
    preset: PresetName, order: OrderSettings, expected: tuple[str, str, bool, str]
) -> None:
    found = resolve(EngineSettings(preset=preset, order=order), FACTS, MACHINE).order
    assert expected == (
        found.order,
        found.priorities,
        found.low_priority_values_first,
        found.missing_priority,
    )


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (OrderSettings(order="fcfs", priorities="count"), "only in the orders priority and lof"),
        (OrderSettings(order="lpm", priorities="count"), "only in the orders priority and lof"),
        (OrderSettings(order="priority", priorities="ignore"), "they cannot be 'ignore'"),
        (OrderSettings(in_batch_check_threshold=-2), "must be -1, for no check"),
        (OrderSettings(priority_preemption_threshold=-1), "must be at least 0"),
        (OrderSettings(priority_preemption=True), "needs admission estimate, not stepwise"),
    ],
)
def test_orders_and_priorities_go_together(order: OrderSettings, says: str) -> None:
    with pytest.raises(StartError, match=says):
        resolve(EngineSettings(order=order), FACTS, MACHINE)


def test_only_a_step_of_prompts_asks_others_to_give_way() -> None:
    order = OrderSettings(order="priority", priority_preemption=True)
    policy = PolicySettings(admission="estimate")
    with pytest.raises(StartError, match="needs composition of a step prefill-first, not unified"):
        resolve(EngineSettings(order=order, policy=policy), FACTS, MACHINE)


@pytest.mark.parametrize("order", ["lpm", "hrrn", "dfs-weight"])
def test_orders_by_prefix_need_an_index(order: OrderName) -> None:
    settings = EngineSettings(
        order=OrderSettings(order=order), cache=CacheSettings(prefix_cache="none")
    )
    with pytest.raises(StartError, match=f"waiting order {order} needs prefix index radix"):
        resolve(settings, FACTS, MACHINE)


def sharing(preset: PresetName = "treadle", **cache: Any) -> tuple[str, str, int]:
    asked = EngineSettings(preset=preset, cache=CacheSettings(**cache))
    values = resolve(asked, FACTS, MACHINE).cache
    return values.eviction_policy, values.publication, values.prefix_wait_tokens


def test_how_prefixes_are_shared_and_evicted_follows_from_preset_and_index() -> None:
    assert sharing() == ("lru", "at-chunk-end", 64)
    assert sharing(eviction_policy="slru", publication="postpone") == ("slru", "postpone", 16)
    assert sharing(prefix_cache="hashed") == ("free-queue", "at-chunk-end", 64)
    assert sharing(prefix_cache="none")[0] == "none"
    assert sharing("vllm") == ("free-queue", "at-plan", 0)
    assert sharing("vllm", prefix_cache="radix") == ("lru", "at-chunk-end", 64)
    assert sharing("sglang") == ("lru", "at-chunk-end", 0)
    assert sharing("trtllm", prefix_wait_tokens=100)[1:] == ("postpone", 100)


@pytest.mark.parametrize(
    ("cache", "sentence"),
    [
        ({"prefix_cache": "hashed", "eviction_policy": "lfu"}, "eviction lfu needs .* radix, not"),
        ({"publication": "at-plan"}, "at-plan needs prefix index hashed or none, not radix"),
        (
            {"prefix_cache": "hashed", "publication": "at-plan", "prefix_wait_tokens": 5},
            "prefix_wait_tokens is 5; publication is at-plan, where nobody waits",
        ),
    ],
)
def test_what_is_shared_must_compose(cache: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        sharing(**cache)


@pytest.mark.parametrize(
    ("preset", "asked", "backend", "source"),
    [
        ("treadle", None, "llguidance", "default"),
        ("vllm", None, "llguidance", "default"),
        ("sglang", None, "llguidance", "default"),
        ("trtllm", None, "none", "preset"),
        ("trtllm", "auto", "llguidance", "argument"),
        ("trtllm", "xgrammar", "xgrammar", "argument"),
    ],
)
def test_grammar_backends(preset: Any, asked: Any, backend: str, source: str) -> None:
    settings = EngineSettings(preset=preset, runtime=RuntimeSettings(grammar_backend=asked))
    resolved = resolve(settings, FACTS, MACHINE)
    assert resolved.runtime.grammar_backend == backend
    assert resolved.reasons["grammar_backend"].source == source


def partial(model: ModelFacts = FACTS, **cache: Any) -> tuple[bool, bool]:
    settings = EngineSettings(cache=CacheSettings(**cache))
    values = resolve(settings, model, MACHINE).cache
    return values.partial_reuse, values.copy_on_partial_reuse


def test_partial_reuse_is_on_where_the_index_and_all_groups_can() -> None:
    assert partial() == (False, False)
    assert partial(prefix_cache="block-tree") == (True, True)
    assert partial(prefix_cache="block-tree", copy_on_partial_reuse=False) == (True, False)
    assert partial(prefix_cache="block-tree", partial_reuse=False) == (False, False)
    window = (*FACTS.kv_groups, KVGroupFacts(values_per_token=64, window=64))
    windowed = msgspec.structs.replace(FACTS, kv_groups=window)
    assert partial(windowed, prefix_cache="block-tree") == (False, False)


@pytest.mark.parametrize(
    ("cache", "sentence"),
    [
        ({"prefix_cache": "hashed", "partial_reuse": True}, "the index is hashed; only block-tree"),
        ({"copy_on_partial_reuse": True}, "copy_on_partial_reuse is on, but partial_reuse is off"),
        (
            {"prefix_cache": "block-tree", "partial_reuse": False, "copy_on_partial_reuse": True},
            "copy_on_partial_reuse is on, but partial_reuse is off",
        ),
    ],
)
def test_partial_reuse_that_cannot_be(cache: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        partial(**cache)


def soft(model: ModelFacts = FACTS, **cache: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    values = resolve(EngineSettings(cache=CacheSettings(**cache)), model, MACHINE).cache
    return values.num_blocks, values.num_soft_blocks


def test_groups_share_a_soft_limit_as_they_share_memory() -> None:
    window = (KVGroupFacts(values_per_token=256), KVGroupFacts(values_per_token=64, window=64))
    windowed = msgspec.structs.replace(FACTS, kv_groups=window)
    (blocks, others), limits = soft(windowed, kv_soft_limit_bytes=2**20, kv_dtype="f16")
    assert sum(n * 16 * 2 * v for n, v in zip(limits, (256, 64), strict=True)) <= 2**20
    assert abs(limits[0] / limits[1] - blocks / others) < 0.1
    for limit in (None, 0, 2**50):
        assert len(set(soft(windowed, kv_soft_limit_bytes=limit))) == 1


def test_without_a_cache_nothing_can_make_room() -> None:
    with pytest.raises(StartError, match="kv_soft_limit_bytes is 5, but prefix_cache is none"):
        soft(prefix_cache="none", kv_soft_limit_bytes=5)


def test_the_native_kernels_read_block_tables() -> None:
    def form(**runtime: Any) -> str:
        settings = EngineSettings(runtime=RuntimeSettings(**runtime))
        return resolve(settings, FACTS, MACHINE).runtime.context_form

    assert form(backend="native") == form(backend="torch") == "block-table"
    assert form(backend="torch", context_form="block-list") == "block-list"
    with pytest.raises(StartError, match="context_form is block-list, which needs backend torch"):
        form(context_form="block-list")


def policies(**settings: Any) -> tuple[str, str, str]:
    policy = resolve(engine_settings(settings), FACTS, MACHINE).policy
    return policy.composition, policy.admission, policy.shortage


@pytest.mark.parametrize(
    ("settings", "became"),
    [
        ({}, ("unified", "stepwise", "preempt-newest")),
        ({"composition": "two-stage"}, ("two-stage", "no-evict", "never")),
        (
            {"composition": "two-stage", "capacity_scheduler_policy": "MAX_UTILIZATION"},
            ("two-stage", "max-utilization", "preempt-newest"),
        ),
        (
            {"capacity_scheduler_policy": "STATIC_BATCH"},
            ("unified", "static", "never"),
        ),
        ({"composition": "prefill-first"}, ("prefill-first", "stepwise", "preempt-newest")),
        ({"admission": "estimate"}, ("unified", "estimate", "retract-by-length")),
        ({"preset": "vllm"}, ("unified", "stepwise", "preempt-newest")),
        ({"preset": "sglang"}, ("prefill-first", "estimate", "retract-by-length")),
        ({"preset": "trtllm"}, ("two-stage", "no-evict", "never")),
        ({"preset": "sglang", "composition": "two-stage"}, ("two-stage", "no-evict", "never")),
        (
            {"preset": "trtllm", "admission": "stepwise", "composition": "unified"},
            ("unified", "stepwise", "preempt-newest"),
        ),
        ({"order": "priority"}, ("unified", "stepwise", "preempt-lowest-priority")),
        (
            {"preset": "sglang", "order": "priority"},
            ("prefill-first", "estimate", "retract-by-priority"),
        ),
        (
            {"preset": "sglang", "order": "priority", "retraction_policy": "length"},
            ("prefill-first", "estimate", "retract-by-length"),
        ),
        (
            {"preset": "sglang", "retraction_policy": "priority"},
            ("prefill-first", "estimate", "retract-by-priority"),
        ),
    ],
)
def test_what_is_left_open_follows_what_is_not(
    settings: dict[str, Any], became: tuple[str, str, str]
) -> None:
    assert policies(**settings) == became


def test_what_is_asked_for_never_gives_way_silently() -> None:
    with pytest.raises(StartError, match="two-stage needs admission no-evict or max-utilization"):
        policies(composition="two-stage", admission="stepwise")
    with pytest.raises(StartError, match="stepwise needs when KV runs out preempt-newest or"):
        policies(retraction_policy="priority")
