"""Answers do not depend on how attention is told where K and V lie, nor on whether they are written
by an op of their own."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import get_args

import pytest

from tests.engine.bits import Answer, Schedule, requests, serve, start
from tests.tiny_models import POSITIONS, VOCAB_SIZE, save_tiny
from treadle.config.settings import ContextForm, RuntimeSettings

SCHEDULE = Schedule(
    index="radix", kv_tokens=1500, rows=3, budget=40, depth=1, window=POSITIONS, steps_between=2
)


def answers(path: Path, schedule: Schedule, runtime: RuntimeSettings) -> dict[str, Answer]:
    messages = requests(random.Random(3), VOCAB_SIZE, 5, longest=70)
    engine = start(path, schedule, kv_dtype="f32", runtime=runtime)
    found = serve(engine, messages, schedule)
    engine.close()
    return found


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_forms_of_the_context(model: str, block_size: int, tmp_path: Path) -> None:
    """With and without windows, of which some blocks are gone."""
    path = save_tiny(model, tmp_path)
    schedule = dataclasses.replace(SCHEDULE, block_size=block_size)
    forms = {
        form: answers(
            path, schedule, RuntimeSettings(backend="torch", threads=1, context_form=form)
        )
        for form in get_args(ContextForm)
    }
    assert len(forms) == 4
    assert all(found == forms["block-table"] for found in forms.values())


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("model", ["llama", "qwen3", "gpt2", "gemma3"])
def test_write_and_attend(model: str, backend: str, tmp_path: Path) -> None:
    """With norms of q and k, without RoPE, with windows."""
    path = save_tiny(model, tmp_path)
    two, one = (
        answers(
            path,
            SCHEDULE,
            RuntimeSettings(backend=backend, threads=1, write_and_attend=together),  # type: ignore[arg-type]
        )
        for together in (False, True)
    )
    assert one == two
