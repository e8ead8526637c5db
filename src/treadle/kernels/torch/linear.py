"""Products of activations with matrices, part by part, each in the form it reads."""

from __future__ import annotations

import torch

from treadle.kernels.ops import QUANT_BLOCK
from treadle.kernels.torch.buffers import TorchBuffer
from treadle.kernels.torch.weights import DensePart, QuantPart, TorchMatrix


def multiply(x: TorchBuffer, matrix: TorchMatrix, count: int) -> torch.Tensor:
    """x @ matrixᵀ of the first `count` rows of x."""
    return torch.cat([_product(x, part, count) for part in matrix.parts], dim=1)


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
