"""Norms and activations: functions of float32 rows, each row for itself."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn import functional

from treadle.kernels.ops import NO_TOKEN, Activation, QKNorm
from treadle.kernels.torch.weights import TorchVector

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last axis."""
    mean_square = rows.square().mean(dim=-1, keepdim=True)
    return rows / torch.sqrt(mean_square + eps) * weight


def layer_norm(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    centred = rows - rows.mean(dim=-1, keepdim=True)
    normed = rms_norm(centred, weight, eps)
    return normed if bias is None else normed + bias


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The token of each row's largest logit [rows] int32; see `Recorder.head`."""
    known = torch.where(logits.isnan(), -torch.inf, logits)
    tokens = known.argmax(dim=1)  # the first of equals
    return torch.where(known.amax(dim=1) == -torch.inf, NO_TOKEN, tokens).int()


def norm_heads(q: torch.Tensor, k: torch.Tensor, norm: QKNorm) -> None:
    """Norm q and k [T, heads, head_dim] in place, by head or all heads of a token together."""
    for heads, weight in (q, norm.q), (k, norm.k):
        assert isinstance(weight, TorchVector)
        rows = heads if weight.n == heads.shape[2] else heads.flatten(1)
        heads[:] = rms_norm(rows, weight.data, norm.eps).view(heads.shape)
