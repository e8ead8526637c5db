"""What a model file says about its model, and what it must hold.

`card_from_gguf` reads and checks the metadata; a ModelCard that exists is consistent. The tensor
types and bytes are the loader's and the backend's concern.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from treadle.errors import ModelFileError
from treadle.kernels.ops import FloatArray, KVSpec, KVType, Matrix, RawTensor, Vector

_INTERLEAVED_ROPE = frozenset({"llama"})
"""Architectures whose q and k rows stand in GGUF files so that RoPE pairs are neighbours."""

_LARGEST_COUNT = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Sizes and constants of a model, as its file gives them; checked against each other."""

    architecture: str
    name: str
    vocab_size: int
    """Rows of the embedding, which is the width of the logits."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    rope_theta: float
    rope_scale: float
    """Positions are divided by this (linear scaling); 1 where there is none."""
    rope_factors: bool
    """Whether the file holds a divisor for each rotary frequency."""
    rope_interleaved: bool
    rotary_dim: int
    max_positions: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    tied_head: bool
    """Whether the embedding is also the head."""
    weight_bytes: int
    """In the file."""

    def kv_specs(self, *, block_size: int, type: KVType) -> tuple[KVSpec, ...]:  # noqa: A002
        """One for each KV group, in group order."""
        return (KVSpec(self.layers, self.kv_heads, self.head_dim, block_size, type),)


@dataclasses.dataclass(frozen=True)
class Expected:
    """A tensor that the file must hold."""

    name: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TensorPlan:
    """All tensors of an architecture, by the name that its forward pass knows them under."""

    matrices: Mapping[str, tuple[Expected, ...]]
    """Several tensors are stacked into one matrix, in this order."""
    vectors: Mapping[str, Expected]
    constants: Mapping[str, Expected]
    """Numbers that recording needs, but no op reads."""

    def expected(self) -> list[Expected]:
        stacked = [part for parts in self.matrices.values() for part in parts]
        return [*stacked, *self.vectors.values(), *self.constants.values()]


@dataclasses.dataclass(frozen=True)
class Weights:
    """A TensorPlan carried out: the same names, in a backend's memory."""

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, Vector]
    constants: Mapping[str, FloatArray]


class _Fields:
    """Typed access to one architecture's metadata; every error names its key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.architecture = self.text("general.architecture")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._metadata.get(key, default)
        if isinstance(value, str):
            return value
        raise _bad(key, value, "a string")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1, under the architecture's name."""
        key = f"{self.architecture}.{name}"
        value = self._metadata.get(key, default)
        if type(value) is int and 1 <= value <= _LARGEST_COUNT:
            return value
        raise _bad(key, value, "a whole number of at least 1")

    def positive(self, name: str, default: float | None = None) -> float:
        key = f"{self.architecture}.{name}"
        value = self._metadata.get(key, default)
        if isinstance(value, float | int) and math.isfinite(value) and value > 0:
            return float(value)
        raise _bad(key, value, "a number above 0")

    def token(self, name: str, vocab_size: int) -> int | None:
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key)
        if value is None or (type(value) is int and 0 <= value < vocab_size):
            return value
        raise _bad(key, value, f"a token id from 0 to {vocab_size - 1}")

    def refuse(self, name: str, what: str) -> None:
        """Raise if a key is set that would change the arithmetic in a way not known here."""
        if self._metadata.get(f"{self.architecture}.{name}"):
            raise ModelFileError(
                f"metadata key '{self.architecture}.{name}' is set; {what} is not supported"
            )


def card_from_gguf(metadata: Mapping[str, object], tensors: Mapping[str, RawTensor]) -> ModelCard:
    """Raises ModelFileError naming the metadata key at fault."""
    fields = _Fields(metadata)
    fields.refuse("expert_count", "a mixture of experts")
    fields.refuse("attention.sliding_window", "a sliding window")
    hidden, heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden // heads)
    vocab_size = _vocab_size(tensors)
    card = ModelCard(
        architecture=fields.architecture,
        name=fields.text("general.name", ""),
        vocab_size=vocab_size,
        hidden=hidden,
        layers=fields.count("block_count"),
        heads=heads,
        kv_heads=fields.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=fields.count("feed_forward_length"),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.positive("rope.freq_base", 10000.0),
        rope_scale=_rope_scale(fields),
        rope_factors="rope_freqs.weight" in tensors,
        rope_interleaved=fields.architecture in _INTERLEAVED_ROPE,
        rotary_dim=fields.count("rope.dimension_count", head_dim),
        max_positions=fields.count("context_length"),
        bos_id=fields.token("bos_token_id", vocab_size),
        eos_ids=_eos_ids(fields, vocab_size),
        tied_head="output.weight" not in tensors,
        weight_bytes=sum(tensor.data.nbytes for tensor in tensors.values()),
    )
    _check(card, value_dim=fields.count("attention.value_length", head_dim), tensors=tensors)
    return card


def _vocab_size(tensors: Mapping[str, RawTensor]) -> int:
    if "token_embd.weight" not in tensors:
        raise ModelFileError("tensor 'token_embd.weight' is missing")
    return tensors["token_embd.weight"].shape[0]


def _eos_ids(fields: _Fields, vocab_size: int) -> tuple[int, ...]:
    """The ends of a text, of a turn and of a message all end an answer."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = (fields.token(name, vocab_size) for name in names)
    return tuple(sorted({token for token in ids if token is not None}))


def _rope_scale(fields: _Fields) -> float:
    kind = fields.text(f"{fields.architecture}.rope.scaling.type", "none")
    if kind == "linear":
        return fields.positive("rope.scaling.factor")
    if kind == "none":
        return fields.positive("rope.scale_linear", 1.0)
    raise _bad(f"{fields.architecture}.rope.scaling.type", kind, "'none' or 'linear'")


def _check(card: ModelCard, *, value_dim: int, tensors: Mapping[str, RawTensor]) -> None:
    prefix = card.architecture
    if card.layers > len(tensors):
        raise _bad(f"{prefix}.block_count", card.layers, "at most the number of tensors")
    if card.heads % card.kv_heads:
        raise _bad(
            f"{prefix}.attention.head_count_kv", card.kv_heads, f"a divisor of {card.heads} heads"
        )
    if value_dim != card.head_dim:
        raise _bad(
            f"{prefix}.attention.value_length", value_dim, f"equal to key_length, {card.head_dim}"
        )
    if card.rotary_dim % 2 or card.rotary_dim > card.head_dim:
        raise _bad(
            f"{prefix}.rope.dimension_count",
            card.rotary_dim,
            f"even and at most the head's width, {card.head_dim}",
        )


def _bad(key: str, value: object, must_be: str) -> ModelFileError:
    if value is None:
        return ModelFileError(f"metadata key '{key}' is missing")
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return ModelFileError(f"metadata key '{key}' is {shown}; it must be {must_be}")
