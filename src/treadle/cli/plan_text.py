"""A memory plan for people, at 80 columns, and the same for programs.

Every number has its unit and what it is made of; nothing is worked out here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from treadle.config.byte_size import binary, gigabytes
from treadle.config.kv_rules import Term
from treadle.config.memory_plan import MemoryPlan, RulePlan, Wish
from treadle.models.outline import Outline

_WIDTH = 80
_NAME = 17
_COLUMNS = 3
"""Lengths of requests that have room side by side."""


def plan_text(outline: Outline, wish: Wish, plan: MemoryPlan) -> str:
    sections = [
        list(_heading(outline, wish)),
        list(_sizes(outline, wish, plan)),
        list(_pools(plan)),
        list(_requests(wish, plan)),
        *(list(_sum(rule)) for rule in plan.rules),
        [line for note in _notes(outline, wish) for line in _wrapped(note)],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def plan_values(outline: Outline, wish: Wish, plan: MemoryPlan) -> dict[str, Any]:
    """All of it, in bytes and tokens."""
    stages = [
        {
            "layers": stage.layers,
            "weights_bytes_per_device": stage.weights_bytes,
            "kv_bytes_per_token_per_device": stage.token_bytes,
        }
        for stage in plan.stages
    ]
    return {
        "model": {
            "name": outline.name,
            "architecture": outline.architecture,
            "weights_from": outline.source,
            "parameters": outline.weights.values,
            "weights_bytes": plan.weights_bytes,
            "max_positions": outline.max_positions,
            "notes": list(outline.notes),
        },
        "asked": msgspec.to_builtins(wish),
        "stages": stages,
        "kv_bytes_per_token": plan.token_bytes(wish.topology.tensor),
        "rules": [msgspec.to_builtins(rule) for rule in plan.rules],
    }


def _heading(outline: Outline, wish: Wish) -> Iterator[str]:
    layer, layers = outline.layers[0], len(outline.layers)
    yield f"{outline.name} ({outline.architecture}), {outline.max_positions:,} tokens of window"
    if layer.value_dim:
        stored = f"{layer.kv_heads} KV head{_s(layer.kv_heads)} of {layer.key_dim}"
    else:
        stored = f"a latent vector of {layer.key_dim} for keys and values"
    sliding = sorted({one.window for one in outline.layers if one.window is not None})
    windows = ", ".join(
        f"{sum(one.window == window for one in outline.layers)} look back {window:,}"
        for window in sliding
    )
    yield f"{layers} layers, {stored}{f'; {windows} tokens' if windows else ''}"
    split = wish.topology
    shared = [f"tensor parallel {split.tensor}"] if split.tensor > 1 else []
    shared += [f"pipeline parallel {split.pipeline}"] if split.pipeline > 1 else []
    shared += [f"expert parallel {split.experts}"] if split.experts > 1 else []
    size = gigabytes(wish.device_bytes)
    named = (
        wish.device_name
        if wish.device_name in (size, size.replace(" ", ""))
        else (f"{wish.device_name} ({size})")
    )
    yield f"on {split.devices} × {named}" + (f", {', '.join(shared)}" if shared else "")


def _sizes(outline: Outline, wish: Wish, plan: MemoryPlan) -> Iterator[str]:
    stage, tensor = plan.fullest, wish.topology.tensor
    each = "a device" if len(plan.stages) == 1 else "a device of the fullest stage"
    source = "as told" if wish.weights_bytes is not None else outline.source
    yield f"{'weights':{_NAME}}{gigabytes(plan.weights_bytes)} in all, {source}"
    yield f"{'':{_NAME}}{gigabytes(stage.weights_bytes)} {each}"
    in_all = binary(plan.token_bytes(tensor))
    yield f"{'KV of a token':{_NAME}}{binary(stage.token_bytes)} {each}, {in_all} on all"
    yield from _wrapped(_token_terms(outline, wish, plan), " " * _NAME)
    if wish.step is not None:
        size = f"{gigabytes(wish.step.num_bytes)} a device, {wish.step.how}"
        yield from _wrapped(size, f"{'beside them':{_NAME}}", " " * _NAME)
    if wish.overhead_bytes:
        overhead = gigabytes(wish.overhead_bytes)
        yield f"{'beside them':{_NAME}}{overhead} a device, as told (--overhead)"


def _token_terms(outline: Outline, wish: Wish, plan: MemoryPlan) -> str:
    layer, layers = outline.layers[0], f"{plan.fullest.layers} layers"
    if not layer.value_dim:
        return f"{layers} × {layer.key_dim} numbers in {wish.kv_format}, the same on every device"
    copies = "" if wish.topology.tensor <= layer.kv_heads else ", each on more than one device"
    scales = " and scales" if wish.kv_format in ("int8", "int4") else ""
    heads = f"{plan.heads_per_device} of {layer.kv_heads} KV head{_s(layer.kv_heads)}"
    numbers = f"({layer.key_dim} + {layer.value_dim}) numbers in {wish.kv_format}"
    return f"{layers} × {heads} × {numbers}{scales}{copies}"


def _pools(plan: MemoryPlan) -> Iterator[str]:
    yield f"{'KV pool':{_NAME}}{'a device':>14}{'all devices':>16}{'tokens':>16}"
    for rule in plan.rules:
        if rule.budget is None:
            yield f"{rule.rule:{_NAME}}{'none':>14}"
            continue
        one, every = gigabytes(rule.budget.kv_bytes), gigabytes(rule.all_devices_bytes)
        yield f"{rule.rule:{_NAME}}{one:>14}{every:>16}{rule.tokens:>16,}"


def _requests(wish: Wish, plan: MemoryPlan) -> Iterator[str]:
    if all(rule.budget is None for rule in plan.rules):
        return
    for first in range(0, len(wish.lengths), _COLUMNS):
        lengths = wish.lengths[first : first + _COLUMNS]
        columns = "".join(f"{f'of {length:,}':>14}" for length in lengths)
        yield f"{'requests at once':{_NAME}}{columns}{'longest of one':>18}"
        for rule in plan.rules:
            if rule.budget is not None:
                counts = "".join(f"{rule.requests[length]:>14,}" for length in lengths)
                yield f"{rule.rule:{_NAME}}{counts}{rule.largest_window:>18,}"


def _sum(rule: RulePlan) -> Iterator[str]:
    yield f"{rule.rule}: {rule.setting}"
    if rule.reserve is not None:
        parts = [f"{part.name} {part.mib:,.0f} ({part.how})" for part in rule.reserve.parts]
        text = f"reserve in MiB: {' + '.join(parts)} = {rule.reserve.mib:,.0f}"
        yield from _wrapped(text, "  ")
    if rule.budget is None:
        yield from _wrapped(str(rule.refused), "  ")
        return
    for index, term in enumerate(rule.budget.terms):
        yield from _term_line(term, first=index == 0)
    yield from _line("=", rule.budget.kv_bytes, rule.detail)


def _term_line(term: Term, *, first: bool) -> Iterable[str]:
    sign = "-" if term.num_bytes < 0 else " " if first else "+"
    return _line(sign, abs(term.num_bytes), f"{term.name}: {term.how}")


def _line(sign: str, num_bytes: int, text: str) -> Iterable[str]:
    lead = f"  {sign}{gigabytes(num_bytes):>13}  "
    return _wrapped(text, lead, " " * len(lead))


def _notes(outline: Outline, wish: Wish) -> Iterator[str]:
    yield from outline.notes
    if not wish.overhead_bytes and wish.step is None:
        yield (
            "No --overhead was given, so vllm and trtllm show the most there can be: their trial"
            " run would measure activations and graphs, and take them off. --overhead estimate"
            " takes off what a step works with."
        )


def _wrapped(text: str, lead: str = "", indent: str | None = None) -> Iterable[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=lead if indent is None else indent,
        break_on_hyphens=False,
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
