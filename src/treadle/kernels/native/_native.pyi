"""The extension module. Addresses and shapes are trusted: callers check them."""

from collections.abc import Sequence

RECORD_BYTES: int
ROW_TILE: int

def variants() -> list[str]: ...
def packed_bytes(type: int, n: int, k: int) -> int: ...  # noqa: A002

class Backend:
    def __init__(self, isa: str, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def close(self) -> None: ...

class Matrix:
    def __init__(self, k: int) -> None: ...
    def add_part(self, backend: Backend, type: int, data: int, n: int, to: int) -> None: ...  # noqa: A002

class Buffer:
    def __init__(
        self,
        token_rows: bool,
        width: int,
        values: int,
        stride: int,
        records: int,
        keep_values: bool,
    ) -> None: ...

class KVPool:
    def __init__(
        self,
        type: int,  # noqa: A002
        layers: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        blocks: int,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def place(self, data: int) -> None: ...

class Rope:
    def __init__(
        self, cos: int, sin: int, positions: int, pairs: int, interleaved: bool
    ) -> None: ...

class StepInputs:
    def __init__(
        self,
        max_tokens: int,
        max_rows: int,
        arrays: Sequence[int],
        slots: Sequence[int],
        tables: Sequence[int],
        table_blocks: Sequence[int],
    ) -> None: ...

class Program:
    def __init__(self, backend: Backend, inputs: StepInputs, pools: Sequence[KVPool]) -> None: ...
    def embed(self, table: Matrix, out: Buffer, scale: float) -> None: ...
    def rms_norm(self, x: Buffer, weight: int, eps: float, out: Buffer) -> None: ...
    def linear(
        self, x: Buffer, matrix: Matrix, out: Buffer, bias: int, accumulate: bool
    ) -> None: ...
    def rope_store(self, qkv: Buffer, heads: int, rope: Rope, group: int, layer: int) -> None: ...
    def attention(
        self, qkv: Buffer, heads: int, group: int, layer: int, out: Buffer, scale: float
    ) -> None: ...
    def gated_silu(self, gate_up: Buffer, out: Buffer) -> None: ...
    def select(self, x: Buffer, out: Buffer) -> None: ...
    def finish(self) -> None: ...
    def run(self, tokens: int, rows: int, logits: int) -> None: ...

class Logits:
    def __init__(self, values: int, rows: int, vocabulary: int, stride: int) -> None: ...

def edit(logits: Logits, count: int, arrays: Sequence[int]) -> None: ...
def sample(backend: Backend, logits: Logits, arrays: Sequence[int], out: int) -> None: ...
def top_logprobs(
    backend: Backend, logits: Logits, rows: int, count: int, num_top: int, out: Sequence[int]
) -> None: ...
