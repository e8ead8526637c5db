"""The Llama architecture: which tensors it has, and its forward pass, recorded once.

Also the RoPE table that goes with it. Nothing here depends on a backend or a batch.
"""

from __future__ import annotations

import math

import numpy as np

from treadle.kernels.ops import (
    Buffer,
    FloatArray,
    Form,
    KVLayer,
    Masking,
    Matrix,
    Recorder,
    RopeTable,
    Rows,
)
from treadle.models.card import Expected, ModelCard, TensorPlan, Weights


def tensor_plan(card: ModelCard) -> TensorPlan:
    """Names and shapes as GGUF files have them."""
    width = card.heads * card.head_dim
    kv_width = card.kv_heads * card.head_dim
    embed = Expected("token_embd.weight", (card.vocab_size, card.hidden))
    matrices: dict[str, tuple[Expected, ...]] = {"embed": (embed,)}
    vectors = {"norm": Expected("output_norm.weight", (card.hidden,))}
    for layer in range(card.layers):

        def tensor(name: str, *shape: int, layer: int = layer) -> Expected:
            return Expected(f"blk.{layer}.{name}.weight", shape)

        matrices[f"{layer}.qkv"] = (
            tensor("attn_q", width, card.hidden),
            tensor("attn_k", kv_width, card.hidden),
            tensor("attn_v", kv_width, card.hidden),
        )
        matrices[f"{layer}.attn_out"] = (tensor("attn_output", card.hidden, width),)
        matrices[f"{layer}.gate_up"] = (
            tensor("ffn_gate", card.ffn, card.hidden),
            tensor("ffn_up", card.ffn, card.hidden),
        )
        matrices[f"{layer}.down"] = (tensor("ffn_down", card.hidden, card.ffn),)
        vectors[f"{layer}.attn_norm"] = tensor("attn_norm", card.hidden)
        vectors[f"{layer}.ffn_norm"] = tensor("ffn_norm", card.hidden)
    if not card.tied_head:
        matrices["head"] = (Expected("output.weight", (card.vocab_size, card.hidden)),)
    constants = {}
    if card.rope_factors:
        constants["rope_factors"] = Expected("rope_freqs.weight", (card.rotary_dim // 2,))
    return TensorPlan(matrices, vectors, constants)


def record(card: ModelCard, weights: Weights, recorder: Recorder, *, positions: int) -> Buffer:
    """Take the forward pass down for positions 0 to positions - 1; returns the logits."""
    rope = rope_table(card, positions, weights.constants.get("rope_factors"))
    operands = _Operands(recorder)
    x = recorder.buffer(Rows.TOKENS, card.hidden)
    qkv = recorder.buffer(Rows.TOKENS, (card.heads + 2 * card.kv_heads) * card.head_dim)
    gate_up = recorder.buffer(Rows.TOKENS, 2 * card.ffn)
    matrices, vectors = weights.matrices, weights.vectors

    masking = Masking(scale=1 / math.sqrt(card.head_dim))
    recorder.embed(matrices["embed"], x)
    for layer in range(card.layers):
        kv = KVLayer(0, layer)
        normed = operands.before(matrices[f"{layer}.qkv"])
        recorder.rms_norm(x, vectors[f"{layer}.attn_norm"], card.norm_eps, normed)
        recorder.linear(normed, matrices[f"{layer}.qkv"], qkv)
        recorder.rope_store(qkv, card.heads, rope, kv)
        attended = operands.before(matrices[f"{layer}.attn_out"])
        recorder.attention(qkv, card.heads, kv, attended, masking=masking)
        recorder.linear(attended, matrices[f"{layer}.attn_out"], x, accumulate=True)

        normed = operands.before(matrices[f"{layer}.gate_up"])
        recorder.rms_norm(x, vectors[f"{layer}.ffn_norm"], card.norm_eps, normed)
        recorder.linear(normed, matrices[f"{layer}.gate_up"], gate_up)
        activated = operands.before(matrices[f"{layer}.down"])
        recorder.gated(gate_up, "silu", activated)
        recorder.linear(activated, matrices[f"{layer}.down"], x, accumulate=True)

    head = matrices["embed" if card.tied_head else "head"]
    last = recorder.buffer(Rows.LOGITS, card.hidden)
    final = recorder.operand(Rows.LOGITS, head)
    logits = recorder.buffer(Rows.LOGITS, card.vocab_size)
    recorder.select(x, last)
    recorder.rms_norm(last, vectors["norm"], card.norm_eps, final)
    recorder.linear(final, head, logits)
    return logits


def rope_table(card: ModelCard, positions: int, factors: FloatArray | None) -> RopeTable:
    """Frequencies and angles are rounded to float32, as the models were trained with.

    Their cosines are rounded from float64, so that every machine gets the same table.
    """
    exponents = np.arange(0, card.rotary_dim, 2, dtype=np.float32) / np.float32(card.rotary_dim)
    frequencies = (1 / card.rope_theta ** exponents.astype(np.float64)).astype(np.float32)
    frequencies /= np.float32(card.rope_scale)
    if factors is not None:
        frequencies /= factors
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    wide = angles.astype(np.float64)
    return RopeTable(
        np.cos(wide).astype(np.float32), np.sin(wide).astype(np.float32), card.rope_interleaved
    )


class _Operands:
    """Inputs of products. Each is dead once its product is done, so layers share them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._buffers: dict[tuple[int, frozenset[Form]], Buffer] = {}

    def before(self, matrix: Matrix) -> Buffer:
        key = matrix.k, matrix.forms
        if key not in self._buffers:
            self._buffers[key] = self._recorder.operand(Rows.TOKENS, matrix)
        return self._buffers[key]
