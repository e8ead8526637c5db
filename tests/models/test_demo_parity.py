"""The demo model as a user runs it, next to transformers in float32 on the dequantised weights."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import tokenizers
import torch
from transformers import GgufConfig, LlamaForCausalLM
from transformers.utils import logging

from tests.models.parity import (
    MISTAKES,
    Dequantising,
    log_softmax,
    mean_divergence,
    mistaken,
    our_logits,
    perplexity,
    reference_logits,
)
from treadle.kernels.ops import Backend, FloatArray
from treadle.kernels.torch.backend import TorchBackend
from treadle.models.gguf import GGUFFile
from treadle.models.loader import load_model

TEXT = """\
A loom is older than the plough. Long before anybody kept accounts, people had found out that a \
thread which is worth nothing alone becomes a cloth when it is crossed with others, and that the \
crossing can be done by a frame, two sticks and a good deal of patience. The frame holds one set \
of threads tight; they are called the warp. The other thread, the weft, is carried over and under \
them, back and forth, until evening.

What made weaving fast was a small thing. Somebody tied every second thread of the warp to one \
stick and the rest to another, and then tied the sticks to pedals. Press the left pedal and half \
of the threads go up; throw the shuttle through the gap; press the right pedal and the other half \
goes up. The hands are now free to throw and to beat. A weaver of the year 1300 could make about \
four metres of plain cloth in a day, where her grandmother had made one.

The next step took five hundred years. In 1804 Joseph Marie Jacquard showed a loom in Lyon that \
read its pattern from a chain of cards with holes in them: where there was a hole, a hook went up; \
where there was none, it stayed. Nobody had to remember the pattern any more. Charles Babbage \
owned a portrait of Jacquard, woven in silk from 24,000 cards, and he liked to ask his visitors \
how they thought it had been made. Most of them said that it was an engraving.
"""

CLEAR = 0.5
"""Nats by which the reference prefers its first token where we must agree."""

QUANTISED_BOUND = 0.005
"""Mean divergence in nats that quantised activations may cause; measured: 0.0031."""

FLOAT_BOUND = 1e-5
"""The same with dequantised weights, from a KV cache of f16 alone; measured: 4e-7."""

BF16_BOUND = 1e-4
"""And with K and V in bf16, which some processors multiply as they are; measured: 4.5e-5."""


@dataclasses.dataclass(frozen=True)
class Parity:
    """Both sides' logits of TEXT."""

    reference: LlamaForCausalLM
    ids: list[int]
    expected: FloatArray  # [len(ids), vocab]
    ours: FloatArray  # [len(ids), vocab]
    float_ours: FloatArray  # [len(ids), vocab], weights dequantised first
    bf16_ours: FloatArray  # [len(ids), vocab], and K and V in bf16


def _tokenise(path: Path) -> list[int]:
    """Nearly as the model was trained: what counts is that both sides get the same ids."""
    with closing(GGUFFile.open(path)) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        merges = file.metadata["tokenizer.ggml.merges"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer.encode(TEXT).ids


def _backend() -> Backend:
    if importlib.util.find_spec("treadle.kernels.native._native") is None:
        return TorchBackend(threads=1)
    backend: Backend = importlib.import_module("treadle.kernels.native.backend").NativeBackend(
        threads=2
    )
    return backend


@pytest.fixture(scope="module")
def parity(demo_gguf: Path) -> Iterator[Parity]:
    logging.disable_progress_bar()
    reference = LlamaForCausalLM.from_pretrained(
        demo_gguf.parent,
        gguf_file=demo_gguf.name,
        quantization_config=GgufConfig(gguf_file=demo_gguf.name, dequantize=True),
        dtype=torch.float32,
    ).eval()
    ids = _tokenise(demo_gguf)
    backend = _backend()
    plain = load_model(demo_gguf, backend, positions=len(ids))
    dequantising = cast("Backend", Dequantising(backend))
    dequantised = load_model(demo_gguf, dequantising, positions=len(ids))
    ours = our_logits(backend, plain, ids, kv_type="f16", chunk=128)
    float_ours = our_logits(backend, dequantised, ids, kv_type="f16", chunk=128)
    bf16_ours = our_logits(backend, dequantised, ids, kv_type="bf16", chunk=128)
    backend.close()
    yield Parity(reference, ids, reference_logits(reference, ids), ours, float_ours, bf16_ours)
    logging.enable_progress_bar()


def test_the_text_is_likely(parity: Parity) -> None:
    """Two sides that misread the file alike would agree on nonsense."""
    assert len(parity.ids) >= 300
    following = log_softmax(parity.ours)[np.arange(len(parity.ids) - 1), parity.ids[1:]]
    assert -following[20:].mean() < 3.5


def test_first_tokens_agree(parity: Parity) -> None:
    best = np.sort(parity.expected, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > CLEAR
    agree = parity.expected.argmax(axis=1) == parity.ours.argmax(axis=1)
    print(
        f"first token: {agree.mean():.1%} of all, {agree[clear].mean():.2%} of {clear.sum()} clear"
    )
    assert clear.sum() > 150
    assert agree[clear].all()
    assert agree.mean() > 0.9


def test_perplexity(parity: Parity) -> None:
    theirs, ours = (perplexity(side, parity.ids) for side in (parity.expected, parity.ours))
    print(f"perplexity {ours:.3f}, transformers' {theirs:.3f}")
    assert ours == pytest.approx(theirs, rel=0.02)


def test_divergence(parity: Parity) -> None:
    quantised = mean_divergence(parity.expected, parity.ours)
    exact = mean_divergence(parity.expected, parity.float_ours)
    print(f"mean divergence {quantised:.5f} nats, with dequantised weights {exact:.2g}")
    assert quantised < QUANTISED_BOUND
    assert exact < FLOAT_BOUND


def test_divergence_of_kv_in_bf16(parity: Parity) -> None:
    divergence = mean_divergence(parity.expected, parity.bf16_ours)
    print(f"mean divergence {divergence:.2g} nats with K and V in bf16")
    assert divergence < BF16_BOUND


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_would_show(parity: Parity, mistake: str) -> None:
    with mistaken(parity.reference, mistake):
        wrong = reference_logits(parity.reference, parity.ids)
    exact = mean_divergence(wrong, parity.float_ours)
    print(f"{mistake}: mean divergence {exact:.2g} nats with dequantised weights")
    assert exact > 10 * FLOAT_BOUND
    if mistake == "head mapping":
        assert mean_divergence(wrong, parity.ours) > 10 * QUANTISED_BOUND
