"""How K and V are kept and found again; how much memory they get is `kv_memory`'s."""

from __future__ import annotations

from treadle.config.rules.asked import chosen
from treadle.config.view import Choice, View
from treadle.errors import StartError


def prefix_cache(see: View) -> Choice:
    return chosen(see, "prefix_cache", see.user.cache.prefix_cache)


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


def block_size(see: View) -> Choice:
    return chosen(see, "block_size", see.user.cache.block_size)


def kv_dtype(see: View) -> Choice:
    return chosen(see, "kv_dtype", see.user.cache.kv_dtype)
