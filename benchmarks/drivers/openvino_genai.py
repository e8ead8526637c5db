"""OpenVINO GenAI: continuous batching and prefix caching, on a GGUF file or an exported folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

# This file is named like the package it drives.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parents[2]))

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

from benchmarks.drivers.protocol import Ask, Times, asking, run  # noqa: E402


def load(model: str, threads: int) -> Ask:
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 512
    scheduler.cache_size = 2  # GiB
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": True,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "64",
    }
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    serial = 0

    def answer(prompts: Sequence[Sequence[int]], output_len: int, times: Times) -> None:
        nonlocal serial
        config = genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        handles = []
        for prompt in prompts:
            ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(serial, ids, config))
            serial += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for at, handle in enumerate(handles):
                while handle.can_read():
                    times.note(at, sum(len(out.generated_ids) for out in handle.read().values()))

    return asking(answer)


if __name__ == "__main__":
    run(load)
