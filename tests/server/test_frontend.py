"""The text side alone, with a channel that the test plays the engine on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from treadle.errors import (
    EngineError,
    InvalidRequest,
    OverloadError,
    PromptTooLong,
    RequestError,
    StartError,
)
from treadle.text.choice import ChoiceDelta
from treadle.text.frontend import Frontend
from treadle.text.load import ModelText
from treadle.text.observe import Ended
from treadle.wire.messages import (
    Abort,
    Bye,
    Delta,
    Failed,
    FromEngine,
    Generate,
    Progress,
    Ready,
    Stats,
    ToEngine,
)
from treadle.wire.sampling_params import SamplingParams

READY = Ready(max_model_len=64, vocab_size=49152, kv_capacity_tokens=50, eos_token_ids=[2])


class Wire:
    """A channel in memory."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self._inbox: asyncio.Queue[list[FromEngine]] = asyncio.Queue()

    def send(self, messages: Sequence[ToEngine]) -> None:
        self.sent += messages

    async def run(self, take: Callable[[list[FromEngine]], None]) -> None:
        while True:
            take(await self._inbox.get())

    def close(self) -> None: ...

    async def deliver(self, *messages: FromEngine) -> None:
        """Until the frontend has taken them in."""
        self._inbox.put_nowait(list(messages))
        while not self._inbox.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)


class Record:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ended_answers: list[Ended] = []

    def first_token(self, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append("first")

    def next_tokens(self, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append("next")

    def ended(self, answer: Ended) -> None:
        assert answer.seconds >= (answer.first_s or 0) >= 0
        self.calls.append(answer.reason)
        self.ended_answers.append(answer)

    def rejected(self, num_answers: int) -> None:
        self.calls.append(f"rejected {num_answers}")

    def measured(self, stats: Stats) -> None:
        self.calls.append("stats")


class World:
    def __init__(self, text: ModelText) -> None:
        self.text = text
        self.wire = Wire()
        self.record = Record()
        self.progress: list[Progress] = []
        self.frontend = Frontend(
            self.wire, ["name"], observer=self.record, announce=self.progress.append
        )

    def ids(self, text: str) -> list[int]:
        return self.text.tokenizer.encode(text)

    def ask(self, *prompts: str, **params: Any) -> Any:
        sampling = SamplingParams(**params)
        accepted = [self.frontend.check(self.ids(prompt), sampling) for prompt in prompts]
        return self.frontend.generate(accepted, request_id="r", cache_salt="salt")


Test = Callable[[World], Coroutine[Any, Any, None]]


def play(text: ModelText, test: Test, *, ready: bool = True) -> None:
    async def run() -> None:
        world = World(text)
        receiving = asyncio.create_task(world.frontend.run(world.wire))
        if ready:
            world.frontend.set_text(text)
            await world.wire.deliver(READY)
        await test(world)
        receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiving

    asyncio.run(run())


async def collect(arrivals: AsyncIterator[list[ChoiceDelta]]) -> dict[int, ChoiceDelta]:
    answers: dict[int, ChoiceDelta] = {}
    async for parts in arrivals:
        for part in parts:
            if answers.setdefault(part.index, part) is not part:
                answers[part.index].append(part)
    return answers


def test_one_generate_per_prompt_and_choice(text: ModelText) -> None:
    async def test(world: World) -> None:
        asking = asyncio.create_task(collect(world.ask("a", "b c", n=2, seed=-1, max_tokens=3)))
        await asyncio.sleep(0)
        generates = [message for message in world.wire.sent if isinstance(message, Generate)]
        assert [one.request_id for one in generates] == ["r-0-0", "r-0-1", "r-0-2", "r-0-3"]
        assert [one.choice for one in generates] == [0, 1, 0, 1]
        assert {one.seed for one in generates} == {2**64 - 1}
        assert {one.params.n for one in generates} == {1}
        assert {one.cache_salt for one in generates} == {"salt"}
        for number in (3, 1, 0, 2):
            tokens = world.ids(f"answer {number}")
            await world.wire.deliver(
                Delta(request_id=f"r-0-{number}", tokens=tokens, finish="length")
            )
        answers = await asking
        assert {index: answer.text for index, answer in answers.items()} == {
            number: f"answer {number}" for number in range(4)
        }
        assert len(world.wire.sent) == 4

    play(text, test)


def test_one_request_per_id_at_a_time(text: ModelText) -> None:
    async def test(world: World) -> None:
        first = asyncio.create_task(collect(world.ask("a", max_tokens=3, stop="b")))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest) as refused:
            await collect(world.ask("a", max_tokens=3))
        assert refused.value.param == "request_id"
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=world.ids("ab")))
        assert (await first)[0].text == "a"
        again = asyncio.create_task(collect(world.ask("a", max_tokens=3)))
        await asyncio.sleep(0)
        # The engine's last word on the first request must not end the second.
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=[], finish="abort"))
        await world.wire.deliver(Delta(request_id="r-1-0", tokens=world.ids("c"), finish="length"))
        assert (await again)[0].text == "c"

    play(text, test)


