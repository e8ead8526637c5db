"""Activation buffers, and the quantised form of a row.

A buffer's memory is allocated once, for the largest step; each step uses its first rows.
"""

from __future__ import annotations

import dataclasses

import torch

from treadle.kernels.ops import QUANT_BLOCK, Buffer, Form, Rows


@dataclasses.dataclass(frozen=True)
class StepSize:
    """How many rows of each kind this run has."""

    tokens: int
    rows: int
    logits: int
    """Rows of them that are wanted."""
    likeliest: int
    """Rows behind these of which only the likeliest token is."""

    def of(self, rows: Rows) -> int:
        return self.tokens if rows is Rows.TOKENS else self.logits + self.likeliest


@dataclasses.dataclass(frozen=True)
class TorchBuffer(Buffer):
    """Every form of the buffer holds the rows of the last write."""

    f32: torch.Tensor | None  # [limit, width]
    values: torch.Tensor | None  # [limit, width / 32, 32] f32, whole numbers from -127 to 127
    scales: torch.Tensor | None  # [limit, width / 32] f32

    @property
    def memory_bytes(self) -> int:
        held = (form for form in (self.f32, self.values, self.scales) if form is not None)
        return sum(form.numel() * form.element_size() for form in held)

    def read(self, count: int) -> torch.Tensor:
        """A view of the first `count` rows."""
        assert self.f32 is not None
        return self.f32[:count]

    def take(self, rows: torch.Tensor) -> TorchBuffer:
        """A copy of some rows, in the same forms."""
        f32, values, scales = (
            None if form is None else form[rows] for form in (self.f32, self.values, self.scales)
        )
        return TorchBuffer(self.rows, self.width, self.forms, f32, values, scales)

    def write(self, rows: torch.Tensor) -> None:
        count = len(rows)
        if self.f32 is not None:
            self.f32[:count] = rows
        if self.values is not None and self.scales is not None:
            self.values[:count], self.scales[:count] = quantise(rows)


def allocate(rows: Rows, limit: int, width: int, forms: frozenset[Form]) -> TorchBuffer:
    q8 = Form.Q8 in forms
    blocks = width // QUANT_BLOCK
    assert not (q8 and width % QUANT_BLOCK)
    return TorchBuffer(
        rows,
        width,
        forms,
        torch.zeros(limit, width) if Form.F32 in forms else None,
        torch.zeros(limit, blocks, QUANT_BLOCK) if q8 else None,
        torch.zeros(limit, blocks) if q8 else None,
    )


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Form.Q8 of float32 rows: (values, scales)."""
    blocks = rows.reshape(len(rows), -1, QUANT_BLOCK)
    scales = blocks.abs().amax(dim=2) / 127
    values = torch.where(scales[..., None] > 0, blocks / scales[..., None], 0.0)
    # Only where the scale is denormal, and so inexact, can a quotient round to more than 127.
    return values.round().clamp(-127, 127), scales
