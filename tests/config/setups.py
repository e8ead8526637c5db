"""Models and machines that tests of configuration stand on."""

from __future__ import annotations

from treadle.config.facts import KVGroupFacts, ModelFacts
from treadle.config.hardware import Hardware
from treadle.config.settings import EngineSettings
from treadle.config.step_estimate import StepWidths
from treadle.config.view import View, this_device

SMALL = ModelFacts(
    name="SmolLM2 135M Instruct",
    architecture="llama",
    max_positions=8192,
    kv_groups=(KVGroupFacts(values_per_token=2 * 30 * 3 * 64, kv_heads=3),),
    weights_bytes=98 * 2**20,
    widths=StepWidths(hidden=576, ffn=1536, vocab=49152),
    weight_type="q4_1",
    quantised=True,
)

WINDOWED = ModelFacts(
    name="Gemma 3 270M",
    architecture="gemma3",
    max_positions=32768,
    kv_groups=(
        KVGroupFacts(values_per_token=2 * 3 * 256),
        KVGroupFacts(values_per_token=2 * 15 * 256, window=512),
    ),
    weights_bytes=240 * 2**20,
    widths=StepWidths(hidden=640, ffn=2048, vocab=262144),
    weight_type="bf16",
)

LAPTOP = Hardware(
    cpu="any processor",
    cores=2,
    memory_bytes=24 * 2**30,
    available_bytes=23 * 2**30,
    available_from="free memory",
    multiplies_bf16=False,
    variants=("avx2", "portable"),
)


def view(
    model: ModelFacts = SMALL, machine: Hardware = LAPTOP, user: EngineSettings | None = None
) -> View:
    return View(user or EngineSettings(), model, machine, this_device(machine))
