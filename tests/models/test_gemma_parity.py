"""Gemma 3 270M as a user runs it (Q4_K_M, with Q5_0, Q8_0 and Q6_K in it), next to transformers in
float32 on the dequantised weights, past the sliding window of 512 tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.utils import logging

from tests.models.conftest import native_backend
from tests.models.parity import mean_divergence, our_logits, perplexity, reference_logits
from tests.models.test_demo_parity import CLEAR, TEXT
from treadle.kernels.ops import FloatArray
from treadle.models.gguf import GGUFFile
from treadle.models.loader import load_model
from treadle.text.tokenizer import Tokenizer

pytestmark = pytest.mark.timeout(600)  # transformers takes its time over the vocabulary

NUM_TOKENS = 600

BOUND = 0.003
"""Mean divergence in nats that quantised activations may cause; measured: 0.0014."""


@dataclasses.dataclass(frozen=True)
class Parity:
    ids: list[int]
    expected: FloatArray  # [len(ids), vocab]
    ours: FloatArray  # [len(ids), vocab]


@pytest.fixture(scope="module")
def parity(gemma_gguf: Path) -> Iterator[Parity]:
    logging.disable_progress_bar()
    with closing(GGUFFile.open(gemma_gguf)) as file:
        ids = Tokenizer.from_gguf(file.metadata).encode(TEXT + TEXT)[:NUM_TOKENS]
    backend = native_backend()
    model = load_model(gemma_gguf, backend, positions=len(ids))
    ours = our_logits(backend, model, ids, kv_type="f16", chunk=128)
    backend.close()
    reference = AutoModelForCausalLM.from_pretrained(
        gemma_gguf.parent,
        gguf_file=gemma_gguf.name,
        quantization_config=GgufConfig(gguf_file=gemma_gguf.name, dequantize=True),
        dtype=torch.float32,
    ).eval()
    yield Parity(ids, reference_logits(reference, ids), ours)
    logging.enable_progress_bar()


def test_first_tokens_agree(parity: Parity) -> None:
    assert len(parity.ids) == NUM_TOKENS
    best = np.sort(parity.expected, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > CLEAR
    agree = parity.expected.argmax(axis=1) == parity.ours.argmax(axis=1)
    print(
        f"first token: {agree.mean():.1%} of all, {agree[clear].mean():.2%} of {clear.sum()} clear"
    )
    assert clear.sum() > 200
    assert agree[clear].mean() > 0.99
    assert agree.mean() > 0.9


def test_divergence_and_perplexity(parity: Parity) -> None:
    divergence = mean_divergence(parity.expected, parity.ours)
    perplexities = [perplexity(logits, parity.ids) for logits in (parity.expected, parity.ours)]
    print(
        f"mean divergence {divergence:.5f} nats; perplexity {perplexities[1]:.3f},"
        f" transformers' {perplexities[0]:.3f}"
    )
    assert divergence < BOUND
    assert perplexities[1] == pytest.approx(perplexities[0], rel=0.01)
    assert perplexities[0] < 60, "both sides read the file rightly, or alike wrongly"
