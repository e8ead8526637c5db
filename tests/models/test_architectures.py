"""Every architecture from folders and GGUF files, next to transformers in float32."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.parity import (
    largest_difference,
    mean_divergence,
    our_logits,
    reference_logits,
    rounded_logits,
)
from tests.tiny_gguf import NOT_IN_GGUF, write_tiny_gguf
from tests.tiny_models import MODELS, VOCAB_SIZE, save_tiny, tiny_model
from treadle.kernels.ops import Backend, FloatArray
from treadle.models.loader import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = np.random.default_rng(0).integers(0, VOCAB_SIZE, 150).tolist()
"""Longer than two attention pieces, every window and every original context."""


IN_GGUF = [name for name in MODELS if name not in NOT_IN_GGUF]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folders")


@functools.cache
def expected(name: str, types: str = "f32") -> FloatArray:
    """Logits of transformers, on weights and inputs of products as such a file means them."""
    return rounded_logits(name, types, IDS).quantised


@pytest.mark.parametrize("name", MODELS)
def test_logits(backend: Backend, folder: Path, name: str) -> None:
    model = load_model(save_tiny(name, folder), backend, positions=len(IDS))
    for chunk in (None, 37, 1):
        ours = our_logits(backend, model, IDS, chunk=chunk)
        assert largest_difference(ours, expected(name)) < 1e-4, f"in chunks of {chunk}"


@pytest.mark.parametrize("name", IN_GGUF)
def test_logits_from_gguf(backend: Backend, folder: Path, name: str) -> None:
    model = load_model(write_tiny_gguf(name, folder), backend, positions=len(IDS))
    ours = our_logits(backend, model, IDS, chunk=37)
    assert largest_difference(ours, expected(name)) < 1e-4


@pytest.mark.parametrize("name", IN_GGUF)
def test_half_precision(backend: Backend, folder: Path, name: str) -> None:
    model = load_model(write_tiny_gguf(name, folder, "f16"), backend, positions=len(IDS))
    assert largest_difference(our_logits(backend, model, IDS), expected(name, "f16")) < 1e-4


@pytest.mark.parametrize("name", IN_GGUF)
def test_quantised(backend: Backend, folder: Path, name: str) -> None:
    """Near transformers on the weights and the inputs of products that such a file means, and not
    as near to it on the original ones. A last bit may round an input to the next step."""
    model = load_model(write_tiny_gguf(name, folder, "q8_0"), backend, positions=len(IDS))
    ours = our_logits(backend, model, IDS)
    faithful = mean_divergence(expected(name, "q8_0"), ours)
    plain = mean_divergence(expected(name), ours)
    print(f"{backend.name} {name}: divergence {faithful:.2g}, from the original {plain:.2g}")
    assert faithful < 5e-4
    assert plain > 5 * faithful


def mistakes(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Changes of 10 % to each constant of a config, and of one to each count of experts."""
    options = MODELS[name].config_options()
    found: list[tuple[str, dict[str, Any]]] = [
        (key, {key: options[key] * 1.1})
        for key in (
            "rms_norm_eps",
            "layer_norm_epsilon",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        )
        if options.get(key)
    ]
    if options.get("sliding_window"):
        found.append(("window", {"sliding_window": options["sliding_window"] * 11 // 10}))
    if "query_pre_attn_scalar" in options:
        found.append(("scale", {"query_pre_attn_scalar": 11}))
    if "num_experts_per_tok" in options:
        found.append(("experts", {"num_experts_per_tok": options["num_experts_per_tok"] + 1}))
        if "norm_topk_prob" in options:
            found.append(("renormalise", {"norm_topk_prob": not options["norm_topk_prob"]}))
    for key, changed in (
        ("partial_rotary_factor", 0.625),
        ("original_max_position_embeddings", 70),
    ):
        if key in options:
            found.append((key, {key: changed}))
    rope = options.get("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
    if name == "gpt2":
        return found
    if "full_attention" in rope:
        for kind, own in rope.items():
            found += [
                (f"{kind}: {key}", {"rope_parameters": {**rope, kind: changed}})
                for key, changed in rope_mistakes(own)
            ]
        return found
    return found + [(key, {"rope_parameters": changed}) for key, changed in rope_mistakes(rope)]


def rope_mistakes(rope: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Of all but the divisors of short contexts, which these texts are no longer."""
    found: list[tuple[str, dict[str, Any]]] = []
    for key, value in rope.items():
        if key not in ("rope_type", "short_factor"):
            changed: Any = (
                not value if isinstance(value, bool) else np.multiply(value, 1.1).tolist()
            )
            found.append((key, {**rope, key: int(changed) if type(value) is int else changed}))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_small_mistakes_would_show(name: str) -> None:
    moved = {
        what: largest_difference(reference_logits(tiny_model(name, **changes), IDS), expected(name))
        for what, changes in mistakes(name)
    }
    print(name, {what: f"{by:.2g}" for what, by in moved.items()})
    assert moved
    assert min(moved.values()) > 1e-2, moved
