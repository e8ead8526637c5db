"""treadle: an LLM inference engine. `LLM` and `SamplingParams` are the Python interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.llm import LLM
    from treadle.wire.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import treadle` and the command line start at once."""
    if name == "LLM":
        from treadle.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from treadle.wire.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'treadle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
