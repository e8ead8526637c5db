"""Thousands of random steps over scheduler, caches and loop; the invariants hold after each."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.simulation.world import Group, World, random_prompt
from treadle.wire.messages import Abort, Bye
from treadle.wire.sampling_params import SamplingParams

STEPS = 1200

CASES = list(
    itertools.product(
        ["none", "radix", "hashed"],
        [0, 1],
        [
            [Group(48, 1)],
            [Group(9, 4)],
            [Group(40, 1), Group(7, 8)],
            [Group(48, 1), Group(40, 1, window=6)],
            [Group(8, 4, window=9)],
            [Group(60, 1), Group(11, 4, window=5), Group(44, 1, window=11)],
        ],
    )
)


@pytest.mark.parametrize(("index", "depth", "groups"), CASES)
def test_random_life(index: str, depth: int, groups: list[Group]) -> None:
    rng = random.Random(f"{index}{depth}{groups}")
    world = World(
        index, groups=groups, depth=depth, rows=rng.randint(2, 5), budget=rng.randint(3, 20)
    )
    capacity = min(world.kv.capacity_tokens, world.window)
    salts = ["", "", "other"]
    for _ in range(STEPS):
        if rng.random() < 0.35 and len(world.sent) - len(world.ends) < 8:
            params = SamplingParams(
                max_tokens=rng.choice([1, 2, 5, 12, None]), ignore_eos=rng.random() < 0.3
            )
            world.send(
                random_prompt(rng, capacity - rng.choice([0, 3, 12])),
                salt=rng.choice(salts),
                seed=rng.randrange(3),
                params=params,
            )
        alive = [key for key in world.sent if key not in world.ends]
        if alive and rng.random() < 0.06:
            world.engine.handle(Abort(rng.choice(alive)))
        if rng.random() < 0.01:
            world.kv.reset()
        world.step()
    world.drain()
    assert set(world.ends) == set(world.sent), "every request ends exactly once"
    for key, end in world.ends.items():
        if not end.startswith("failed"):
            world.check_answer(key)
        else:
            message = world.sent[key]
            assert len(message.prompt) + (message.params.max_tokens or 1) > capacity
    world.kv.check([])
    world.kv.reset()
    assert world.kv.usage == 0
    assert all(group.num_available == group.num_blocks for group in world.kv.groups)
    finishes = set(world.ends.values())
    assert {"stop", "length", "abort"} <= finishes
    # Requests that keep only a window seldom outgrow what they were admitted with.
    assert world.scheduler.counters.preemptions > 0 or all(group.window for group in groups)
    assert (world.scheduler.counters.prefix_hits > 0) == (index != "none")


@pytest.mark.parametrize("depth", [0, 1])
def test_bye_ends_everybody(depth: int) -> None:
    world = World("radix", groups=[Group(64, 1)], depth=depth)
    for seed in range(6):
        world.send([1, 2, 3, seed], seed=seed, params=SamplingParams(max_tokens=9, ignore_eos=True))
    world.step()
    world.step()
    world.engine.handle(Bye())
    world.drain()
    assert set(world.ends.values()) == {"abort"}
    assert len(world.ends) == 6
    world.kv.check([])


def test_overlap_plans_before_it_settles() -> None:
    """At depth 1 step n + 1 is launched while the tokens of step n are not known."""
    world = World("none", groups=[Group(64, 1)], depth=1)
    world.send([1, 2, 3], params=SamplingParams(max_tokens=6, ignore_eos=True))
    in_flight = []
    while world.engine.has_work:
        world.step()
        in_flight.append(world.fence.in_flight)
    assert in_flight == [1, 1, 1, 1, 1, 1, 0], "no step beyond max_tokens is launched"
