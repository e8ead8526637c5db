"""Which choices do not go together: a table, read at start. Each refusal is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from treadle.config.axes import AXES
from treadle.config.settings import EngineSettings
from treadle.errors import StartError


class Requirement(NamedTuple):
    """A choice, and choices of which it needs one on another axis."""

    axis: str
    choice: str
    other: str
    needed: tuple[str, ...]


REQUIREMENTS = (
    Requirement("composition", "two-stage", "admission", ("no-evict", "max-utilization", "static")),
    Requirement("admission", "estimate", "shortage", ("retract-by-length", "retract-by-priority")),
    Requirement("admission", "estimate", "composition", ("unified", "prefill-first")),
    Requirement("admission", "stepwise", "shortage", ("preempt-newest", "preempt-lowest-priority")),
    Requirement("admission", "no-evict", "shortage", ("never",)),
    Requirement("admission", "static", "shortage", ("never",)),
    Requirement(
        "admission", "max-utilization", "shortage", ("preempt-newest", "preempt-lowest-priority")
    ),
    Requirement("order", "lpm", "prefix_index", ("radix", "hashed", "block-tree")),
    Requirement("order", "hrrn", "prefix_index", ("radix", "hashed", "block-tree")),
    Requirement("order", "dfs-weight", "prefix_index", ("radix", "block-tree")),
    *(
        Requirement("eviction", policy, "prefix_index", ("radix",))
        for policy in ("lru", "lfu", "slru", "priority", "fifo", "filo", "mru")
    ),
    Requirement("eviction", "free-queue", "prefix_index", ("hashed",)),
    Requirement("eviction", "priority-lru", "prefix_index", ("block-tree",)),
    Requirement("eviction", "none", "prefix_index", ("none",)),
    Requirement("publication", "at-plan", "prefix_index", ("hashed", "none")),
)


def check_displacement(user: EngineSettings, choices: Mapping[str, str]) -> None:
    """Raises StartError where requests were asked to give way and nothing says what they free, or
    nobody asks them."""
    for axis, needed in (("admission", "estimate"), ("composition", "prefill-first")):
        if user.order.priority_preemption and choices[axis] != needed:
            raise StartError(
                f"priority_preemption needs {AXES[axis].title} {needed}, not {choices[axis]}"
            )


def needed(axis: str, choice: str, other: str) -> tuple[str, ...]:
    """The choices on the other axis that this one goes with; empty if it goes with all."""
    rules = [r for r in REQUIREMENTS if (r.axis, r.choice, r.other) == (axis, choice, other)]
    return rules[0].needed if rules else ()


def check_composition(choices: Mapping[str, str]) -> None:
    """Raises StartError, in one sentence, for the first two choices that do not compose."""
    for rule in REQUIREMENTS:
        other = choices.get(rule.other)
        if choices.get(rule.axis) == rule.choice and other not in (None, *rule.needed):
            raise StartError(
                f"{AXES[rule.axis].title} {rule.choice} needs {AXES[rule.other].title}"
                f" {' or '.join(rule.needed)}, not {other}"
            )


def check_settings(user: EngineSettings) -> None:
    """Raises StartError for settings of which one leaves the other without a meaning."""
    cache, runtime, order = user.cache, user.runtime, user.order
    if runtime.isa is not None and runtime.backend == "torch":
        raise StartError("isa chooses among the native kernels; the backend is torch")
    if order.priorities == "count" and order.order not in (None, "priority", "lof"):
        raise StartError(f"priorities count only in the orders priority and lof, not {order.order}")
    if order.order == "priority" and order.priorities not in (None, "count"):
        raise StartError(f"order priority goes by priorities; they cannot be {order.priorities!r}")
    threshold = order.priority_preemption_threshold
    if threshold is not None and threshold < 0:
        raise StartError(f"priority_preemption_threshold is {threshold}; it must be at least 0")
    if order.in_batch_check_threshold is not None and order.in_batch_check_threshold < -1:
        raise StartError(
            f"in_batch_check_threshold is {order.in_batch_check_threshold}; it must be -1, for no"
            " check, or more"
        )
    if cache.kv_cache_memory_bytes is not None and cache.kv_memory_fraction is not None:
        raise StartError(
            f"kv_memory_fraction is {cache.kv_memory_fraction:g}, and kv_cache_memory_bytes says"
            " the amount; give one of the two"
        )