def test_seeds_are_drawn_per_prompt(text: ModelText) -> None:
    async def test(world: World) -> None:
        for _ in range(2):
            arrivals = world.ask("a", n=2, max_tokens=3)
            waiting = asyncio.create_task(anext(arrivals))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        seeds = [one.seed for one in world.wire.sent if isinstance(one, Generate)]
        assert seeds[0] == seeds[1] != seeds[2] == seeds[3]

    play(text, test)


def test_parts_merge_while_nobody_takes_them(text: ModelText) -> None:
    async def test(world: World) -> None:
        arrivals = world.ask("x", max_tokens=20)
        first = asyncio.create_task(anext(arrivals))
        await asyncio.sleep(0)
        tokens = world.ids("one two three four")
        for token in tokens:
            await world.wire.deliver(Delta(request_id="r-0-0", tokens=[token]))
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=[], finish="abort"))
        parts = [await first] + [parts async for parts in arrivals]
        assert len(parts) <= 2
        answer = await collect(_each(parts))
        assert answer[0].text == "one two three four"
        assert answer[0].token_ids == tokens
        assert answer[0].finish_reason == "abort"

    play(text, test)


async def _each(parts: list[list[ChoiceDelta]]) -> AsyncIterator[list[ChoiceDelta]]:
    for part in parts:
        yield part


def test_stop_string_aborts_once_and_hides_the_rest(text: ModelText) -> None:
    async def test(world: World) -> None:
        asking = asyncio.create_task(collect(world.ask("x", max_tokens=20, stop="two")))
        await asyncio.sleep(0)
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=world.ids("one two three")))
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=world.ids(" four")))
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=[], finish="abort"))
        answer = (await asking)[0]
        assert (answer.text, answer.finish_reason, answer.stop_reason) == ("one ", "stop", "two")
        assert answer.token_ids == world.ids("one two")
        assert world.wire.sent[1:] == [Abort("r-0-0")]
        assert world.record.calls == ["first", "stop"]
        assert world.frontend.num_open == 0

    play(text, test)


def test_no_abort_when_the_engine_ended_too(text: ModelText) -> None:
    async def test(world: World) -> None:
        asking = asyncio.create_task(collect(world.ask("x", max_tokens=2, stop="two")))
        await asyncio.sleep(0)
        tokens = world.ids("one two")
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=tokens, finish="length"))
        assert (await asking)[0].finish_reason == "stop"
        assert len(world.wire.sent) == 1

    play(text, test)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_leaving_aborts_what_is_open(text: ModelText, how: str) -> None:
    async def test(world: World) -> None:
        arrivals = world.ask("x", n=3, max_tokens=9)
        waiting = asyncio.create_task(anext(arrivals))
        await asyncio.sleep(0)
        await world.wire.deliver(
            Delta(request_id="r-0-1", tokens=world.ids("done"), finish="length")
        )
        await waiting
        if how == "cancel":
            waiting = asyncio.create_task(anext(arrivals))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        else:
            await arrivals.aclose()
        assert world.wire.sent[3:] == [Abort("r-0-0"), Abort("r-0-2")]
        assert world.record.calls == ["first", "length", "abort", "abort"]
        assert world.frontend.num_open == 0

    play(text, test)


