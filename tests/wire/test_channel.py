"""The channel between processes: what is sent arrives, whole and in order, whoever is slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from treadle.wire.channel import FRAMES_AT_ONCE, EngineChannel, Link, TextChannel
from treadle.wire.ends import EngineEnds
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
    TokenLogprob,
)
from treadle.wire.sampling_params import SamplingParams

TO_ENGINE: list[ToEngine] = [
    Generate(
        request_id="r-0",
        prompt=[1, 2, 3],
        params=SamplingParams(stop=["é"], logit_bias={5: -1.5}, max_tokens=None),
        seed=2**64 - 1,
        choice=3,
        cache_salt="s",
    ),
    Abort("r-0"),
    Bye(),
]
FROM_ENGINE: list[FromEngine] = [
    Progress("load", 0.25, "é"),
    Ready(max_model_len=8, vocab_size=9, kv_capacity_tokens=10, eos_token_ids=[2]),
    Delta(
        request_id="r-0",
        tokens=[7],
        logprobs=[TokenLogprob(7, float("-inf"), 4, [(1, -0.5), (2, -1.5)])],
        finish="stop",
        stop_token=7,
        cached_tokens=5,
    ),
    Failed(request_id="r-0", status=400, message="m", code="c", param="p"),
    Stats(
        running=1,
        waiting=2,
        kv_usage=0.5,
        prompt_tokens=3,
        generation_tokens=4,
        prefix_queries=5,
        prefix_hits=6,
        preemptions=7,
        steps=8,
    ),
]


Text = TextChannel[FromEngine]
"""The API's end."""


def with_channel(work: Callable[[Text, socket.socket], Coroutine[Any, Any, None]]) -> None:
    """`work` gets the text side's channel and the engine's end."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        channel: Text = TextChannel(ours, FromEngine)
        try:
            await work(channel, theirs)
        finally:
            channel.close()
            theirs.close()

    asyncio.run(run())


async def receive(channel: Text, num_frames: int = 1) -> list[FromEngine]:
    """What the next frames hold; none is taken from the channel beyond them."""
    messages: list[FromEngine] = []
    taken = 0

    def take(frame: list[FromEngine]) -> None:
        nonlocal taken
        messages.extend(frame)
        taken += 1
        if taken == num_frames:
            raise Enough

    with contextlib.suppress(Enough):
        await channel.run(take)
    return messages


class Enough(Exception):
    """Ends a channel's `run`, as an error of the text side would."""


def in_thread(work: Callable[[EngineChannel], None], end: socket.socket) -> threading.Thread:
    def run() -> None:
        channel = EngineChannel(EngineEnds(end.detach()))
        try:
            work(channel)
        finally:
            channel.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_every_message_in_both_directions() -> None:
    received: list[ToEngine] = []

    def engine(channel: EngineChannel) -> None:
        channel.send(FROM_ENGINE)
        while len(received) < len(TO_ENGINE):
            received.extend(channel.receive(block=True))

    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(engine, end)
        assert await receive(channel) == FROM_ENGINE
        channel.send(TO_ENGINE[:1])
        channel.send(TO_ENGINE[1:])
        await asyncio.to_thread(thread.join)

    with_channel(text)
    assert received == TO_ENGINE


def test_a_peer_that_does_not_read_blocks_nobody() -> None:
    count, size = 3000, 1000
    done = threading.Event()

    def engine(channel: EngineChannel) -> None:
        for number in range(count):
            channel.send([Delta(request_id=str(number), tokens=[number] * size)])
        done.set()

    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(engine, end)
        # Nothing has been read when the engine's last send returns.
        assert await asyncio.to_thread(done.wait, 20)
        for number, message in enumerate(await receive(channel, count)):
            assert isinstance(message, Delta)
            assert message.tokens == [number] * size
        await asyncio.to_thread(thread.join)

    with_channel(text)


