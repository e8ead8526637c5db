"""The kernel call boundary: everything models and samplers ask of a backend, and nothing else.

A model records its forward pass once, through a `Recorder`; the `Program` that results runs it for
any batch. The rules that make this possible on every backend:

- ops are fused, write into given buffers and read nothing back to the host;
- shapes are bounded by `StepLimits`; the actual sizes of a step come only from `StepInputs`;
- no op depends on data in Python.

And the rules that make answers independent of the batch (bit for bit, on the native backend):

- one arithmetic per matrix for every number of rows; sums over K in K order, never split by thread;
- attention reads K and V as stored, after rounding to the cache's type, also those of this step;
- attention cuts a row's context in pieces of `ATTENTION_PIECE` at absolute positions and combines
  them in order; block size, chunking and batch do not move the cuts;
- sums over the vocabulary in a fixed order; ties go to the lowest id.

Shapes: T = tokens of this step, R = rows (requests) of this step, L = rows of logits.
Activations are float32, row-major, one row per token.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from treadle.kernels.contexts import ContextForm, Contexts, allocate_contexts

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
NO_TOKEN = -1
"""In place of a chosen token: no logit of the row was above -inf."""

MaskArray = npt.NDArray[np.uint32]

ATTENTION_PIECE = 64
"""Tokens per attention piece; part of the arithmetic, so of the bits."""

QUANT_BLOCK = 32
"""Values of K that share a scale, in Q4_0, Q4_1, Q8_0 and in quantised activations."""

KVType = Literal["f32", "f16", "bf16"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
"""gelu is the exact one, x * Φ(x); gelu_tanh its approximation by tanh (gelu_new in GPT-2)."""


class WeightType(enum.StrEnum):
    """How a tensor's values are stored in its file. Block types follow GGUF's layouts."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q8_0 = "q8_0"
    Q2_K = "q2_k"
    Q3_K = "q3_k"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"
    IQ4_NL = "iq4_nl"
    IQ4_XS = "iq4_xs"
    MXFP4 = "mxfp4"

    @property
    def quantised(self) -> bool:
        """Quantised weights meet activations quantised per row and block of 32."""
        return self not in (WeightType.F32, WeightType.F16, WeightType.BF16)


@dataclasses.dataclass(frozen=True)
class RawTensor:
    """A tensor as its file holds it."""

    name: str
    type: WeightType
    shape: tuple[int, ...]
    """Row-major: a matrix is [n, k] (n outputs, k inputs), a vector [n]."""
    data: npt.NDArray[np.uint8]
    """The file's bytes, usually memory-mapped: [nbytes]."""


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A weight matrix [n, k], in whatever layout the backend likes. Backends subclass it."""

    n: int
    k: int
    forms: frozenset[Form]
    """The forms of input its products read: Q8 for quantised parts, F32 for the others."""
    flawed: tuple[str, ...]
    """Names of the tensors in it that hold a number, or the scale of one, that is not finite."""


@dataclasses.dataclass(frozen=True)
class Vector:
    """A float32 vector [n] in the backend's memory. Backends subclass it."""

    n: int
    flawed: tuple[str, ...]
    """As in Matrix."""


class Form(enum.Enum):
    """How a buffer holds its rows; a buffer may hold both."""

    F32 = "f32"
    Q8 = "q8"
    """int8 values with one float32 scale per QUANT_BLOCK of a row: scale = max|x| / 127,
    value = round-half-even(x / scale), all zero where max|x| is 0. The backend may hold more."""


class Rows(enum.Enum):
    """What a buffer has one row for."""

    TOKENS = "tokens"
    LOGITS = "logits"


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Activations [rows, width] that live in the program. Backends subclass it."""

    rows: Rows
    width: int
    forms: frozenset[Form]


@dataclasses.dataclass(frozen=True)
class StepLimits:
    """Upper bounds of one step; memory is sized by them once."""

    tokens: int
    rows: int
    """Also the number of rows in the block tables."""
    table_blocks: tuple[int, ...]
    """Per KV group: blocks in one row of the block table."""
    extra_logits: int = 0
    """Rows of logits beyond one for each row."""
    context_form: ContextForm = "block-table"
    """How attention is told where a row's context lies."""
    row_tokens: int = 0
    """Slots in one row of the table of a form that has one for each token."""

    @property
    def logits(self) -> int:
        return self.rows + self.extra_logits


