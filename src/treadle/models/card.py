"""What a model is: sizes, one entry for each layer, and the choices in which architectures differ.

A card is data and says everything that loading and recording need; it comes from a file's metadata
(`gguf_card`, `config_card`) and knows no file. A ModelCard that exists is consistent.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from treadle.kernels.ops import (
    Activation,
    KVLayer,
    KVSpec,
    KVType,
    Masking,
    RawTensor,
    Routing,
    WeightType,
)
from treadle.models.rope import Rope


class KVGroup(NamedTuple):
    """Layers that share block tables."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int | None
    """Tokens that these layers look back, themselves included; None where they see all."""


@dataclasses.dataclass(frozen=True)
class Dense:
    """A feed-forward block that every token passes through."""

    width: int


@dataclasses.dataclass(frozen=True)
class Experts:
    """Feed-forward blocks of which each token passes through some."""

    width: int
    count: int
    routing: Routing


@dataclasses.dataclass(frozen=True)
class LayerCard:
    """What may differ from layer to layer."""

    kv: KVLayer
    masking: Masking
    rope: int | None
    """Index into the card's ropes; None where q and k are not rotated."""
    feed_forward: Dense | Experts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wiring:
    """How a layer's operations follow each other, the same in all layers."""

    norm: Literal["rms", "layer"] = "rms"
    """layer: the mean is taken off, and a bias added."""
    norm_eps: float
    pre_norms: bool = True
    """Before attention and feed-forward, whose results are added to what was not normed."""
    post_norms: bool = False
    """On the results of attention and feed-forward, before they are added."""
    qk_norm: Literal["head", "all"] | None = None
    """Of q and k before RoPE: each head by itself, or all heads together."""
    biases: frozenset[str] = frozenset()
    """Names of the layer's matrices that have one."""
    gated: bool = True
    activation: Activation = "silu"
    embed_scale: float = 1.0
    logit_softcap: float | None = None
    learned_positions: bool = False
    """A table of positions is added to the embedding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Sizes and constants of a model, as its file gives them; checked against each other."""

    architecture: str
    name: str
    vocab_size: int
    """Rows of the embedding, which is the width of the logits."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_cards: tuple[LayerCard, ...]
    ropes: tuple[Rope, ...]
    wiring: Wiring
    max_positions: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Every token that ends an answer; the model's own end of text first."""
    tied_head: bool
    """Whether the embedding is also the head."""
    weight_bytes: int
    """In the file."""
    weight_type: WeightType = WeightType.F32
    """The type that most of those bytes have."""
    speculators: str | None = None
    """The method that the checkpoint's `speculators_config` names."""
    notes: tuple[str, ...] = ()
    """What a user should know about how the file was read; each one sentence."""

    @property
    def layers(self) -> int:
        return len(self.layer_cards)

    @property
    def experts(self) -> int:
        """Feed-forward blocks of the layer that has most to choose from; 0 where none chooses."""
        blocks = (layer.feed_forward for layer in self.layer_cards)
        return max(block.count if isinstance(block, Experts) else 0 for block in blocks)

    @property
    def ffn(self) -> int:
        """Width of the widest feed-forward block that a token passes through."""
        return max(_width(layer.feed_forward) for layer in self.layer_cards)

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """In group order: layers that see all first, then by window."""
        return tuple(
            KVGroup(len(list(members)), self.kv_heads, self.head_dim, window)
            for window, members in _groups([layer.masking.window for layer in self.layer_cards])
        )

    def kv_specs(self, *, block_size: int, type: KVType) -> tuple[KVSpec, ...]:  # noqa: A002
        """One for each KV group, in group order."""
        return tuple(
            KVSpec(group.layers, group.kv_heads, group.head_dim, block_size, type)
            for group in self.kv_groups
        )


def layer_cards(
    maskings: Iterable[Masking], ropes: Iterable[int | None], blocks: Iterable[Dense | Experts]
) -> tuple[LayerCard, ...]:
    """One for each layer; layers of one window form a KV group."""
    maskings = tuple(maskings)
    places = {
        layer: KVLayer(group, index)
        for group, (_, members) in enumerate(_groups([m.window for m in maskings]))
        for index, layer in enumerate(members)
    }
    facts = zip(maskings, ropes, blocks, strict=True)
    return tuple(LayerCard(places[layer], *fact) for layer, fact in enumerate(facts))


def heaviest_type(tensors: Mapping[str, RawTensor], ignores: Callable[[str], bool]) -> WeightType:
    """The type that most bytes have; what is ignored may be of any type, known or not."""
    sizes: Counter[WeightType] = Counter()
    for name in tensors:
        if not ignores(name):
            tensor = tensors[name]
            sizes[tensor.type] += tensor.data.nbytes
    return max(sizes, key=sizes.__getitem__)


def _width(block: Dense | Experts) -> int:
    return block.width if isinstance(block, Dense) else block.width * block.routing.top_k


def _groups(windows: list[int | None]) -> list[tuple[int | None, list[int]]]:
    """Each window and its layers."""
    order = sorted(set(windows), key=lambda window: (window is not None, window or 0))
    return [
        (window, [layer for layer, own in enumerate(windows) if own == window]) for window in order
    ]
