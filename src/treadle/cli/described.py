"""Models as far as their headers and configurations tell: for commands that load no weights.

Of a model on the hub only the config.json is fetched; one that treadle does not run, or whose
weights are not here, is described all the same.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.config.facts import ModelFacts
    from treadle.config.step_estimate import StepWidths
    from treadle.models.outline import Outline


def locate(model: str) -> Path:
    """Its .gguf file, its directory or its config.json."""
    from treadle.models.hub import hub_config, hub_id
    from treadle.models.source import resolve_model

    path = Path(model).expanduser()
    if path.suffix == ".json" and path.is_file():
        return path
    found = None if path.exists() else hub_id(model)
    if found is not None and found.gguf is None:
        return hub_config(found)
    return resolve_model(model)


def described_model(model: str) -> tuple[ModelFacts, str]:
    """What configuration must know of it; and why it cannot run, where it is described alone."""
    from treadle.engine.build import model_facts
    from treadle.models.families import CONFIG_FAMILIES
    from treadle.models.loader import read_card
    from treadle.models.outline_files import outline_of
    from treadle.models.safetensors import holds_all_weights

    path = locate(model)
    if path.suffix != ".json" and not (path.is_dir() and not holds_all_weights(path)):
        return model_facts(read_card(path)), ""
    outline = outline_of(path)
    remark = f"the weights of {outline.name} are not at hand; its config.json alone was read"
    if outline.architecture not in CONFIG_FAMILIES:
        remark = f"treadle does not run {outline.architecture}; its config.json alone was read"
    return outline_facts(outline), "; ".join((remark, *outline.notes))


def widths_of(outline: Outline) -> StepWidths | None:
    from treadle.config.step_estimate import StepWidths

    if outline.widths is None:
        return None
    hidden, ffn, vocab = outline.widths
    return StepWidths(hidden=hidden, ffn=ffn, vocab=vocab)


def outline_facts(outline: Outline) -> ModelFacts:
    """An outline as rules see a model."""
    from treadle.config.facts import KVGroupFacts, ModelFacts

    values: dict[tuple[int | None, int], int] = defaultdict(int)
    for layer in outline.layers:
        own = layer.kv_heads * (layer.key_dim + layer.value_dim)
        values[layer.window, layer.kv_heads] += own
    ordered = sorted(values.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0))
    kind = outline.weight_type or outline.dtype
    return ModelFacts(
        name=outline.name,
        architecture=outline.architecture,
        weight_type=kind,
        quantised=kind not in ("f32", "f16", "bf16"),
        attention="mha" if all(layer.value_dim for layer in outline.layers) else "mla",
        experts=max(layer.num_experts for layer in outline.layers),
        max_positions=outline.max_positions,
        kv_groups=tuple(
            KVGroupFacts(values_per_token=count, window=window, kv_heads=heads)
            for (window, heads), count in ordered
        ),
        weights_bytes=outline.weights.num_bytes,
        widths=widths_of(outline),
    )
