"""Takes a forward pass down as a list of callables, and runs it.

Shapes are checked while recording, so running checks nothing. Each op reads the step's sizes from
its argument and its indices from the StepInputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from treadle.kernels.ops import (
    Activation,
    Buffer,
    Form,
    KVLayer,
    Masking,
    Matrix,
    QKNorm,
    Recorder,
    RopeTable,
    Routing,
    Rows,
    StepInputs,
    Vector,
)
from treadle.kernels.torch.attention import Rope, attend, first_visible
from treadle.kernels.torch.buffers import StepSize, TorchBuffer, allocate
from treadle.kernels.torch.contexts import reader
from treadle.kernels.torch.experts import Experts
from treadle.kernels.torch.linear import multiply
from treadle.kernels.torch.pool import TorchKVPool
from treadle.kernels.torch.program import Op, TorchProgram
from treadle.kernels.torch.rows import (
    ACTIVATIONS,
    layer_norm,
    likeliest,
    norm_heads,
    rms_norm,
    softcap,
)
from treadle.kernels.torch.weights import TorchMatrix, TorchVector


class _Indices:
    """Tensors that share the memory of the StepInputs."""

    def __init__(self, inputs: StepInputs) -> None:
        self.token_ids = torch.from_numpy(inputs.token_ids)
        self.positions = torch.from_numpy(inputs.positions)
        self.slots = [torch.from_numpy(slots) for slots in inputs.slots]
        self.row_starts = torch.from_numpy(inputs.row_starts)
        self.logit_tokens = torch.from_numpy(inputs.logit_tokens)


class TorchRecorder(Recorder):
    """Ops run in the order they were recorded."""

    def __init__(self, inputs: StepInputs, pools: Sequence[TorchKVPool], threads: int) -> None:
        self._limits = inputs.limits
        self._in = _Indices(inputs)
        self._pools = pools
        self._readers = [reader(inputs, group, pool) for group, pool in enumerate(pools)]
        self._threads = threads
        self._likeliest = torch.zeros(inputs.limits.logits, dtype=torch.int32)
        self._ops: list[Op] = []
        self._finished = False
        self._memory_bytes = 0

    def buffer(self, rows: Rows, width: int) -> TorchBuffer:
        return self._allocate(rows, width, frozenset({Form.F32}))

    def operand(self, rows: Rows, matrix: Matrix) -> TorchBuffer:
        return self._allocate(rows, matrix.k, matrix.forms)

    def label(self, name: str) -> None:
        """Nothing here makes profiles."""

    def embed(self, table: Matrix, out: Buffer, *, scale: float = 1.0) -> None:
        assert isinstance(table, TorchMatrix)
        assert out.width == table.k
        target = _writable(out)
        (part,) = table.parts

        def op(size: StepSize) -> None:
            target.write(part.rows(self._in.token_ids[: size.tokens]) * scale)

        self._add(op)

    def embed_positions(self, table: Matrix, out: Buffer) -> None:
        assert isinstance(table, TorchMatrix)
        assert out.rows is Rows.TOKENS
        assert out.width == table.k
        target = _readable(out)
        (part,) = table.parts

        def op(size: StepSize) -> None:
            rows = part.rows(self._in.positions[: size.tokens])
            target.write(target.read(size.tokens) + rows)

        self._add(op)

    def rms_norm(
        self, x: Buffer, weight: Vector, eps: float, out: Buffer, *, accumulate: bool = False
    ) -> None:
        assert isinstance(weight, TorchVector)
        assert x.rows is out.rows
        assert x.width == out.width == weight.n
        assert not accumulate or out.forms == {Form.F32}
        source, target = _readable(x), _writable(out)

        def op(size: StepSize) -> None:
            count = size.of(x.rows)
            normed = rms_norm(source.read(count), weight.data, eps)
            target.write(normed + target.read(count) if accumulate else normed)

        self._add(op)

    def layer_norm(
        self, x: Buffer, weight: Vector, bias: Vector | None, eps: float, out: Buffer
    ) -> None:
        assert isinstance(weight, TorchVector)
        assert x.rows is out.rows
        assert x.width == out.width == weight.n
        assert bias is None or (isinstance(bias, TorchVector) and bias.n == weight.n)
        source, target = _readable(x), _writable(out)
        shift = None if bias is None else bias.data

        def op(size: StepSize) -> None:
            target.write(layer_norm(source.read(size.of(x.rows)), weight.data, shift, eps))

        self._add(op)

    def linear(
        self,
        x: Buffer,
        matrix: Matrix,
        out: Buffer,
        *,
        accumulate: bool = False,
        bias: Vector | None = None,
    ) -> None:
        assert isinstance(x, TorchBuffer)
        assert isinstance(matrix, TorchMatrix)
        assert x.forms >= matrix.forms
        assert x.rows is out.rows
        assert (x.width, out.width) == (matrix.k, matrix.n)
        assert bias is None or (isinstance(bias, TorchVector) and bias.n == matrix.n)
        target = _readable(out)

        def op(size: StepSize) -> None:
            count = size.of(x.rows)
            product = multiply(x, matrix, count)
            if bias is not None:
                product += bias.data
            if accumulate:
                product += target.read(count)
            target.write(product)

        self._add(op)

    def rope_store(
        self,
        qkv: Buffer,
        heads: int,
        rope: RopeTable | None,
        kv: KVLayer,
        *,
        norm: QKNorm | None = None,
    ) -> None:
        pool = self._pools[kv.group]
        kv_heads, head_dim = pool.spec.kv_heads, pool.spec.head_dim
        assert qkv.width == (heads + 2 * kv_heads) * head_dim
        if norm is not None:
            assert norm.q.n in (head_dim, heads * head_dim)
            assert norm.k.n in (head_dim, kv_heads * head_dim)
        if rope is not None:
            assert rope.cos.shape == rope.sin.shape
            assert 2 * rope.cos.shape[1] <= head_dim
        source = _readable(qkv)
        table = None if rope is None else Rope(rope)

        def op(size: StepSize) -> None:
            every = source.read(size.tokens).view(size.tokens, -1, head_dim)
            if norm is not None:
                norm_heads(every[:, :heads], every[:, heads:-kv_heads], norm)
            if table is not None:
                table.rotate(every[:, :-kv_heads], self._in.positions[: size.tokens])
            slots = self._in.slots[kv.group][: size.tokens]
            pool.write(kv.layer, slots, every[:, heads:-kv_heads], every[:, -kv_heads:])

        self._add(op)

    def attention(
        self, qkv: Buffer, heads: int, kv: KVLayer, out: Buffer, *, masking: Masking
    ) -> None:
        pool, context = self._pools[kv.group], self._readers[kv.group]
        head_dim = pool.spec.head_dim
        assert heads % pool.spec.kv_heads == 0
        assert qkv.width == (heads + 2 * pool.spec.kv_heads) * head_dim
        assert out.width == heads * head_dim
        assert masking.window is None or masking.window > 0
        source, target = _readable(qkv), _writable(out)

        def attend_row(row: int, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            k, v = context.read(kv.layer, row, first_visible(int(positions[0]), masking))
            return attend(q, k, v, positions, masking)

        def op(size: StepSize) -> None:
            q = source.read(size.tokens)[:, : heads * head_dim].unflatten(1, (heads, head_dim))
            starts = self._in.row_starts[: size.rows + 1].tolist()
            tokens = [slice(*ends) for ends in itertools.pairwise(starts)]
            target.write(
                torch.cat(
                    [attend_row(r, q[t], self._in.positions[t]) for r, t in enumerate(tokens)]
                )
            )

        self._add(op)

    def gated(self, gate_up: Buffer, activation: Activation, out: Buffer) -> None:
        assert gate_up.rows is out.rows
        assert gate_up.width == 2 * out.width
        source, target = _readable(gate_up), _writable(out)
        bend = ACTIVATIONS[activation]

        def op(size: StepSize) -> None:
            gate, up = source.read(size.of(out.rows)).chunk(2, dim=1)
            target.write(bend(gate) * up)

        self._add(op)

    def activate(self, x: Buffer, activation: Activation, out: Buffer) -> None:
        assert x.rows is out.rows
        assert x.width == out.width
        source, target = _readable(x), _writable(out)
        bend = ACTIVATIONS[activation]
        self._add(lambda size: target.write(bend(source.read(size.of(x.rows)))))

    def copy(self, x: Buffer, out: Buffer) -> None:
        assert x.rows is out.rows
        assert x.width == out.width
        source, target = _readable(x), _writable(out)
        self._add(lambda size: target.write(source.read(size.of(x.rows))))

    def experts(  # noqa: PLR0913
        self,
        x: Buffer,
        router: Buffer,
        gate_up: Sequence[Matrix],
        down: Sequence[Matrix],
        out: Buffer,
        *,
        routing: Routing,
        activation: Activation,
    ) -> None:
        assert isinstance(x, TorchBuffer)
        assert x.rows is router.rows is out.rows
        assert len(gate_up) == router.width >= routing.top_k > 0
        for first, second in zip(gate_up, down, strict=True):
            assert first.forms <= x.forms
            assert (first.k, second.n) == (x.width, out.width)
        logits, target = _readable(router), _readable(out)
        experts = Experts(_ours(gate_up), _ours(down), activation)

        def op(size: StepSize) -> None:
            count = size.of(x.rows)
            experts.add(x, logits.read(count), target.read(count), routing)

        self._add(op)

    def select(self, x: Buffer, out: Buffer) -> None:
        assert (x.rows, out.rows) == (Rows.TOKENS, Rows.LOGITS)
        assert x.width == out.width
        source, target = _readable(x), _writable(out)

        def op(size: StepSize) -> None:
            tokens = self._in.logit_tokens[: size.of(Rows.LOGITS)]
            target.write(source.read(size.tokens)[tokens])

        self._add(op)

    def head(self, x: Buffer, matrix: Matrix, logits: Buffer, *, cap: float | None = None) -> None:
        assert isinstance(x, TorchBuffer)
        assert isinstance(matrix, TorchMatrix)
        assert x.forms >= matrix.forms
        assert x.rows is logits.rows is Rows.LOGITS
        assert (x.width, logits.width) == (matrix.k, matrix.n)
        target = _readable(logits)

        def op(size: StepSize) -> None:
            product = multiply(x, matrix, size.of(Rows.LOGITS))
            if cap is not None:
                product = softcap(product, cap)
            target.write(product[: size.logits])
            self._likeliest[: size.likeliest] = likeliest(product[size.logits :])

        self._add(op)

    def finish(self, logits: Buffer) -> TorchProgram:
        assert logits.rows is Rows.LOGITS
        assert not self._finished
        self._finished = True
        return TorchProgram(
            tuple(self._ops), _readable(logits), self._likeliest, self._threads, self._memory_bytes
        )

    def _allocate(self, rows: Rows, width: int, forms: frozenset[Form]) -> TorchBuffer:
        limit = self._limits.tokens if rows is Rows.TOKENS else self._limits.logits
        buffer = allocate(rows, limit, width, forms)
        self._memory_bytes += buffer.memory_bytes
        return buffer

    def _add(self, op: Op) -> None:
        assert not self._finished
        self._ops.append(op)


def _readable(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer)
    assert Form.F32 in buffer.forms
    return buffer


def _writable(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer)
    return buffer


def _ours(matrices: Sequence[Matrix]) -> list[TorchMatrix]:
    ours = [matrix for matrix in matrices if isinstance(matrix, TorchMatrix)]
    assert len(ours) == len(matrices)
    return ours
