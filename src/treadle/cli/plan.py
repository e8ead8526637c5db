"""`treadle plan`: what of a model fits on devices that are not here. Reads headers, no weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from treadle.config.memory_plan import Wish
    from treadle.config.model_shape import ModelShape
    from treadle.config.step_estimate import StepEstimate
    from treadle.models.outline import LayerOutline, Outline

_KV_FORMATS = ("f32", "bf16", "f16", "fp8", "int8", "int4")
_WEIGHT_FORMATS = ("f32", "bf16", "f16", "fp8", "int8", "int4", "mxfp4", "nvfp4")
_ONE = click.IntRange(min=1)


class _Fraction(click.FloatRange):
    """Above 0, at most 1; NaN, which no comparison refuses, is not a number of that kind."""

    def __init__(self) -> None:
        super().__init__(min=0, max=1, min_open=True)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range 0<x<=1.", param, ctx)
        return number


_FRACTION = _Fraction()


@click.command()
@click.argument("model")
@click.option("--gpu-memory", metavar="SIZE", help="Of one device: 80GB, 79.6GiB.")
@click.option("--device", metavar="NAME", help="A known device in place of a size: h100-80gb.")
@click.option("--tp", default=1, type=_ONE, metavar="N", help="Devices that share each layer.")
@click.option("--pp", default=1, type=_ONE, metavar="N", help="Stages that layers are dealt to.")
@click.option("--ep", default=1, type=_ONE, metavar="N", help="Groups that experts are dealt to.")
@click.option(
    "--overhead",
    metavar="SIZE",
    default="0",
    help="What a device needs beside weights and KV: activations, buffers, graphs; or 'estimate',"
    " what a step takes by the model's widths.",
)
@click.option("--weights", metavar="SIZE", help="Of the whole model, where you know better.")
@click.option("--weight-dtype", type=click.Choice(_WEIGHT_FORMATS), help="Default: as they are.")
@click.option("--kv-dtype", type=click.Choice(_KV_FORMATS), help="Default: as the model computes.")
@click.option("--max-model-len", type=_ONE, metavar="N", help="Default: the model's window.")
@click.option(
    "--request-tokens",
    multiple=True,
    type=_ONE,
    metavar="N",
    help="Count requests of this length; may be repeated. Default: 4096 and --max-model-len.",
)
@click.option(
    "--gpu-memory-utilization",
    type=_FRACTION,
    metavar="F",
    default=0.92,
    show_default=True,
    help="vLLM's share of all memory.",
)
@click.option(
    "--mem-fraction-static",
    type=_FRACTION,
    metavar="F",
    help="SGLang's share for weights and KV. Default: what its reserve leaves.",
)
@click.option(
    "--free-gpu-memory-fraction",
    type=_FRACTION,
    metavar="F",
    default=0.9,
    show_default=True,
    help="TensorRT-LLM's share of what its trial run leaves.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(model: str, *, as_json: bool, weight_dtype: Any, **given: Any) -> int:
    """Work out weights and KV of MODEL on devices you may not have, by the rules of three engines.

    MODEL is a .gguf file, a model's directory, a config.json or a hub id. No weights are read."""
    import msgspec

    from treadle.cli.described import locate
    from treadle.cli.plan_text import plan_text, plan_values
    from treadle.config.memory_plan import plan as plan_memory
    from treadle.models.outline_files import outline_of

    outline = outline_of(locate(model), weight_dtype)
    shape = model_shape(outline)
    wish = _wish(outline, given)
    found = plan_memory(shape, wish)
    if as_json:
        values = plan_values(outline, wish, found)
        click.echo(msgspec.json.format(msgspec.json.encode(values)).decode())
    else:
        click.echo(plan_text(outline, wish, found))
    return 0


def model_shape(outline: Outline) -> ModelShape:
    """An outline in the terms of the arithmetic."""
    from treadle.config.model_shape import ModelShape

    return ModelShape(
        name=outline.name,
        max_positions=outline.max_positions,
        layers=tuple(_layer_shape(layer) for layer in outline.layers),
        embed_bytes=outline.embed.num_bytes,
        head_bytes=outline.head.num_bytes,
        rest_bytes=outline.rest.num_bytes,
    )


