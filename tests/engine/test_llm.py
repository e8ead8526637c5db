"""`LLM`: prompts in every form, several answers, streams, stop strings, errors, two at once."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import VOCAB_SIZE, tiny_llama
from treadle import LLM, SamplingParams
from treadle.errors import EngineError, InvalidRequest, ModelFileError, PromptTooLong, StartError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama("q8_0", tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(str(path), max_num_seqs=4) as made:
        yield made
        assert made._session.engine.stats().kv_usage == 0, "every call gives its blocks back"


def ids(llm: LLM, prompt: object, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate([prompt], params)[0].outputs[0].token_ids  # type: ignore[list-item]


def busy(llm: LLM) -> bool:
    """Whether the engine has work left once it had time to end what nobody waits for."""
    deadline = time.monotonic() + 5
    while llm._session.engine.has_work and time.monotonic() < deadline:
        time.sleep(0.001)
    return llm._session.engine.has_work


async def collect_garbage() -> None:
    gc.collect()


def test_prompts_in_every_form(llm: LLM) -> None:
    token_ids = llm.generate("The weaver", GREEDY)[0].prompt_token_ids
    forms = ["The weaver", token_ids, {"prompt": "The weaver"}, {"prompt_token_ids": token_ids}]
    outputs = llm.generate(forms, GREEDY)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["The weaver", None, "The weaver", None]
    assert llm.generate(token_ids, GREEDY)[0].outputs == outputs[0].outputs
    assert llm.generate([], GREEDY) == []


def test_answers_stand_in_the_order_of_prompts_and_choices(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
    together = llm.generate(["a", "bb", "ccc"], params)
    alone = [llm.generate([prompt], params)[0] for prompt in ("a", "bb", "ccc")]
    for one, other in zip(together, alone, strict=True):
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]
        assert [c.index for c in one.outputs] == [0, 1, 2]
        assert len({tuple(c.token_ids) for c in one.outputs}) > 1
    different = [GREEDY, SamplingParams(max_tokens=1, temperature=0)]
    lengths = [len(o.outputs[0].token_ids) for o in llm.generate(["a", "b"], different)]
    assert lengths == [12, 1]


def test_logprobs_and_cumulative(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    output = llm.generate(["The shuttle"], params)[0].outputs[0]
    assert output.logprobs is not None
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert entry[token].rank == 1
        assert len(entry) == 2
        assert max(entry.values(), key=lambda logprob: logprob.logprob) is entry[token]
    total = sum(e[t].logprob for t, e in zip(output.token_ids, output.logprobs, strict=True))
    assert output.cumulative_logprob == pytest.approx(total)
    assert output.cumulative_logprob is not None
    assert output.cumulative_logprob < 0


def test_a_stop_string_ends_the_answer_and_the_work(llm: LLM) -> None:
    whole = llm.generate(["All day"], GREEDY)[0].outputs[0].text
    assert len(whole) > 6
    stop = whole[3:6]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    output = llm.generate(["All day"], params)[0].outputs[0]
    assert output.text == whole[: whole.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert not busy(llm)


def test_streams_interleave_and_equal_the_whole(llm: LLM) -> None:
    whole = [llm.generate([prompt], GREEDY)[0].outputs[0].text for prompt in ("one", "two")]
    streams = [llm.generate_stream(prompt, GREEDY) for prompt in ("one", "two")]
    texts = ["", ""]
    finishes: list[str | None] = [None, None]
    while None in finishes:
        for at, stream in enumerate(streams):
            piece = next(stream, None)
            if piece is not None:
                texts[at] += piece.text
                finishes[at] = piece.finish_reason
    assert texts == whole
    assert finishes == ["length", "length"]


def test_an_abandoned_stream_leaves_nothing_running(llm: LLM) -> None:
    stream = llm.generate_stream("forever", SamplingParams(max_tokens=300, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not busy(llm)


@pytest.mark.parametrize("depth", [0, 1])
def test_an_interrupt_ends_the_call_and_leaves_the_engine_whole(path: Path, depth: int) -> None:
    """Ctrl-C at any moment of a call, again and again; the next call is as good as the first."""
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    with LLM(str(path), overlap_depth=depth) as llm:
        expected = ids(llm, "Once upon a time")
        for delay_s in (0.0005, 0.002, 0.005, 0.01, 0.02):
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["The weaver set the warp"] * 50, long)
            assert not busy(llm)
            assert ids(llm, "Once upon a time") == expected


@pytest.fixture(autouse=True)
def alarm_interrupts() -> Iterator[None]:
    """A timer's signal arrives like Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def test_threads_share_the_engine(llm: LLM) -> None:
    prompts = [f"thread {i}" for i in range(6)]
    alone = [ids(llm, prompt) for prompt in prompts]
    found: dict[str, list[int]] = {}
    threads = [
        threading.Thread(target=lambda p=prompt: found.__setitem__(p, ids(llm, p)))
        for prompt in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[prompt] for prompt in prompts] == alone


