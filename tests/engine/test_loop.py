"""The engine's contract, over a runner of digests: intake, ends, aborts, counters."""

from __future__ import annotations

import pytest

from tests.simulation.world import EOS, VOCAB, Group, World, foretell
from treadle.wire.messages import Abort, Failed, Generate
from treadle.wire.sampling_params import SamplingParams


def failure(world: World, **changes: object) -> Failed:
    fields: dict[str, object] = {
        "request_id": "x",
        "prompt": [1, 2, 3],
        "params": SamplingParams(),
        "seed": 0,
    }
    world.engine.handle(Generate(**{**fields, **changes}))  # type: ignore[arg-type]
    (message,) = world.engine.step()
    assert isinstance(message, Failed)
    return message


def test_bad_requests_fail_alone() -> None:
    world = World("radix", groups=[Group(64, 1)])
    assert failure(world, prompt=[]).param == "prompt"
    assert failure(world, prompt=[VOCAB]).param == "prompt"
    assert failure(world, prompt=[-1]).param == "prompt"
    beyond = SamplingParams(stop_token_ids=[VOCAB])
    assert failure(world, params=beyond).param == "stop_token_ids"
    too_long = failure(world, prompt=[1] * 64)
    assert (too_long.status, too_long.code) == (400, "context_length_exceeded")
    assert "64" in too_long.message
    too_much = failure(world, params=SamplingParams(max_tokens=62))
    assert too_much.param == "max_tokens"
    assert not world.engine.has_work
    key = world.send([1, 2, 3])
    world.drain()
    world.check_answer(key)


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    world = World("radix", groups=[Group(64, 1)])
    key = world.send([1, 2, 3], params=SamplingParams(max_tokens=5, ignore_eos=True))
    world.step()
    message = Generate(request_id=key, prompt=[4], params=SamplingParams(), seed=0)
    world.engine.handle(message)
    failed = [m for m in world.engine.step() if isinstance(m, Failed)]
    assert [m.param for m in failed] == ["request_id"]
    assert world.engine.stats().running == 1


@pytest.mark.parametrize("depth", [0, 1])
def test_ends(depth: int) -> None:
    """By EOS, by stop token, by length; min_tokens holds the first two back."""
    world = World("hashed", groups=[Group(40, 8)], depth=depth, rows=8, budget=64)
    plain = SamplingParams(max_tokens=60, ignore_eos=True)
    seed = next(s for s in range(999) if EOS in foretell([1, 2], plain, s, 60)[3:20])
    answer = foretell([1, 2], plain, seed, 60)
    at = answer.index(EOS)
    stop = answer[at - 2]
    first = answer.index(stop) + 1

    eos = world.send([1, 2], seed=seed, params=SamplingParams(max_tokens=60))
    token = world.send(
        [1, 2], seed=seed, params=SamplingParams(max_tokens=60, stop_token_ids=[stop])
    )
    held = world.send(
        [1, 2],
        seed=seed,
        params=SamplingParams(max_tokens=60, min_tokens=first + 1, stop_token_ids=[stop]),
    )
    length = world.send([1, 2], seed=seed, params=SamplingParams(max_tokens=1))
    world.drain()
    assert (world.ends[eos], len(world.answers[eos])) == ("stop", at + 1)
    assert (world.ends[token], len(world.answers[token])) == ("stop", first)
    assert len(world.answers[held]) > first
    assert (world.ends[length], len(world.answers[length])) == ("length", 1)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 2, 6])
def test_abort_in_every_state_frees_everything(depth: int, steps: int) -> None:
    """Waiting, mid-prefill (chunks of 4), decoding."""
    world = World("radix", groups=[Group(32, 2)], depth=depth, rows=1, budget=4)
    first = world.send([*range(10)], params=SamplingParams(max_tokens=30, ignore_eos=True))
    second = world.send([*range(12)], params=SamplingParams(max_tokens=4))
    for _ in range(steps):
        world.step()
    world.engine.handle(Abort(first))
    world.engine.handle(Abort(first))
    world.engine.handle(Abort("never heard of"))
    world.drain()
    assert world.ends[first] == "abort"
    world.check_answer(second)
    world.kv.check([])
    assert world.engine.stats().kv_usage == 0


def test_a_chunked_prompt_samples_once() -> None:
    world = World("none", groups=[Group(64, 1)], budget=5)
    key = world.send([*range(13)], params=SamplingParams(max_tokens=2, ignore_eos=True))
    sizes = []
    while world.engine.has_work:
        before = len(world.answers[key])
        world.step()
        sizes.append(len(world.answers[key]) - before)
    assert sizes == [0, 0, 1, 1]


def test_a_decoding_request_gets_a_token_in_every_step_beside_long_prompts() -> None:
    world = World("none", groups=[Group(400, 1)], rows=4, budget=8)
    stream = world.send([1], params=SamplingParams(max_tokens=40, ignore_eos=True))
    world.step()
    for _ in range(3):
        world.send([*range(50)], params=SamplingParams(max_tokens=1))
    while stream not in world.ends:
        before = len(world.answers[stream])
        world.step()
        assert len(world.answers[stream]) == before + 1


def test_a_second_equal_prompt_reports_its_cached_tokens() -> None:
    world = World("radix", groups=[Group(64, 1)], rows=1)
    first, second = world.send([*range(20)]), world.send([*range(20)])
    world.drain()
    assert (world.cached[first], world.cached[second]) == (0, 19)
    stats = world.engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (40, 19)


def test_fail_all_answers_everybody_once() -> None:
    world = World("radix", groups=[Group(64, 1)], rows=1)
    keys = [world.send([1, 2, 3]), world.send([4])]
    world.step()
    world.receive(world.engine.fail_all("the kernel failed"))
    assert set(world.ends) == set(keys)
    assert set(world.ends.values()) == {"failed 500"}
