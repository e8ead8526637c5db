"""How K and V are kept and found again; how much memory they get is `kv_memory`'s."""

from __future__ import annotations

from treadle.config.presets import PRESETS, wish
from treadle.config.rules.asked import asked_for, chosen
from treadle.config.view import Choice, View
from treadle.errors import StartError

_OWN_EVICTION = {"hashed": "free-queue", "block-tree": "priority-lru", "none": "none"}
"""Of the indexes whose structure it is."""


def eviction_policy(see: View) -> Choice:
    asked, index = see.user.cache.eviction_policy, see.settled.prefix_cache
    if asked is None and index in _OWN_EVICTION:
        return Choice(_OWN_EVICTION[index], "data structure", f"prefix_cache is {index}")
    return chosen(see, "eviction_policy", asked)


def publication(see: View) -> Choice:
    asked, index = see.user.cache.publication, see.settled.prefix_cache
    if asked is not None:
        return asked_for(see, "publication", asked)
    preset = PRESETS[see.user.preset]
    wished = preset.axes["publication"]
    if wished == "at-plan" and index not in ("hashed", "none"):
        return Choice("at-chunk-end", "data structure", f"prefix_cache is {index}: no plans in it")
    if see.user.preset == "treadle":
        return Choice(wished, "default", "what is found is computed; no step is undone for it")
    return Choice(wished, "preset", f"as {preset.label} does")


def prefix_wait_tokens(see: View) -> Choice:
    asked, when = see.user.cache.prefix_wait_tokens, see.settled.publication
    if asked and when == "at-plan":
        raise StartError(
            f"prefix_wait_tokens is {asked}; publication is at-plan, where nobody waits: what a"
            " step is to compute is found at once"
        )
    if asked is not None:
        return asked_for(see, "prefix_wait_tokens", asked)
    if when == "at-plan":
        return Choice(0, "data structure", "what a step is to compute is found at once")
    if when == "postpone":
        return Choice(see.settled.block_size, "data structure", "one block, of block_size tokens")
    if see.user.preset == "sglang":
        return Choice(0, "preset", "SGLang's: nobody waits")
    return wish(see, "prefix_wait_tokens")


def partial_reuse(see: View) -> Choice:
    """Needs an index that can tell it, and groups that all can."""
    asked, index = see.user.cache.partial_reuse, see.settled.prefix_cache
    why = f"the index is {index}; only block-tree finds part of a block"
    if index == "block-tree":
        windows = [g.window for g in see.model.kv_groups if g.window is not None]
        if not windows or min(windows) >= see.settled.max_model_len:
            return chosen(see, "partial_reuse", asked)
        why = f"layers with a window of {min(windows)} tokens find whole blocks only"
    if asked:
        raise StartError(f"partial_reuse is on, but {why}")
    return Choice(False, "data structure", why)


def copy_on_partial_reuse(see: View) -> Choice:
    asked = see.user.cache.copy_on_partial_reuse
    if see.settled.partial_reuse:
        return chosen(see, "copy_on_partial_reuse", asked)
    if asked:
        raise StartError("copy_on_partial_reuse is on, but partial_reuse is off")
    return Choice(False, "data structure", "partial_reuse is off")
