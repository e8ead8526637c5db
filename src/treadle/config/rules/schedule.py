"""How much one step may do."""

from __future__ import annotations

from treadle.config.presets import wish
from treadle.config.rules.asked import asked_for
from treadle.config.view import Choice, View
from treadle.errors import StartError


def max_num_seqs(see: View) -> Choice:
    """Where it was left open it gives way to what was asked for a step."""
    asked = see.user.schedule.max_num_seqs
    if asked is not None:
        return asked_for(see, "max_num_seqs", asked)
    wished, tokens = wish(see, "max_num_seqs"), see.user.schedule.max_num_batched_tokens
    if tokens is None or tokens >= wished.value:
        return wished
    return Choice(
        tokens, "data structure", f"each takes one of the {tokens} tokens of max_num_batched_tokens"
    )


def max_num_batched_tokens(see: View) -> Choice:
    asked, num_seqs = see.user.schedule.max_num_batched_tokens, see.settled.max_num_seqs
    if asked is None:
        wished = wish(see, "max_num_batched_tokens")
        if wished.value >= num_seqs:
            return wished
        return Choice(num_seqs, "data structure", f"each of {num_seqs} requests needs one a step")
    if asked < num_seqs:
        raise StartError(
            f"max_num_batched_tokens is {asked}; max_num_seqs is {num_seqs}, and each running"
            " request needs a token in every step"
        )
    return asked_for(see, "max_num_batched_tokens", asked)


def length_rule(see: View) -> Choice:
    asked = see.user.schedule.length_rule
    if asked is not None:
        return asked_for(see, "length_rule", asked)
    preset = see.user.preset
    if preset in ("sglang", "trtllm"):
        return Choice(preset, "preset", "its own, when requests arrive")
    return Choice("window", "default", "prompt and answer must fit the window and the KV cache")


def allow_auto_truncate(see: View) -> Choice:
    asked, rule = see.user.schedule.allow_auto_truncate, see.settled.length_rule
    if asked and rule != "sglang":
        raise StartError(f"allow_auto_truncate is for length_rule sglang, not {rule}")
    if asked is not None:
        return asked_for(see, "allow_auto_truncate", asked)
    return Choice(False, "default", "what is too long is refused, not changed")
