"""What an architecture is, as far as its layers are concerned; the defaults are Llama's.

A Family is small functions over a file's facts. Both kinds of files are read through the same ones:
`Fields` hides how each kind spells its keys.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from treadle.errors import ModelFileError
from treadle.kernels.ops import Activation, Masking
from treadle.models import names
from treadle.models.card import Dense, Experts, LayerCard, ModelCard, Wiring, layer_cards
from treadle.models.fields import Fields, Keys
from treadle.models.tensors import TensorNames

_MOST_EXPERTS = 2**14
"""In a layer; a count beyond all models would make plans of tensors without end."""
_LARGEST_MAGNITUDE = 2**20

Windows = tuple[int | None, ...]

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What families reckon with."""

    layers: int
    hidden: int
    heads: int
    head_dim: int


def activation(fields: Fields, default: Activation) -> Activation:
    return cast("Activation", fields.choice("activation", _ACTIVATIONS, default))


def llama_wiring(fields: Fields, _: Sizes) -> Wiring:
    biases: set[str] = set()
    if fields.flag("attention_bias", False):
        biases |= {"qkv", "attn_out"}
    if fields.flag("mlp_bias", False):
        biases |= {"gate_up", "down"}
    return Wiring(
        norm_eps=fields.positive("norm_eps"),
        biases=frozenset(biases),
        activation=activation(fields, "silu"),
    )


def all_slide(fields: Fields, sizes: Sizes) -> Windows:
    """In no layer, where the file has no window."""
    return (fields.optional_count("window"),) * sizes.layers


def dense(fields: Fields, _: int) -> Dense | Experts:
    return Dense(fields.count("ffn"))


def scale_by_head(fields: Fields, sizes: Sizes, _: int) -> float:
    return fields.positive("attn_scale", 1 / math.sqrt(sizes.head_dim))


def always(_: Fields, __: int) -> bool:
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What sets an architecture apart."""

    wiring: Callable[[Fields, Sizes], Wiring] = llama_wiring
    windows: Callable[[Fields, Sizes], Windows] = all_slide
    feed_forward: Callable[[Fields, int], Dense | Experts] = dense
    """That of a layer."""
    scale: Callable[[Fields, Sizes, int], float] = scale_by_head
    """What a layer's attention scores are multiplied by."""
    rotates: Callable[[Fields, int], bool] = always
    """Whether a layer turns q and k."""
    local_rope: bool = False
    """Whether layers with a window have a RoPE of their own, the second one."""
    softcap: float | None = None
    """Of attention scores, where the file says nothing."""
    interleaved: bool = False
    """Whether GGUF files hold q and k reordered so that RoPE pairs are neighbours."""
    keys: Keys = dataclasses.field(default_factory=dict)
    """Keys of config.json that differ from Llama's."""
    taken_for_granted: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """What a config.json means that does not say it."""
    gguf: TensorNames = names.GGUF
    folder: tuple[TensorNames, ...] = (names.LLAMA,)
    """Namings of Hugging Face folders; the one whose embedding is there counts."""


def layers_of(family: Family, fields: Fields, sizes: Sizes) -> tuple[LayerCard, ...]:
    softcap = fields.optional_positive("attn_softcap", family.softcap)
    windows = family.windows(fields, sizes)
    maskings = [
        Masking(family.scale(fields, sizes, layer), window, softcap)
        for layer, window in enumerate(windows)
    ]
    ropes = [
        int(family.local_rope and window is not None) if family.rotates(fields, layer) else None
        for layer, window in enumerate(windows)
    ]
    blocks = [family.feed_forward(fields, layer) for layer in range(sizes.layers)]
    return layer_cards(maskings, ropes, blocks)


def check(card: ModelCard, fields: Fields) -> None:
    """Raises ModelFileError naming the field that does not go with the others."""
    if card.heads % card.kv_heads:
        raise fields.bad("kv_heads", f"a divisor of {card.heads} heads")
    for rope in card.ropes:
        if rope.rotary_dim % 2 or not 2 < rope.rotary_dim <= card.head_dim:
            raise fields.bad(
                "rotary_dim", f"even, above 2 and at most the head's width, {card.head_dim}"
            )
        if rope.theta <= 1:
            raise fields.bad("rope_theta", "above 1")
        with np.errstate(all="ignore"):
            speeds = rope.scaling.frequencies(rope.theta, rope.rotary_dim, card.max_positions)
        if not (np.isfinite(speeds).all() and 0 < rope.scaling.magnitude < _LARGEST_MAGNITUDE):
            raise ModelFileError("the numbers of the RoPE scaling are out of all proportion")
    for layer in card.layer_cards:
        block = layer.feed_forward
        if isinstance(block, Experts) and block.count > _MOST_EXPERTS:
            raise fields.bad("experts", f"at most {_MOST_EXPERTS}")
        if isinstance(block, Experts) and block.routing.top_k > block.count:
            raise fields.bad("experts_used", f"at most the number of experts, {block.count}")
