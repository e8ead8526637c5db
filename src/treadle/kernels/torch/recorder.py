"""Takes a forward pass down as a list of callables, and runs it.

Shapes are checked while recording, so running checks nothing. Each op reads the step's sizes from
its argument and its indices from the StepInputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from treadle.kernels.ops import (
    QUANT_BLOCK,
    Activation,
    Buffer,
    FloatArray,
    Form,
    KVLayer,
    Matrix,
    RopeTable,
    Rows,
    StepInputs,
    Vector,
)
from treadle.kernels.torch.attention import Rope, TorchKVPool, attend, context_slots
from treadle.kernels.torch.buffers import StepSize, TorchBuffer, allocate
from treadle.kernels.torch.weights import DensePart, QuantPart, TorchMatrix, TorchVector

Op = Callable[[StepSize], None]


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """PyTorch's thread count belongs to the process, so it is borrowed for the time of a call."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Indices:
    """Tensors that share the memory of the StepInputs."""

    def __init__(self, inputs: StepInputs) -> None:
        self.token_ids = torch.from_numpy(inputs.token_ids)
        self.positions = torch.from_numpy(inputs.positions)
        self.slots = [torch.from_numpy(slots) for slots in inputs.slots]
        self.row_starts = torch.from_numpy(inputs.row_starts)
        self.table_rows = torch.from_numpy(inputs.table_rows)
        self.tables = [torch.from_numpy(table) for table in inputs.tables]
        self.logit_tokens = torch.from_numpy(inputs.logit_tokens)