def test_streams_that_the_garbage_collector_finds_in_the_midst_of_a_step(llm: LLM) -> None:
    expected = ids(llm, "The loom")

    class Holder:
        stream: object = None
        myself: object = None

    for _ in range(20):
        holder = Holder()
        stream = llm.generate_stream("forgotten", SamplingParams(max_tokens=300, ignore_eos=True))
        next(stream)
        holder.stream, holder.myself = stream, holder
        del holder, stream
        llm._session.loop.run(collect_garbage)
        assert ids(llm, "The loom") == expected
    assert not busy(llm)


def test_a_closed_engine_says_so(path: Path) -> None:
    llm = LLM(str(path))
    stream = llm.generate_stream("cut off", GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        list(stream)
    with pytest.raises(EngineError, match="closed"):
        llm.generate(["x"], GREEDY)
    llm.close()


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    both = llm.chat([messages, messages], GREEDY)
    assert [o.outputs for o in both] == [output.outputs, output.outputs]


def test_bad_requests_raise_and_harm_nobody(llm: LLM) -> None:
    expected = ids(llm, "The loom")
    with pytest.raises(InvalidRequest, match="no token"):
        llm.generate([""], GREEDY)
    with pytest.raises(InvalidRequest, match="token ids run from 0"):
        llm.generate([[1, VOCAB_SIZE]], GREEDY)
    with pytest.raises(InvalidRequest, match="top_p"):
        llm.generate(["x"], SamplingParams(top_p=2))
    with pytest.raises(PromptTooLong, match="512"):
        llm.generate([[1] * 512], GREEDY)
    with pytest.raises(InvalidRequest, match="2 prompts and 1 sampling"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(InvalidRequest, match="text or a list"):
        llm.generate([3.5], GREEDY)  # type: ignore[list-item]
    assert ids(llm, "The loom") == expected
    assert not busy(llm)


def test_a_prefix_is_cached_under_its_salt_only(llm: LLM) -> None:
    prompt = list(range(100, 180))
    counts = [
        llm.generate([prompt], GREEDY, cache_salt=salt)[0].num_cached_tokens
        for salt in ("x", "x", "y", "")
    ]
    assert counts == [0, 64, 0, 0]


def test_two_engines_in_one_process(path: Path, tmp_path: Path) -> None:
    other = tiny_llama("f32", tmp_path)
    with LLM(str(path), threads=2) as first, LLM(str(other), threads=2) as second:
        expected = ids(first, "The cloth"), ids(second, "The cloth")
    with LLM(str(path)) as first, LLM(str(other)) as second:
        one, two = (llm.generate_stream("The cloth", GREEDY) for llm in (first, second))
        pieces = list(zip(one, two, strict=False))
        assert pieces
        assert (ids(first, "The cloth"), ids(second, "The cloth")) == expected


def test_what_cannot_start_says_why(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no setting 'max_model_length'"):
        LLM(str(path), max_model_length=5)
    with pytest.raises(StartError, match="block_size"):
        LLM(str(path), block_size=5)
    with pytest.raises(StartError, match=r"missing\.gguf"):
        LLM(str(tmp_path / "missing.gguf"))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelFileError, match=r"damaged\.gguf"):
        LLM(str(damaged))
