"""A model's shape, and which part of it each device holds.

Weights in bytes by how devices share them; K and V by layer. Pure arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from treadle.config.kv_layout import AttentionShape, KVFormat, layer_bytes
from treadle.config.kv_pools import LayerKind
from treadle.errors import StartError


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: what it stores for a token, and bytes of weights by how devices share them."""

    attention: AttentionShape
    split_bytes: int = 0
    kv_bytes: int = 0
    """Of the projections to K and V: a part for each KV head."""
    copied_bytes: int = 0
    expert_bytes: int = 0
    num_experts: int = 0


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A model as far as its memory goes."""

    name: str
    max_positions: int
    layers: tuple[LayerShape, ...]
    embed_bytes: int
    head_bytes: int
    """0 where the embedding is the head."""
    rest_bytes: int = 0

    @property
    def latent(self) -> bool:
        return any(layer.attention.latent for layer in self.layers)

    @property
    def weights_bytes(self) -> int:
        layers = sum(
            layer.split_bytes + layer.kv_bytes + layer.copied_bytes + layer.expert_bytes
            for layer in self.layers
        )
        return layers + self.embed_bytes + self.head_bytes + self.rest_bytes


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How devices share the model."""

    tensor: int = 1
    pipeline: int = 1
    experts: int = 1
    """Groups of devices among which experts are dealt out; within one, each expert is split."""

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What each device of one pipeline stage holds."""

    layers: int
    weights_bytes: int
    kinds: tuple[LayerKind, ...]

    @property
    def token_bytes(self) -> int:
        """K and V of one token."""
        return sum(kind.token_bytes for kind in self.kinds)


def layers_of_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers by stage. Those too many for even shares go to stages before the last, which has the
    head to compute."""
    if stages > layers:
        raise StartError(f"pipeline parallelism is {stages}; the model has {layers} layers")
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[-2 - extra] += 1
    return tuple(counts)


def device_layer_bytes(layer: LayerShape, topology: Topology) -> int:
    """Weights of a layer on one device."""
    tensor = topology.tensor
    size = _share(layer.split_bytes, tensor) + layer.copied_bytes
    if layer.kv_bytes:
        size += _share(
            layer.kv_bytes * layer.attention.heads_per_device(tensor), layer.attention.kv_heads
        )
    if layer.num_experts:
        own = _share(layer.num_experts, topology.experts)
        each = tensor // topology.experts
        size += _share(layer.expert_bytes * own, layer.num_experts * each)
    return size


def stages_of(
    model: ModelShape, topology: Topology, kv_format: KVFormat, weights_bytes: int | None = None
) -> tuple[Stage, ...]:
    """What each stage's devices hold; with `weights_bytes`, an even part of that in place of what
    the shape says. Raises StartError when devices cannot share the model so."""
    _check(model, topology)
    counts = layers_of_stages(len(model.layers), topology.pipeline)
    stages, first = [], 0
    for index, count in enumerate(counts):
        layers = model.layers[first : first + count]
        first += count
        weights = sum(device_layer_bytes(layer, topology) for layer in layers)
        weights += _ends(model, topology, first=index == 0, last=index == len(counts) - 1)
        if weights_bytes is not None:
            weights = _share(weights_bytes, topology.devices)
        kinds = _kinds(layers, kv_format, topology.tensor)
        stages.append(Stage(layers=count, weights_bytes=weights, kinds=kinds))
    return tuple(stages)


def _check(model: ModelShape, topology: Topology) -> None:
    experts = max(layer.num_experts for layer in model.layers)
    if topology.experts > 1 and not experts:
        raise StartError(f"expert parallelism is {topology.experts}, but the model has no experts")
    if topology.tensor % topology.experts or topology.experts > max(experts, 1):
        raise StartError(
            f"expert parallelism is {topology.experts}; it must divide tensor parallelism,"
            f" {topology.tensor}, and be at most the number of experts, {experts}"
        )


def _ends(model: ModelShape, topology: Topology, *, first: bool, last: bool) -> int:
    """What the first and the last stage hold beside layers."""
    size = model.rest_bytes
    if first or (last and not model.head_bytes):
        size += _share(model.embed_bytes, topology.tensor)
    if last:
        size += _share(model.head_bytes, topology.tensor)
    return size


def _kinds(layers: Sequence[LayerShape], kv_format: KVFormat, tensor: int) -> tuple[LayerKind, ...]:
    """Those that see all first."""
    found = Counter(
        (layer.attention.window, layer_bytes(layer.attention, kv_format, tensor))
        for layer in layers
    )
    ordered = sorted(found.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0))
    return tuple(LayerKind(count, window, size) for (window, size), count in ordered)


def _share(amount: int, among: int) -> int:
    """The largest part, in whole bytes."""
    return -(-amount // among)
