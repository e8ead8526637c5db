"""A soak of a minute; `make soak` runs a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import Soak
from tests.tiny import tiny_llama


@pytest.mark.timeout(300)
def test_a_short_soak(tmp_path: Path) -> None:
    soak = Soak(tiny_llama("f32", tmp_path), seed=1)
    try:
        soak.run(60, num_queued=500, num_streams=50)
    finally:
        soak.close()
