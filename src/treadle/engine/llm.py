"""`LLM`: the engine inside the caller's process, with vLLM's names.

    llm = LLM("demo")
    outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))

The same engine and text side as the server's, without HTTP or a second process. Both live in
threads of their own, so that Ctrl-C in a caller interrupts the waiting, never a step.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Unpack

from treadle.engine.asking import (
    Asked,
    Asking,
    ChatOptions,
    Conversation,
    Message,
    accept_chat,
    accept_prompt,
    conversations_of,
    default_params,
    priorities_of,
)
from treadle.engine.gauges import Metric, metrics_of
from treadle.engine.outputs import Answers, RequestOutput, StreamPiece
from treadle.engine.prompts import Prompt, read_prompt, read_prompts
from treadle.engine.session import Session
from treadle.errors import InvalidRequest
from treadle.text.choice import ChoiceDelta
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import Progress
from treadle.wire.sampling_params import SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """One model, ready to answer. Calls from several threads share the engine's steps."""

    def __init__(
        self, model: str | None = None, *, seed: int | None = None, **settings: Any
    ) -> None:
        """`settings` are the fields of `config.settings`, as on the command line, and `preset` and
        `config`, a TOML file. The model is the argument, else the file's, else the demo.

        With a `seed`, sampled answers are those of the same calls in the same order in another run;
        a request's own seed goes before it. Raises StartError when the model, a setting or the
        machine does not fit.
        """
        self._asking = Asking(seed)
        self._session = Session(model, settings)
        weakref.finalize(self, self._session.stop).atexit = False
        self._frontend = self._session.loop.run(self._session.join)
        self._ids = itertools.count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop threads and free the memory; calls fail from then on, also those in progress."""
        self._session.close()

    @property
    def model(self) -> str:
        """What the model was asked for by."""
        return self._session.model

    @property
    def startup(self) -> list[Progress]:
        """The phases of the start, with their seconds."""
        return self._session.startup

    def get_tokenizer(self) -> Tokenizer:
        """`encode(text)` and `decode(ids)`, as requests use them."""
        return self._session.text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What applies where a call gives none: the model's own defaults, else the class's."""
        return default_params(self._frontend)

    def get_metrics(self) -> list[Metric]:
        """The engine's gauges and counters, under vLLM's names; at most a second old."""
        self._session.require_open()
        return metrics_of(self._frontend.stats)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests run."""
        return self._session.loop.run(self._frontend.reset_cache)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: Sequence[int] | None = None,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Continue one prompt or each of several; answers in the order of the prompts.

        A prompt is a text, token ids (a list, or an array of one dimension), or a mapping with
        `prompt` or `prompt_token_ids`. `priority` has one for each prompt. Raises a RequestError,
        and leaves nothing running, if any prompt or parameter is wrong. A bar shows progress if
        standard error is a terminal.
        """
        loop = self._session.loop
        given = read_prompts(prompts)
        params = self._asking.params(self._frontend, sampling_params, len(given))
        places = priorities_of(priority, len(given))
        asked = [
            accept_prompt(self._frontend, one, own, cache_salt, place)
            for one, own, place in zip(given, params, places, strict=True)
        ]
        return loop.run(lambda: self._answer(asked, use_tqdm))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        cache_salt: str = "",
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered with a chat template."""
        loop = self._session.loop
        conversations = conversations_of(messages)
        params = self._asking.params(self._frontend, sampling_params, len(conversations))
        asked = [
            accept_chat(self._frontend, one, own, cache_salt, options)
            for one, own in zip(conversations, params, strict=True)
        ]
        return loop.run(lambda: self._answer(asked, use_tqdm))

    def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        chat: Sequence[Message] | None = None,
    ) -> Generator[StreamPiece, None, None]:
        """One answer as it comes: to `prompt`, or to a conversation. Closing it aborts."""
        self._session.require_open()
        (params,) = self._asking.params(self._frontend, sampling_params, 1)
        if params.n != 1:
            raise InvalidRequest("a streamed answer is one; n must be 1", param="n")
        if chat is None:
            asked = accept_prompt(self._frontend, read_prompt(prompt), params, "")
        else:
            asked = accept_chat(self._frontend, chat, params, "", {})
        return self._stream(asked)

    def _stream(self, asked: Asked) -> Generator[StreamPiece, None, None]:
        num_tokens = 0
        source = self._frontend.generate([asked.accepted], request_id=self._next_id())
        with contextlib.closing(self._session.loop.iterate(source)) as arrivals:
            for part in itertools.chain.from_iterable(arrivals):
                num_tokens += len(part.token_ids)
                if part.text or part.finish_reason:
                    yield StreamPiece(
                        part.text,
                        part.finish_reason,
                        len(asked.accepted.prompt),
                        num_tokens,
                        part.cached_tokens,
                    )

    async def _answer(
        self, asked: list[Asked], use_tqdm: bool | Callable[..., Any]
    ) -> list[RequestOutput]:
        tokenizer = self._session.text.tokenizer
        answers = [Answers(self._next_id(), one.text, one.accepted, tokenizer) for one in asked]
        places = [
            (own, choice)
            for own, one in zip(answers, asked, strict=True)
            for choice in range(one.accepted.params.n)
        ]
        source = self._frontend.generate(
            [one.accepted for one in asked], request_id=f"llm-{self._next_id()}"
        )
        with _Bar(use_tqdm, len(places)) as bar:
            async with contextlib.aclosing(source):
                async for parts in source:
                    for part in parts:
                        own, choice = places[part.index]
                        own.add(choice, part)
                        bar.add(part)
        return [own.so_far() for own in answers]

    def _next_id(self) -> str:
        return str(next(self._ids))


class _Bar:
    """Shows how many answers are complete, and the tokens per second; on a terminal only."""

    def __init__(self, wanted: bool | Callable[..., Any], total: int) -> None:
        self._bar: Any = None
        self._num_tokens = 0
        if wanted and sys.stderr is not None and sys.stderr.isatty():
            from tqdm import tqdm

            make = wanted if callable(wanted) else tqdm
            self._bar = make(total=total, desc="answers", unit="answer", dynamic_ncols=True)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, part: ChoiceDelta) -> None:
        self._num_tokens += len(part.token_ids)
        if self._bar is not None and part.finish_reason is not None:
            speed = self._num_tokens / max(self._bar.format_dict["elapsed"], 1e-9)
            self._bar.set_postfix_str(f"{speed:.1f} tok/s", refresh=False)
            self._bar.update()
