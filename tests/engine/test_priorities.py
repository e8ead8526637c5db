"""What a request's priority becomes, and who starts first because of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.world import Group, World
from treadle import LLM, AsyncLLM, SamplingParams
from treadle.engine.priorities import WORST, Priorities
from treadle.engine.sglang import Engine
from treadle.errors import InvalidRequest, OverloadError
from treadle.wire.sampling_params import SamplingParams as Params


@pytest.mark.parametrize(
    ("priorities", "ranks"),
    [
        (Priorities("count", True, 0), {None: 0, -3: -3, 0: 0, 7: 7}),
        (Priorities("count", False, WORST), {None: WORST, -3: 3, 0: 0, 7: -7}),
        (Priorities("count", True, WORST), {None: WORST, 2**63 - 1: 2**63 - 1}),
        (Priorities("ignore", True, 0), {None: 0, 0: 0, 7: 0, -7: 0}),
        (Priorities("refuse", True, 0), {None: 0, 0: 0}),
        (Priorities("abort", False, WORST), {None: 0}),
    ],
)
def test_ranks(priorities: Priorities, ranks: dict[int | None, int]) -> None:
    assert {asked: priorities.rank(asked) for asked in ranks} == ranks


def test_refusals() -> None:
    with pytest.raises(InvalidRequest, match=r"priority is 7, .* must be 0"):
        Priorities("refuse").rank(7)
    for asked in (0, 7):
        with pytest.raises(OverloadError, match="priorities are disabled"):
            Priorities("abort").rank(asked)


@pytest.mark.parametrize(
    ("priorities", "order"),
    [
        (Priorities("count", True, 0), ["r4", "r0", "r2", "r3", "r1"]),
        (Priorities("count", False, WORST), ["r1", "r3", "r4", "r0", "r2"]),
    ],
)
def test_the_important_start_first(priorities: Priorities, order: list[str]) -> None:
    """One row; five wait for the first to end."""
    world = World("none", groups=[Group(64, 1)], rows=1, order="priority", priorities=priorities)
    for priority in (None, 5, None, 1, -2):
        world.send([1, 2], params=Params(max_tokens=2, ignore_eos=True), priority=priority)
    world.drain()
    assert list(world.ends) == order


@pytest.fixture(scope="module")
def llm(demo_gguf: Path) -> Any:
    with LLM(str(demo_gguf), order="priority", max_num_seqs=1) as llm:
        yield llm


def test_priorities_of_python_callers(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, temperature=0)
    prompts = ["a b", "c d", "e f"]
    plain = [one.outputs[0].text for one in llm.generate(prompts, params)]
    found = llm.generate(prompts, params, priority=[2, 0, -1])
    assert [one.outputs[0].text for one in found] == plain
    with pytest.raises(InvalidRequest, match="3 prompts and 2 priorities"):
        llm.generate(prompts, params, priority=[1, 2])
    with pytest.raises(InvalidRequest, match="a list of whole numbers"):
        llm.generate(prompts, params, priority=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="must fit in 64 bits"):
        llm.generate(prompts, params, priority=[2**63, 0, 0])


def test_priorities_are_refused_where_they_do_not_count(demo_gguf: Path) -> None:
    async def ask() -> None:
        async with AsyncLLM(str(demo_gguf)) as llm:
            async for _ in llm.generate("a b", SamplingParams(max_tokens=1), priority=3):
                pass

    with pytest.raises(InvalidRequest, match="priority is 3"):
        asyncio.run(ask())


def test_sglangs_engine_takes_them(demo_gguf: Path) -> None:
    sampling = {"max_new_tokens": 1}
    with Engine(str(demo_gguf), preset="sglang", max_num_seqs=2) as engine:
        assert engine.generate(["a", "b"], sampling, priority=[3, 4], routing_key="x")
    with (
        Engine(str(demo_gguf), abort_on_priority_when_disabled=True) as engine,
        pytest.raises(OverloadError, match="priorities are disabled"),
    ):
        engine.generate("a", sampling, priority=0)
