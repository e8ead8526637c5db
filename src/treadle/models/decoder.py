"""The forward pass of a decoder, recorded once from its card.

One module for all architectures: where they differ, the card says how. Nothing here depends on a
backend, a file or a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernels.ops import Buffer, Form, Matrix, QKNorm, Recorder, RopeTable, Rows, Vector
from treadle.models.card import Experts, LayerCard, ModelCard, Wiring
from treadle.models.tensors import Weights


def record(
    card: ModelCard,
    weights: Weights,
    recorder: Recorder,
    ropes: Sequence[RopeTable],
    *,
    write_and_attend: bool = False,
) -> Buffer:
    """Take the forward pass down for the positions that the card's ropes reach; returns the logits.
    `write_and_attend` says that this is one op of a backend's."""
    layers = _Layers(card, weights, recorder, ropes)
    x = layers.x
    recorder.label("embed")
    recorder.embed(weights.matrices["embed"], x, scale=card.wiring.embed_scale)
    if card.wiring.learned_positions:
        recorder.label("positions")
        recorder.embed_positions(weights.matrices["positions"], x)
    for index, layer in enumerate(card.layer_cards):
        layers.attention(index, layer, in_one_op=write_and_attend)
        layers.feed_forward(index, layer)

    head = weights.matrices["embed" if card.tied_head else "head"]
    last = recorder.buffer(Rows.LOGITS, card.hidden)
    final = recorder.operand(Rows.LOGITS, head)
    logits = recorder.buffer(Rows.LOGITS, card.vocab_size)
    recorder.label("select")
    recorder.select(x, last)
    layers.norm(last, "norm", final)
    recorder.label("head")
    recorder.head(final, head, logits, cap=card.wiring.logit_softcap)
    return logits


