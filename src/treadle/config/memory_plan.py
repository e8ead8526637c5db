"""What is left for KV on devices that share a model, under each engine's rule.

Pure arithmetic: a model's shape and a device's memory in, a plan out. Whoever shows a plan finds
each number's terms in it. Nothing of this machine is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from treadle.config.kv_layout import KVFormat
from treadle.config.kv_pools import LayerKind, Pool, sglang_pool, trtllm_pool, vllm_pool
from treadle.config.kv_rules import (
    TRTLLM_FRACTION,
    VLLM_UTILIZATION,
    Budget,
    Memory,
    sglang_budget,
    trtllm_budget,
    vllm_budget,
)
from treadle.config.model_shape import ModelShape, Stage, Topology, stages_of
from treadle.config.sglang_reserve import (
    Reserve,
    SGLangShape,
    floor_reserve_mib,
    reserve,
    static_fraction,
)
from treadle.config.step_estimate import StepEstimate
from treadle.errors import StartError


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a plan."""

    device_name: str
    device_bytes: int
    device_mib: int | None
    """As rules with thresholds see the device."""
    topology: Topology
    kv_format: KVFormat
    window: int
    """Tokens of the longest request."""
    lengths: tuple[int, ...] = ()
    """Of requests to count."""
    overhead_bytes: int = 0
    """Activations, buffers and graphs of a device, where a rule does not reckon them itself."""
    step: StepEstimate | None = None
    """In its place, where it was asked for."""
    weights_bytes: int | None = None
    """Of the whole model, in place of its shape's."""
    vllm_utilization: float = VLLM_UTILIZATION
    sglang_fraction: float | None = None
    """None: what SGLang's reserve leaves."""
    trtllm_fraction: float = TRTLLM_FRACTION


class RulePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule gives KV. With `refused` there is nothing else."""

    rule: str
    setting: str
    refused: str | None = None
    budget: Budget | None = None
    """Of the stage that holds least."""
    all_devices_bytes: int = 0
    tokens: int = 0
    detail: str = ""
    requests: dict[int, int] = {}
    """Length → how many at once."""
    largest_window: int = 0
    """Of one request by itself, up to the window asked for."""
    reserve: Reserve | None = None


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    stages: tuple[Stage, ...]
    weights_bytes: int
    """Of the model, once."""
    rules: tuple[RulePlan, ...]

    heads_per_device: int

    @property
    def fullest(self) -> Stage:
        """That whose devices hold the most."""
        return max(self.stages, key=lambda stage: stage.weights_bytes)

    def token_bytes(self, tensor_parallel: int) -> int:
        """K and V of one token on all devices."""
        return tensor_parallel * sum(stage.token_bytes for stage in self.stages)


def plan(model: ModelShape, wish: Wish) -> MemoryPlan:
    """Raises StartError when devices cannot share the model so; a rule that leaves nothing for KV
    says so in its own part."""
    stages = stages_of(model, wish.topology, wish.kv_format, wish.weights_bytes)
    weights = model.weights_bytes if wish.weights_bytes is None else wish.weights_bytes
    return MemoryPlan(
        stages=stages,
        weights_bytes=weights,
        heads_per_device=model.layers[0].attention.heads_per_device(wish.topology.tensor),
        rules=tuple(_rules(model, stages, wish)),
    )


def _rules(model: ModelShape, stages: Sequence[Stage], wish: Wish) -> list[RulePlan]:
    utilization, fraction = wish.vllm_utilization, wish.trtllm_fraction
    plans = [
        _rule(
            "vllm",
            f"gpu_memory_utilization {utilization:g}",
            (lambda memory: vllm_budget(memory, utilization=utilization), vllm_pool),
            stages,
            wish,
        )
    ]
    plans += _sglang_rules(model, stages, wish)
    plans.append(
        _rule(
            "trtllm",
            f"free_gpu_memory_fraction {fraction:g}",
            (lambda memory: trtllm_budget(memory, fraction=fraction), trtllm_pool),
            stages,
            wish,
        )
    )
    return plans


def _sglang_rules(model: ModelShape, stages: Sequence[Stage], wish: Wish) -> list[RulePlan]:
    """With the whole reserve; and, where that is above its floor, with the floor: no setting that
    makes the reserve smaller leaves more than that."""
    fraction, mib = wish.sglang_fraction, wish.device_mib
    if fraction is not None:
        return [_sglang_rule("sglang", fraction, None, stages, wish)]
    shape = SGLangShape(
        gpu_mib=mib,
        tensor_parallel=wish.topology.tensor,
        pipeline_parallel=wish.topology.pipeline,
        latent_attention=model.latent,
    )
    whole = reserve(shape)
    rules = [_sglang_rule("sglang", static_fraction(mib, whole.mib), whole, stages, wish)]
    if mib is not None and 0 < floor_reserve_mib(mib) < whole.mib:
        least = static_fraction(mib, floor_reserve_mib(mib))
        rules.append(_sglang_rule("sglang at most", least, None, stages, wish))
    return rules


def _sglang_rule(
    name: str, fraction: float, whole: Reserve | None, stages: Sequence[Stage], wish: Wish
) -> RulePlan:
    setting = f"mem_fraction_static {fraction:g}"
    if fraction <= 0:
        mib = whole.mib if whole else 0
        refused = f"the reserve of {mib:,.0f} MiB is more than the device has"
        return RulePlan(rule=name, setting=setting, refused=refused, reserve=whole)
    found = _rule(
        name,
        setting,
        (lambda memory: sglang_budget(memory, fraction), sglang_pool),
        stages,
        wish,
    )
    return msgspec.structs.replace(found, reserve=whole)


_Rule = tuple[Callable[[Memory], Budget], Callable[[int, Sequence[LayerKind]], Pool]]
"""What KV gets, and what that is divided into."""


def _rule(name: str, setting: str, rule: _Rule, stages: Sequence[Stage], wish: Wish) -> RulePlan:
    budget_of, pool_of = rule
    try:
        budgets = [budget_of(_memory(stage, wish)) for stage in stages]
    except StartError as error:
        return RulePlan(rule=name, setting=setting, refused=error.message)
    pools = [
        pool_of(budget.kv_bytes, stage.kinds) for budget, stage in zip(budgets, stages, strict=True)
    ]
    scarcest = min(range(len(pools)), key=lambda index: pools[index].tokens)

    def requests(length: int) -> int:
        return min(pool.requests(length) for pool in pools)

    return RulePlan(
        rule=name,
        setting=setting,
        budget=budgets[scarcest],
        all_devices_bytes=wish.topology.tensor * sum(budget.kv_bytes for budget in budgets),
        tokens=pools[scarcest].tokens,
        detail=pools[scarcest].detail,
        requests={length: requests(length) for length in wish.lengths},
        largest_window=_largest(wish.window, lambda length: requests(length) > 0),
    )


def _memory(stage: Stage, wish: Wish) -> Memory:
    memory = Memory(
        total_bytes=wish.device_bytes,
        free_bytes=wish.device_bytes,
        weights_bytes=stage.weights_bytes,
        activation_bytes=wish.overhead_bytes,
    )
    if wish.step is None:
        return memory
    return msgspec.structs.replace(
        memory, activation_bytes=wish.step.num_bytes, activation_how=wish.step.how
    )


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest length up to `most` that fits; 0 if none does. A longer one never fits better."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
