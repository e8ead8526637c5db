"""Logits of our forward pass and of transformers, how far apart they are, and mistakes that must
drive them further apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from treadle.kernels.ops import Backend, FloatArray, KVType, StepInputs, StepLimits
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
    inputs = StepInputs(StepLimits(chunk, chunk, (blocks,)))
    (spec,) = model.card.kv_specs(block_size=BLOCK_SIZE, type=kv_type)
    program = model.record(backend.recorder(inputs, [backend.kv_pool(spec, blocks)]))
    table = np.arange(blocks)[::-1]
    inputs.tables[0][0] = table
    inputs.logit_tokens[:] = np.arange(chunk)
    logits = []
    for start in range(0, len(ids), chunk):
        positions = np.arange(start, min(start + chunk, len(ids)))
        count = len(positions)
        inputs.token_ids[:count] = ids[start : start + count]
        inputs.positions[:count] = positions
        inputs.slots[0][:count] = (
            table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        )
        inputs.row_starts[1] = count
        logits.append(program.run(count, 1, count).copy())
    return np.concatenate(logits)


def reference_logits(model: LlamaForCausalLM, ids: Sequence[int]) -> FloatArray:
    with torch.inference_mode():
        logits: FloatArray = model(torch.tensor([list(ids)])).logits[0].numpy()
    return logits


def log_softmax(logits: FloatArray) -> FloatArray:
    return torch.log_softmax(torch.from_numpy(logits), dim=-1).numpy()


def mean_divergence(reference: FloatArray, logits: FloatArray) -> float:
    """Mean over positions of KL(reference ‖ logits)."""
    expected, found = log_softmax(reference), log_softmax(logits)
    return float((np.exp(expected) * (expected - found)).sum(axis=1).mean())


@contextmanager
def quantised_inputs(model: LlamaForCausalLM) -> Iterator[None]:
    """Products see their inputs as quantised weights do: in steps of max|x| / 127 per block."""

    def quantise(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        blocks = inputs[0].unflatten(-1, (-1, 32))
        # Of a block of zeros any step will do.
        step = (blocks.abs().amax(dim=-1, keepdim=True) / 127).clamp_min(1e-30)
        return ((blocks / step).round() * step).flatten(-2)

    products = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [product.register_forward_pre_hook(quantise) for product in products]
    yield
    for hook in hooks:
        hook.remove()


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
