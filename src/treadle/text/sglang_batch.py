"""SGLang's own request on its way, for HTTP's /generate and for Python alike.

A batch is checked whole before any of it is sent; its members are requests of their own from then
on, so each can be aborted by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from treadle.errors import InvalidRequest
from treadle.text.frontend import Frontend
from treadle.text.intake import Accepted, check_number
from treadle.text.sglang import GenerateRequest, Item, in_native_words
from treadle.text.sglang_answer import AnswerShape, GenerateAnswer

T = TypeVar("T")


@dataclass(frozen=True)
class _Member:
    """One item of a batch on its way, and the answers to it."""

    item: Item
    accepted: Accepted
    first: int
    """Index of its first answer among all of the batch."""
    shapes: list[AnswerShape]


class Batch:
    """One request with all of its members, accepted."""

    def __init__(self, frontend: Frontend, request: GenerateRequest, name: str) -> None:
        """Raises a RequestError for what is wrong with any member. Tokenizes: not for a thread that
        others wait for. `name` is the request's id where `rid` names none."""
        self.name = request.rid if isinstance(request.rid, str) else name
        self._frontend = frontend
        items = request.items(frontend.text.sampling_defaults, self.name)
        check_number(len(items), max(item.params.n for item in items))
        texts = bool(request.return_text_in_logprobs)
        self._members: list[_Member] = []
        first = 0
        for item in items:
            self._members.append(_accept(frontend, item, first, texts=texts))
            first += item.params.n
        self.request_ids = [item.request_id for item in items]
        self.is_list = request.batched or items[0].params.n > 1
        """Whether a list answers."""

    async def whole(self, running: Running) -> GenerateAnswer | list[GenerateAnswer]:
        async with contextlib.aclosing(self._arrivals(running)) as arrivals:
            async for _ in arrivals:
                pass
        answers = [shape.so_far() for member in self._members for shape in member.shapes]
        return answers if self.is_list else answers[0]

    async def stream(
        self, running: Running, *, incremental: bool
    ) -> AsyncGenerator[GenerateAnswer, None]:
        """Each answer so far, or what is new of it, whenever there is something to tell. What is
        yielded may grow later: it is to be written down at once."""
        async with contextlib.aclosing(self._arrivals(running)) as arrivals:
            async for index, shape in arrivals:
                answer = shape.take_news() if incremental else shape.so_far()
                if self.is_list:
                    answer.index = index
                yield answer

    async def _arrivals(self, running: Running) -> AsyncGenerator[tuple[int, AnswerShape], None]:
        with running.claimed(self):
            sources = [self._answers(member) for member in self._members]
            arrivals = merged(sources) if len(sources) > 1 else sources[0]
            async with contextlib.aclosing(arrivals):
                async for arrival in arrivals:
                    yield arrival

    async def _answers(self, member: _Member) -> AsyncGenerator[tuple[int, AnswerShape], None]:
        item = member.item
        with in_native_words():
            arrivals = self._frontend.generate(
                [member.accepted], request_id=item.request_id, cache_salt=item.cache_salt
            )
            async with contextlib.aclosing(arrivals):
                async for parts in arrivals:
                    for part in parts:
                        shape = member.shapes[part.index]
                        if shape.add(part):
                            yield member.first + part.index, shape


class Running:
    """The batches in progress, by name: no two have the same."""

    def __init__(self) -> None:
        self._batches: dict[str, Batch] = {}

    @contextlib.contextmanager
    def claimed(self, batch: Batch) -> Iterator[None]:
        if self._batches.setdefault(batch.name, batch) is not batch:
            raise InvalidRequest(
                f"a request with rid {batch.name!r} is running already", param="rid"
            )
        try:
            yield
        finally:
            del self._batches[batch.name]

    def request_ids(self, rid: str) -> Sequence[str]:
        """The requests that an id means: the members of a batch of that name, or itself."""
        batch = self._batches.get(rid)
        return [rid] if batch is None else batch.request_ids


def _accept(frontend: Frontend, item: Item, first: int, *, texts: bool) -> _Member:
    prompt = item.prompt
    if isinstance(prompt, str):
        prompt = frontend.encode(prompt, add_special=True)
    prompt = frontend.cut(prompt)
    with in_native_words():
        accepted = frontend.check(prompt, item.placed(len(prompt)))
    accepted = replace(accepted, place=item.place)
    shapes = [
        AnswerShape(frontend.text.tokenizer, item, prompt, choice=choice, texts=texts)
        for choice in range(item.params.n)
    ]
    return _Member(item, accepted, first, shapes)


async def merged(sources: list[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """What all of them yield, as it comes; none is asked for more than one ahead. Closes them."""
    asked: dict[asyncio.Future[T], AsyncGenerator[T, None]] = {}
    ready: asyncio.Queue[asyncio.Future[T]] = asyncio.Queue()

    def ask(source: AsyncGenerator[T, None]) -> None:
        future = asyncio.ensure_future(anext(source))
        asked[future] = source
        future.add_done_callback(ready.put_nowait)

    try:
        for source in sources:
            ask(source)
        while asked:
            future = await ready.get()
            source = asked.pop(future)
            with contextlib.suppress(StopAsyncIteration):
                yield future.result()
                ask(source)  # only now: what was told must be taken before more is added to it
    finally:
        for future in asked:
            future.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for source in sources:
            await source.aclose()
