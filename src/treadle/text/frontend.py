"""The text side of a served model: checked requests go to the engine, tokens come back as text.

Owns the channel, the tokenizer and who waits for what. Never knows HTTP, and never decides which
request runs when.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal

from treadle.errors import (
    EngineError,
    InvalidRequest,
    OverloadError,
    PromptTooLong,
    RequestError,
    StartError,
    TreadleError,
)
from treadle.text.choice import Choice, ChoiceDelta
from treadle.text.intake import Accepted, check, fan_out
from treadle.text.load import ModelText
from treadle.text.observe import EndReason, Observer, PromptTally, Watch
from treadle.text.output import AnswerText
from treadle.text.tokenizer import Tokenizer
from treadle.wire.channel import Channel, Sender
from treadle.wire.messages import (
    Abort,
    Bye,
    Delta,
    Done,
    Failed,
    FromEngine,
    Pause,
    Progress,
    Ready,
    ResetCache,
    Resume,
    Stats,
    ToEngine,
)
from treadle.wire.sampling_params import SamplingParams

FINISH_POLL_S = 0.02
"""How long an end may go unnoticed by whoever waits for the last; only a stopping server does."""


class _Inbox:
    """What has arrived for one consumer. Parts of one answer merge while nobody takes them, so a
    slow consumer holds up nobody and is handed one part, however long it was away."""

    def __init__(self, num_answers: int) -> None:
        self.num_open = num_answers
        self._parts: dict[int, ChoiceDelta] = {}
        self._error: TreadleError | None = None
        self._news = asyncio.Event()

    def put(self, part: ChoiceDelta) -> None:
        held = self._parts.setdefault(part.index, part)
        if held is not part:
            held.append(part)
        self._news.set()

    def fail(self, error: TreadleError) -> None:
        self._error = error
        self._news.set()

    async def take(self) -> list[ChoiceDelta]:
        """At least one part; raises once the parts before a failure are taken."""
        await self._news.wait()
        if not self._parts and self._error is not None:
            raise self._error.with_traceback(None)  # raised in every consumer
        parts, self._parts = list(self._parts.values()), {}
        self.num_open -= sum(part.finish_reason is not None for part in parts)
        if self._error is None:
            self._news.clear()
        return parts


@dataclasses.dataclass(slots=True)
class _Answer:
    """One Generate in the engine's hands."""

    request_id: str
    """The caller's, which several answers may share."""
    choice: Choice
    inbox: _Inbox
    watch: Watch


