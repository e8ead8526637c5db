"""Which tensors a model's file must hold, and which weight each of them becomes.

`tensor_plan` goes by the card and by a table of names, so it is one for all architectures and both
kinds of files. Never sees a tensor's bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping, Sequence

from treadle.kernels.ops import Matrix, Vector
from treadle.models.card import Experts, ModelCard
from treadle.models.transforms import SAME, Shape, Slice, Transform


@dataclasses.dataclass(frozen=True)
class TensorNames:
    """What one kind of file calls the tensors of an architecture."""

    roles: Mapping[str, str]
    """A tensor's role → its name, in which {layer} and {expert} stand for numbers. Where several
    roles could give the same weight (`qkv`; or `q`, `k` and `v`), what the file holds decides."""
    transforms: Mapping[str, Transform] = dataclasses.field(default_factory=dict)
    """By role; as they are where it is not named."""
    ignored: tuple[str, ...] = ()
    """Patterns of names that may be there, but hold nothing that is not known otherwise."""

    def ignores(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@dataclasses.dataclass(frozen=True)
class Expected:
    """A tensor that the file must hold, and what is to be done to it."""

    name: str
    shape: Shape
    """In the file."""
    transform: Transform = SAME


@dataclasses.dataclass(frozen=True)
class TensorPlan:
    """All weights of a model, by the names under which its forward pass knows them. Several tensors
    are stacked into one weight, in their order."""

    matrices: Mapping[str, tuple[Expected, ...]]
    vectors: Mapping[str, tuple[Expected, ...]]

    def expected(self) -> list[Expected]:
        return [
            part for parts in (*self.matrices.values(), *self.vectors.values()) for part in parts
        ]


@dataclasses.dataclass(frozen=True)
class Weights:
    """A TensorPlan carried out: the same names, in a backend's memory."""

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, Vector]


_Part = tuple[str, int]
"""A tensor's role, and how many rows of the weight it gives."""


class _Planner:
    """Collects the weights of a plan, under the names of one kind of file."""

    def __init__(self, card: ModelCard, names: TensorNames, present: Container[str]) -> None:
        self.card = card
        self.matrices: dict[str, tuple[Expected, ...]] = {}
        self.vectors: dict[str, tuple[Expected, ...]] = {}
        self._names = names
        self._present = present

    def vector(self, weight: str, role: str, width: int, layer: int | None = None) -> None:
        """A norm's scale, and its bias where norms have one."""
        self.vectors[weight] = (self._expected(role, (width,), layer),)
        if self.card.wiring.norm == "layer":
            self.vectors[f"{weight}_bias"] = (self._bias(role, width, layer),)

    def matrix(self, weight: str, role: str, shape: Shape, layer: int | None = None) -> None:
        self.matrices[weight] = (self._expected(role, shape, layer),)

    def product(self, weight: str, options: Sequence[Sequence[_Part]], k: int, layer: int) -> None:
        """One of a layer's matrices [n, k]: the first of the options that the file holds."""
        parts = self._chosen(options, layer)
        self.matrices[f"{layer}.{weight}"] = tuple(
            self._expected(role, (n, k), layer) for role, n in parts
        )
        if weight in self.card.wiring.biases:
            self.vectors[f"{layer}.{weight}_bias"] = tuple(
                self._bias(role, n, layer) for role, n in parts
            )

    def experts(self, weight: str, options: Sequence[Sequence[_Part]], k: int, layer: int) -> None:
        """A matrix [n, k] for each expert, with a tensor for each or in one tensor for all."""
        block = self.card.layer_cards[layer].feed_forward
        assert isinstance(block, Experts)
        parts = self._chosen(options, layer)
        for expert in range(block.count):
            self.matrices[f"{layer}.{weight}.{expert}"] = tuple(
                self._expert(role, (n, k), layer, Slice(expert, block.count)) for role, n in parts
            )

    def _chosen(self, options: Sequence[Sequence[_Part]], layer: int) -> Sequence[_Part]:
        """Where the file holds none, the last that has names, so that its tensors are missed."""
        named = [o for o in options if all(role in self._names.roles for role, _ in o)]
        return next((o for o in named if self._name(o[0][0], layer) in self._present), named[-1])

    def _expert(self, role: str, shape: Shape, layer: int, place: Slice) -> Expected:
        if "{expert}" in self._names.roles[role]:
            return Expected(self._name(role, layer, place.index), shape)
        return Expected(self._name(role, layer), place.stored(shape), place)

    def _expected(self, role: str, shape: Shape, layer: int | None) -> Expected:
        transform = self._names.transforms.get(role, SAME)
        return Expected(self._name(role, layer), transform.stored(shape), transform)

    def _bias(self, role: str, width: int, layer: int | None) -> Expected:
        name = self._name(role, layer).removesuffix("weight") + "bias"
        return Expected(name, (width,))

    def _name(self, role: str, layer: int | None, expert: int = 0) -> str:
        return self._names.roles[role].format(layer=layer, expert=expert)