class StepInputs:
    """The one place a program reads sizes and indices from. Arrays are allocated once, and
    filled before each run; a program keeps pointers to them."""

    def __init__(self, limits: StepLimits) -> None:
        groups = len(limits.table_blocks)
        self.limits = limits
        self.contexts: list[Contexts | None] = [
            allocate_contexts(limits.context_form, limits.rows, blocks, limits.row_tokens)
            for blocks in limits.table_blocks
        ]  # per group, where attention is told by another form than the block tables below
        self.token_ids: IntArray = np.zeros(limits.tokens, np.int32)  # [T]
        self.positions: IntArray = np.zeros(limits.tokens, np.int32)  # [T]
        self.slots: list[IntArray] = [
            np.zeros(limits.tokens, np.int32) for _ in range(groups)
        ]  # per group [T]: block * block_size + offset, where the token's K and V go
        self.row_starts: IntArray = np.zeros(limits.rows + 1, np.int32)  # [R + 1], token index
        self.table_rows: IntArray = np.zeros(limits.rows, np.int32)  # [R], row of the tables below
        self.tables: list[IntArray] = [
            np.zeros((limits.rows, blocks), np.int32) for blocks in limits.table_blocks
        ]  # per group [row, block index] -> block
        self.logit_tokens: IntArray = np.zeros(limits.logits, np.int32)  # [L], token index

    @property
    def memory_bytes(self) -> int:
        own = (self.token_ids, self.positions, self.row_starts, self.table_rows, self.logit_tokens)
        arrays = sum(array.nbytes for array in (*own, *self.slots, *self.tables))
        return arrays + sum(each.memory_bytes for each in self.contexts if each is not None)


@dataclasses.dataclass(frozen=True)
class KVSpec:
    """The KV cache of one group of layers."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    type: KVType

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * (4 if self.type == "f32" else 2)


class KVPool(Protocol):
    """K and V of every layer of one group, in blocks. How a block is laid out is the backend's."""

    @property
    def spec(self) -> KVSpec: ...

    @property
    def num_blocks(self) -> int: ...

    def copy(self, source: int, target: int) -> None:
        """Make block `target` hold what block `source` holds, in every layer. Between two runs of
        a program, never beside one; allocates nothing."""
        ...


@dataclasses.dataclass(frozen=True)
class RopeTable:
    """cos and sin per position: [positions, rotary_dim / 2] each."""

    cos: FloatArray
    sin: FloatArray
    interleaved: bool
    """Pairs are (2i, 2i + 1) when true, (i, i + rotary_dim / 2) when false."""


@dataclasses.dataclass(frozen=True)
class KVLayer:
    """One layer of one group, as an op's operand."""

    group: int
    layer: int


@dataclasses.dataclass(frozen=True)
class QKNorm:
    """RMS norms of q and k before RoPE. A vector of head_dim norms each head by itself; one as wide
    as all heads of q (or of k) norms them together."""

    q: Vector
    k: Vector
    eps: float


@dataclasses.dataclass(frozen=True)
class Masking:
    """What attention sees, and how its scores are bent."""

    scale: float
    window: int | None = None
    """Position p sees p - window + 1 to p; tokens before that are not read, and their slots may
    hold anything. None sees all before."""
    softcap: float | None = None
    """Scores s become softcap * tanh(s / softcap), after scaling and before the mask."""


@dataclasses.dataclass(frozen=True)
class Routing:
    """How a token chooses its experts: softmax over all router logits in float32, the top_k largest
    (ties by lowest expert), their weights divided by their sum if `renormalise`."""

    top_k: int
    renormalise: bool


