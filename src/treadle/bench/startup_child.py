"""A start like that of `treadle generate`, which says when each part was done.

    python -m treadle.bench.startup_child '{"model": "demo", …}'

Takes the engine's settings, prints one JSON object. Its clock is the system's monotonic one, which
the parent reads as well. What is imported before the clock is read counts as the interpreter's.
"""

from __future__ import annotations

import time

ENTERED = time.monotonic()

import contextlib  # noqa: E402
import sys  # noqa: E402

import msgspec  # noqa: E402

NUM_TOKENS = 8

PROMPT = "1, 2, 3, 4, 5,"


class Marks(msgspec.Struct, kw_only=True):
    """Moments of the monotonic clock."""

    entered: float
    imported: float
    loaded: float
    answered: float
    engine: dict[str, float]
    """Phase of the loading → seconds."""


def main() -> None:
    from treadle.engine.llm import LLM
    from treadle.wire.sampling_params import SamplingParams

    imported = time.monotonic()
    settings = msgspec.json.decode(sys.argv[1], type=dict)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with contextlib.closing(LLM(**settings)) as llm:
        loaded = time.monotonic()
        llm.generate(PROMPT, params, use_tqdm=False)
        marks = Marks(
            entered=ENTERED,
            imported=imported,
            loaded=loaded,
            answered=time.monotonic(),
            engine={ended.phase: ended.seconds for ended in llm.startup},
        )
    sys.stdout.buffer.write(msgspec.json.encode(marks))


if __name__ == "__main__":
    main()
