"""`Engine`: the engine inside the caller's process, with SGLang's names and answers.

engine = Engine(model_path="demo")
answer = engine.generate("The capital of France is", {"max_new_tokens": 8})
print(answer["text"], answer["meta_info"]["completion_tokens"])
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import operator
import weakref
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from treadle.engine.session import Session
from treadle.errors import InvalidRequest
from treadle.text.frontend import Frontend
from treadle.text.sglang import GenerateRequest
from treadle.text.sglang_batch import Batch, Running

Answer = dict[str, Any]
"""`text`, `output_ids` and `meta_info`; docs/api.md has its fields."""

Sampling = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Engine:
    """One model, ready to answer. Calls from threads and event loops share the engine's steps."""

    def __init__(
        self,
        model_path: str | None = None,
        *,
        incremental_streaming_output: bool = False,
        **settings: Any,
    ) -> None:
        """`settings` are the fields of `config.settings`, as on the command line.

        Raises StartError when the model, a setting or the machine does not fit.
        """
        self._session = Session(model_path, settings)
        weakref.finalize(self, self._session.stop).atexit = False
        self._incremental = incremental_streaming_output
        self._running = Running()
        self._numbers = itertools.count()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stop threads and free the memory; calls fail from then on, also those in progress."""
        self._session.close()

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Sampling = None,
        input_ids: Any = None,
        **fields: Any,
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Continue a text or token ids, or each of a list of them.

        `fields` are those of /generate: return_logprob, logprob_start_len, top_logprobs_num,
        token_ids_logprob, stream, rid and so on. A list, or n > 1, is answered by a list; with
        `stream` answers come as they grow, each from its beginning. Raises a RequestError, and
        leaves nothing running, for what is wrong.
        """
        request = _request(prompt, sampling_params, input_ids, fields)
        loop = self._session.loop
        batch = Batch(loop.run(self._session.join), request, self._next_name())
        if request.stream:
            return loop.iterate(self._stream(batch))
        return loop.run(lambda: self._whole(batch))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Sampling = None,
        input_ids: Any = None,
        **fields: Any,
    ) -> Answer | list[Answer] | AsyncGenerator[Answer, None]:
        """`generate` for asyncio; with `stream`, awaiting it gives an asynchronous iterator."""
        request = _request(prompt, sampling_params, input_ids, fields)
        frontend = self._session.frontend()
        batch = await asyncio.to_thread(Batch, frontend, request, self._next_name())
        return self._stream(batch) if request.stream else await self._whole(batch)

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> None:
        """End a request or a batch by its id, or all; their answers end with "abort"."""
        self._session.require_open()
        if abort_all:
            self._session.everywhere(Frontend.abort_all)
            return
        for request_id in self._running.request_ids(rid):
            self._session.everywhere(operator.methodcaller("abort", request_id))

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests run."""

        async def flush() -> bool:
            return await self._session.frontend().reset_cache()

        return self._session.loop.run(flush)

    def get_server_info(self) -> dict[str, Any]:
        """The settings in effect, by name, and what the engine is doing (`internal_states`)."""
        import treadle

        session = self._session
        stats = session.loop.run(session.join).stats
        return {
            "model_path": session.model,
            "version": treadle.__version__,
            **session.ready.resolved,
            "internal_states": [] if stats is None else [msgspec.to_builtins(stats)],
        }

    async def _whole(self, batch: Batch) -> Answer | list[Answer]:
        answers: Answer | list[Answer] = msgspec.to_builtins(await batch.whole(self._running))
        return answers

    async def _stream(self, batch: Batch) -> AsyncGenerator[Answer, None]:
        answers = batch.stream(self._running, incremental=self._incremental)
        async with contextlib.aclosing(answers):
            async for answer in answers:
                yield msgspec.to_builtins(answer)

    def _next_name(self) -> str:
        return f"request-{next(self._numbers)}"


def _request(
    prompt: object, sampling_params: object, input_ids: Any, fields: Mapping[str, Any]
) -> GenerateRequest:
    for name in fields:
        if name not in GenerateRequest.__struct_fields__ or name == "text":
            raise TypeError(f"generate has no argument {name!r}")
    given = {
        **fields,
        "text": prompt,
        "input_ids": _plain_ids(input_ids),
        "sampling_params": sampling_params,
    }
    try:
        return msgspec.convert(given, GenerateRequest)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`") or "the request"
        shown = "prompt" if name.startswith("text") else name
        raise InvalidRequest(f"{shown}: {reason[0].lower()}{reason[1:]}", param=shown) from None


def _plain_ids(ids: Any) -> Any:
    """Arrays as lists."""
    if isinstance(ids, np.ndarray):
        return ids.tolist()
    if isinstance(ids, list | tuple):
        return [_plain_ids(one) for one in ids]
    return int(ids) if isinstance(ids, np.integer) else ids
