"""Constrained requests among others, over grammars that a few lines foretell: whatever the schedule
does, and however many tokens are taken ahead, answers are those of one token after another."""

from __future__ import annotations

import random

import pytest

from tests.simulation.life import CALLS
from tests.simulation.test_policies import COMPOSABLE, random_policy
from tests.simulation.world import Group, World, random_prompt
from treadle.wire.constraint import Constraint
from treadle.wire.messages import Abort, Pause, ResetCache, Resume
from treadle.wire.sampling_params import SamplingParams

STEPS = 1500


def constraint(text: str) -> Constraint:
    return Constraint("regex", text)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("index", ["none", "radix", "block-tree"])
def test_random_life(index: str, depth: int, seed: int) -> None:
    rng = random.Random(f"{index}{depth}{seed}")
    groups = [[Group(48, 1)], [Group(12, 4)], [Group(48, 1), Group(40, 1, window=6)]][seed % 3]
    world = World(index, groups=groups, depth=depth, rows=rng.randint(2, 5), budget=6 + seed)
    stuck = live(world, rng, STEPS)
    stats = world.engine.stats()
    assert stuck > 0
    assert stats.forced_tokens > 30
    assert world.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("choice", COMPOSABLE, ids="-".join)
def test_random_life_under_any_policy(choice: tuple[str, str, str], depth: int) -> None:
    """A request that has taken tokens ahead has several to compute, as in a prefill."""
    rng = random.Random(f"{choice}{depth}")
    for index in ("radix", "none"):
        groups = rng.choice([[Group(48, 1)], [Group(12, 4)]])
        policy = random_policy(rng, choice, depth)
        world = World(
            index, groups=groups, depth=depth, rows=3, budget=rng.randint(5, 20), policy=policy
        )
        live(world, rng, 300)


def live(world: World, rng: random.Random, steps: int) -> int:
    """How many ended stuck in their grammar."""
    capacity = min(world.kv.capacity_tokens, world.window)
    calls: list[Pause | Resume | ResetCache] = []
    for _ in range(steps):
        if rng.random() < 0.35 and len(world.sent) - len(world.ends) < 8:
            text = rng.choice([None, "1 0", "3 12", "4 5", "2 20", "2 1", "wrong 0", "dead 6"])
            world.send(
                random_prompt(rng, capacity - rng.choice([3, 12, 20])),
                seed=rng.randrange(3),
                params=SamplingParams(
                    max_tokens=rng.choice([0, 1, 2, 5, 12, 18, None]),
                    ignore_eos=rng.random() < 0.2,
                    prompt_logprobs=rng.choice([None, None, 0]),
                    logprobs=rng.choice([None, None, 0]),
                    repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
                    logit_bias=rng.choice([None, None, {1: 0.5}]),
                ),
                constraint=None if text is None else constraint(text),
            )
        alive = [key for key in world.sent if key not in world.ends]
        if alive and rng.random() < 0.06:
            world.engine.handle(Abort(rng.choice(alive)))
        if rng.random() < (0.2 if world.engine.stats().paused else 0.01):
            calls.append(rng.choice(CALLS)(len(calls)))
            world.engine.handle(calls[-1])
        world.step()
    calls.append(Resume(len(calls)))
    world.engine.handle(calls[-1])
    world.drain()
    assert sorted(world.done) == [call.call for call in calls], "every call is answered"
    assert set(world.ends) == set(world.sent), "every request ends exactly once"
    assert not world.compiler.live, "nobody waits for a grammar"
    stuck = 0
    for key, end in world.ends.items():
        message = world.sent[key]
        text = "" if message.constraint is None else message.constraint.text
        if not end.startswith("failed"):
            world.check_answer(key)
        elif "stuck" in world.failures[key]:
            stuck += 1
            assert text.startswith("dead")
            assert len(world.answers[key]) == 6
        else:
            least = 1 if message.params.max_tokens is None else message.params.max_tokens
            wrong = text.startswith("wrong")
            assert wrong or len(message.prompt) + least > capacity, world.failures[key]
    world.kv.check([])
    stats = world.engine.stats()
    assert (stats.waiting, stats.running, stats.compiling) == (0, 0, 0)
    return stuck


@pytest.mark.parametrize("depth", [0, 1])
def test_tokens_without_a_choice_take_no_step_of_their_own(depth: int) -> None:
    """Against the same request that reports log-probabilities, whose tokens are all sampled."""
    steps = []
    for logprobs in (None, 0):
        world = World("none", groups=[Group(64, 1)], depth=depth)
        key = world.send(
            [1, 2, 3],
            params=SamplingParams(max_tokens=40, logprobs=logprobs),
            constraint=constraint("1 40"),
        )
        world.drain()
        world.check_answer(key)
        assert len(world.answers[key]) == 40
        steps.append(world.engine.stats().steps)
        assert (world.engine.stats().forced_tokens > 0) == (logprobs is None)
    assert steps[0] < 0.75 * steps[1], steps


@pytest.mark.parametrize("depth", [0, 1])
def test_a_request_that_waits_for_its_grammar_holds_nothing(depth: int) -> None:
    world = World("radix", groups=[Group(64, 1)], depth=depth, rows=1, budget=16)
    world.compiler.start = lambda c: _never(world, c)  # type: ignore[method-assign,assignment]
    waiting = world.send([1, 2, 3], constraint=constraint("1 0"))
    other = world.send([4, 5], params=SamplingParams(max_tokens=5, ignore_eos=True))
    for _ in range(12):
        world.step()
    world.check_answer(other)
    stats = world.engine.stats()
    assert (stats.waiting, stats.compiling, stats.running, stats.kv_usage) == (1, 1, 0, 0)
    assert world.engine.has_work
    world.engine.handle(Pause(0, "wait"))
    world.step()
    assert world.done == {}, "it is inside"
    world.engine.handle(Abort(waiting))
    world.drain()
    assert world.ends[waiting] == "abort"
    assert world.done == {0: True}
    assert not world.compiler.live


def _never(world: World, asked: Constraint) -> object:
    from tests.simulation.grammar import SimCompilation

    return SimCompilation(asked, 10**9, world.compiler.live)
