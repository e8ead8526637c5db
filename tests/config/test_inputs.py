"""What a reason names as inputs is what the value depends on: no more and no less."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.config.setups import LAPTOP, SMALL, WINDOWED
from treadle.config.device import described
from treadle.config.facts import KVGroupFacts, ModelFacts
from treadle.config.resolve import Resolved, resolve
from treadle.config.rules import RULES, Rule
from treadle.config.settings import (
    CacheSettings,
    EngineSettings,
    Given,
    ModelSettings,
    OrderSettings,
    PolicySettings,
    RuntimeSettings,
    ScheduleSettings,
)
from treadle.config.view import Choice, Settled, View, this_device, watch
from treadle.errors import StartError

ASKED = EngineSettings(
    model=ModelSettings(max_model_len=1000),
    cache=CacheSettings(
        prefix_cache="hashed", block_size=32, kv_dtype="f32", kv_memory_fraction=0.3
    ),
    schedule=ScheduleSettings(
        max_num_seqs=3,
        max_num_batched_tokens=40,
        overlap_depth=1,
        length_rule="sglang",
        allow_auto_truncate=True,
    ),
    policy=PolicySettings(
        composition="two-stage",
        admission="max-utilization",
        shortage="preempt-lowest-priority",
        chunked_prefill=False,
        chunk_policy="equal-progress",
        watermark=0.2,
    ),
    order=OrderSettings(order="lof", priorities="count", missing_priority="worst", order_seed=3),
    runtime=RuntimeSettings(
        backend="native", isa="portable", threads=7, grammar_backend="outlines"
    ),
)

FAST = msgspec.structs.replace(LAPTOP, multiplies_bf16=True)

HEADS = KVGroupFacts(values_per_token=96, kv_heads=4)
"""Which devices can share."""

BASES: dict[str, View] = {
    f"{preset} on {device}, {usage}": View(
        EngineSettings(preset=preset, usage=usage),
        model,
        LAPTOP,
        this_device(LAPTOP) if device == "this machine" else described(device),
    )
    for preset in ("treadle", "vllm", "sglang", "trtllm")
    for device, usage, model in (
        ("this machine", "server", SMALL),
        ("this machine", "offline", WINDOWED),
        ("h100-80gb", "server", WINDOWED),
        ("2xh100-80gb", "server", SMALL),
        ("a100-80gb", "server", SMALL),
        ("l4-24gb", "offline", SMALL),
        ("unknown-gpu", "offline", WINDOWED),
    )
} | {
    "asked for": View(ASKED, SMALL, LAPTOP, this_device(LAPTOP)),
    "memory asked for": View(
        EngineSettings(preset="sglang", cache=CacheSettings(kv_cache_memory_bytes=10**8)),
        SMALL,
        LAPTOP,
        this_device(LAPTOP),
    ),
    "bf16": View(EngineSettings(), SMALL, FAST, this_device(FAST)),
    "torch": View(
        EngineSettings(runtime=RuntimeSettings(backend="torch")),
        SMALL,
        LAPTOP,
        this_device(LAPTOP),
    ),
}

GIVEN = {
    name: Given("config file")
    for name in [*(rule.name for rule in RULES), "kv_cache_memory_bytes", "kv_soft_limit_bytes"]
}

OTHERS: dict[str, list[Any]] = {
    "user.preset": ["treadle", "vllm", "sglang", "trtllm"],
    "user.usage": ["server", "offline"],
    "user.given": [GIVEN],
    "user.model.max_model_len": [None, 999, 64],
    "user.cache.prefix_cache": [None, "none", "radix"],
    "user.cache.eviction_policy": [None, "free-queue"],
    "user.cache.publication": [None, "at-plan", "postpone"],
    "user.cache.prefix_wait_tokens": [None, 0, 5],
    "user.cache.partial_reuse": [None, True, False],
    "user.cache.copy_on_partial_reuse": [None, True, False],
    "user.cache.block_size": [None, 1, 16, 32],
    "user.cache.kv_dtype": [None, "f16", "bf16"],
    "user.cache.kv_cache_memory_bytes": [None, 2**27, 2**40],
    "user.cache.kv_soft_limit_bytes": [None, 0, 2**26],
    "user.cache.kv_memory_rule": [None, "of-free", "of-total", "reserve", "after-peak"],
    "user.cache.kv_memory_fraction": [None, 0.25, 0.6],
    "user.schedule.max_num_seqs": [None, 2, 5000],
    "user.schedule.max_num_batched_tokens": [None, 7, 3000],
    "user.schedule.overlap_depth": [None, 0, 1],
    "user.schedule.length_rule": [None, "window", "sglang"],
    "user.schedule.allow_auto_truncate": [None, True, False],
    "user.policy.composition": [None, "unified", "prefill-first"],
    "user.policy.admission": [None, "stepwise", "no-evict"],
    "user.policy.shortage": [None, "preempt-lowest-priority", "retract-by-priority"],
    "user.policy.chunked_prefill": [None, True, False],
    "user.policy.long_prefill_token_threshold": [None, 9],
    "user.policy.max_prefill_tokens": [None, 77],
    "user.policy.mixed_chunk": [None, True, False],
    "user.policy.chunk_policy": [None, "in-turn", "equal-progress"],
    "user.policy.chunk_unit_tokens": [None, 7],
    "user.policy.reserve_full_prompt": [None, True, False],
    "user.policy.watermark": [None, 0.1],
    "user.policy.schedule_conservativeness": [None, 2.0],
    "user.order.order": [None, "fcfs", "priority"],
    "user.order.priorities": [None, "abort", "count"],
    "user.order.low_priority_values_first": [None, True, False],
    "user.order.missing_priority": [None, "zero", "worst"],
    "user.order.priority_preemption": [None, False],
    "user.order.priority_preemption_threshold": [None, 3],
    "user.order.in_batch_check_threshold": [None, -1],
    "user.order.in_batch_share_threshold": [None, 5],
    "user.order.sort_limit": [None, 9],
    "user.order.order_seed": [None, 5],
    "user.runtime.backend": [None, "native", "torch"],
    "user.runtime.isa": [None, "avx2", "avx512bf16"],
    "user.runtime.threads": [None, 3],
    "user.runtime.processes": [None, "api+engine", "proxy+worker"],
    "user.runtime.num_postprocess_workers": [None, 0, 2],
    "user.runtime.write_and_attend": [None, True],
    "user.runtime.context_form": [None, "block-table", "block-list"],
    "user.runtime.grammar_backend": [None, "auto", "xgrammar", "none"],
    "model.max_positions": [512, 100_000],
    "model.kv_groups": [(KVGroupFacts(values_per_token=77),), (HEADS,)],
    "model.weights_bytes": [2**20, 2**31],
    "model.weight_type": ["f32", "bf16", "q8_0"],
    "model.step_bytes": [None, 2**20],
    "model.attention": ["mha", "mla", "none"],
    "model.speculators": [None, "eagle3"],
    "model.experts": [0, 8],
    "model.widths.hidden": [4096],
    "model.widths.ffn": [14336],
    "model.widths.vocab": [128256],
    "model.name": ["another"],
    "machine.cpu": ["another processor"],
    "machine.cores": [5],
    "machine.memory_bytes": [64 * 2**30],
    "machine.available_bytes": [23 * 2**30 + 4096, 2**30],
    "machine.available_from": ["the control group's limit"],
    "machine.variants": [(), ("avx512",)],
    "machine.multiplies_bf16": [True, False],
    "device.name": ["A100-PCIE"],
    "device.kind": ["cpu", "cuda"],
    "device.count": [2, 8],
    "device.memory_bytes": [None, 16 * 2**30, 75 * 2**30, 200 * 2**30],
    "device.capability": [None, (7, 5), (8, 0), (9, 0), (10, 0)],
    "settled.max_model_len": [64, 8000],
    "settled.prefix_cache": ["none", "hashed", "radix", "block-tree"],
    "settled.publication": ["at-plan", "at-chunk-end", "postpone"],
    "settled.partial_reuse": [True, False],
    "settled.block_size": [1, 16, 32],
    "settled.kv_dtype": ["f32", "f16"],
    "settled.kv_memory_rule": ["of-free", "of-total", "reserve", "after-peak"],
    "settled.kv_memory_fraction": [0.11, 0.95],
    "settled.kv_budget_bytes": [2**28, 2**45],
    "settled.num_blocks": [(7,), (4000,)],
    "settled.max_num_seqs": [1, 100, 10_000],
    "settled.max_num_batched_tokens": [64, 4000],
    "settled.overlap_depth": [0, 1],
    "settled.length_rule": ["window", "sglang"],
    "settled.composition": ["unified", "two-stage"],
    "settled.admission": ["stepwise", "estimate", "no-evict"],
    "settled.order": ["fcfs", "priority"],
    "settled.backend": ["torch", "native"],
    "settled.processes": ["api+engine", "proxy+worker", "in-process"],
}
"""Path → values to try in its place."""


def other(view: View, path: str, value: Any) -> View:
    """The view with another value at the path."""
    root, *names = path.split(".")
    if root == "settled":
        settled = Settled()
        settled.__dict__ |= {**view.settled.__dict__, names[0]: value}
        return dataclasses.replace(view, settled=settled)
    return dataclasses.replace(view, **{root: _replaced(getattr(view, root), names, value)})


def _replaced(struct: Any, names: list[str], value: Any) -> Any:
    name, *rest = names
    if rest:
        value = _replaced(getattr(struct, name), rest, value)
    return msgspec.structs.replace(struct, **{name: value})


def decided(base: View) -> Iterator[tuple[Rule, View, Choice, tuple[str, ...]]]:
    """Each rule with what it saw, said and read, in a view where all before it is settled."""
    view = dataclasses.replace(base, settled=Settled())
    for rule in RULES:
        seen_view, seen = watch(view)
        choice = rule.decide(seen_view)
        yield rule, view, choice, tuple(seen)
        setattr(view.settled, rule.name, choice.value)


def outcome(rule: Rule, view: View) -> Choice | str:
    try:
        return rule.decide(view)
    except StartError as error:
        return str(error)


def test_the_paths_tried_are_all_there_are() -> None:
    for view in BASES.values():
        for *_, seen in decided(view):
            assert set(seen) <= set(OTHERS)


def test_every_input_that_is_read_matters_and_no_other_does() -> None:
    read, mattered = set(), set()
    for base in BASES.values():
        for rule, view, choice, seen in decided(base):
            for path, values in OTHERS.items():
                if any(outcome(rule, other(view, path, value)) != choice for value in values):
                    assert path in seen, f"{rule.name} hides that it depends on {path}"
                    mattered.add((rule.name, path))
            read |= {(rule.name, path) for path in seen}
    assert read == mattered


@pytest.mark.parametrize("base", BASES)
def test_whole_resolutions_change_only_where_reasons_say(base: str) -> None:
    view = BASES[base]
    before = resolve(view.user, view.model, view.machine, view.device)
    for path, values in OTHERS.items():
        if path.startswith("settled."):
            continue
        for value in values:
            changed = other(view, path, value)
            try:
                after = resolve(changed.user, changed.model, changed.machine, changed.device)
            except StartError:
                continue
            for name in before.reasons:
                if path not in roots(before, name):
                    assert shown(before, name) == shown(after, name), f"{name} and {path}"


def roots(resolved: Resolved, name: str) -> set[str]:
    """What a value depends on, through others."""
    found: set[str] = set()
    for path in resolved.reasons[name].inputs:
        root, _, rest = path.partition(".")
        found |= roots(resolved, rest) if root == "settled" else {path}
    return found


def shown(resolved: Resolved, name: str) -> tuple[Any, str, str]:
    reason = resolved.reasons[name]
    return resolved.flat()[name], reason.source, reason.sentence


def test_a_recorder_sees_through_methods_and_properties() -> None:
    model = ModelFacts(max_positions=8, kv_groups=SMALL.kv_groups, weights_bytes=1)
    view, seen = watch(View(EngineSettings(), model, LAPTOP, described("h100-80gb")))
    assert view.device.has_gib(70)
    assert view.model.values_on(1) == 2 * 30 * 3 * 64
    assert list(seen) == ["device.memory_bytes", "model.kv_groups"]