class _Layers:
    """Records layers, each of which adds to x what attention and feed-forward make of it."""

    def __init__(
        self, card: ModelCard, weights: Weights, recorder: Recorder, ropes: Sequence[RopeTable]
    ) -> None:
        self.x = recorder.buffer(Rows.TOKENS, card.hidden)
        self._card = card
        self._wiring: Wiring = card.wiring
        self._matrices = weights.matrices
        self._vectors = weights.vectors
        self._recorder = recorder
        self._ropes = ropes
        self._scratch = _Scratch(recorder)

    def attention(self, index: int, layer: LayerCard, *, in_one_op: bool) -> None:
        card, recorder = self._card, self._recorder
        qkv = self._scratch.floats("qkv", (card.heads + 2 * card.kv_heads) * card.head_dim)
        normed = self._before(f"{index}.attn_norm", self._matrices[f"{index}.qkv"])
        self._product(f"{index}.qkv", normed, qkv)
        rope = None if layer.rope is None else self._ropes[layer.rope]
        norm, masking = self._qk_norm(index), layer.masking
        attended = self._scratch.operand(self._matrices[f"{index}.attn_out"])
        if in_one_op:
            recorder.label(f"{index}.attention")
            recorder.write_and_attend(
                qkv, card.heads, rope, layer.kv, attended, masking=masking, norm=norm
            )
        else:
            recorder.label(f"{index}.rope")
            recorder.rope_store(qkv, card.heads, rope, layer.kv, norm=norm)
            recorder.label(f"{index}.attention")
            recorder.attention(qkv, card.heads, layer.kv, attended, masking=masking)
        self._add(f"{index}.attn_out", attended, f"{index}.post_attn_norm")

    def feed_forward(self, index: int, layer: LayerCard) -> None:
        block = layer.feed_forward
        if isinstance(block, Experts):
            self._experts(index, block)
        elif self._wiring.gated:
            gate_up = self._scratch.floats("gate_up", 2 * block.width)
            normed = self._before(f"{index}.ffn_norm", self._matrices[f"{index}.gate_up"])
            self._product(f"{index}.gate_up", normed, gate_up)
            activated = self._scratch.operand(self._matrices[f"{index}.down"])
            self._recorder.label(f"{index}.activation")
            self._recorder.gated(gate_up, self._wiring.activation, activated)
            self._add(f"{index}.down", activated, f"{index}.post_ffn_norm")
        else:
            up = self._scratch.floats("up", block.width)
            normed = self._before(f"{index}.ffn_norm", self._matrices[f"{index}.up"])
            self._product(f"{index}.up", normed, up)
            activated = self._scratch.operand(self._matrices[f"{index}.down"])
            self._recorder.label(f"{index}.activation")
            self._recorder.activate(up, self._wiring.activation, activated)
            self._add(f"{index}.down", activated, f"{index}.post_ffn_norm")

    def norm(self, x: Buffer, name: str, out: Buffer, *, accumulate: bool = False) -> None:
        weight, eps = self._vectors[name], self._wiring.norm_eps
        self._recorder.label(name)
        if self._wiring.norm == "rms":
            self._recorder.rms_norm(x, weight, eps, out, accumulate=accumulate)
        else:
            assert not accumulate, "no architecture norms results with LayerNorm"
            self._recorder.layer_norm(x, weight, self._vectors[f"{name}_bias"], eps, out)

    def _experts(self, index: int, block: Experts) -> None:
        assert self._wiring.pre_norms, "experts and their router read one norm"
        assert not self._wiring.post_norms, "experts add to x themselves"
        matrices, recorder = self._matrices, self._recorder
        gate_up = [matrices[f"{index}.experts_gate_up.{e}"] for e in range(block.count)]
        down = [matrices[f"{index}.experts_down.{e}"] for e in range(block.count)]
        router = matrices[f"{index}.router"]
        choice = self._scratch.floats("router", block.count)
        # The router may be of another weight type, so it may read another form of the same norm.
        normed = self._before(f"{index}.ffn_norm", router)
        recorder.label(f"{index}.router")
        recorder.linear(normed, router, choice)
        normed = self._scratch.operand(gate_up[0])
        if router.forms != gate_up[0].forms:
            self.norm(self.x, f"{index}.ffn_norm", normed)
        activation = self._wiring.activation
        recorder.label(f"{index}.experts")
        recorder.experts(
            normed, choice, gate_up, down, self.x, routing=block.routing, activation=activation
        )

    def _before(self, norm: str, matrix: Matrix) -> Buffer:
        """What a product with `matrix` reads of x."""
        if not self._wiring.pre_norms and matrix.forms == self.x.forms:
            return self.x
        operand = self._scratch.operand(matrix)
        if self._wiring.pre_norms:
            self.norm(self.x, norm, operand)
        else:
            self._recorder.label(norm)
            self._recorder.copy(self.x, operand)
        return operand

    def _product(self, name: str, x: Buffer, out: Buffer, *, accumulate: bool = False) -> None:
        bias = self._vectors.get(f"{name}_bias")
        self._recorder.label(name)
        self._recorder.linear(x, self._matrices[name], out, accumulate=accumulate, bias=bias)

    def _add(self, name: str, operand: Buffer, post_norm: str) -> None:
        """Add a product to x, normed before where results are."""
        if not self._wiring.post_norms:
            self._product(name, operand, self.x, accumulate=True)
            return
        result = self._scratch.floats("result", self._card.hidden)
        self._product(name, operand, result)
        self.norm(result, post_norm, self.x, accumulate=True)

    def _qk_norm(self, index: int) -> QKNorm | None:
        if self._wiring.qk_norm is None:
            return None
        q: Vector = self._vectors[f"{index}.q_norm"]
        return QKNorm(q, self._vectors[f"{index}.k_norm"], self._wiring.norm_eps)


class _Scratch:
    """Buffers that are dead once the next op has read them, so that layers share them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._operands: dict[tuple[int, frozenset[Form]], Buffer] = {}
        self._floats: dict[tuple[str, int], Buffer] = {}

    def operand(self, matrix: Matrix) -> Buffer:
        key = matrix.k, matrix.forms
        if key not in self._operands:
            self._operands[key] = self._recorder.operand(Rows.TOKENS, matrix)
        return self._operands[key]

    def floats(self, purpose: str, width: int) -> Buffer:
        key = purpose, width
        if key not in self._floats:
            self._floats[key] = self._recorder.buffer(Rows.TOKENS, width)
        return self._floats[key]
