"""What six set-ups resolve to and how an explanation reads, written down so that a changed default
is seen. `python -m tests.config.golden` writes the files anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.config.setups import LAPTOP, SMALL, WINDOWED
from treadle.config.device import Device, described
from treadle.config.explain import Case, explain
from treadle.config.explain_text import show, show_differences
from treadle.config.facts import ModelFacts
from treadle.config.given import engine_settings
from treadle.config.replay import parse_step
from treadle.config.resolve import resolve
from treadle.config.settings import EngineSettings, PresetName, ServerSettings

DATA = Path(__file__).parent / "data"

SETUPS: tuple[tuple[PresetName, str | None, ModelFacts], ...] = (
    ("treadle", None, SMALL),
    ("treadle", None, WINDOWED),
    ("vllm", "h100-80gb", SMALL),
    ("sglang", "a100-80gb", SMALL),
    ("trtllm", "l4-24gb", SMALL),
    ("sglang", "rtx4090-24gb", SMALL),
)


def goldens() -> Iterator[tuple[str, str]]:
    """File name → content."""
    resolved = {}
    for preset, device, model in SETUPS:
        settings = EngineSettings(preset=preset, usage="server")
        values = resolve(settings, model, LAPTOP, _device(device)).flat()
        reasons = values.pop("reasons")
        resolved[f"{preset}, {device or 'this machine'}, {model.name}"] = {
            name: [value, *(reasons[name][part] for part in ("source", "sentence"))]
            for name, value in values.items()
            if name != "preset"
        }
    yield "resolved.json", msgspec.json.format(msgspec.json.encode(resolved)).decode() + "\n"
    asked = {
        "max_running_requests": 8,
        "tp": 1,
        "gpu_memory_utilization": 0.5,
        "schedule_policy": "lpm",
        "chunked_prefill_size": -1,
    }
    ours = Case(engine_settings({"usage": "server"}), SMALL, LAPTOP, None, ServerSettings())
    flagged = Case(engine_settings({**asked, "usage": "server"}), SMALL, LAPTOP)
    theirs = Case(EngineSettings(preset="vllm", usage="server"), SMALL, LAPTOP)
    large = Case(EngineSettings(usage="server"), SMALL, LAPTOP, described("h100-80gb"))
    yield "explain.txt", _text(show(explain(ours)))
    yield (
        "explain_flags.txt",
        _text(show(explain(flagged, step=parse_step("decode 40")))),
    )
    yield "explain_vllm.txt", _text(show(explain(theirs)))
    yield (
        "explain_diff_ours.txt",
        _text(show_differences(explain(ours, diff=("treadle", "sglang")), "treadle", "sglang")),
    )
    yield (
        "explain_diff.txt",
        _text(show_differences(explain(large, diff=("vllm", "sglang")), "vllm", "sglang")),
    )


def _device(name: str | None) -> Device | None:
    return None if name is None else described(name)


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, content in goldens():
        (DATA / name).write_text(content)
