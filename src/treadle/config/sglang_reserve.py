"""SGLang's way to a static fraction: what it expects a step, its ranks and its graphs to take.

Nothing is measured; all follows from the settings and from the size of the card in MiB, as the
driver reports it. The fraction is what the reserve leaves.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from treadle.config.capture import sglang_prefill_sizes

FALLBACK_FRACTION = 0.88
"""Where the card's memory cannot be read."""

_META_MIB = 512
_MIB_PER_TOKEN = 1.5
_FEWEST_TOKENS = 2048
_RANKS_PER_GIB = 8
_FLOOR_MIB = 10240
_FLOOR_ABOVE_MIB = 61440
_DEEP_EP_MIB = 2048
_AFTER_CAPTURE_MIB = 1536
_MLA_PREFILL_GRAPHS_MIB = 1536
_MIB_PER_PREFILL_SIZE = 8
_MLA_PREFILL_TOKENS = 2048
_LLAMA_2_PREFILL_TOKENS = 4096
_MANY_ROWS = 300


class _Tier(NamedTuple):
    below_mib: int
    chunk: int
    rows: int
    rows_of_four: int
    """With four tensor-parallel ranks or more."""


_TIERS = (
    _Tier(20 * 1024, 2048, 8, 8),
    _Tier(35 * 1024, 2048, 24, 80),
    _Tier(60 * 1024, 4096, 32, 160),
    _Tier(160 * 1024, 8192, 256, 512),
)
_LARGEST = _Tier(0, 16384, 512, 512)
_UNKNOWN = _Tier(0, 4096, 160, 160)


class SGLangShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the reserve depends on; None is chosen by the card's size."""

    gpu_mib: int | None
    """None: it cannot be read."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel_attention: int = 0
    """Attention's data-parallel ranks; 0: not in use."""
    chunked_prefill_size: int | None = None
    """Tokens; 0 or less: prompts are not chunked."""
    max_prefill_tokens: int = 16384
    decode_max_rows: int | None = None
    """0: decode steps are not captured."""
    prefill_graphs: bool = True
    latent_attention: bool = False
    llama_2: bool = False
    deep_ep: bool = False
    role: Literal["both", "prefill", "decode"] = "both"
    """What an instance does when prefill and decode are apart."""
    max_running_requests: int | None = None
    draft_tokens: int = 1


class Part(NamedTuple):
    """A part of the reserve."""

    name: str
    mib: float
    how: str


class Reserve(NamedTuple):
    parts: tuple[Part, ...]
    mib: float
    """The parts' sum."""

    @property
    def before_floor_mib(self) -> float:
        return sum(part.mib for part in self.parts if part.name not in ("floor", "DeepEP"))


def _tier(gpu_mib: int | None) -> _Tier:
    if gpu_mib is None:
        return _UNKNOWN
    return next((tier for tier in _TIERS if gpu_mib < tier.below_mib), _LARGEST)


def chunk_size(shape: SGLangShape) -> int:
    """chunked_prefill_size: the user's, or the card's; 0 where prompts are not chunked."""
    if shape.chunked_prefill_size is not None:
        return max(shape.chunked_prefill_size, 0)
    return _tier(shape.gpu_mib).chunk


def decode_rows(shape: SGLangShape) -> int:
    """The largest batch that decode graphs are captured for."""
    if shape.decode_max_rows is not None:
        return shape.decode_max_rows
    tier = _tier(shape.gpu_mib)
    return tier.rows if shape.tensor_parallel < 4 else tier.rows_of_four


def prefill_graph_sizes(shape: SGLangShape) -> tuple[int, ...]:
    """Tokens that prefill is captured for."""
    if not shape.prefill_graphs:
        return ()
    largest = _MLA_PREFILL_TOKENS if shape.latent_attention else chunk_size(shape)
    if shape.llama_2:
        largest = min(largest, _LLAMA_2_PREFILL_TOKENS)
    return sglang_prefill_sizes(largest) if largest else ()


def reserve(shape: SGLangShape) -> Reserve:
    """All that is set aside, in parts."""
    parts = [
        Part("constant", _META_MIB, "metadata and slack"),
        _activations(shape),
        Part("ranks", _ranks_mib(shape), f"{_RANKS_PER_GIB} ranks take 1 GiB"),
        *_graphs(shape),
    ]
    so_far = sum(part.mib for part in parts)
    if shape.gpu_mib is not None and shape.gpu_mib > _FLOOR_ABOVE_MIB and so_far < _FLOOR_MIB:
        parts.append(Part("floor", _FLOOR_MIB - so_far, "at least 10 GiB above 60 GiB"))
    if shape.deep_ep and shape.role != "prefill" and decode_rows(shape):
        parts.append(Part("DeepEP", _DEEP_EP_MIB, "buffers of expert parallelism"))
    return _total(parts)


def reserve_after_capture(shape: SGLangShape) -> Reserve:
    """Where the pool is sized once the graphs are there, they and the memory that they work in need
    no place in the reserve."""
    parts = [
        Part("constant", _AFTER_CAPTURE_MIB, "metadata and slack"),
        Part("ranks", _ranks_mib(shape), f"{_RANKS_PER_GIB} ranks take 1 GiB"),
    ]
    return _total(parts)


def floor_reserve_mib(gpu_mib: int) -> int:
    """What the reserve is at least."""
    return _FLOOR_MIB if gpu_mib > _FLOOR_ABOVE_MIB else 0


def static_fraction(gpu_mib: int | None, reserved_mib: float) -> float:
    """mem_fraction_static: the card without the reserve, to three digits."""
    if gpu_mib is None:
        return FALLBACK_FRACTION
    return round((gpu_mib - reserved_mib) / gpu_mib, 3)


def _activations(shape: SGLangShape) -> Part:
    chunk = chunk_size(shape)
    if shape.role == "decode":
        running = shape.max_running_requests or decode_rows(shape) or 1
        wanted, what = running * shape.draft_tokens, "running tokens"
    elif chunk:
        wanted, what = chunk, "tokens of a chunk"
    else:
        wanted, what = shape.max_prefill_tokens, "tokens of a prefill"
    tokens = max(wanted, _FEWEST_TOKENS)
    return Part("activations", tokens * _MIB_PER_TOKEN, f"{tokens:,} {what} × 1.5 MiB")


def _ranks_mib(shape: SGLangShape) -> float:
    return shape.tensor_parallel * shape.pipeline_parallel / _RANKS_PER_GIB * 1024


def _graphs(shape: SGLangShape) -> list[Part]:
    parts = []
    rows = decode_rows(shape)
    if rows and shape.role != "prefill":
        parts.append(Part("decode graphs", 2 * rows, f"up to {rows} rows × 2 MiB"))
        if shape.data_parallel_attention:
            each = 4.5 if rows > _MANY_ROWS else 3
            mib = each * rows * shape.data_parallel_attention
            parts.append(Part("padding", mib, f"{rows} rows × {each:g} MiB a data-parallel rank"))
    if shape.prefill_graphs and shape.role != "decode":
        if shape.latent_attention:
            parts.append(Part("prefill graphs", _MLA_PREFILL_GRAPHS_MIB, "latent attention"))
        else:
            count = len(prefill_graph_sizes(shape))
            each = _MIB_PER_PREFILL_SIZE
            parts.append(Part("prefill graphs", each * count, f"{count} sizes × {each} MiB"))
    return parts


def _total(parts: list[Part]) -> Reserve:
    return Reserve(tuple(parts), sum(part.mib for part in parts))
