"""Random lives under every composition, admission and shortage that go together, with parameters
drawn at random: the answers are the same. That each acts is held over the recorded workload."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.simulation.life import live
from tests.simulation.world import Group, World
from treadle.config.axes import AXES
from treadle.config.composition import check_composition
from treadle.errors import StartError
from treadle.schedule.order.build import ORDERS
from treadle.schedule.policy import (
    Chunking,
    Estimate,
    Policy,
    PrefillFirst,
    Stepwise,
    TwoStage,
)
from treadle.schedule.publication.build import Sharing
from treadle.wire.sampling_params import SamplingParams

STEPS = 200

GROUPS = [
    [Group(48, 1)],
    [Group(9, 4)],
    [Group(40, 1), Group(7, 8)],
    [Group(48, 1), Group(40, 1, window=6)],
    [Group(8, 4, window=9)],
]


def composable() -> list[tuple[str, str, str]]:
    found = []
    axes = ("composition", "admission", "shortage")
    for choice in itertools.product(*(AXES[name].choices for name in axes)):
        try:
            check_composition(dict(zip(axes, choice, strict=True)))
        except StartError:
            continue
        found.append(choice)
    return found  # type: ignore[return-value]


COMPOSABLE = composable()


def random_policy(rng: random.Random, choice: tuple[str, str, str], depth: int) -> Policy:
    composition, admission, shortage = choice
    return Policy(
        composition=composition,
        admission=admission,
        shortage=shortage,
        overlap_depth=depth,
        chunking=Chunking(on=rng.random() < 0.7, most_tokens=rng.choice([0, 0, 3])),
        prefill_first=PrefillFirst(
            chunk_tokens=rng.choice([1, 4, 9, 100]),
            prefill_tokens=rng.choice([5, 20, 100]),
            mixed=rng.random() < 0.5,
        ),
        two_stage=TwoStage(
            equal_progress=rng.random() < 0.5, unit_tokens=rng.choice([1, 3, 8, 64])
        ),
        stepwise=Stepwise(whole_prompt=rng.random() < 0.7, watermark=rng.choice([0.0, 0.0, 0.1])),
        estimate=Estimate(
            conservativeness=rng.choice([0.1, 1.0, 2.0]),
            decay_steps=rng.choice([5, 600]),
            clip_tokens=rng.choice([3, 4096]),
        ),
        displacement=rng.choice([None, 0, 1]) if admission == "estimate" else None,
    )


def random_sharing(rng: random.Random, index: str) -> Sharing:
    names = ["at-chunk-end", "postpone"] + ["at-plan"] * 2 * (index in ("none", "hashed"))
    return Sharing(rng.choice(names), rng.choice([0, 3, 8]))


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("index", ["none", "radix", "hashed", "block-tree"])
@pytest.mark.parametrize("choice", COMPOSABLE, ids="-".join)
def test_random_life(choice: tuple[str, str, str], index: str, depth: int) -> None:
    rng = random.Random(f"{choice}{index}{depth}")
    for groups in rng.sample(GROUPS, 2):
        world = World(
            index,
            groups=groups,
            depth=depth,
            rows=rng.randint(2, 5),
            budget=rng.randint(5, 20),
            order=rng.choice(sorted(ORDERS)),
            policy=random_policy(rng, choice, depth),
            sharing=random_sharing(rng, index),
        )
        live(world, rng, STEPS)
        counters = world.scheduler.counters
        if choice[2] == "never":
            assert counters.preemptions == 0
        assert counters.retractions <= counters.preemptions


def test_nobody_gives_way_beside_one_that_found_what_is_computed_in_the_step() -> None:
    """r2 starts, r3 finds its blocks as they are planned, and r1 wants a block more than there is:
    were r2 to give way, r3 would read what nobody writes."""
    policy = Policy(
        composition="prefill-first",
        shortage="preempt-lowest-priority",
        prefill_first=PrefillFirst(100, 100, mixed=True),
    )
    sharing = Sharing("at-plan", 0)
    world = World(
        "hashed", groups=[Group(17, 1)], depth=0, rows=4, budget=40, policy=policy, sharing=sharing
    )
    shared = list(range(10, 20))
    world.send([1, 2, 3], params=_answer(8), priority=0)
    world.step()
    world.step()
    world.send([*shared, 30], params=_answer(3), priority=5, seed=1)
    world.send([*shared, 31, 32], params=_answer(3), priority=1, seed=2)
    world.drain()
    for key in world.sent:
        world.check_answer(key)


def _answer(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)
