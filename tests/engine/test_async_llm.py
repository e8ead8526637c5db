"""`AsyncLLM`: what outputs hold, aborts, cancellation, event loops, pauses and the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.tiny import tiny_llama
from treadle import LLM, AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from treadle.errors import EngineError, InvalidRequest

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("async"))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[AsyncLLM]:
    made = AsyncLLM(str(path), max_num_seqs=4)
    yield made
    assert made._session.engine.stats().kv_usage == 0, "every call gives its blocks back"
    made.shutdown()


@pytest.fixture(scope="module")
def whole(path: Path) -> Iterator[LLM]:
    """What answers should be."""
    with LLM(str(path), max_num_seqs=4) as made:
        yield made


async def collect(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


async def idle(llm: AsyncLLM) -> None:
    async with asyncio.timeout(5):
        while llm._session.engine.has_work:
            await asyncio.sleep(0.001)


def kind(params: SamplingParams, kind: RequestOutputKind, **changes: object) -> SamplingParams:
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**{**fields, "output_kind": kind, **changes})


def test_cumulative_outputs_grow_to_the_whole(llm: AsyncLLM, whole: LLM) -> None:
    (expected,) = whole.generate("The weaver", GREEDY)
    outputs = asyncio.run(collect(llm.generate("The weaver", GREEDY, "mine")))
    assert {output.request_id for output in outputs} == {"mine"}
    assert outputs[-1].outputs == expected.outputs
    assert outputs[-1].prompt_token_ids == expected.prompt_token_ids
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(text) for text, later in itertools.pairwise(texts))


def test_deltas_add_up_to_the_whole(llm: AsyncLLM, whole: LLM) -> None:
    params = kind(GREEDY, RequestOutputKind.DELTA, n=3, temperature=1.0, seed=3, logprobs=1)
    (expected,) = whole.generate("The weaver", params)
    texts, tokens, finishes = [""] * 3, [[], [], []], [None] * 3
    outputs = asyncio.run(collect(llm.generate("The weaver", params)))
    for output in outputs:
        for part in output.outputs:
            assert part.token_ids or part.text or part.finished()
            assert part.logprobs is not None
            assert [next(iter(entry)) for entry in part.logprobs] == part.token_ids
            texts[part.index] += part.text
            tokens[part.index] += part.token_ids
            finishes[part.index] = part.finish_reason
    assert texts == [answer.text for answer in expected.outputs]
    assert tokens == [answer.token_ids for answer in expected.outputs]
    assert finishes == ["length"] * 3
    assert outputs[-1].finished


def test_final_only_is_one_output(llm: AsyncLLM, whole: LLM) -> None:
    params = kind(GREEDY, RequestOutputKind.FINAL_ONLY, n=2)
    (output,) = asyncio.run(collect(llm.generate({"prompt": "The loom"}, params)))
    assert output.finished
    assert output.outputs == whole.generate("The loom", params)[0].outputs
    metrics = output.metrics
    assert metrics.first_scheduled_time is None or (
        metrics.arrival_time
        <= metrics.first_scheduled_time
        <= metrics.first_token_time
        <= metrics.finished_time
    )


def test_tasks_share_steps_and_a_slow_consumer_gets_fewer_outputs(
    llm: AsyncLLM, whole: LLM
) -> None:
    prompts = [f"task {number}" for number in range(6)]
    expected = [output.outputs for output in whole.generate(prompts, GREEDY)]

    async def slow(prompt: str) -> RequestOutput:
        source = llm.generate(prompt, LONG)
        first = await anext(source)
        while llm._session.engine.has_work:
            await asyncio.sleep(0.001)
        rest = await collect(source)
        assert len(rest) == 1
        assert len(first.outputs[0].token_ids) < 400 == len(rest[0].outputs[0].token_ids)
        return rest[0]

    async def run() -> None:
        slowest = asyncio.create_task(slow("slow"))
        found = await asyncio.gather(*(collect(llm.generate(p, GREEDY)) for p in prompts))
        assert [outputs[-1].outputs for outputs in found] == expected
        assert (await slowest).outputs == whole.generate("slow", LONG)[0].outputs

    asyncio.run(run())


def test_chat(llm: AsyncLLM, whole: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    template = "{% for m in messages %}{{ m.content }}{{ mark }}{% endfor %}{{ tools }}"
    options = {
        "chat_template": template,
        "chat_template_kwargs": {"mark": "!"},
        "tools": [{"a": 1}],
    }
    for given in ({}, options, {"continue_final_message": True}):
        (expected,) = whole.chat(messages, GREEDY, **given)
        outputs = asyncio.run(collect(llm.chat(messages, GREEDY, **given)))
        assert outputs[-1].outputs == expected.outputs
        assert outputs[-1].prompt == expected.prompt
    (output,) = whole.chat(messages, GREEDY, **options)
    assert output.prompt == "Hello![{'a': 1}]"
    with pytest.raises(TypeError, match="chat has no argument 'toolz'"):
        whole.chat(messages, GREEDY, toolz=[])


def test_an_abort_ends_the_stream_with_its_reason(llm: AsyncLLM) -> None:
    async def run() -> None:
        source = llm.generate("forever", LONG, "x")
        await anext(source)
        await llm.abort(["x", "unknown"])
        outputs = await collect(source)
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert 0 < len(outputs[-1].outputs[0].token_ids) < 400
        # Before it was sent, too.
        waiting = asyncio.create_task(collect(llm.generate("forever", LONG, "x")))
        await asyncio.sleep(0)
        await llm.abort("x")
        assert (await waiting)[-1].outputs[0].finish_reason == "abort"
        await idle(llm)

    asyncio.run(run())


def test_an_id_is_one_request_s(llm: AsyncLLM) -> None:
    async def run() -> None:
        source = llm.generate("one", LONG, "same")
        await anext(source)
        with pytest.raises(InvalidRequest, match="the request id 'same' is in use"):
            await anext(llm.generate("two", GREEDY, "same"))
        await source.aclose()
        assert (await collect(llm.generate("two", GREEDY, "same")))[-1].finished

    asyncio.run(run())


def test_who_stops_waiting_stops_the_work(llm: AsyncLLM) -> None:
    async def cancelled() -> None:
        under_way = asyncio.Event()

        async def consume() -> None:
            async for _ in llm.generate("forever", LONG):
                under_way.set()

        task = asyncio.create_task(consume())
        await under_way.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    async def left() -> None:
        async for _ in llm.generate("forever", LONG):
            break
        gc.collect()

    async def failed() -> None:
        async def consume() -> None:
            async for _ in llm.generate("forever", LONG):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await consume()

    async def run() -> None:
        for stop in (cancelled, left, failed):
            before = llm._session.engine.stats().generation_tokens
            await stop()
            await idle(llm)
            assert llm._session.engine.stats().generation_tokens - before < 400
            assert not llm._running

    asyncio.run(run())


def test_event_loops_in_threads_and_one_after_another(llm: AsyncLLM, whole: LLM) -> None:
    prompts = [f"loop {number}" for number in range(4)]
    expected = [output.outputs for output in whole.generate(prompts, GREEDY)]
    found: dict[str, RequestOutput] = {}

    def run(prompt: str) -> None:
        for _ in range(3):
            found[prompt] = asyncio.run(collect(llm.generate(prompt, GREEDY)))[-1]

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt].outputs for prompt in prompts] == expected
    asyncio.run(collect(llm.generate("x", GREEDY)))
    assert len(llm._session._frontends) == 1, "closed loops are forgotten"


def test_a_loop_that_ends_in_the_midst_of_an_answer(llm: AsyncLLM) -> None:
    """Without a word: nothing of it is cancelled or closed."""
    loop = asyncio.new_event_loop()
    source = llm.generate("forever", LONG)
    loop.run_until_complete(anext(source))
    loop.close()
    asyncio.run(idle(llm))
    outputs = asyncio.run(collect(llm.generate("The loom", GREEDY)))
    assert outputs[-1].finished


def test_pause_and_resume(llm: AsyncLLM) -> None:
    async def run() -> None:
        source = llm.generate("forever", LONG)
        await anext(source)
        await llm.pause_generation(mode="keep")
        assert await llm.is_paused()
        steps = llm._session.engine.stats().steps
        late = asyncio.create_task(collect(llm.generate("late", GREEDY)))
        await asyncio.sleep(0.05)
        assert llm._session.engine.stats().steps == steps
        await llm.resume_generation()
        assert len((await collect(source))[-1].outputs[0].token_ids) == 400
        assert (await late)[-1].finished
        source = llm.generate("forever", LONG)
        await anext(source)
        await llm.pause_generation()
        assert (await collect(source))[-1].outputs[0].finish_reason == "abort"
        await llm.resume_generation()
        assert await llm.reset_prefix_cache()
        assert not await llm.is_paused()

    asyncio.run(run())


def test_wrong_requests_raise_and_harm_nobody(llm: AsyncLLM) -> None:
    async def run() -> None:
        for prompt, params, match in (
            ("", GREEDY, "no token"),
            (["a", "b"], GREEDY, "holds 'a'"),
            ([True], GREEDY, "holds True"),
            ("x", {"n": 1}, "sampling_params must be"),
        ):
            with pytest.raises(InvalidRequest, match=match):
                await anext(llm.generate(prompt, params))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="request_id must be"):
            await anext(llm.generate("x", GREEDY, 5))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="mode is 'x'"):
            await llm.pause_generation(mode="x")  # type: ignore[arg-type]
        assert (await collect(llm.generate("The loom", GREEDY)))[-1].finished
        assert not llm._running

    asyncio.run(run())


def test_the_end(path: Path) -> None:
    async def run() -> None:
        async with AsyncLLM(str(path)) as llm:
            await llm.check_health()
            source = llm.generate("cut off", LONG)
            await anext(source)
        with pytest.raises(EngineError, match="closed"):
            await collect(source)
        with pytest.raises(EngineError, match="closed"):
            await anext(llm.generate("x", GREEDY))
        with pytest.raises(EngineError, match="closed"):
            await llm.check_health()
        assert llm.errored
        llm.shutdown()

    asyncio.run(run())


def test_an_engine_that_fails_tells_everybody(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        llm = AsyncLLM(str(path))
        source = llm.generate("cut off", LONG)
        await anext(source)

        def fail() -> None:
            raise RuntimeError("a cable came loose")

        monkeypatch.setattr(llm._session.engine, "step", fail)
        with pytest.raises(EngineError, match="a cable came loose"):
            await collect(source)
        with pytest.raises(EngineError, match="a cable came loose"):
            await anext(llm.generate("x", GREEDY))
        await llm.aclose()

    asyncio.run(run())
    assert "a cable came loose" in capsys.readouterr().err, "with its traceback"