def _layer_shape(layer: LayerOutline) -> Any:
    from treadle.config.kv_layout import AttentionShape
    from treadle.config.model_shape import LayerShape

    sizes = {share: amount.num_bytes for share, amount in layer.weights.items()}
    return LayerShape(
        attention=AttentionShape(
            kv_heads=layer.kv_heads,
            key_dim=layer.key_dim,
            value_dim=layer.value_dim,
            window=layer.window,
        ),
        split_bytes=sizes.get("split", 0),
        kv_bytes=sizes.get("kv", 0),
        copied_bytes=sizes.get("copied", 0),
        expert_bytes=sizes.get("experts", 0),
        num_experts=layer.num_experts,
    )


def _wish(outline: Outline, given: dict[str, Any]) -> Wish:
    import msgspec

    from treadle.config.byte_size import parse_bytes
    from treadle.config.memory_plan import Wish
    from treadle.config.model_shape import Topology
    from treadle.errors import StartError

    device = _device(given["gpu_memory"], given["device"])
    if device.count > 1 and given["tp"] not in (1, device.count):
        raise StartError(f"{device.title!r} and --tp {given['tp']} say different numbers")
    window = given["max_model_len"] or outline.max_positions
    if window > outline.max_positions:
        raise StartError(
            f"max_model_len is {window}; the model's window is {outline.max_positions} tokens"
        )
    longest = max(given["request_tokens"] or (0,))
    if longest > window:
        raise StartError(f"request_tokens is {longest}; a window holds {window} tokens")
    assert device.memory_bytes is not None
    tensor = max(given["tp"], device.count)
    estimated = _step(outline, msgspec.structs.replace(device, count=tensor), given["overhead"])
    weights = given["weights"]
    return Wish(
        device_name=device.name,
        device_bytes=device.memory_bytes,
        device_mib=device.nominal_mib,
        topology=Topology(tensor=tensor, pipeline=given["pp"], experts=given["ep"]),
        kv_format=given["kv_dtype"] or outline.dtype,
        window=window,
        lengths=tuple(sorted({*(given["request_tokens"] or (min(4096, window), window))})),
        overhead_bytes=parse_bytes(given["overhead"], "overhead") if estimated is None else 0,
        step=estimated,
        weights_bytes=None if weights is None else parse_bytes(weights, "weights"),
        vllm_utilization=given["gpu_memory_utilization"],
        sglang_fraction=given["mem_fraction_static"],
        trtllm_fraction=given["free_gpu_memory_fraction"],
    )


def _step(outline: Outline, device: Any, overhead: str) -> StepEstimate | None:
    """Where it is asked for: of vLLM's largest step as a server on such devices."""
    if overhead != "estimate":
        return None
    from treadle.cli.described import outline_facts
    from treadle.config.presets import vllm_rules
    from treadle.config.settings import EngineSettings
    from treadle.config.step_estimate import estimate
    from treadle.config.view import View
    from treadle.engine.build import this_machine
    from treadle.errors import StartError

    facts = outline_facts(outline)
    if facts.widths is None:
        raise StartError("--overhead estimate needs the widths that a config.json has")
    see = View(EngineSettings(usage="server"), facts, this_machine(), device)
    return estimate(
        facts.widths,
        tokens=vllm_rules.max_num_batched_tokens(see).value,
        rows=vllm_rules.max_num_seqs(see).value,
        devices=device.count,
    )


def _device(size: str | None, name: str | None) -> Any:
    from treadle.config.device import described
    from treadle.errors import StartError

    if size is None and name is None:
        raise StartError("name a device's memory with --gpu-memory, or a device with --device")
    if size is not None and name is not None:
        raise StartError("--gpu-memory and --device both say what memory there is; give one")
    device = described(size if size is not None else name or "")
    if device.memory_bytes is None:
        raise StartError(f"the memory of {device.name!r} is not known; name it with --gpu-memory")
    return device