class Frontend:
    """Every request accepted ends: with a reason for each answer, or with one error."""

    def __init__(
        self,
        channel: Sender,
        names: Sequence[str],
        *,
        observer: Observer,
        announce: Callable[[Progress], None],
        max_queued: int | None = None,
    ) -> None:
        self.name = names[0]
        self.names = frozenset(names)
        self.phase = "start"
        self.stats: Stats | None = None
        self.num_signs = 0
        """Of life: grows with whatever shows that the engine gets on with its work."""
        self._max_queued = max_queued
        self._channel = channel
        self._observer = observer
        self._announce = announce
        self._answers: dict[str, _Answer] = {}
        self._open_ids: set[str] = set()
        self._serials = itertools.count()
        self._calls: dict[int, asyncio.Future[bool]] = {}
        self._call_numbers = itertools.count()
        self._text: ModelText | None = None
        self._engine: Ready | None = None
        self._refusal: TreadleError | None = None
        self._settled = asyncio.Event()
        self._longest_token_bytes = 0

    async def run(self, channel: Channel) -> None:
        """Take in what the engine sends, for ever."""
        while True:
            self.take(await channel.receive())
            # A channel that has more returns at once; others must get their turn all the same.
            await asyncio.sleep(0)

    def take(self, messages: Sequence[FromEngine]) -> None:
        """Take in what the engine sent; consumers wake."""
        for message in messages:
            self._take(message)

    async def ready(self) -> Ready:
        """Wait for engine and text; raises what prevents them."""
        await self._settled.wait()
        return self._require_ready()[1]

    def set_text(self, text: ModelText) -> None:
        self._text = text
        self._settle_if_ready()

    @property
    def text(self) -> ModelText:
        """Tokenizer and template; raises while requests are not served."""
        return self._require_ready()[0]

    @property
    def window(self) -> Ready:
        """The engine's limits; raises while requests are not served."""
        return self._require_ready()[1]

    @property
    def has_engine(self) -> bool:
        """Whether the engine has begun to listen; while it loads it does not."""
        return self._engine is not None

    @property
    def loading(self) -> bool:
        """Whether requests will be served later, and nothing has gone wrong so far."""
        return not self._settled.is_set()

    @property
    def num_open(self) -> int:
        return len(self._answers)

    def refuse(self, error: TreadleError) -> None:
        """Answer every later request with `error`; those running go on."""
        self._refusal = self._refusal or error
        self._settled.set()

    def fail(self, error: TreadleError) -> None:
        """End every request with `error`, those running too."""
        self.refuse(error)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.inbox.fail(error)
            self._end(answer, "error")
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(error.with_traceback(None))

    async def pause(self, mode: Literal["abort", "wait", "keep"]) -> bool:
        """Have the engine start no further step; see wire.messages.Pause. Whether it has done so:
        with "wait" it has not if somebody resumes meanwhile."""
        return await self._call(lambda call: Pause(call, mode))

    async def resume(self) -> bool:
        return await self._call(Resume)

    async def reset_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests run."""
        return await self._call(ResetCache)

    def abort(self, request_id: str) -> bool:
        """End the answers of the request that `generate` was given under this id, with reason
        "abort"; whether there were any."""
        answers = [key for key, answer in self._answers.items() if answer.request_id == request_id]
        self._channel.send([Abort(key) for key in answers])
        return bool(answers)

    def abort_all(self) -> None:
        self._channel.send([Abort(key) for key in self._answers])

    async def finish(self) -> None:
        """Wait until every answer has ended."""
        while self._answers:
            await asyncio.sleep(FINISH_POLL_S)

    def say_bye(self) -> None:
        """Have the engine end its requests, with finish "abort", and itself."""
        self._channel.send([Bye()])

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a prompt. A text that cannot fit, however it is cut into tokens, is refused
        unread: reading megabytes would hold up everybody. Callable from any thread."""
        model, engine = self._require_ready()
        limit = min(engine.max_model_len, engine.kv_capacity_tokens)
        if len(text) > limit:
            num_least = -(-len(text) // self._longest_token(model.tokenizer))
            if num_least >= limit:
                raise PromptTooLong(
                    f"the prompt has at least {num_least} tokens; with its answer it may have "
                    f"{limit}",
                    param="prompt",
                )
        return model.tokenizer.encode(text, add_special=add_special)

    def check(self, prompt: list[int], params: SamplingParams) -> Accepted:
        """Raise what is wrong with a request, or accept it; its longest answer is then known."""
        text, engine = self._require_ready()
        return check(prompt, params, engine, text.tokenizer)

    async def generate(
        self, requests: Sequence[Accepted], *, request_id: str, cache_salt: str = ""
    ) -> AsyncGenerator[list[ChoiceDelta], None]:
        """The answers to all prompts, n to each, as their parts arrive.

        Close the iterator when nobody waits any more: that is what aborts. Raises InvalidRequest
        where a request of this id is being answered.
        """
        if request_id in self._open_ids:
            raise InvalidRequest(
                f"a request with request_id {request_id!r} is running already", param="request_id"
            )
        tokenizer = self.text.tokenizer
        # What is left of an earlier request of this id must not reach this one.
        generates = fan_out(requests, f"{request_id}-{next(self._serials)}", cache_salt)
        self._require_room(len(generates))
        self._open_ids.add(request_id)
        inbox = _Inbox(len(generates))
        now = time.monotonic()
        tallies = [
            tally for one in requests for tally in [PromptTally(one.params.n)] * one.params.n
        ]
        for index, (generate, tally) in enumerate(zip(generates, tallies, strict=True)):
            choice = Choice(index, AnswerText(tokenizer, generate.params))
            watch = Watch(generate, tally, now)
            self._answers[generate.request_id] = _Answer(request_id, choice, inbox, watch)
        self._channel.send(generates)
        try:
            while inbox.num_open:
                yield await inbox.take()
        finally:
            self._open_ids.discard(request_id)
            self._abandon([generate.request_id for generate in generates])

    def expire(self, seconds: float) -> None:
        """Refuse requests none of whose answers has begun after so long a wait in the queue."""
        answers = list(self._answers.items())  # the engine takes them in order of arrival
        running, queue = answers[: self._num_running()], answers[self._num_running() :]
        begun = {id(answer.inbox) for _, answer in answers if answer.watch.has_begun}
        begun |= {id(answer.inbox) for _, answer in running}
        limit = time.monotonic() - seconds
        late = [
            name
            for name, answer in queue
            if answer.watch.sent_s < limit and id(answer.inbox) not in begun
        ]
        error = OverloadError(f"the request waited for more than {seconds:g} s in the queue")
        error.code = "queue_timeout"
        for name in late:
            self._answers[name].inbox.fail(error)
        self._abandon(late, "error")

    def _num_running(self) -> int:
        """As many as there are rows, unless the engine has said that some wait for KV. Its word is
        as old as its last step, so it counts only where it speaks of a queue."""
        if self.stats is not None and self.stats.waiting:
            return self.stats.running
        rows = None if self._engine is None else self._engine.resolved.get("max_num_seqs")
        return len(self._answers) if rows is None else int(rows)

    def _require_room(self, num_answers: int) -> None:
        """Raise unless that many answers may join those that run and wait.

        Counted against the rows that the engine has: where KV runs out first, more of the answers
        admitted here wait, but never more of them are admitted.
        """
        rows = self._require_ready()[1].resolved.get("max_num_seqs")
        if self._max_queued is None or rows is None:
            return
        limit = rows + self._max_queued
        if num_answers > limit:
            raise InvalidRequest(
                f"the request asks for {num_answers} answers; this server holds {limit} at once",
                param="n",
            )
        if len(self._answers) + num_answers > limit:
            self._observer.rejected(num_answers)
            error = OverloadError(f"the queue is full: {self._max_queued} answers wait already")
            error.code = "queue_full"
            raise error

    def _require_ready(self) -> tuple[ModelText, Ready]:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # raised many times
        if self._text is None or self._engine is None:
            raise OverloadError(f"the model is loading (phase: {self.phase}); try again soon")
        return self._text, self._engine

    def _longest_token(self, tokenizer: Tokenizer) -> int:
        """Bytes, so at least the characters, that one token can stand for."""
        if self._longest_token_bytes == 0:
            self._longest_token_bytes = max(
                len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)
            )
        return self._longest_token_bytes

    def _settle_if_ready(self) -> None:
        if self._text is not None and self._engine is not None:
            self._settled.set()

    def _take(self, message: FromEngine) -> None:
        self.num_signs += self._is_sign(message)
        match message:
            case Delta():
                self._take_delta(message)
            case Failed():
                self._take_failure(message)
            case Progress():
                self.phase = message.phase
                self._announce(message)
            case Ready():
                self._engine = message
                self._settle_if_ready()
            case Stats():
                self.stats = message
                self._observer.measured(message)
            case Done():
                call = self._calls.pop(message.call, None)
                if call is not None and not call.done():
                    call.set_result(message.ok)

    async def _call(self, make: Callable[[int], ToEngine]) -> bool:
        self._require_ready()
        number = next(self._call_numbers)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._calls[number] = done
        self._channel.send([make(number)])
        try:
            return await done
        finally:
            self._calls.pop(number, None)

    def _is_sign(self, message: FromEngine) -> bool:
        if isinstance(message, Stats):
            return self.stats is None or message.steps != self.stats.steps
        return True

    def _take_delta(self, delta: Delta) -> None:
        answer = self._answers.get(delta.request_id)
        if answer is None:  # ended here first, by a stop string or because nobody waits
            return
        part = answer.choice.part(delta)
        now = time.monotonic()
        answer.watch.take(len(part.token_ids), part.cached_tokens, now, self._observer)
        if part.finish_reason is not None:
            del self._answers[delta.request_id]
            self._observer.ended(answer.watch.end(part.finish_reason, now, delta.timings))
            if delta.finish is None:
                self._channel.send([Abort(delta.request_id)])
        answer.inbox.put(part)

    def _take_failure(self, failed: Failed) -> None:
        if not failed.request_id:
            self.fail(StartError(failed.message))
            return
        answer = self._answers.pop(failed.request_id, None)
        if answer is not None:
            # Its consumer wakes, raises, and abandons the other answers of the request.
            answer.inbox.fail(_error_of(failed))
            self._end(answer, "error")

    def _abandon(self, request_ids: list[str], reason: EndReason = "abort") -> None:
        """Abort those of the requests that have not ended."""
        open_ids = [name for name in request_ids if name in self._answers]
        for name in open_ids:
            self._end(self._answers.pop(name), reason)
        if open_ids:
            self._channel.send([Abort(name) for name in open_ids])

    def _end(self, answer: _Answer, reason: EndReason) -> None:
        self._observer.ended(answer.watch.end(reason, time.monotonic()))


def _error_of(failed: Failed) -> TreadleError:
    kind: type[TreadleError] = EngineError
    if failed.status == OverloadError.status:
        kind = OverloadError
    elif failed.status < EngineError.status:
        kind = RequestError
    error = kind(failed.message, param=failed.param)
    error.status = failed.status
    error.code = failed.code
    return error
