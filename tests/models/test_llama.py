"""The Llama forward pass on both backends, against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.parity import (
    MISTAKES,
    log_softmax,
    mean_divergence,
    mistaken,
    our_logits,
    quantised_inputs,
    reference_logits,
)
from tests.tiny import VOCAB_SIZE, TinyLlama, tiny_reference, write_tiny
from treadle.kernels.ops import Backend
from treadle.models.loader import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = np.random.default_rng(0).integers(0, VOCAB_SIZE, 150).tolist()

FLOATS = ("f32", "f16", "bf16")
QUANTISED = ("q4_0", "q4_1", "q8_0", "q5_0", "q4_k", "q6_k", "iq4_xs")

QUANTISED_BOUND = 0.01
"""Mean divergence in nats that quantised activations may cause; measured: 0.0013 to 0.0017."""

ROUNDED_BOUND = 0.3
"""Of a log-probability, where activations are rounded to bf16; measured: 0.14, and a mean
divergence of 1.1e-4 nats."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def difference(backend: Backend, tiny: TinyLlama, folder: Path, **options: object) -> float:
    """Largest difference of a log-probability."""
    model = load_model(write_tiny(tiny, folder), backend)
    ours = our_logits(backend, model, IDS, **options)
    reference = reference_logits(tiny_reference(tiny), IDS)
    return float(np.abs(log_softmax(ours) - log_softmax(reference)).max())


@pytest.mark.parametrize("weight_type", FLOATS)
def test_float_weights(backend: Backend, folder: Path, weight_type: str) -> None:
    rounds = weight_type == "bf16" and getattr(backend, "isa", "") == "avx512bf16"
    bound = ROUNDED_BOUND if rounds else 1e-4
    assert difference(backend, TinyLlama(weight_type), folder) < bound


@pytest.mark.parametrize(
    "tiny",
    [
        TinyLlama(tied=True),
        TinyLlama(kv_heads=4),
        TinyLlama(heads=8, kv_heads=1),  # heads wider than the hidden state
        TinyLlama(llama3_rope=True),
        TinyLlama("f16", heads=8, kv_heads=2, tied=True, llama3_rope=True, seed=1),
    ],
    ids=lambda tiny: tiny.file_name,
)
def test_variants(backend: Backend, folder: Path, tiny: TinyLlama) -> None:
    assert difference(backend, tiny, folder) < 1e-4


def test_llama3_factors_matter(folder: Path) -> None:
    scaled = reference_logits(tiny_reference(TinyLlama(llama3_rope=True)), IDS)
    plain = reference_logits(tiny_reference(TinyLlama()), IDS)
    assert np.abs(log_softmax(scaled) - log_softmax(plain)).max() > 0.1


@pytest.mark.parametrize("chunk", [1, 64, 77])
def test_chunked_prefill(backend: Backend, folder: Path, chunk: int) -> None:
    assert difference(backend, TinyLlama(), folder, chunk=chunk) < 1e-4


def test_kv_types(backend: Backend, folder: Path) -> None:
    """Coarser caches cost precision, and visibly so."""
    f16, bf16 = (difference(backend, TinyLlama(), folder, kv_type=t) for t in ("f16", "bf16"))
    assert 1e-4 < f16 < 0.05
    assert f16 < bf16 < 0.5


@pytest.mark.parametrize("weight_type", QUANTISED)
def test_quantised_weights(backend: Backend, folder: Path, weight_type: str) -> None:
    """Near the float32 model, and much nearer to one whose products see quantised inputs."""
    tiny = TinyLlama(weight_type)
    ours = our_logits(backend, load_model(write_tiny(tiny, folder), backend), IDS)
    reference = tiny_reference(tiny)
    plain = mean_divergence(reference_logits(reference, IDS), ours)
    assert plain < QUANTISED_BOUND
    with quantised_inputs(reference, [k for k, w in reference.named_parameters() if w.ndim == 2]):
        faithful = mean_divergence(reference_logits(reference, IDS), ours)
    print(f"{backend.name} {weight_type}: divergence {plain:.2g}, from quantised {faithful:.2g}")
    assert faithful < 1e-4


@pytest.mark.parametrize("weight_type", ["f32", *QUANTISED])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_would_show(
    backend: Backend, folder: Path, weight_type: str, mistake: str
) -> None:
    tiny = TinyLlama(weight_type)
    ours = our_logits(backend, load_model(write_tiny(tiny, folder), backend), IDS)
    reference = tiny_reference(tiny)
    with mistaken(reference, mistake):
        wrong = reference_logits(reference, IDS)
    assert mean_divergence(wrong, ours) > 4 * QUANTISED_BOUND
    assert np.abs(log_softmax(wrong) - log_softmax(ours)).max() > 0.1
