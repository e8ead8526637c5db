"""A random life: requests come, are aborted, wait behind pauses and end, and the cache is emptied
now and then. The invariants hold after each step."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.world import World, random_prompt
from treadle.wire.messages import Abort, Pause, ResetCache, Resume
from treadle.wire.sampling_params import SamplingParams

CALLS: list[Callable[[int], Pause | Resume | ResetCache]] = [
    lambda call: Pause(call, "abort"),
    lambda call: Pause(call, "wait"),
    lambda call: Pause(call, "keep"),
    Resume,
    Resume,
    Resume,
    ResetCache,
]


def live(world: World, rng: random.Random, steps: int) -> None:
    """Every request ends once, with the answer that was foretold, and all blocks are free again."""
    capacity = min(world.kv.capacity_tokens, world.window)
    salts = ["", "", "other"]
    calls: list[Pause | Resume | ResetCache] = []
    for _ in range(steps):
        if rng.random() < 0.35 and len(world.sent) - len(world.ends) < 8:
            params = SamplingParams(
                max_tokens=rng.choice([0, 1, 2, 5, 12, None]),
                ignore_eos=rng.random() < 0.3,
                prompt_logprobs=rng.choice([None, None, 0]),
                prompt_logprobs_start=rng.choice([0, 0, 1, 5]),
            )
            world.send(
                random_prompt(rng, capacity - rng.choice([0, 3, 12])),
                salt=rng.choice(salts),
                seed=rng.randrange(3),
                params=params,
                priority=rng.choice([None, 0, 1, -1]),
                routing_key=rng.choice(["", "a", "b"]),
            )
        alive = [key for key in world.sent if key not in world.ends]
        if alive and rng.random() < 0.06:
            world.engine.handle(Abort(rng.choice(alive)))
        if rng.random() < 0.01:
            world.kv.reset()
        if rng.random() < (0.2 if world.engine.stats().paused else 0.01):
            calls.append(rng.choice(CALLS)(len(calls)))
            world.engine.handle(calls[-1])
        world.step()
    calls.append(Resume(len(calls)))
    world.engine.handle(calls[-1])
    world.drain()
    assert sorted(world.done) == [call.call for call in calls], "every call is answered"
    assert set(world.ends) == set(world.sent), "every request ends exactly once"
    for key, end in world.ends.items():
        if not end.startswith("failed"):
            world.check_answer(key)
        else:
            message = world.sent[key]
            assert len(message.prompt) + _least(message.params) > capacity
    world.kv.check([])
    world.kv.reset()
    assert world.kv.usage == 0
    assert all(group.num_available == group.num_blocks for group in world.kv.groups)


def _least(params: SamplingParams) -> int:
    """Tokens that the answer has at least."""
    return 1 if params.max_tokens is None else params.max_tokens
