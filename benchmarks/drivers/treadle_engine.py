"""treadle's engine in this process: its loop, without HTTP, text and the process between them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.drivers.protocol import Ask, Times, asking, run
from treadle.config.given import engine_settings
from treadle.engine.build import build_engine
from treadle.wire.messages import Delta, Generate
from treadle.wire.sampling_params import SamplingParams


def load(model: str, threads: int) -> Ask:
    settings = engine_settings({"model": model, "threads": threads})
    engine = build_engine(settings, Path(model), lambda _: None)
    serial = 0

    def answer(prompts: Sequence[Sequence[int]], output_len: int, times: Times) -> None:
        nonlocal serial
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        places: dict[str, int] = {}
        for at, prompt in enumerate(prompts):
            serial += 1
            places[str(serial)] = at
            generate = Generate(request_id=str(serial), prompt=list(prompt), params=params, seed=0)
            engine.handle(generate)
        while engine.has_work:
            for message in engine.step():
                assert isinstance(message, Delta), message
                times.note(places[message.request_id], len(message.tokens))

    return asking(answer)


if __name__ == "__main__":
    run(load)
