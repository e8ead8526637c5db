"""A mixture of experts: the choice per token, then each expert on the tokens that chose it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treadle.kernels.ops import Activation, Routing
from treadle.kernels.torch.buffers import TorchBuffer, allocate
from treadle.kernels.torch.linear import multiply
from treadle.kernels.torch.rows import ACTIVATIONS
from treadle.kernels.torch.weights import TorchMatrix


def choose(logits: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """(experts, weights), each [T, top_k], of router logits [T, experts]."""
    # A stable sort keeps equals in the order of their ids.
    ordered, experts = torch.softmax(logits, dim=1).sort(dim=1, descending=True, stable=True)
    weights = ordered[:, : routing.top_k]
    if routing.renormalise:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return experts[:, : routing.top_k], weights


class Experts:
    """The experts of one layer; gate_up[e] and down[e] are one expert's."""

    def __init__(
        self, gate_up: Sequence[TorchMatrix], down: Sequence[TorchMatrix], activation: Activation
    ) -> None:
        assert len(gate_up) == len(down)
        for first, second in zip(gate_up, down, strict=True):
            assert first.n == 2 * second.k
        self._pairs = list(zip(gate_up, down, strict=True))
        self._activation = ACTIVATIONS[activation]

    def add(
        self, x: TorchBuffer, logits: torch.Tensor, out: torch.Tensor, routing: Routing
    ) -> None:
        """out[t] += the weighted experts of x[t], in the order of their ids."""
        experts, weights = choose(logits, routing)
        for expert, (gate_up, down) in enumerate(self._pairs):
            tokens, choice = (experts == expert).nonzero(as_tuple=True)
            if len(tokens):
                gate, up = multiply(x.take(tokens), gate_up, len(tokens)).chunk(2, dim=1)
                hidden = allocate(x.rows, len(tokens), down.k, down.forms)
                hidden.write(self._activation(gate) * up)
                result = multiply(hidden, down, len(tokens))
                out[tokens] += weights[tokens, choice, None] * result
