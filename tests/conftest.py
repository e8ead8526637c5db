"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from treadle.models.demo import demo_path, known_path

# A run finds what the last one found: new examples are for those who ask for another seed.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The demo model's file, downloaded once per machine."""
    return demo_path()


@pytest.fixture(scope="session")
def gemma_gguf() -> Path:
    """Gemma 3 270M in Q4_K_M, likewise."""
    return known_path("gemma")
