"""The text side of a served model: checked requests go to the engine, tokens come back as text.

Owns the channel, the tokenizer and who waits for what. Never knows HTTP, and never decides which
request runs when.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
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
from treadle.text.calls import Calls
from treadle.text.choice import ChoiceDelta
from treadle.text.inbox import Inbox
from treadle.text.intake import Accepted, check, fan_out
from treadle.text.lengths import longest_kept
from treadle.text.load import ModelText
from treadle.text.observe import Observer
from treadle.text.open_answers import OpenAnswer, OpenAnswers
from treadle.text.workers import FromWorker, Told, Worker
from treadle.wire.ends import Channel, Sender
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

MAX_CHARS_TO_CUT = 1 << 22
"""A text that may be cut is tokenized whole first; this takes about a second."""

FINISH_POLL_S = 0.02
"""How long an end may go unnoticed by whoever waits for the last; only a stopping server does."""


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
        workers: Sequence[Worker] = (),
    ) -> None:
        """Where there are workers, they make the texts."""
        self.name = names[0]
        self.names = frozenset(names)
        self.phase = "start"
        self.stats: Stats | None = None
        self.num_signs = 0
        """Of life: grows with whatever shows that the engine gets on with its work."""
        self.workers = workers
        self._channel = channel
        self._observer = observer
        self._announce = announce
        self._answers = OpenAnswers(observer, max_queued)
        self._calls = Calls(channel)
        self._open_keys: dict[str, list[str]] = {}
        """Of each request that somebody waits for, what the engine calls its answers."""
        self._serials = itertools.count()
        self._text: ModelText | None = None
        self._engine: Ready | None = None
        self._refusal: TreadleError | None = None
        self._settled = asyncio.Event()

    async def run(self, channel: Channel) -> None:
        """Take in what the engine sends, for ever."""
        await channel.run(self.take)

    def take(self, messages: Sequence[FromEngine]) -> None:
        """Take in what the engine sent; then consumers are told, each once."""
        now = time.monotonic()
        told: list[Inbox] = []
        for message in messages:
            if type(message) is Delta:
                answer = self._answers.get(message.request_id)
                if answer is None:  # ended here first, by a stop string or since nobody waits
                    self.num_signs += 1
                    continue
                part = answer.choice.part(message)
                if self._take_part(message.request_id, answer, part, now):
                    told.append(answer.inbox)
                if part.finish_reason is not None and message.finish is None:
                    self._channel.send([Abort(message.request_id)])
            else:
                self._take(message)
        for inbox in told:
            inbox.tell()

    def take_told(self, worker: Worker, messages: Sequence[FromWorker]) -> None:
        """The same for what one of the workers says."""
        worker.num_signs += 1
        now = time.monotonic()
        told: list[Inbox] = []
        for message in messages:
            match message:
                case Told(request_id=name, part=part, early=early):
                    answer = self._answers.get(name)
                    if answer is None:
                        self.num_signs += 1
                        continue
                    part.index = answer.choice.index
                    if self._take_part(name, answer, part, now):
                        told.append(answer.inbox)
                    if early:
                        self._channel.send([Abort(name)])
                case Stats():
                    worker.handed_on(message)
                case Progress():
                    worker.is_ready = True
                    self._announce(message)
                    self._settle_if_ready()
                case Failed():
                    self._take_failure(message)
        for inbox in told:
            inbox.tell()

    async def ready(self) -> Ready:
        """Wait for engine and text; raises what prevents them."""
        await self._settled.wait()
        return self.require_ready()[1]

    def set_text(self, text: ModelText) -> None:
        self._text = text
        self._settle_if_ready()

    @property
    def text(self) -> ModelText:
        """Tokenizer and template; raises while requests are not served."""
        return self.require_ready()[0]

    @property
    def window(self) -> Ready:
        """The engine's limits; raises while requests are not served."""
        return self.require_ready()[1]

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
        self._answers.fail(error, self._answers.open_keys())
        self._calls.fail(error)

    async def pause(self, mode: Literal["abort", "wait", "keep"]) -> bool:
        """Have the engine start no further step; see wire.messages.Pause. Whether it has done so:
        with "wait" it has not if somebody resumes meanwhile."""
        return await self._call(lambda call: Pause(call, mode))

    @property
    def paused(self) -> bool:
        """As the engine has it: also where nobody waited for the end of a pause's call."""
        return self.stats is not None and self.stats.paused

    async def resume(self) -> bool:
        return await self._call(Resume)

    async def reset_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing forgotten, while requests run."""
        return await self._call(ResetCache)

    def abort(self, request_id: str) -> bool:
        """End the answers of the request that `generate` was given under this id, with reason
        "abort"; whether there were any."""
        asked = self._open_keys.get(request_id, [])
        keys = [key for key in asked if self._answers.get(key) is not None]
        self._channel.send([Abort(key) for key in keys])
        return bool(keys)

    def abort_all(self) -> None:
        self._channel.send([Abort(key) for key in self._answers.open_keys()])

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
        model, engine = self.require_ready()
        limit = min(engine.max_model_len, engine.kv_capacity_tokens)
        if len(text) > limit and not (engine.lengths.truncate and len(text) <= MAX_CHARS_TO_CUT):
            num_least = -(-len(text) // model.tokenizer.longest_token)
            if num_least >= limit:
                raise PromptTooLong(
                    f"the prompt has at least {num_least} tokens; with its answer it may have "
                    f"{limit}",
                    param="prompt",
                )
        return model.tokenizer.encode(text, add_special=add_special)

    def cut(self, prompt: list[int]) -> list[int]:
        """As much of a prompt as the server keeps of one that is too long."""
        return prompt[: longest_kept(self.window)]

    def check(self, prompt: list[int], params: SamplingParams) -> Accepted:
        """Raise what is wrong with a request, or accept it; its longest answer is then known."""
        text, engine = self.require_ready()
        return check(prompt, params, engine, text.tokenizer)

    async def generate(
        self, requests: Sequence[Accepted], *, request_id: str, cache_salt: str = ""
    ) -> AsyncGenerator[list[ChoiceDelta], None]:
        """The answers to all prompts, n to each, as their parts arrive.

        Close the iterator when nobody waits any more: that is what aborts. Raises InvalidRequest
        where a request of this id is being answered.
        """
        with self.asked(requests, request_id=request_id, cache_salt=cache_salt) as inbox:
            while inbox.num_open:
                yield await inbox.take()

    @contextlib.contextmanager
    def asked(
        self, requests: Sequence[Accepted], *, request_id: str, cache_salt: str = ""
    ) -> Iterator[Inbox]:
        """The same for a consumer that is no task: where the parts come in. What has not ended with
        the block is aborted."""
        if request_id in self._open_keys:
            raise InvalidRequest(
                f"a request with request_id {request_id!r} is running already", param="request_id"
            )
        tokenizer = self.text.tokenizer
        # What is left of an earlier request of this id must not reach this one.
        generates = fan_out(requests, f"{request_id}-{next(self._serials)}", cache_salt)
        self._answers.require_room(
            len(generates), self._num_rows(), engine_chooses=self._priorities_count
        )
        keys = self._open_keys[request_id] = [generate.request_id for generate in generates]
        inbox = self._answers.add(requests, generates, tokenizer)
        self._channel.send(generates)
        try:
            yield inbox
        finally:
            del self._open_keys[request_id]
            self._abandon(keys)

    def expire(self, seconds: float) -> None:
        """Refuse requests none of whose answers has begun after so long a wait in the queue."""
        late = self._answers.late(seconds, self._num_running())
        error = OverloadError(f"the request waited for more than {seconds:g} s in the queue")
        error.code = "queue_timeout"
        self._answers.fail(error, late)
        self._channel.send([Abort(key) for key in late])

    def _num_running(self) -> int:
        """As many as there are rows, unless the engine has said that some wait for KV. Its word is
        as old as its last step, so it counts only where it speaks of a queue."""
        if self.stats is not None and self.stats.waiting:
            return self.stats.running
        rows = self._num_rows()
        return len(self._answers) if rows is None else rows

    def _num_rows(self) -> int | None:
        """How many answers the engine computes at once, if it has said so."""
        return None if self._engine is None else self._engine.resolved.get("max_num_seqs")

    @property
    def _priorities_count(self) -> bool:
        return self._engine is not None and self._engine.resolved.get("priorities") == "count"

    def require_ready(self) -> tuple[ModelText, Ready]:
        """Both sides of what serves requests; raises while it does not."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # raised many times
        if self._text is None or self._engine is None or not self._all_ready():
            raise OverloadError(f"the model is loading (phase: {self.phase}); try again soon")
        return self._text, self._engine

    def _all_ready(self) -> bool:
        return all(worker.is_ready for worker in self.workers)

    def _settle_if_ready(self) -> None:
        if self._text is not None and self._engine is not None and self._all_ready():
            self._settled.set()

    def _take(self, message: FromEngine) -> None:
        """All but Deltas."""
        self.num_signs += self._is_sign(message)
        match message:
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
                self._calls.settle(message)

    async def _call(self, make: Callable[[int], ToEngine]) -> bool:
        self.require_ready()
        return await self._calls.make(make)

    def _is_sign(self, message: FromEngine) -> bool:
        if isinstance(message, Stats):
            return self.stats is None or message.steps != self.stats.steps
        return True

    def _take_part(self, key: str, answer: OpenAnswer, part: ChoiceDelta, now: float) -> bool:
        """Whether its consumer is to be told of it."""
        self.num_signs += 1
        answer.watch.take(len(part.token_ids), part.cached_tokens, now, self._observer)
        if part.finish_reason is not None:
            self._answers.end(key, part.finish_reason, part.timings)
        return answer.inbox.put(part)

    def _take_failure(self, failed: Failed) -> None:
        if not failed.request_id:
            self.fail(StartError(failed.message))
        elif self._answers.get(failed.request_id) is not None:
            if failed.code == "queue_full":
                self._observer.rejected(1)
            # Its consumer wakes, raises, and abandons the other answers of the request.
            self._answers.fail(_error_of(failed), [failed.request_id])

    def _abandon(self, keys: Sequence[str]) -> None:
        """Abort those of the answers that have not ended."""
        left = [key for key in keys if self._answers.get(key) is not None]
        for key in left:
            self._answers.end(key, "abort")
        if left:
            self._channel.send([Abort(key) for key in left])


def _error_of(failed: Failed) -> TreadleError:
    kind: type[TreadleError] = EngineError
    if failed.status == OverloadError.status:
        kind = OverloadError
    elif failed.status == InvalidRequest.status:
        kind = InvalidRequest
    elif failed.status < EngineError.status:
        kind = RequestError
    error = kind(failed.message, param=failed.param)
    error.status = failed.status
    error.code = failed.code
    return error
