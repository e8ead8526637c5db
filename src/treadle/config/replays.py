"""What a step of some shape would replay, here and under the three engines' capture rules."""

from __future__ import annotations

import msgspec

from treadle.config.presets import sglang_rules, trtllm, vllm_rules
from treadle.config.replay import (
    CaptureRule,
    ProgramReplay,
    SGLangCapture,
    Step,
    TrtllmCapture,
    VllmCapture,
)
from treadle.config.view import View


class StepReplay(msgspec.Struct, frozen=True):
    engine: str
    kind: str
    size: int
    padded_by: int
    why: str


def step_replays(see: View, step: Step) -> tuple[StepReplay, ...]:
    """Each engine with its own defaults on the device."""
    rules: dict[str, CaptureRule] = {
        "treadle": ProgramReplay(),
        "vLLM": VllmCapture(
            max_num_seqs=vllm_rules.max_num_seqs(see).value,
            max_num_batched_tokens=vllm_rules.max_num_batched_tokens(see).value,
        ),
        "SGLang": SGLangCapture(
            decode_max_rows=sglang_rules.decode_max_bs(see).value,
            prefill_max_tokens=sglang_rules.chunked_prefill_size(see).value,
        ),
        "TensorRT-LLM": TrtllmCapture(
            largest=trtllm.PRESET.knobs()["graphs.max_batch_size"].value,
            padding=trtllm.PRESET.knobs()["graphs.enable_padding"].value,
        ),
    }
    return tuple(StepReplay(engine, *rule.which(step)) for engine, rule in rules.items())
