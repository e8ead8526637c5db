"""Which choices do not go together: a table, read at start. Each refusal is one sentence."""

from __future__ import annotations

from treadle.config.settings import EngineSettings
from treadle.errors import StartError


def check_settings(user: EngineSettings) -> None:
    """Raises StartError for settings of which one leaves the other without a meaning."""
    cache, runtime = user.cache, user.runtime
    if runtime.isa is not None and runtime.backend == "torch":
        raise StartError("isa chooses among the native kernels; the backend is torch")
    if cache.kv_cache_memory_bytes is not None and cache.kv_memory_fraction is not None:
        raise StartError(
            f"kv_memory_fraction is {cache.kv_memory_fraction:g}, and kv_cache_memory_bytes says"
            " the amount; give one of the two"
        )
