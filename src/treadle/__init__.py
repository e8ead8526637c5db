"""treadle: an LLM inference engine.

The Python interface: `LLM` and `AsyncLLM` with vLLM's names, `SamplingParams` for both and
`RequestOutput` from both; `Engine` with SGLang's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine.async_llm import AsyncLLM
    from treadle.engine.llm import LLM
    from treadle.engine.outputs import RequestOutput
    from treadle.engine.sglang import Engine
    from treadle.wire.sampling_params import RequestOutputKind, SamplingParams
    from treadle.wire.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "Engine",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_MODULES = {
    "LLM": "engine.llm",
    "AsyncLLM": "engine.async_llm",
    "Engine": "engine.sglang",
    "RequestOutput": "engine.outputs",
    "RequestOutputKind": "wire.sampling_params",
    "SamplingParams": "wire.sampling_params",
    "StructuredOutputsParams": "wire.structured_outputs",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import treadle` and the command line start at once."""
    if name not in _MODULES:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"treadle.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
