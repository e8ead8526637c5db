"""Every architecture with every weight type of GGUF files, and with types mixed as llama-quantize
mixes them, next to transformers on the weights that the file holds.

Twice: with weights dequantised first, when nothing but the order of float32 sums may differ; and as
the kernels compute, next to inputs of products rounded as they round them. There a last bit may
round an input to its next step, so that what is compared is the divergence."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import cast

import gguf
import numpy as np
import pytest

from tests.gguf_types import MIXED
from tests.models.parity import (
    Dequantising,
    Rounded,
    largest_difference,
    mean_divergence,
    our_logits,
    rounded_logits,
)
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import FIRST_OF_KIND, VOCAB_SIZE, WITH_EXPERTS
from treadle.kernels.ops import Backend, WeightType
from treadle.models.loader import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 150).tolist()
FEW = 48
"""Tokens of those; longer than every window."""

EXACT_BOUND = 3e-4
"""Of a log-probability. Random blocks have large means, so that float32 shows: transformers itself
is up to 1.1e-4 away from float64. Measured: 2.1e-4 with Q4_K, else below 1e-4."""

QUANTISED_BOUND = 1e-3
"""Mean divergence in nats that inputs rounded to another step may cause. Measured: up to 6e-4 where
that moves a token to another expert, else up to 5e-4, seldom above 2e-4."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types")


@functools.cache
def expected(name: str, types: str, count: int) -> Rounded:
    return rounded_logits(name, types, IDS[:count])


def check(backend: Backend, path: Path, reference: Rounded, chunk: int | None = None) -> None:
    ids = IDS[: len(reference.exact)]
    dequantising = cast("Backend", Dequantising(backend))
    exact = our_logits(dequantising, load_model(path, dequantising), ids, chunk=chunk)
    assert largest_difference(reference.exact, exact) < EXACT_BOUND
    ours = our_logits(backend, load_model(path, backend), ids, chunk=chunk)
    divergence = mean_divergence(reference.quantised, ours)
    print(f"{backend.name} {path.stem}: divergence {divergence:.2g}")
    assert divergence < QUANTISED_BOUND


@pytest.mark.parametrize("backend", ["native"], indirect=True)
@pytest.mark.parametrize("kind", WeightType)
@pytest.mark.parametrize("name", FIRST_OF_KIND)
def test_every_type(backend: Backend, folder: Path, name: str, kind: WeightType) -> None:
    """In all matrices but routers: also the embedding, and the head be it tied or not."""
    path = write_tiny_gguf(f"{name}-wide", folder, kind)
    stored = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert stored["token_embd.weight"] == stored["blk.1.attn_output.weight"] == kind.name
    check(backend, path, expected(f"{name}-wide", kind, FEW))


@pytest.mark.parametrize(("name", "types"), MIXED)
def test_mixed_types(backend: Backend, folder: Path, name: str, types: str) -> None:
    """With rows of 256 and others, types within one product that differ, and norms, biases and
    routers in float32."""
    path = write_tiny_gguf(f"{name}-uneven", folder, types)
    assert len({tensor.tensor_type for tensor in gguf.GGUFReader(path).tensors}) >= 3
    check(backend, path, expected(f"{name}-uneven", types, len(IDS)), chunk=37)


@pytest.mark.parametrize("types", ["f32", "q4_0", "q4_k", "q4_k_m"])
@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_experts_with_tensors_of_their_own(
    backend: Backend, folder: Path, name: str, types: str
) -> None:
    """As the oldest files have them; nothing else differs, not in a bit."""
    files = [
        write_tiny_gguf(f"{name}-wide", folder, types, experts_apart=apart)
        for apart in (False, True)
    ]
    assert "blk.1.ffn_down.2.weight" in [t.name for t in gguf.GGUFReader(files[1]).tensors]
    merged, apart = (our_logits(backend, load_model(path, backend), IDS[:FEW]) for path in files)
    np.testing.assert_array_equal(merged, apart)
