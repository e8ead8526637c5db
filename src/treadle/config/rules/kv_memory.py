"""How much memory K and V get: one of four rules, and what the model's groups can use of it.

The rules are fractions of different things, so a fraction goes with its rule: `kv_rules` has the
three engines', `of-free` is ours.
"""

from __future__ import annotations

import msgspec

from treadle.config.byte_size import binary
from treadle.config.facts import KVGroupFacts
from treadle.config.kv_budget import GroupDemand, divide, useful_bytes
from treadle.config.kv_layout import vector_bytes
from treadle.config.kv_rules import Budget, Memory, sglang_budget, trtllm_budget, vllm_budget
from treadle.config.presets import wish
from treadle.config.presets.memory import of_all, of_free, total_bytes
from treadle.config.rules.asked import asked_for, chosen
from treadle.config.settings import KVMemoryRule, PresetName
from treadle.config.step_estimate import estimate
from treadle.config.view import Choice, View
from treadle.errors import StartError

OWNERS: dict[KVMemoryRule, PresetName] = {
    "of-free": "treadle",
    "of-total": "vllm",
    "reserve": "sglang",
    "after-peak": "trtllm",
}
"""Whose rule it is, and so whose fraction is meant where only the rule was chosen."""


def kv_memory_rule(see: View) -> Choice:
    asked = see.user.cache.kv_memory_rule
    if asked is None and see.user.cache.kv_cache_memory_bytes is not None:
        return Choice("of-free", "default", "not used: kv_cache_memory_bytes says the amount")
    return chosen(see, "kv_memory_rule", asked)


def kv_memory_fraction(see: View) -> Choice:
    asked, rule = see.user.cache.kv_memory_fraction, see.settled.kv_memory_rule
    if asked is not None:
        return asked_for(see, "kv_memory_fraction", asked, f", of what the rule {rule} says")
    return wish(see, "kv_memory_fraction", of=OWNERS[rule])


def kv_budget_bytes(see: View) -> Choice:
    asked = see.user.cache.kv_cache_memory_bytes
    if asked is not None:
        total = total_bytes(see)
        if total is not None and asked > total:
            raise StartError(f"kv_cache_memory_bytes is {asked}; this machine has {total}")
        return asked_for(see, "kv_cache_memory_bytes", asked)
    rule = see.settled.kv_memory_rule
    memory = of_free(see) if rule in ("of-free", "reserve") else of_all(see)
    if memory is None:
        most = useful_bytes(_demands(see))
        return Choice(most, "data structure", "memory cannot be read; so much could be used")
    fraction = see.settled.kv_memory_fraction
    if rule != "reserve":  # which is about what a step takes
        memory = _with_step(see, memory)
    if rule == "of-free":
        return _of_free(see, memory, fraction)
    budget = _engine_budget(rule, fraction, memory)
    return Choice(budget.kv_bytes, "hardware", _sum(budget))


def _with_step(see: View, memory: Memory) -> Memory:
    """With what a step takes, measured or, on a device that is not here, estimated."""
    if see.device.kind == "cpu" or see.model.widths is None:
        return msgspec.structs.replace(memory, activation_bytes=see.model.step_bytes or 0)
    settled = see.settled
    found = estimate(
        see.model.widths,
        tokens=settled.max_num_batched_tokens,
        rows=settled.max_num_seqs,
        devices=see.device.count,
    )
    return msgspec.structs.replace(
        memory, activation_bytes=found.num_bytes, activation_how=found.how
    )


def num_blocks(see: View) -> Choice:
    """No more than can be used: the most requests, each of the longest kind."""
    demands, budget = _demands(see), see.settled.kv_budget_bytes
    useful = useful_bytes(demands)
    if useful <= budget:
        blocks = tuple(demand.useful_blocks for demand in demands)
        requests = f"{see.settled.max_num_seqs} requests × {see.settled.max_model_len} tokens"
        return Choice(blocks, "data structure", f"{requests} take {binary(useful)}, all of use")
    return Choice(divide(budget, demands), "data structure", f"so many fit in {binary(budget)}")


def num_soft_blocks(see: View) -> Choice:
    """Left open, all: whether a prefix will be asked for again cannot be told before it is, and a
    conversation is not heard of for minutes between two turns."""
    asked, blocks = see.user.cache.kv_soft_limit_bytes, see.settled.num_blocks
    if asked is None:
        return Choice(blocks, "default", "all of them: what was computed may be asked for again")
    if not asked:
        return asked_for(see, "kv_soft_limit_bytes", blocks, ": no limit below num_blocks")
    if see.settled.prefix_cache == "none":
        raise StartError(
            f"kv_soft_limit_bytes is {asked}, but prefix_cache is none: nothing is kept that could"
            " make room"
        )
    sizes = [demand.block_bytes for demand in _demands(see)]
    taken = sum(count * size for count, size in zip(blocks, sizes, strict=True))
    soft = tuple(min(count, count * asked // taken) for count in blocks)
    return asked_for(see, "kv_soft_limit_bytes", soft, f": so many take {binary(asked)}")


def _of_free(see: View, memory: Memory, fraction: float) -> Choice:
    left = memory.free_bytes - memory.weights_bytes - memory.activation_bytes
    share = int(fraction * left)
    source = see.machine.available_from if see.device.kind == "cpu" else see.device.name
    step = memory.activation_bytes
    if share <= 0:
        taken = f" and a step {binary(step)}" if step else ""
        raise StartError(
            f"{binary(memory.free_bytes)} of memory are free ({source}), the weights need"
            f" {binary(memory.weights_bytes)}{taken}: nothing is left for KV"
        )
    beside = f"the weights and {binary(step)} for a step" if step else "the weights"
    sentence = f"{fraction:.0%} of the {binary(left)} that {source} leaves beside {beside}"
    return Choice(share, "hardware", sentence)


def _engine_budget(rule: KVMemoryRule, fraction: float, memory: Memory) -> Budget:
    if rule == "of-total":
        return vllm_budget(memory, utilization=fraction)
    if rule == "reserve":
        return sglang_budget(memory, fraction)
    others = memory.total_bytes - memory.free_bytes
    return trtllm_budget(msgspec.structs.replace(memory, other_bytes=others), fraction=fraction)


def _sum(budget: Budget) -> str:
    """As in "share 73.6 GiB (0.92 of 80 GB) - weights 35.25 GiB"."""
    first, *others = budget.terms
    text = f"{first.name} {binary(first.num_bytes)} ({first.how})"
    for term in others:
        text += f" {'-' if term.num_bytes < 0 else '+'} {term.name} {binary(abs(term.num_bytes))}"
        text += f" ({term.how})" if term.how.startswith("estimated") else ""
    return text


def _demands(see: View) -> list[GroupDemand]:
    return [_demand(see, group) for group in see.model.kv_groups]


def _demand(see: View, group: KVGroupFacts) -> GroupDemand:
    size, most = see.settled.block_size, -(-see.settled.max_model_len // see.settled.block_size)
    least = 1
    if group.window is not None:
        # The window before a step, and the step, wherever block borders fall.
        held = -(-(group.window - 1 + see.settled.max_num_batched_tokens) // size) + 1
        most = least = min(most, held)
    return GroupDemand(
        block_bytes=group.values_on(see.device.count)
        * vector_bytes(1, see.settled.kv_dtype)
        * size,
        least_blocks=least,
        useful_blocks=max(see.settled.max_num_seqs * most, least),
    )
