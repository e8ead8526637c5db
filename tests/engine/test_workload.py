"""Two hundred requests, the same whatever serves them: every preset, and policies drawn from all
that compose."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.engine.bits import Answer
from tests.engine.workload import (
    GROUPS,
    Workload,
    acted,
    combinations,
    play,
    recorded,
    settings,
    start,
)
from tests.tiny import VOCAB_SIZE, tiny_llama
from treadle.config.axes import AXES
from treadle.config.presets import PRESETS
from treadle.config.settings import EngineSettings
from treadle.engine.request import Request
from treadle.wire.messages import Stats
from treadle.wire.plan import RowJoin

COMBINATIONS = list(combinations(40, seed=11))
PER_PART = 10
WHOLE = 60_000
"""Tokens for which no request has to make room."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return recorded(VOCAB_SIZE)


@pytest.fixture(scope="module")
def expected(path: Path, workload: Workload) -> dict[str, Answer]:
    """Of requests that are each alone: no cache, no shortage, nobody beside them."""
    alone = settings(
        {"cache": {"prefix_cache": "none"}, "order": {"priorities": "ignore"}},
    )
    engine = start(path, alone, kv_tokens=WHOLE)
    answers: dict[str, Answer] = {}
    for message in workload.messages:
        answer = play(engine, Workload([message], [0], workload.leaves))[message.request_id]
        assert answer is not None
        answers[message.request_id] = answer
    engine.close()
    return answers


def serve(
    path: Path, workload: Workload, chosen: EngineSettings, expected: dict[str, Answer]
) -> Stats:
    engine = start(path, chosen)
    try:
        answers = play(engine, workload)
        refused = {one.request_id for one in workload.messages if answers[one.request_id] is None}
        # Where priorities are refused, by name, only those that have one.
        assert refused <= {one.request_id for one in workload.messages if one.priority}
        for name, answer in answers.items():
            if answer is not None:
                assert answer == expected[name], f"{name} differs under {chosen}"
        return engine.stats()
    finally:
        engine.close()


def test_more_important_requests_take_places(
    path: Path, workload: Workload, expected: dict[str, Answer]
) -> None:
    order = {"order": "priority", "priorities": "count", "priority_preemption": True}
    chosen = settings({"order": order}, preset="sglang")
    stats = serve(path, workload, chosen, expected)
    assert 0 < stats.displacements <= stats.retractions <= stats.preemptions


def test_a_seed_from_the_row_is_caught(
    path: Path, workload: Workload, expected: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Request.join

    def seeded_by_row(request: Request, row: int) -> RowJoin:
        return msgspec.structs.replace(join(request, row), seed=row)

    monkeypatch.setattr(Request, "join", seeded_by_row)
    with pytest.raises(AssertionError, match="differs"):
        serve(path, workload, settings(), expected)


def test_presets(path: Path, workload: Workload, expected: dict[str, Answer]) -> None:
    for name in PRESETS:
        stats = serve(path, workload, settings(preset=name), expected)
        assert stats.prefix_hits > 0, name
        assert stats.evicted_tokens > 0, name
        assert stats.running == stats.waiting == stats.kv_usage == 0, name


@pytest.fixture(scope="module")
def seen() -> dict[int, Stats]:
    return {}


@pytest.mark.parametrize("first", range(0, len(COMBINATIONS), PER_PART))
def test_combinations(
    first: int,
    path: Path,
    workload: Workload,
    expected: dict[str, Answer],
    seen: dict[int, Stats],
) -> None:
    for at, chosen in enumerate(COMBINATIONS[first : first + PER_PART], first):
        stats = seen[at] = serve(path, workload, chosen, expected)
        assert stats.running == stats.waiting == stats.kv_usage == 0, chosen
        assert chosen.cache.prefix_cache == "none" or stats.prefix_hits > 0, chosen


def test_strategies_acted(
    path: Path, workload: Workload, expected: dict[str, Answer], seen: dict[int, Stats]
) -> None:
    """Among the combinations each thing that a policy can do was done."""
    for at, chosen in enumerate(COMBINATIONS):
        if at not in seen:
            seen[at] = serve(path, workload, chosen, expected)

    def total(name: str, **having: str) -> int:
        chosen = [
            stats
            for at, stats in seen.items()
            if all(
                getattr(COMBINATIONS[at].policy, key, None) == value
                or getattr(COMBINATIONS[at].cache, key, None) == value
                for key, value in having.items()
            )
        ]
        return acted(chosen, name)

    assert total("chunks") > 0
    assert total("pauses") > 0
    assert total("postponements", publication="postpone") > 0
    retracting = ("retract-by-length", "retract-by-priority")
    assert sum(total("retractions", shortage=shortage) for shortage in retracting) > 0
    for shortage in ("preempt-newest", "preempt-lowest-priority"):
        assert total("preemptions", shortage=shortage) > 0, shortage
    assert total("preemptions", shortage="never") == 0
    policies = {one.cache.eviction_policy for one in COMBINATIONS} - {None}
    for policy in policies:
        assert policy is not None
        assert total("evicted_tokens", eviction_policy=policy) > 0, policy


def test_every_choice_is_drawn() -> None:
    for axis in ("composition", "admission", "shortage", "order", "prefix_index", "eviction"):
        setting = AXES[axis].setting
        section = GROUPS[setting]
        drawn = {getattr(getattr(one, section), setting) for one in COMBINATIONS}
        assert set(AXES[axis].here) - {"none"} <= drawn, axis