class TorchRecorder:
    """Ops run in the order they were recorded."""

    def __init__(self, inputs: StepInputs, pools: Sequence[TorchKVPool], threads: int) -> None:
        self._limits = inputs.limits
        self._in = _Indices(inputs)
        self._pools = pools
        self._threads = threads
        self._ops: list[Op] = []
        self._finished = False

    def buffer(self, rows: Rows, width: int) -> TorchBuffer:
        return self._allocate(rows, width, frozenset({Form.F32}))

    def operand(self, rows: Rows, matrix: Matrix) -> TorchBuffer:
        return self._allocate(rows, matrix.k, matrix.forms)

    def embed(self, table: Matrix, out: Buffer, *, scale: float = 1.0) -> None:
        assert isinstance(table, TorchMatrix)
        assert out.width == table.k
        target = _writable(out)
        (part,) = table.parts

        def op(size: StepSize) -> None:
            target.write(part.rows(self._in.token_ids[: size.tokens]) * scale)

        self._add(op)

    def rms_norm(self, x: Buffer, weight: Vector, eps: float, out: Buffer) -> None:
        assert isinstance(weight, TorchVector)
        assert x.rows is out.rows
        assert x.width == out.width == weight.n
        source, target = _readable(x), _writable(out)

        def op(size: StepSize) -> None:
            rows = source.read(size.of(x.rows))
            mean_square = rows.square().mean(dim=1, keepdim=True)
            target.write(rows / torch.sqrt(mean_square + eps) * weight.data)

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
            product = torch.cat([_product(x, part, count) for part in matrix.parts], dim=1)
            if bias is not None:
                product += bias.data
            if accumulate:
                product += target.read(count)
            target.write(product)

        self._add(op)

    def rope_store(self, qkv: Buffer, heads: int, rope: RopeTable, kv: KVLayer) -> None:
        pool = self._pools[kv.group]
        kv_heads, head_dim = pool.spec.kv_heads, pool.spec.head_dim
        assert qkv.width == (heads + 2 * kv_heads) * head_dim
        assert rope.cos.shape == rope.sin.shape
        assert 2 * rope.cos.shape[1] <= head_dim
        source = _readable(qkv)
        table = Rope(rope)

        def op(size: StepSize) -> None:
            every = source.read(size.tokens).view(size.tokens, -1, head_dim)
            table.rotate(every[:, : heads + kv_heads], self._in.positions[: size.tokens])
            slots = self._in.slots[kv.group][: size.tokens]
            pool.k[kv.layer, slots] = every[:, heads:-kv_heads].to(pool.k.dtype)
            pool.v[kv.layer, slots] = every[:, -kv_heads:].to(pool.v.dtype)

        self._add(op)

    def attention(self, qkv: Buffer, heads: int, kv: KVLayer, out: Buffer, *, scale: float) -> None:
        pool = self._pools[kv.group]
        head_dim, block_size = pool.spec.head_dim, pool.spec.block_size
        assert heads % pool.spec.kv_heads == 0
        assert qkv.width == (heads + 2 * pool.spec.kv_heads) * head_dim
        assert out.width == heads * head_dim
        source, target = _readable(qkv), _writable(out)

        def attend_row(row: int, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            table = self._in.tables[kv.group][self._in.table_rows[row]]
            slots = context_slots(table, block_size, int(positions[-1]) + 1)
            return attend(q, pool.k[kv.layer, slots], pool.v[kv.layer, slots], positions, scale)

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
        assert activation == "silu"
        assert gate_up.rows is out.rows
        assert gate_up.width == 2 * out.width
        source, target = _readable(gate_up), _writable(out)

        def op(size: StepSize) -> None:
            gate, up = source.read(size.of(out.rows)).chunk(2, dim=1)
            target.write(torch.nn.functional.silu(gate) * up)

        self._add(op)

    def select(self, x: Buffer, out: Buffer) -> None:
        assert (x.rows, out.rows) == (Rows.TOKENS, Rows.LOGITS)
        assert x.width == out.width
        source, target = _readable(x), _writable(out)

        def op(size: StepSize) -> None:
            tokens = self._in.logit_tokens[: size.logits]
            target.write(source.read(size.tokens)[tokens])

        self._add(op)

    def finish(self, logits: Buffer) -> TorchProgram:
        assert logits.rows is Rows.LOGITS
        assert not self._finished
        self._finished = True
        return TorchProgram(tuple(self._ops), _readable(logits), self._threads)

    def _allocate(self, rows: Rows, width: int, forms: frozenset[Form]) -> TorchBuffer:
        limit = self._limits.tokens if rows is Rows.TOKENS else self._limits.rows
        return allocate(rows, limit, width, forms)

    def _add(self, op: Op) -> None:
        assert not self._finished
        self._ops.append(op)


class TorchProgram:
    """The ops of one recording; their buffers live as long as it does."""

    def __init__(self, ops: tuple[Op, ...], logits: TorchBuffer, threads: int) -> None:
        self._ops = ops
        self._logits = logits
        self._threads = threads

    @torch.inference_mode()
    def run(self, num_tokens: int, num_rows: int, num_logits: int) -> FloatArray:
        size = StepSize(num_tokens, num_rows, num_logits)
        with limited_threads(self._threads):
            for op in self._ops:
                op(size)
        logits: FloatArray = self._logits.read(num_logits).numpy()
        return logits


def _readable(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer)
    assert Form.F32 in buffer.forms
    return buffer


def _writable(buffer: Buffer) -> TorchBuffer:
    assert isinstance(buffer, TorchBuffer)
    return buffer


def _product(x: TorchBuffer, part: DensePart | QuantPart, count: int) -> torch.Tensor:
    """x @ partᵀ."""
    if isinstance(part, DensePart):
        return x.read(count) @ part.weight.float().T
    assert x.values is not None
    assert x.scales is not None
    out = torch.zeros(count, part.n)
    group = part.values.shape[1]
    inputs = x.values[:count].reshape(count, -1, group)
    for at, weights in enumerate(part.values):
        values, scales = inputs[:, at], x.scales[:count, at * group // QUANT_BLOCK, None]
        # Whole numbers below 2**24: the float product is the integer dot product, exactly.
        dots = values @ weights.float()
        out += dots * (scales * part.scales[at])
        if part.minimums is not None:
            out += values.sum(dim=1, keepdim=True) * scales * part.minimums[at]
    return out