def test_one_failure_fails_the_request_and_aborts_its_others(text: ModelText) -> None:
    async def test(world: World) -> None:
        asking = asyncio.create_task(collect(world.ask("x", n=2, max_tokens=9)))
        await asyncio.sleep(0)
        failed = Failed(request_id="r-0-0", status=409, message="m", code="c", param="p")
        await world.wire.deliver(failed)
        with pytest.raises(RequestError) as raised:
            await asking
        error = raised.value
        assert (error.status, error.message, error.code, error.param) == (409, "m", "c", "p")
        assert world.wire.sent[2:] == [Abort("r-0-1")]

    play(text, test)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, RequestError), (503, OverloadError), (500, EngineError)]
)
def test_failures_keep_their_kind(text: ModelText, status: int, kind: type[Exception]) -> None:
    async def test(world: World) -> None:
        asking = asyncio.create_task(collect(world.ask("x", max_tokens=9)))
        await asyncio.sleep(0)
        await world.wire.deliver(Failed(request_id="r-0-0", status=status, message="m"))
        with pytest.raises(kind):
            await asking

    play(text, test)


def test_engine_death_ends_everybody_and_refuses_the_rest(text: ModelText) -> None:
    async def test(world: World) -> None:
        askings = [asyncio.create_task(collect(world.ask("x", max_tokens=9)))]
        await asyncio.sleep(0)
        world.frontend.fail(EngineError("gone"))
        for asking in askings:
            with pytest.raises(EngineError, match="gone"):
                await asking
        with pytest.raises(EngineError, match="gone"):
            world.ask("x")
        with pytest.raises(EngineError, match="gone"):
            await world.frontend.ready()

    play(text, test)


def test_refusing_lets_running_answers_end(text: ModelText) -> None:
    async def test(world: World) -> None:
        asking = asyncio.create_task(collect(world.ask("x", max_tokens=9)))
        await asyncio.sleep(0)
        world.frontend.refuse(OverloadError("stopping"))
        with pytest.raises(OverloadError, match="stopping"):
            world.ask("x")
        await world.wire.deliver(Delta(request_id="r-0-0", tokens=world.ids("a"), finish="length"))
        assert (await asking)[0].text == "a"
        world.frontend.say_bye()
        assert world.wire.sent[-1] == Bye()

    play(text, test)


def test_not_ready_before_text_and_engine(text: ModelText) -> None:
    async def test(world: World) -> None:
        with pytest.raises(OverloadError, match="start"):
            world.ask("x")
        waiting = asyncio.create_task(world.frontend.ready())
        world.frontend.set_text(text)
        await world.wire.deliver(Progress("load weights", 0.5))
        with pytest.raises(OverloadError, match="load weights"):
            world.ask("x")
        assert not waiting.done()
        await world.wire.deliver(READY)
        assert await waiting == READY
        assert [progress.phase for progress in world.progress] == ["load weights"]
        world.ask("x")

    play(text, test, ready=False)


def test_start_failure_ends_the_wait(text: ModelText) -> None:
    async def test(world: World) -> None:
        waiting = asyncio.create_task(world.frontend.ready())
        await world.wire.deliver(Failed(request_id="", status=500, message="no such model"))
        with pytest.raises(StartError, match="no such model"):
            await waiting

    play(text, test, ready=False)


def test_limits(text: ModelText) -> None:
    async def test(world: World) -> None:
        check = world.frontend.check
        assert check([1] * 40, SamplingParams(max_tokens=10)).params.max_tokens == 10
        assert check([1] * 40, SamplingParams(max_tokens=None)).params.max_tokens == 10
        with pytest.raises(PromptTooLong):
            check([1] * 41, SamplingParams(max_tokens=10))
        with pytest.raises(InvalidRequest):
            check([], SamplingParams())
        with pytest.raises(InvalidRequest):
            check([49152], SamplingParams(max_tokens=1))

    play(text, test)


def test_an_id_in_flight_is_refused(text: ModelText) -> None:
    async def play() -> None:
        wire = Wire()
        frontend = Frontend(wire, ["m"], observer=Record(), announce=lambda progress: None)
        frontend.set_text(text)
        running = asyncio.create_task(frontend.run(wire))
        await wire.deliver(READY)
        accepted = frontend.check([5], SamplingParams())
        first = frontend.generate([accepted], request_id="same")
        waiting = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="'same' is running already"):
            await anext(frontend.generate([accepted], request_id="same"))
        assert [type(message) for message in wire.sent] == [Generate]
        await wire.deliver(Delta(request_id="same-0-0", tokens=[5], finish="length"))
        assert (await waiting)[0].token_ids == [5]
        await first.aclose()
        again = asyncio.ensure_future(anext(frontend.generate([accepted], request_id="same")))
        await asyncio.sleep(0)
        assert len(wire.sent) == 2
        again.cancel()
        running.cancel()
        await asyncio.gather(again, running, return_exceptions=True)

    asyncio.run(play())
