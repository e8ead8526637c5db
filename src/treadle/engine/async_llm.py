"""`AsyncLLM`: the engine inside the caller's process, for asyncio, with vLLM's names.

    async for output in llm.generate("The capital of France is", SamplingParams(max_tokens=8)):
        print(output.outputs[0].text)

Any task of any event loop may call; each loop has its own text side, and all share the engine's
steps. Nothing runs while nobody waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import operator
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, Literal, Unpack

from treadle.engine.asking import (
    Asked,
    Asking,
    ChatOptions,
    Conversation,
    accept_chat,
    accept_prompt,
    default_params,
)
from treadle.engine.outputs import Answers, RequestOutput
from treadle.engine.prompts import Prompt, read_prompt
from treadle.engine.session import Session
from treadle.errors import InvalidRequest, TreadleError
from treadle.text.frontend import Frontend
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import Progress
from treadle.wire.sampling_params import RequestOutputKind, SamplingParams

Outputs = AsyncGenerator[RequestOutput, None]
Accept = Callable[[Frontend, SamplingParams], Asked]


class AsyncLLM:
    """One model, ready to answer. A consumer that stops, by leaving its loop, cancellation or an
    error, ends its request within a step."""

    def __init__(
        self, model: str | None = None, *, seed: int | None = None, **settings: Any
    ) -> None:
        """As for `LLM`. Blocks while the model loads: inside a coroutine, use asyncio.to_thread."""
        self._asking = Asking(seed)
        self._session = Session(model, settings)
        weakref.finalize(self, self._session.stop).atexit = False
        self._numbers = itertools.count()
        self._running: dict[str, _Running] = {}

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def shutdown(self) -> None:
        """Stop threads and free the memory; calls fail from then on, also those in progress."""
        self._session.close()

    async def aclose(self) -> None:
        """`shutdown`, without blocking the event loop."""
        await asyncio.to_thread(self._session.close)

    @property
    def startup(self) -> list[Progress]:
        """The phases of the start, with their seconds."""
        return self._session.startup

    @property
    def errored(self) -> bool:
        """Whether it answers no more, because it was closed or the engine failed."""
        return self.dead_error is not None

    @property
    def dead_error(self) -> TreadleError | None:
        """What every call raises from now on."""
        return self._session.end

    async def check_health(self) -> None:
        """Raises EngineError if calls would."""
        self._session.require_open()

    def get_tokenizer(self) -> Tokenizer:
        """`encode(text)` and `decode(ids)`, as requests use them."""
        return self._session.text.tokenizer

    async def get_default_sampling_params(self) -> SamplingParams:
        """What applies where a call gives none: the model's own defaults, else the class's."""
        return default_params(self._session.frontend())

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        cache_salt: str = "",
    ) -> Outputs:
        """The answers to one prompt as they come; what each output holds, `output_kind` says.

        The last output is `finished`. While nobody takes outputs they merge, so a slow consumer
        gets fewer. The first step raises a RequestError for a wrong prompt or parameter, or for a
        `request_id` that is in use.
        """
        accept: Accept = lambda frontend, params: accept_prompt(  # noqa: E731
            frontend, read_prompt(prompt), params, cache_salt, priority
        )
        return self._outputs(accept, sampling_params, request_id)

    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        cache_salt: str = "",
        **options: Unpack[ChatOptions],
    ) -> Outputs:
        """The answers to one conversation, rendered with a chat template; else like `generate`."""
        accept: Accept = lambda frontend, params: accept_chat(  # noqa: E731
            frontend, messages, params, cache_salt, options
        )
        return self._outputs(accept, sampling_params, request_id)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests: their consumers get an output with finish reason "abort". Unknown ids are
        ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            running = self._running.get(name)
            if running is not None:
                running.aborted = True
                self._session.everywhere(operator.methodcaller("abort", running.key))

    async def pause_generation(
        self, *, mode: Literal["abort", "wait", "keep"] = "abort", clear_cache: bool = True
    ) -> None:
        """Start no further step until `resume_generation`; requests may still arrive, and wait.

        "abort" ends the running ones first, "wait" lets them end, "keep" freezes them, and with
        them the prefix cache, which is forgotten otherwise unless `clear_cache` is false. A "wait"
        that is cancelled goes on; one that `resume_generation` ends raises InvalidRequest.
        """
        if mode not in ("abort", "wait", "keep"):
            raise InvalidRequest(f"mode is {mode!r}; it must be abort, wait or keep", param="mode")
        frontend = self._session.frontend()
        if not await frontend.pause(mode):
            raise InvalidRequest("the pause was ended while it waited for running requests")
        if clear_cache and mode != "keep":
            await frontend.reset_cache()

    async def resume_generation(self) -> None:
        await self._session.frontend().resume()

    async def is_paused(self) -> bool:
        return self._session.frontend().paused

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests run."""
        return await self._session.frontend().reset_cache()

    async def _outputs(
        self, accept: Accept, sampling_params: SamplingParams | None, request_id: str | None
    ) -> Outputs:
        frontend = self._session.frontend()
        (params,) = self._asking.params(frontend, sampling_params, 1)
        with self._claimed(request_id) as running:
            # Templates and tokenizers take their time: not the event loop's.
            asked = await asyncio.to_thread(accept, frontend, params)
            answers = Answers(running.name, asked.text, asked.accepted, frontend.text.tokenizer)
            if running.aborted:
                answers.abort()
                yield answers.so_far()
                return
            source = frontend.generate([asked.accepted], request_id=running.key)
            async with contextlib.aclosing(source):
                async for parts in source:
                    for part in parts:
                        answers.add(part.index, part)
                    output = _due(answers, params.output_kind)
                    if output is not None:
                        yield output

    @contextlib.contextmanager
    def _claimed(self, request_id: str | None) -> Iterator[_Running]:
        """The request under its id, which is nobody else's meanwhile."""
        number = next(self._numbers)
        name = str(number) if request_id is None else request_id
        if not isinstance(name, str):
            raise InvalidRequest("request_id must be a text", param="request_id")
        running = _Running(name, key=f"{name}-{number}")
        if self._running.setdefault(name, running) is not running:
            raise InvalidRequest(f"the request id {name!r} is in use", param="request_id")
        try:
            yield running
        finally:
            del self._running[name]


@dataclasses.dataclass(eq=False)
class _Running:
    name: str
    key: str
    """What the engine knows it by: a name may be given again before it has let go of the last."""
    aborted: bool = False


def _due(answers: Answers, kind: RequestOutputKind) -> RequestOutput | None:
    """What the consumer is to see now, if anything."""
    if kind == RequestOutputKind.FINAL_ONLY:
        return answers.so_far() if answers.finished else None
    news = answers.take_news()
    if not news.outputs:
        return None
    return news if kind == RequestOutputKind.DELTA else answers.so_far()