class Recorder(Protocol):
    """Takes down a model's forward pass, op by op. Called once, when the model is built."""

    def buffer(self, rows: Rows, width: int) -> Buffer:
        """A float32 buffer."""
        ...

    def operand(self, rows: Rows, matrix: Matrix) -> Buffer:
        """A buffer [rows, matrix.k] in the forms that products with `matrix` read."""
        ...

    def label(self, name: str) -> None:
        """Says what the ops that follow are part of, for profiles alone."""
        ...

    def embed(self, table: Matrix, out: Buffer, *, scale: float = 1.0) -> None:
        """out[t] = table[token_ids[t]] * scale, dequantised; out is float32."""
        ...

    def embed_positions(self, table: Matrix, out: Buffer) -> None:
        """out[t] += table[positions[t]]: learned positions; out is float32."""
        ...

    def rms_norm(
        self, x: Buffer, weight: Vector, eps: float, out: Buffer, *, accumulate: bool = False
    ) -> None:
        """out = x / sqrt(mean(x²) + eps) * weight, written in every form of out; or out += that,
        out then being float32 alone."""
        ...

    def layer_norm(
        self, x: Buffer, weight: Vector, bias: Vector | None, eps: float, out: Buffer
    ) -> None:
        """out = (x - mean(x)) / sqrt(var(x) + eps) * weight (+ bias), in every form of out."""
        ...

    def linear(
        self,
        x: Buffer,
        matrix: Matrix,
        out: Buffer,
        *,
        accumulate: bool = False,
        bias: Vector | None = None,
    ) -> None:
        """out = x @ matrixᵀ (+ bias), or out += that: float32 out [rows, matrix.n].

        Quantised parts read the Q8 form: per block the integer dot product times both scales (and
        for Q4_1 the weight's minimum times the sum of the activation's block), float32, added in
        K order. Other parts read the F32 form: products and sums in float32, in K order.
        """
        ...

    def rope_store(
        self,
        qkv: Buffer,
        heads: int,
        rope: RopeTable | None,
        kv: KVLayer,
        *,
        norm: QKNorm | None = None,
    ) -> None:
        """Norm q and k of qkv [T, (heads + 2 * kv_heads) * head_dim] where `norm` says so, rotate
        them in place by position, then store k and v at the step's slots, rounded to the cache's
        type.

        When rope is narrower than the head, the rest of each head is left as it is; without one
        (learned positions) nothing is rotated.
        """
        ...

    def attention(
        self, qkv: Buffer, heads: int, kv: KVLayer, out: Buffer, *, masking: Masking
    ) -> None:
        """Causal attention of q (the first heads * head_dim columns of qkv) over the row's
        context, read through its block table; out [T, heads * head_dim], in every form of out.

        The positions of a row's tokens in one step are consecutive.
        """
        ...

    def write_and_attend(  # noqa: PLR0913
        self,
        qkv: Buffer,
        heads: int,
        rope: RopeTable | None,
        kv: KVLayer,
        out: Buffer,
        *,
        masking: Masking,
        norm: QKNorm | None = None,
    ) -> None:
        """`rope_store` and `attention` as one op, to the bit: all tokens of the step are stored
        before one of them is attended to. So it is here; a backend may have a kernel for both."""
        self.rope_store(qkv, heads, rope, kv, norm=norm)
        self.attention(qkv, heads, kv, out, masking=masking)

    def gated(self, gate_up: Buffer, activation: Activation, out: Buffer) -> None:
        """out = activation(gate) * up, gate being the first half of each row of gate_up."""
        ...

    def activate(self, x: Buffer, activation: Activation, out: Buffer) -> None:
        """out = activation(x), in every form of out."""
        ...

    def copy(self, x: Buffer, out: Buffer) -> None:
        """out = x, in every form of out: for products that read what no op has just written."""
        ...

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
        """A mixture of experts: out[t] += Σ weight(e) * down[e](activation(gate) * up) over the
        experts e that router[t] (float32 logits, one per expert) chooses, added in the order of e.

        x holds the forms that every gate_up reads; out is float32. The sum of a token does not
        depend on which other tokens choose the same expert.
        """
        ...

    def select(self, x: Buffer, out: Buffer) -> None:
        """out[l] = x[logit_tokens[l]]: the rows that need logits; both float32."""
        ...

    def head(self, x: Buffer, matrix: Matrix, logits: Buffer, *, cap: float | None = None) -> None:
        """The last product, logits = x @ matrixᵀ, then cap * tanh(logits / cap) where there is a
        cap; float32 logits [L, matrix.n]. Of rows that the step wants no logits of, only the
        likeliest token is found: that of the largest logit, ties by lowest id, NaN counting as
        -inf; NO_TOKEN where there is nothing else."""
        ...

    def finish(self, logits: Buffer) -> Program:
        """End the recording. No op may be added afterwards."""
        ...