def tensor_plan(card: ModelCard, names: TensorNames, present: Container[str]) -> TensorPlan:
    """`present` are the names of the file's tensors."""
    planner = _Planner(card, names, present)
    planner.matrix("embed", "embed", (card.vocab_size, card.hidden))
    if card.wiring.learned_positions:
        planner.matrix("positions", "positions", (card.max_positions, card.hidden))
    planner.vector("norm", "norm", card.hidden)
    if not card.tied_head:
        planner.matrix("head", "head", (card.vocab_size, card.hidden))
    for layer, facts in enumerate(card.layer_cards):
        _plan_norms(planner, layer)
        _plan_attention(planner, layer)
        if isinstance(facts.feed_forward, Experts):
            _plan_experts(planner, layer, facts.feed_forward)
        else:
            _plan_dense(planner, layer, facts.feed_forward.width)
    return TensorPlan(planner.matrices, planner.vectors)


def _plan_norms(planner: _Planner, layer: int) -> None:
    card, wiring = planner.card, planner.card.wiring
    names = ["attn_norm", "ffn_norm"] if wiring.pre_norms else []
    if wiring.post_norms:
        names += ["post_attn_norm", "post_ffn_norm"]
    for name in names:
        planner.vector(f"{layer}.{name}", name, card.hidden, layer)
    if wiring.qk_norm is not None:
        q_heads, k_heads = (card.heads, card.kv_heads) if wiring.qk_norm == "all" else (1, 1)
        planner.vector(f"{layer}.q_norm", "q_norm", q_heads * card.head_dim, layer)
        planner.vector(f"{layer}.k_norm", "k_norm", k_heads * card.head_dim, layer)


def _plan_attention(planner: _Planner, layer: int) -> None:
    card = planner.card
    width, kv_width = card.heads * card.head_dim, card.kv_heads * card.head_dim
    fused = [("qkv", width + 2 * kv_width)]
    split = [("q", width), ("k", kv_width), ("v", kv_width)]
    planner.product("qkv", [fused, split], card.hidden, layer)
    planner.product("attn_out", [[("attn_out", card.hidden)]], width, layer)


def _plan_dense(planner: _Planner, layer: int, width: int) -> None:
    hidden = planner.card.hidden
    if planner.card.wiring.gated:
        options = [[("gate_up", 2 * width)], [("gate", width), ("up", width)]]
        planner.product("gate_up", options, hidden, layer)
    else:
        planner.product("up", [[("up", width)]], hidden, layer)
    planner.product("down", [[("down", hidden)]], width, layer)


def _plan_experts(planner: _Planner, layer: int, experts: Experts) -> None:
    hidden, width = planner.card.hidden, experts.width
    fused = [("experts_gate_up", 2 * width)]
    split = [("expert_gate", width), ("expert_up", width)]
    old = [("old_expert_gate", width), ("old_expert_up", width)]
    planner.matrix(f"{layer}.router", "router", (experts.count, hidden), layer)
    planner.experts("experts_gate_up", [fused, old, split], hidden, layer)
    downs = ("experts_down", "old_expert_down", "expert_down")
    planner.experts("experts_down", [[(role, hidden)] for role in downs], width, layer)
