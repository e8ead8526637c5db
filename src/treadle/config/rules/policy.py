"""Who computes in a step, who may start, and who gives way; with the parameters of each."""

from __future__ import annotations

from treadle.config.composition import needed
from treadle.config.rules.asked import asked_for, chosen
from treadle.config.view import Choice, View

_BY_PRIORITY = {
    "preempt-newest": "preempt-lowest-priority",
    "retract-by-length": "retract-by-priority",
}


def composition(see: View) -> Choice:
    asked = see.user.policy.composition
    if asked is None and see.user.preset == "sglang":
        return Choice("prefill-first", "preset", "SGLang's: a step of prompts, or one of decodes")
    return chosen(see, "composition", asked)


def admission(see: View) -> Choice:
    """Left open, it goes with the composition."""
    return _fitting(
        see,
        "admission",
        see.user.policy.admission,
        needed("composition", see.settled.composition, "admission"),
    )


def shortage(see: View) -> Choice:
    """Left open, it goes with the admission, and with priorities that count."""
    choice = _fitting(
        see,
        "shortage",
        see.user.policy.shortage,
        needed("admission", see.settled.admission, "shortage"),
    )
    if see.user.policy.shortage is None and see.settled.order == "priority":
        sentence = "the order goes by priorities, so the least important gives way"
        if choice.value in _BY_PRIORITY:
            return Choice(_BY_PRIORITY[choice.value], "data structure", sentence)
    return choice


def _fitting(see: View, name: str, asked: str | None, fits: tuple[str, ...]) -> Choice:
    choice = chosen(see, name, asked)
    if asked is not None or not fits or choice.value in fits:
        return choice
    return Choice(fits[0], "data structure", f"what was chosen beside it needs {fits[0]}")


def chunk_unit_tokens(see: View) -> Choice:
    """TensorRT-LLM's: a block, with windows at least 256 tokens."""
    asked = see.user.policy.chunk_unit_tokens
    if asked is not None:
        return asked_for(see, "chunk_unit_tokens", asked)
    block = see.settled.block_size
    if any(group.window is not None for group in see.model.kv_groups):
        return Choice(max(block, 256), "model card", "layers with windows: 256 tokens at least")
    return Choice(block, "data structure", f"a block of {block} tokens")
