"""The ZMQ channel: what is sent arrives, whole and in order, whoever is slow."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import zmq

from treadle.wire.channel import FRAMES_AT_ONCE, Address, EngineChannel, TextChannel, encode
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


def with_channel(work: Callable[[TextChannel], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        channel = TextChannel()
        try:
            await work(channel)
        finally:
            channel.close()

    asyncio.run(run())


async def receive(channel: TextChannel, num_frames: int = 1) -> list[FromEngine]:
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


def in_thread(work: Callable[[EngineChannel], None], address: Address) -> threading.Thread:
    def run() -> None:
        channel = EngineChannel(address)
        try:
            work(channel)
        finally:
            channel.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture(params=["ipc", "tcp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tcp":
        monkeypatch.setattr("treadle.wire.channel.HAS_ABSTRACT_NAMES", False)
    return str(request.param)


def test_every_message_in_both_directions(transport: str) -> None:
    received: list[ToEngine] = []

    def engine(channel: EngineChannel) -> None:
        channel.send(FROM_ENGINE)
        while len(received) < len(TO_ENGINE):
            received.extend(channel.receive(block=True))

    async def text(channel: TextChannel) -> None:
        assert channel.address.url.startswith(transport)
        thread = in_thread(engine, channel.address)
        assert await receive(channel) == FROM_ENGINE
        channel.send(TO_ENGINE[:1])
        channel.send(TO_ENGINE[1:])
        await asyncio.to_thread(thread.join)

    with_channel(text)
    assert received == TO_ENGINE


def test_a_peer_that_does_not_read_blocks_nobody(transport: str) -> None:
    count, size = 3000, 1000
    done = threading.Event()

    def engine(channel: EngineChannel) -> None:
        for number in range(count):
            channel.send([Delta(request_id=str(number), tokens=[number] * size)])
        done.set()

    async def text(channel: TextChannel) -> None:
        thread = in_thread(engine, channel.address)
        # Nothing has been read when the engine's last send returns.
        assert await asyncio.to_thread(done.wait, 20)
        for number, message in enumerate(await receive(channel, count)):
            assert isinstance(message, Delta)
            assert message.tokens == [number] * size
        await asyncio.to_thread(thread.join)

    with_channel(text)


def test_sends_to_a_busy_engine_block_nobody(transport: str) -> None:
    count = 3000
    all_sent = threading.Event()
    received: list[ToEngine] = []

    def engine(channel: EngineChannel) -> None:
        channel.send([Progress("here", 0.0)])
        assert all_sent.wait(20)
        while len(received) < count:
            received.extend(channel.receive(block=True))

    async def text(channel: TextChannel) -> None:
        thread = in_thread(engine, channel.address)
        await receive(channel)
        for number in range(count):
            channel.send([Abort(str(number))])
        all_sent.set()
        await asyncio.to_thread(thread.join)

    with_channel(text)
    assert received == [Abort(str(number)) for number in range(count)]


def test_without_block_nothing_is_awaited(transport: str) -> None:
    async def text(channel: TextChannel) -> None:
        engine = EngineChannel(channel.address)
        assert engine.receive(block=False) == []
        engine.close()

    with_channel(text)


def test_last_words_leave_before_close(transport: str) -> None:
    async def text(channel: TextChannel) -> None:
        thread = in_thread(lambda engine: engine.send(FROM_ENGINE), channel.address)
        await asyncio.to_thread(thread.join)
        assert await receive(channel) == FROM_ENGINE

    with_channel(text)


def test_a_stranger_is_not_heard(transport: str) -> None:
    async def text(channel: TextChannel) -> None:
        context = zmq.Context()
        strangers = [context.socket(zmq.PAIR) for _ in range(2)]
        # One speaks no CURVE, the other holds another server's key.
        strangers[1].curve_serverkey, _ = zmq.curve_keypair()
        strangers[1].curve_publickey, strangers[1].curve_secretkey = zmq.curve_keypair()
        for stranger in strangers:
            stranger.connect(channel.address.url)
            stranger.send(encode([Delta(request_id="r-0", tokens=[666])]))
        thread = in_thread(lambda engine: engine.send(FROM_ENGINE), channel.address)
        assert await receive(channel) == FROM_ENGINE
        await asyncio.to_thread(thread.join)
        for stranger in strangers:
            stranger.close(0)
        context.term()

    with_channel(text)


def test_no_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    async def text(channel: TextChannel) -> None:
        thread = in_thread(lambda engine: engine.send(FROM_ENGINE), channel.address)
        await receive(channel)
        assert list(tmp_path.iterdir()) == []
        await asyncio.to_thread(thread.join)

    with_channel(text)


def test_others_get_their_turn_while_frames_pile_up(transport: str) -> None:
    count = 200

    def engine(channel: EngineChannel) -> None:
        for number in range(count):
            channel.send([Delta(request_id=str(number), tokens=[number])])

    async def text(channel: TextChannel) -> None:
        thread = in_thread(engine, channel.address)
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


def test_what_comes_while_something_is_sent_is_noticed(transport: str) -> None:
    """ZMQ's descriptor tells once, and sending may take the news from it."""
    count = 300

    def engine(channel: EngineChannel) -> None:
        channel.send([Progress("here", 0.0)])
        num_answered = 0
        while num_answered < count:
            for message in channel.receive(block=True):
                assert isinstance(message, Abort)
                channel.send([Delta(request_id=message.request_id, tokens=[1])])
                num_answered += 1

    async def text(channel: TextChannel) -> None:
        thread = in_thread(engine, channel.address)
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


def test_an_engine_that_is_not_there_is_not_told(transport: str) -> None:
    async def text(channel: TextChannel) -> None:
        channel.send([Abort("r-0")])

    with_channel(text)
