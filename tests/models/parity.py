"""Logits of our forward pass and of transformers, how far apart they are, and mistakes that must
drive them further apart."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.pytorch_utils import Conv1D

from tests.blocks import dequantised
from tests.tiny_gguf import quantised_keys, rounded_model
from treadle.kernels.ops import (
    Backend,
    FloatArray,
    KVType,
    Matrix,
    RawTensor,
    StepInputs,
    StepLimits,
    WeightType,
)
from treadle.models.loader import Model

BLOCK_SIZE = 16


def our_logits(
    backend: Backend,
    model: Model,
    ids: Sequence[int],
    *,
    kv_type: KVType = "f32",
    chunk: int | None = None,
) -> FloatArray:
    """Logits of every position of one row, computed `chunk` tokens a step: [len(ids), vocab]."""
    chunk = chunk or len(ids)
    blocks = -(-len(ids) // BLOCK_SIZE)
    groups = model.card.kv_groups
    inputs = StepInputs(StepLimits(chunk, chunk, (blocks,) * len(groups)))
    specs = model.card.kv_specs(block_size=BLOCK_SIZE, type=kv_type)
    pools = [backend.kv_pool(spec, blocks) for spec in specs]
    program = model.record(backend.recorder(inputs, pools))
    inputs.logit_tokens[:] = np.arange(chunk)
    table = np.arange(blocks)[::-1]
    logits = []
    for start in range(0, len(ids), chunk):
        positions = np.arange(start, min(start + chunk, len(ids)))
        count = len(positions)
        inputs.token_ids[:count] = ids[start : start + count]
        inputs.positions[:count] = positions
        for group, facts in enumerate(groups):
            rotated = np.roll(table, group)
            slots = rotated[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
            inputs.slots[group][:count] = slots
            inputs.tables[group][0] = rotated
            if facts.window is not None:  # what no token sees any more has been given away
                gone = max(0, start - facts.window + 1) // BLOCK_SIZE
                inputs.tables[group][0, :gone] = -1
        inputs.row_starts[1] = count
        logits.append(program.run(count, 1, count).copy())
    return np.concatenate(logits)


class Dequantising:
    """A backend that gets every matrix in float32, dequantised by the `gguf` package.

    Quantised activations hide a RoPE base 10 % off, or a last bit, behind their own noise; without
    them the forward pass itself can be compared closely.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        return self._backend.matrix([_dequantised(part) for part in parts])


def _dequantised(tensor: RawTensor) -> RawTensor:
    values = dequantised(tensor.data, tensor.type, tensor.shape[0])
    return RawTensor(tensor.name, WeightType.F32, tensor.shape, values.view(np.uint8).reshape(-1))


def reference_logits(model: PreTrainedModel, ids: Sequence[int]) -> FloatArray:
    with torch.inference_mode():
        logits: FloatArray = model(torch.tensor([list(ids)])).logits[0].numpy()
    return logits


class Rounded(NamedTuple):
    """Logits of a tiny model with the weights that a GGUF file holds."""

    exact: FloatArray
    """All inputs as they are."""
    quantised: FloatArray
    """Inputs of products with quantised weights rounded as the kernels round them."""


def rounded_logits(name: str, types: str, ids: Sequence[int]) -> Rounded:
    model, keys = rounded_model(name, types), quantised_keys(name, types)
    exact = reference_logits(model, ids)
    if not keys:
        return Rounded(exact, exact)
    with quantised_inputs(model, keys):
        return Rounded(exact, reference_logits(model, ids))


def log_softmax(logits: FloatArray) -> FloatArray:
    return torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()


def largest_difference(first: FloatArray, second: FloatArray) -> float:
    """Of a log-probability."""
    return float(np.abs(log_softmax(first) - log_softmax(second)).max())


def perplexity(logits: FloatArray, ids: Sequence[int]) -> float:
    """Of the tokens that follow the first, given those before them."""
    following = log_softmax(logits)[np.arange(len(ids) - 1), ids[1:]]
    return float(np.exp(-following.mean()))


def mean_divergence(reference: FloatArray, logits: FloatArray) -> float:
    """Mean over positions of KL(reference ‖ logits)."""
    expected, found = log_softmax(reference), log_softmax(logits)
    return float((np.exp(expected) * (expected - found)).sum(axis=1).mean())


@contextmanager
def quantised_inputs(model: PreTrainedModel, keys: Container[str]) -> Iterator[None]:
    """Products with the weights of these names see their inputs in steps of max|x| / 127 per
    block."""

    def quantise(x: torch.Tensor) -> torch.Tensor:
        blocks = x.unflatten(-1, (-1, 32))
        # Of a block of zeros any step will do.
        step = (blocks.abs().amax(dim=-1, keepdim=True) / 127).clamp_min(1e-30)
        return ((blocks / step).round() * step).flatten(-2)

    plain = torch.nn.functional.linear
    # An expert's matrix is a view of one for all.
    places = {_place(weight) for name, weight in model.named_parameters() if name in keys}

    def linear(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return plain(quantise(x) if _place(weight) in places else x, weight, bias)

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: (quantise(inputs[0]),))
        for module in model.modules()
        if isinstance(module, Conv1D) and _place(module.weight) in places
    ]
    torch.nn.functional.linear = linear
    try:
        yield
    finally:
        torch.nn.functional.linear = plain
        for hook in hooks:
            hook.remove()


def _place(weight: torch.Tensor) -> int:
    return weight.untyped_storage().data_ptr()


MISTAKES = ("rope base", "epsilon", "head mapping")


@contextmanager
def mistaken(model: LlamaForCausalLM, mistake: str) -> Iterator[None]:
    """A RoPE base 10 % off, an epsilon 100 times too large, or query heads that share the KV head
    of their neighbour."""
    if mistake == "rope base":
        rotary = model.model.rotary_emb
        config = copy.deepcopy(model.config)
        config.rope_parameters["rope_theta"] *= 1.1
        model.model.rotary_emb = LlamaRotaryEmbedding(config)
        yield
        model.model.rotary_emb = rotary
    elif mistake == "epsilon":
        _scale_epsilon(model, 100)
        yield
        _scale_epsilon(model, 1 / 100)
    else:
        _shift_heads(model, 1)
        yield
        _shift_heads(model, -1)


def _scale_epsilon(model: LlamaForCausalLM, factor: float) -> None:
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.variance_epsilon *= factor


def _shift_heads(model: LlamaForCausalLM, heads: int) -> None:
    rows = heads * model.config.head_dim
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj.weight.data = attention.q_proj.weight.data.roll(rows, 0)
        attention.o_proj.weight.data = attention.o_proj.weight.data.roll(rows, 1)