def test_sends_to_a_busy_engine_block_nobody() -> None:
    count = 3000
    all_sent = threading.Event()
    received: list[ToEngine] = []

    def engine(channel: EngineChannel) -> None:
        channel.send([Progress("here", 0.0)])
        assert all_sent.wait(20)
        while len(received) < count:
            received.extend(channel.receive(block=True))

    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(engine, end)
        await receive(channel)
        for number in range(count):
            channel.send([Abort(str(number))])
        all_sent.set()
        await asyncio.to_thread(thread.join)

    with_channel(text)
    assert received == [Abort(str(number)) for number in range(count)]


def test_without_block_nothing_is_awaited() -> None:
    async def text(channel: Text, end: socket.socket) -> None:
        engine = EngineChannel(EngineEnds(end.detach()))
        assert engine.receive(block=False) == []
        engine.close()

    with_channel(text)


def test_last_words_leave_before_close() -> None:
    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(lambda engine: engine.send(FROM_ENGINE), end)
        await asyncio.to_thread(thread.join)
        assert await receive(channel) == FROM_ENGINE

    with_channel(text)


def test_no_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(lambda engine: engine.send(FROM_ENGINE), end)
        await receive(channel)
        assert list(tmp_path.iterdir()) == []
        await asyncio.to_thread(thread.join)

    with_channel(text)


def test_others_get_their_turn_while_frames_pile_up() -> None:
    count = 200

    def engine(channel: EngineChannel) -> None:
        for number in range(count):
            channel.send([Delta(request_id=str(number), tokens=[number])])

    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(engine, end)
        await asyncio.to_thread(thread.join)
        received: list[FromEngine] = []
        running = asyncio.create_task(channel.run(received.extend))
        num_turns = 0
        while len(received) < count:
            await asyncio.sleep(0)
            num_turns += 1
        assert num_turns >= count // FRAMES_AT_ONCE
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert [message.request_id for message in received if isinstance(message, Delta)] == [
            str(number) for number in range(count)
        ]

    with_channel(text)


def test_what_comes_while_something_is_sent_is_noticed() -> None:
    count = 300

    def engine(channel: EngineChannel) -> None:
        channel.send([Progress("here", 0.0)])
        num_answered = 0
        while num_answered < count:
            for message in channel.receive(block=True):
                assert isinstance(message, Abort)
                channel.send([Delta(request_id=message.request_id, tokens=[1])])
                num_answered += 1

    async def text(channel: Text, end: socket.socket) -> None:
        thread = in_thread(engine, end)
        await receive(channel)
        received: list[FromEngine] = []
        running = asyncio.create_task(channel.run(received.extend))
        for number in range(count):
            channel.send([Abort(str(number))])
            if number % 3 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while len(received) < count:
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(thread.join)

    with_channel(text)


def test_who_is_gone_is_not_told_and_holds_up_nobody() -> None:
    async def text(channel: Text, end: socket.socket) -> None:
        end.close()
        running = asyncio.create_task(channel.run(lambda frame: None))
        for number in range(3000):
            channel.send([Abort(str(number))])
        await asyncio.sleep(0)
        assert not channel.link.is_open
        assert not channel.link.has_unsent
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with_channel(text)


def test_what_was_said_before_the_end_is_heard() -> None:
    ours, theirs = (Link(end) for end in socket.socketpair())
    ours.send(FROM_ENGINE)
    ours.close()
    [frame] = theirs.frames()
    assert msgspec.msgpack.decode(frame, type=list[FromEngine]) == FROM_ENGINE
    assert not theirs.is_open
    theirs.close()


@pytest.mark.parametrize("size", [0, 1, 60_000, 3_000_000])
def test_frames_of_any_size_arrive_however_they_are_cut(size: int) -> None:
    ours, theirs = (Link(end) for end in socket.socketpair())
    sent = [["x" * size], [], ["y" * size, "z"]]
    received: list[list[str]] = []
    for messages in sent:
        ours.send(messages)
    while len(received) < len(sent):
        ours.flush()
        received += [msgspec.msgpack.decode(frame) for frame in theirs.frames()]
    assert received == sent
    assert (ours.num_sent, theirs.num_received) == (3, 3)
    ours.close()
    theirs.close()
