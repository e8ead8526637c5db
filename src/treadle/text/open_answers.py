"""The answers in the engine's hands: who waits for each, how many there may be, which are late.

Owns the count that the queue's limit goes by. Never talks to the engine: whoever ends an answer
here tells it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence

from treadle.errors import InvalidRequest, OverloadError, TreadleError
from treadle.text.choice import Choice
from treadle.text.inbox import Inbox
from treadle.text.intake import Accepted
from treadle.text.observe import EndReason, Observer, PromptTally, Watch
from treadle.text.output import AnswerText
from treadle.text.shared_scores import shared_scores
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import Generate, Timings


@dataclasses.dataclass(slots=True)
class OpenAnswer:
    """One Generate."""

    choice: Choice
    inbox: Inbox
    watch: Watch


class OpenAnswers:
    """By the Generate's id, in order of arrival, which is the order in which the engine takes them.
    Each ends once, and the observer is told of it."""

    def __init__(self, observer: Observer, max_queued: int | None) -> None:
        self._observer = observer
        self._max_queued = max_queued
        self._answers: dict[str, OpenAnswer] = {}
        self.get = self._answers.get
        """None for one that has ended: by a stop string, or because nobody waits."""

    def __len__(self) -> int:
        return len(self._answers)

    def open_keys(self) -> list[str]:
        return list(self._answers)

    def add(
        self,
        requests: Sequence[Accepted],
        generates: Sequence[Generate],
        tokenizer: Tokenizer,
    ) -> Inbox:
        """Open an answer for each of `generates`, which are n to each of `requests`; where their
        parts will come in."""
        inbox = Inbox(len(generates), shared_scores(requests))
        now = time.monotonic()
        tallies = [
            tally for one in requests for tally in [PromptTally(one.params.n)] * one.params.n
        ]
        for index, (generate, tally) in enumerate(zip(generates, tallies, strict=True)):
            choice = Choice(index, AnswerText(tokenizer, generate.params))
            watch = Watch(generate, tally, now)
            self._answers[generate.request_id] = OpenAnswer(choice, inbox, watch)
        return inbox

    def end(self, key: str, reason: EndReason, timings: Timings | None = None) -> None:
        answer = self._answers.pop(key)
        self._observer.ended(answer.watch.end(reason, time.monotonic(), timings))

    def fail(self, error: TreadleError, keys: Iterable[str]) -> None:
        """End these with `error`; their consumers wake and raise it."""
        for key in keys:
            self._answers[key].inbox.fail(error)
            self.end(key, "error")

    def require_room(
        self, num_answers: int, rows: int | None, *, engine_chooses: bool = False
    ) -> None:
        """Raise unless that many may join those that run and wait; where the engine chooses who
        must go, unless they could never.

        Counted against the rows that the engine has: where KV runs out first, more of the answers
        admitted here wait, but never more of them are admitted.
        """
        if self._max_queued is None or rows is None:
            return
        limit = rows + self._max_queued
        if num_answers > limit:
            raise InvalidRequest(
                f"the request asks for {num_answers} answers; this server holds {limit} at once",
                param="n",
            )
        if len(self._answers) + num_answers > limit and not engine_chooses:
            self._observer.rejected(num_answers)
            error = OverloadError(f"the queue is full: {self._max_queued} answers wait already")
            error.code = "queue_full"
            raise error

    def late(self, seconds: float, num_running: int) -> list[str]:
        """Those that have waited for longer behind the first `num_running`, and none of whose
        request has begun."""
        answers = list(self._answers.items())
        begun = {id(answer.inbox) for _, answer in answers if answer.watch.has_begun}
        begun |= {id(answer.inbox) for _, answer in answers[:num_running]}
        limit = time.monotonic() - seconds
        return [
            key
            for key, answer in answers[num_running:]
            if answer.watch.sent_s < limit and id(answer.inbox) not in begun
        ]
