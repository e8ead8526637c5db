"""What a settled step has brought: tokens and scores go to their requests, and to the text side."""

from __future__ import annotations

import time

from treadle.engine.admission import Served, nothing_to_choose
from treadle.engine.ends import End, end_of
from treadle.engine.replies import Replies
from treadle.engine.request import Request
from treadle.engine.roster import Roster
from treadle.kernels.ops import NO_TOKEN
from treadle.schedule.draft import Flight
from treadle.schedule.scheduler import Scheduler
from treadle.wire.messages import TokenLogprob
from treadle.wire.plan import RowWork, StepResult


class Harvest:
    """Every token that was sampled is taken once: it goes on an answer, or the answer had ended, or
    gone on without it."""

    def __init__(
        self, served: Served, scheduler: Scheduler[Request], roster: Roster, replies: Replies
    ) -> None:
        self._served = served
        self._scheduler = scheduler
        self._roster = roster
        self._replies = replies
        self.num_tokens = 0
        """Of all answers."""
        self.num_forced = 0
        """Those among them that grammars left no choice for."""

    def take(self, flight: Flight[Request], result: StepResult) -> None:
        """The step has settled, and the fence knows."""
        sampled = zip(result.tokens, result.logprobs, strict=True)
        scores = iter(result.scores)
        for request, work in zip(flight.requests, flight.plan.work, strict=True):
            token, logprob = next(sampled) if work.sample else (None, None)
            self._scheduler.settle(request, work, failed=token == NO_TOKEN)
            if work.targets:
                self._take_scores(request, next(scores))
            if token is not None:
                self._take_token(request, work, token, logprob)
            elif request.max_tokens == 0 and work.start + work.num_tokens == request.num_prompt:
                self._end_prompt(request)

    def _take_scores(self, request: Request, scores: list[TokenLogprob]) -> None:
        if not request.finished:
            self._replies.scores(request, scores)

    def _end_prompt(self, request: Request) -> None:
        """Nothing more was asked for than the prompt."""
        if not request.finished:
            self._roster.end(request, End("length"))

    def _take_token(
        self, request: Request, work: RowWork, token: int, logprob: TokenLogprob | None
    ) -> None:
        if request.finished or work.output_index < request.num_output:
            return  # ended, or went on without it, while this step was in flight: one wasted row
        request.num_pending -= 1
        assert work.output_index == request.num_output
        if token == NO_TOKEN or not (request.guide is None or request.guide.take(token)):
            self._stop_short(request)
            return
        request.times.first_token = request.times.first_token or time.monotonic()
        tokens, end = self._append(request, [token, *self._skipped(request)])
        self.num_forced += len(tokens) - 1
        if end is not None:
            self._roster.end(request, end, tokens=tokens, logprob=logprob)
        else:
            self._replies.tokens(request, tokens, logprob)

    def _append(self, request: Request, tokens: list[int]) -> tuple[list[int], End | None]:
        """The tokens that the answer has of these: none behind its end."""
        for count, token in enumerate(tokens, 1):
            request.tokens.append(token)
            self.num_tokens += 1
            end = end_of(request, self._served, ahead=len(tokens) - count)
            if end is not None:
                return tokens[:count], end
        return tokens, None

    def _skipped(self, request: Request) -> list[int]:
        """Tokens behind the one just sampled that the grammar leaves no choice for: known from now
        on. A step in flight already samples the first of them, so that one alone gains nothing; it
        computes what it was planned for, and its token is not waited for."""
        if request.guide is None:
            return []
        tokens = request.guide.skip(least=2 if request.num_pending else 1)
        if tokens:
            request.num_pending = 0
            request.in_token_table = False
        return tokens

    def _stop_short(self, request: Request) -> None:
        """There was nothing to choose."""
        # A step in flight computes a place for which no token ever came.
        request.num_computed = min(request.num_computed, len(request.tokens))
        if request.guide is not None and request.guide.may_end:
            self._roster.end(request, End("stop"))  # min_tokens asks for more than the grammar has
            return
        self._roster.fail(request, nothing_to_choose(request.params, request.guide))
