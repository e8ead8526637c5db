"""An explanation as text, for terminals of 80 columns. Decides nothing."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from treadle.config.byte_size import binary
from treadle.config.explain import Explanation, KnobState, Section
from treadle.config.presets import PRESETS
from treadle.config.settings import PresetName

WIDTH = 80
_NAME, _VALUE = 24, 13


def show(explanation: Explanation) -> Iterator[str]:
    """All of it, the execution path first."""
    model = explanation.model or "the model"
    yield from _wrapped(f"{model} on {explanation.device}, preset {explanation.preset}", "", "")
    yield ""
    yield "Execution path"
    for fact in explanation.path:
        yield from _wrapped(fact.text, f"  {fact.name:<12}", 14)
    for section in explanation.sections:
        yield ""
        yield from _section(section)
    if explanation.flags:
        yield ""
        yield "Flags of other engines"
        for fact in explanation.flags:
            yield from _wrapped(f"{fact.name} became {fact.text}", "  ", 6)
    yield ""
    yield from _axes(explanation)
    if explanation.knobs:
        yield ""
        yield from _knobs(explanation)
    yield ""
    yield from _mechanisms(explanation)
    if explanation.step:
        yield ""
        yield from show_step(explanation)


def show_step(explanation: Explanation) -> Iterator[str]:
    yield "The step replays"
    for replay in explanation.step:
        padded = f", {replay.padded_by} of them padding" if replay.padded_by else ""
        text = f"{replay.kind}, size {replay.size}{padded}: {replay.why}"
        yield from _wrapped(text, f"  {replay.engine:<14}", 16)


def show_differences(
    explanation: Explanation, first: PresetName, second: PresetName
) -> Iterator[str]:
    """Only what differs, grouped by cause."""
    names = (PRESETS[first].label, PRESETS[second].label)
    yield from _wrapped(f"{names[0]} and {names[1]} on {explanation.device}", "", "")
    if not explanation.differences:
        yield "nothing differs"
    cause = ""
    for difference in explanation.differences:
        if difference.cause != cause:
            cause = difference.cause
            yield ""
            yield cause.capitalize()
        pair = f"{_plain(difference.first)} | {_plain(difference.second)}"
        yield from _wrapped(pair, f"  {difference.topic:<26}", 28)
        if difference.why:
            yield from _wrapped(difference.why, " " * 6, 6)


def _section(section: Section) -> Iterator[str]:
    yield section.title.capitalize()
    for value in section.values:
        shown = _value(value.name, value.value)
        reason = f"{value.source}: {value.sentence}" if value.sentence else value.source
        column = 2 + _NAME + _VALUE
        name = f"{value.name} " if len(value.name) >= _NAME else f"{value.name:<{_NAME}}"
        yield from _wrapped(reason, f"  {name}{shown:<{_VALUE}}", column)


def _axes(explanation: Explanation) -> Iterator[str]:
    absent = sum(state.state == "absent" for state in explanation.axes)
    yield f"Axes ({absent} of {len(explanation.axes)} not here yet)"
    for state in explanation.axes:
        text = state.here
        if state.state == "absent":
            text = f"{state.here}, in place of {state.wish}, which is absent"
        elif state.here != state.wish:
            text = f"{state.here}; the preset has {state.wish}"
        yield from _wrapped(text, f"  {state.title:<28}", 30)


def _knobs(explanation: Explanation) -> Iterator[str]:
    states = Counter(knob.state for knob in explanation.knobs)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    yield f"{PRESETS[explanation.preset].label}'s knobs ({counted})"
    group = ""
    for knob in explanation.knobs:
        own, _, name = knob.name.partition(".")
        if own != group:
            group = own
            yield f"  {group}"
        yield from _wrapped(_knob(knob), f"    {name:<30}", 34)


def _knob(knob: KnobState) -> str:
    here = f" ({knob.here})" if knob.here else ""
    return f"{_plain(knob.value)}: {knob.state}{here}"


def _mechanisms(explanation: Explanation) -> Iterator[str]:
    rows = explanation.mechanisms
    alike = sum(not row.cause for row in rows)
    yield f"Mechanisms ({alike} alike in the three engines, {len(rows) - alike} different)"
    yield f"  {'':<25}{'here':<12}{'vLLM':<13}{'SGLang':<13}TensorRT-LLM"
    for row in rows:
        states = f"{row.here:<12}{row.vllm:<13}{row.sglang:<13}{row.trtllm}"
        yield f"  {row.title:<25}{states}"
        cause = f"; the engines differ: {row.cause}" if row.cause else ""
        yield from _wrapped(f"{row.why}{cause}", " " * 6, 6)


def _value(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return binary(value)
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return " ".join(_plain(item) for item in value)
    return str(value)


def _wrapped(text: str, head: str, hang: int | str) -> Iterator[str]:
    """Lines of at most WIDTH columns; a head that reaches into the text has a line of its own."""
    indent = " " * hang if isinstance(hang, int) else hang
    if head and len(head) >= len(indent):
        if head.endswith(" "):
            indent = " " * len(head)
        else:
            yield head
            head = indent
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    )
    yield from lines or [head.rstrip()]
