"""The axes on which engines differ: what can be chosen, and what treadle has.

Data only. A choice that treadle does not have yet is named as absent, with what runs in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Axis(NamedTuple):
    name: str
    title: str
    choices: tuple[str, ...]
    here: tuple[str, ...]
    """Those that treadle has; the first runs in place of those that it has not."""
    setting: str = ""
    """The setting that chooses, where there is more than one to choose from."""


_LEAVES = ("lru", "lfu", "slru", "priority", "fifo", "filo", "mru")
"""Which leaf of a radix tree goes first."""

_SHORTAGES = (
    "preempt-newest",
    "preempt-lowest-priority",
    "retract-by-length",
    "retract-by-priority",
    "never",
)

AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            "composition",
            "composition of a step",
            ("unified", "prefill-first", "two-stage"),
            ("unified", "prefill-first", "two-stage"),
            "composition",
        ),
        Axis(
            "admission",
            "admission",
            ("stepwise", "estimate", "no-evict", "max-utilization", "static"),
            ("stepwise", "estimate", "no-evict", "max-utilization", "static"),
            "admission",
        ),
        Axis(
            "shortage",
            "when KV runs out",
            _SHORTAGES,
            _SHORTAGES,
            "shortage",
        ),
        Axis(
            "order",
            "waiting order",
            ("fcfs", "priority", "lpm", "dfs-weight", "hrrn", "lof", "random", "routing-key"),
            ("fcfs", "priority", "lpm", "dfs-weight", "hrrn", "lof", "random", "routing-key"),
            "order",
        ),
        Axis(
            "prefix_index",
            "prefix index",
            ("radix", "hashed", "block-tree", "none"),
            ("radix", "hashed", "block-tree", "none"),
            "prefix_cache",
        ),
        Axis(
            "publication",
            "when computed KV is found",
            ("at-plan", "at-chunk-end", "postpone"),
            ("at-chunk-end", "at-plan", "postpone"),
            "publication",
        ),
        Axis(
            "eviction",
            "eviction",
            (*_LEAVES, "free-queue", "priority-lru", "none"),
            (*_LEAVES, "free-queue", "priority-lru", "none"),
            "eviction_policy",
        ),
        Axis(
            "kv_memory",
            "KV memory rule",
            ("of-free", "of-total", "reserve", "after-peak"),
            ("of-free", "of-total", "reserve", "after-peak"),
            "kv_memory_rule",
        ),
        Axis(
            "capture",
            "capture and replay",
            ("program", "full-and-piecewise", "full-and-breakable", "decode-exact"),
            ("program",),
        ),
        Axis(
            "processes",
            "processes",
            ("api+engine", "http+scheduler+detokenizer", "proxy+worker", "in-process"),
            ("api+engine", "http+scheduler+detokenizer", "proxy+worker", "in-process"),
            "processes",
        ),
        Axis("overlap", "overlap", ("0", "1"), ("0", "1"), "overlap_depth"),
    )
}


def in_force(values: Mapping[str, Any]) -> dict[str, str]:
    """What runs on every axis, given the settings in force."""
    return {
        axis.name: str(values[axis.setting]) if axis.setting else axis.here[0]
        for axis in AXES.values()
    }
