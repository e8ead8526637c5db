"""How K and V are kept and found again; how much memory they get is `kv_memory`'s."""

from __future__ import annotations

from treadle.config.rules.asked import chosen
from treadle.config.view import Choice, View


def prefix_cache(see: View) -> Choice:
    return chosen(see, "prefix_cache", see.user.cache.prefix_cache)


def block_size(see: View) -> Choice:
    return chosen(see, "block_size", see.user.cache.block_size)


def kv_dtype(see: View) -> Choice:
    return chosen(see, "kv_dtype", see.user.cache.kv_dtype)
