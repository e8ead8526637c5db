"""What keeps one answer within its constraint: a matcher, and the tokens that it has settled ahead.

Where the grammar leaves no choice, the tokens that follow are those that the tokenizer writes for
the text that must come: the answer takes them without asking the model. Whether they are taken at
once or one after another under a mask of one bit is a matter of speed; the answer is the same.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from treadle.grammars.ports import Grammar, MaskWords, Matcher
from treadle.wire.constraint import Constraint
from treadle.wire.sampling_params import SamplingParams

_WORD_BITS = 32


class Guide:
    """The matcher stands behind the answer's tokens and those of `ahead`. Its own thread is the
    engine's."""

    def __init__(self, constraint: Constraint, field: str, params: SamplingParams) -> None:
        self.constraint = constraint
        self.field = field
        """The field of the request that it came in."""
        # Other restrictions may rule out the tokenizer's way to write a text, and leave another.
        self._settles = not (params.allowed_token_ids or params.bad_words or params.logit_bias)
        # Tokens that are not sampled have no log-probability, and no penalty counts them.
        self._skips = self._settles and params.logprobs is None and not params.penalised
        self._matcher: Matcher | None = None
        self._ahead: deque[int] = deque()

    @property
    def is_ready(self) -> bool:
        return self._matcher is not None

    def begin(self, grammar: Grammar) -> None:
        self._matcher = grammar.matcher()
        self._settle_ahead()

    @property
    def is_over(self) -> bool:
        """Nothing but an end token can follow, or one has come."""
        return not self._ahead and self._placed.is_finished

    @property
    def may_end(self) -> bool:
        """The answer is complete, though more might follow."""
        return not self._ahead and self._placed.is_complete

    @property
    def failure(self) -> str | None:
        return self._placed.failure

    def fill(self, words: MaskWords) -> None:
        """Write the mask of the next token."""
        if self._ahead:
            only(self._ahead[0], words)
        else:
            self._placed.fill(words)

    def take(self, token: int) -> bool:
        """The answer goes on by a token; False if the grammar does not."""
        if self._ahead:
            return token == self._ahead.popleft()
        if not self._placed.accept(token):
            return False
        self._settle_ahead()
        return True

    def skip(self, least: int) -> list[int]:
        """Take the tokens settled ahead, if there are `least` of them that need not be sampled."""
        if not self._skips or len(self._ahead) < least:
            return []
        tokens = list(self._ahead)
        self._ahead.clear()
        return tokens

    @property
    def _placed(self) -> Matcher:
        assert self._matcher is not None, "the grammar is being compiled"
        return self._matcher

    def _settle_ahead(self) -> None:
        while self._settles and (tokens := self._placed.forced()):
            for token in tokens:
                if not self._placed.accept(token):
                    return  # a limit of the library was met: the next mask is empty
                self._ahead.append(token)


def only(token: int, words: MaskWords) -> None:
    """A mask that leaves one token."""
    words[:] = 0
    words[token // _WORD_BITS] = np.uint32(1 << token % _WORD_BITS)
