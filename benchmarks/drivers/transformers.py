"""Hugging Face transformers with PyTorch: one batch of prompts of equal length, greedy, KV cached.

Reads a model folder, or a GGUF file, whose weights it turns into bfloat16.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# This file is named like the package it drives.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parents[2]))

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.drivers.protocol import Ask, Asked, Times, run  # noqa: E402


def load(model: str, threads: int) -> Ask:
    torch.set_num_threads(threads)
    path = Path(model)
    place: dict[str, Any] = {} if path.is_dir() else {"gguf_file": path.name}
    folder = path if path.is_dir() else path.parent
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, **place
    ).eval()

    @torch.inference_mode()
    def ask(asked: Asked, times: Times) -> None:
        ids = torch.tensor(asked.prompts)
        times.start()
        cache = transformers.DynamicCache()
        for _ in range(asked.output_len):
            logits = network(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            for at in range(len(asked.prompts)):
                times.note(at)

    return ask


if __name__ == "__main__":
    run(load)