class Program(Protocol):
    """A recorded forward pass."""

    @property
    def memory_bytes(self) -> int:
        """All that it holds beside weights, KV and step inputs, for steps of any size."""
        ...

    @property
    def likeliest(self) -> IntArray:
        """[L]: of the last run's rows without logits, the likeliest tokens, from the front."""
        ...

    def run(
        self, num_tokens: int, num_rows: int, num_logits: int, num_likeliest: int = 0
    ) -> FloatArray:
        """Run on the current contents of the StepInputs it was recorded with.

        `logit_tokens` names num_logits tokens, then num_likeliest of which only the likeliest next
        token is wanted; that needs a `head`. Returns the logits [num_logits, vocab], a view that
        the next run overwrites.
        """
        ...


@dataclasses.dataclass(frozen=True)
class LogitEdits:
    """Changes to single logits, applied in order: x = x + add; then x / repetition if x > 0 else
    x * repetition; then x - subtract. One entry per (row, token)."""

    rows: IntArray
    tokens: IntArray
    add: FloatArray
    repetition: FloatArray
    subtract: FloatArray


@dataclasses.dataclass(frozen=True)
class SampleRows:
    """How to choose a token from each row of logits; all arrays are [L]."""

    temperature: FloatArray
    """0 means the most likely token."""
    top_k: IntArray
    """0 keeps all."""
    top_p: FloatArray
    min_p: FloatArray
    uniform: npt.NDArray[np.float64]
    """One random number in [0, 1) per row."""


@dataclasses.dataclass(frozen=True)
class TopLogprobs:
    """The start of a log-softmax: log p(token) = logit - log_sum_exp."""

    log_sum_exp: FloatArray  # [rows]
    tokens: IntArray  # [rows, num_top], best first, ties by lowest id
    logits: FloatArray  # [rows, num_top]


class SamplingOps(Protocol):
    """What sampling asks of a backend; logits are [L, vocab] float32. No op splits a row's sums by
    thread, so a row's result does not depend on the others."""

    def edit(self, logits: FloatArray, edits: LogitEdits) -> None:
        """Apply `edits` in place."""
        ...

    def mask(self, logits: FloatArray, rows: IntArray, allowed: MaskArray) -> None:
        """Set logits of the given rows to -inf, in place, where `allowed` has no bit.

        allowed is [len(rows), ceil(vocab / 32)]; token t's bit is number t % 32 of word t // 32.
        """
        ...

    def top_logprobs(self, logits: FloatArray, rows: IntArray, num_top: int) -> TopLogprobs:
        """Log-sum-exp and the num_top (may be 0) largest logits of the given rows."""
        ...

    def memory_bytes(self, vocab_size: int) -> int:
        """What these ops keep to work in, once they have seen such a vocabulary."""
        ...

    def sample(self, logits: FloatArray, rows: SampleRows) -> IntArray:
        """One token per row, [L].

        Greedy rows take the largest logit, ties by lowest id. Others: p = softmax(logits / T).
        Where top_k, top_p or min_p bind, tokens are ordered by p descending, ties by lowest id;
        kept are those with p >= min_p * max p, of these the first top_k, of these (renormalised)
        the smallest prefix whose sum is at least top_p, never fewer than one; the choice is the
        first kept token at which the running sum exceeds uniform * total. Without cuts the same
        in id order. NaN counts as -inf; a row with nothing else has NO_TOKEN.
        """
        ...


class Backend(Protocol):
    """A set of kernels on one device. Built once per engine; two in one process do not meet."""

    @property
    def name(self) -> str:
        """Which kernels these are: "native" or "torch"."""
        ...

    @property
    def description(self) -> str:
        """For people: kernel variant, threads."""
        ...

    @property
    def sampling(self) -> SamplingOps: ...

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        """Repack one matrix, or several of equal k stacked along n, each in its own type.

        Raises ModelFileError naming the tensor when a shape or type is not supported.
        """
        ...

    def vector(self, tensor: RawTensor) -> Vector:
        """A vector, converted to float32."""
        ...

    def kv_pool(self, spec: KVSpec, num_blocks: int) -> KVPool:
        """Memory for num_blocks blocks, not touched before first use."""
        ...

    def recorder(self, inputs: StepInputs, pools: Sequence[KVPool]) -> Recorder: ...

    def close(self) -> None:
        """Stop threads. The backend and all it made are unusable afterwards."""
        ...
