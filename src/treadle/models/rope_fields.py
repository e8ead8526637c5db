"""RoPE as files describe it, read into `Rope`s: config.json in its old and new keys, and GGUF.

Every kind of scaling that is not known here stops the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.ops import RawTensor
from treadle.models.fields import Fields
from treadle.models.rope import (
    Divided,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Plain,
    Rope,
    Scaling,
    Yarn,
    longrope_magnitude,
    yarn_magnitude,
)
from treadle.models.transforms import to_float32

_LARGEST_FACTOR = 2**20
"""By which a context can be stretched."""


def ropes_from_config(fields: Fields, head_dim: int, *, local: bool) -> tuple[Rope, ...]:
    """The RoPE of a model; with `local`, also that of its layers with a window."""
    described = fields.section("rope_parameters") or fields.section("rope_scaling")
    if not local:
        return (_config_rope(fields, described, head_dim, fields.positive("rope_theta", 10000.0)),)
    # Either one description for each kind of layers, or the old keys, which scale the global one.
    inner = described.section("full_attention") if described else None
    nearby = described.section("sliding_attention") if described else None
    if inner is None and nearby is None:
        inner = described
    theta, local_theta = fields.positive("rope_theta"), fields.positive("local_theta", 10000.0)
    return (
        _config_rope(fields, inner, head_dim, theta),
        _config_rope(fields, nearby, head_dim, local_theta),
    )


def dynamic_positions(ropes: tuple[Rope, ...], max_positions: int) -> int:
    """Dynamic scaling is meant for `factor` times the context that the config names, and would
    otherwise have no effect; other kinds name the context that they reach."""
    factors = [rope.scaling.factor for rope in ropes if isinstance(rope.scaling, Dynamic)]
    return int(max_positions * max([1.0, *factors]))


def _config_rope(fields: Fields, rope: Fields | None, head_dim: int, theta: float) -> Rope:
    share = fields.positive("partial_rotary_factor", 1.0)
    if rope is None:
        return _rope(theta, int(head_dim * share), Plain())
    rotary_dim = int(head_dim * rope.positive("partial_rotary_factor", share))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "yarn" and rope.value("long_factor") is not None:
        kind = "longrope"  # an early name of it
    if kind not in _CONFIG_SCALINGS:
        key = "rope_type" if rope.value("rope_type") is not None else "type"
        raise rope.bad(key, "one of " + ", ".join(_CONFIG_SCALINGS))
    scaling = _CONFIG_SCALINGS[kind](fields, rope, rotary_dim)
    return _rope(rope.positive("rope_theta", theta), rotary_dim, scaling)


def _rope(theta: float, rotary_dim: int, scaling: Scaling, *, interleaved: bool = False) -> Rope:
    return Rope(theta=theta, rotary_dim=rotary_dim, interleaved=interleaved, scaling=scaling)


def _factor(rope: Fields, default: float | None = None) -> float:
    factor = rope.positive("factor", default)
    if factor > _LARGEST_FACTOR:
        raise rope.bad("factor", f"at most {_LARGEST_FACTOR}")
    return factor


def _original(fields: Fields, rope: Fields) -> int:
    """The context of the first training. Where a config names it twice, outside counts."""
    inside = rope.count("original_max_position_embeddings", fields.count("max_positions"))
    return fields.count("original_max_position_embeddings", inside)


def _plain(_: Fields, __: Fields, ___: int) -> Scaling:
    return Plain()


def _linear(_: Fields, rope: Fields, __: int) -> Scaling:
    return Linear(_factor(rope))


def _dynamic(fields: Fields, rope: Fields, _: int) -> Scaling:
    return Dynamic(_factor(rope), fields.count("max_positions"))


def _llama3(fields: Fields, rope: Fields, _: int) -> Scaling:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.bad("high_freq_factor", f"above low_freq_factor, {low}")
    return Llama3(_factor(rope), low, high, _original(fields, rope))


def _yarn(fields: Fields, rope: Fields, _: int) -> Scaling:
    original = _original(fields, rope)
    factor = _factor(rope, fields.count("max_positions") / original)
    magnitude = yarn_magnitude(factor)
    over, under = rope.value("mscale"), rope.value("mscale_all_dim")
    if over and under:
        over, under = rope.positive("mscale"), rope.positive("mscale_all_dim")
        magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
    return Yarn(
        factor=factor,
        original=original,
        fast=rope.positive("beta_fast", 32.0),
        slow=rope.positive("beta_slow", 1.0),
        whole_pairs=rope.flag("truncate", True),
        magnitude=rope.positive("attention_factor", magnitude),
    )


def _longrope(fields: Fields, rope: Fields, rotary_dim: int) -> Scaling:
    original = _original(fields, rope)
    factor = _factor(rope, fields.count("max_positions") / original)
    magnitude = longrope_magnitude(factor, original)
    return LongRope(
        short=rope.numbers("short_factor", rotary_dim // 2),
        long=rope.numbers("long_factor", rotary_dim // 2),
        original=original,
        magnitude=rope.positive("attention_factor", magnitude),
    )


_CONFIG_SCALINGS: Mapping[str, Callable[[Fields, Fields, int], Scaling]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}


def ropes_from_gguf(
    fields: Fields,
    tensors: Mapping[str, RawTensor],
    head_dim: int,
    *,
    interleaved: bool,
    local: bool,
) -> tuple[Rope, ...]:
    rotary_dim = fields.count("rotary_dim", head_dim)
    scaling = _gguf_scaling(fields, tensors, rotary_dim)
    theta = fields.positive("rope_theta", 10000.0)
    ropes = [_rope(theta, rotary_dim, scaling, interleaved=interleaved)]
    if local:
        theta = fields.positive("local_theta", 10000.0)
        ropes.append(_rope(theta, rotary_dim, Plain(), interleaved=interleaved))
    return tuple(ropes)


def _gguf_scaling(fields: Fields, tensors: Mapping[str, RawTensor], rotary_dim: int) -> Scaling:
    pairs = rotary_dim // 2
    if "rope_factors_long.weight" in tensors:
        return LongRope(
            short=_factors(tensors, "rope_factors_short.weight", pairs),
            long=_factors(tensors, "rope_factors_long.weight", pairs),
            original=fields.count("rope_original"),
            magnitude=fields.positive("rope_magnitude", 1.0),
        )
    if "rope_freqs.weight" in tensors:
        return Divided(_factors(tensors, "rope_freqs.weight", pairs))
    kind = fields.text("rope_kind", "none")
    if kind == "linear":
        return Linear(fields.positive("rope_factor"))
    if kind == "yarn":
        return _gguf_yarn(fields)
    if kind == "none":
        factor = fields.positive("rope_old_factor", 1.0)
        return Plain() if factor == 1 else Linear(factor)
    raise fields.bad("rope_kind", "'none', 'linear' or 'yarn'")


def _gguf_yarn(fields: Fields) -> Scaling:
    if fields.value("rope_log_multiplier"):
        raise fields.bad("rope_log_multiplier", "left out, for it is not supported")
    factor = fields.positive("rope_factor")
    return Yarn(
        factor=factor,
        original=fields.count("rope_original", fields.count("max_positions")),
        fast=fields.positive("rope_fast", 32.0),
        slow=fields.positive("rope_slow", 1.0),
        magnitude=yarn_magnitude(factor) * fields.positive("rope_magnitude", 1.0),
    )


def _factors(tensors: Mapping[str, RawTensor], name: str, pairs: int) -> tuple[float, ...]:
    if name not in tensors:
        raise ModelFileError(f"tensor '{name}' is missing")
    tensor = tensors[name]
    if tensor.shape != (pairs,):
        raise ModelFileError(f"tensor '{name}' has shape {list(tensor.shape)}; expected {[pairs]}")
    numbers = to_float32(tensor)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ModelFileError(f"tensor '{name}' holds numbers that are not above 0")
    return tuple(numbers.tolist())
