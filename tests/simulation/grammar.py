"""Grammars that a few lines can foretell: which tokens may follow depends on the last one, and some
tokens bring others with them that must come."""

from __future__ import annotations

import dataclasses
import random

import numpy as np

from treadle.errors import InvalidRequest
from treadle.grammars.ports import MaskWords
from treadle.wire.constraint import Constraint

VOCAB = 50
EOS = 7


class Rules:
    """What may follow, for `text`: "<step> <length>". After `length` tokens the text is over, and
    a length of 0 leaves it to EOS; "dead <length>" finds itself stuck there."""

    def __init__(self, text: str) -> None:
        kind, length = text.split()
        self.dead = kind == "dead"
        self.step = int(kind) if kind.isdigit() else 1
        self.length = int(length)

    def allowed(self, answer: list[int]) -> list[int]:
        if self.length and len(answer) >= self.length:
            return [] if self.dead else [EOS]
        if forced := self.forced(answer):
            return forced[:1]
        last = answer[-1] if answer else 0
        tokens = {(last + i * self.step + 3) % VOCAB for i in range(9)} - {EOS}
        return sorted(tokens | ({EOS} if self.complete(answer) else set()))

    def complete(self, answer: list[int]) -> bool:
        if self.dead:
            return False
        return len(answer) >= self.length if self.length else len(answer) % 3 == 2

    def over(self, answer: list[int]) -> bool:
        return bool(self.length) and not self.dead and len(answer) >= self.length

    def forced(self, answer: list[int]) -> list[int]:
        """A last token that is a multiple of five brings three to six tokens after it."""
        last = answer[-1] if answer else 0
        if not answer or last % 5:
            return []
        room = self.length - len(answer) if self.length else 99
        tokens = [(last + 11 * i) % VOCAB for i in range(1, 4 + last % 4)]
        return [1 if token == EOS else token for token in tokens][: max(room, 0)]


@dataclasses.dataclass
class SimMatcher:
    """See Matcher. What is forced is a list, decided when it begins: tokens within it may be
    multiples of five as well, and begin nothing."""

    rules: Rules
    answer: list[int] = dataclasses.field(default_factory=list)
    ahead: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False
    can_roll_back: bool = False

    def _allowed(self) -> list[int]:
        return self.ahead[:1] or self.rules.allowed(self.answer)

    def fill(self, words: MaskWords) -> None:
        words[:] = 0
        for token in self._allowed():
            words[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token: int) -> bool:
        if self.ended or token not in self._allowed():
            return False
        if token == EOS and not self.ahead:
            self.ended = True
            return True
        was_ahead = bool(self.ahead)
        self.ahead = self.ahead[1:]
        self.answer.append(token)
        if not was_ahead:
            self.ahead = self.rules.forced(self.answer)
        return True

    def forced(self) -> list[int]:
        return list(self.ahead)

    def rollback(self, count: int) -> None:
        raise AssertionError(f"nobody takes back {count} tokens")

    def clone(self) -> SimMatcher:
        return SimMatcher(self.rules, list(self.answer), list(self.ahead), self.ended)

    @property
    def is_complete(self) -> bool:
        return not self.ahead and self.rules.complete(self.answer)

    @property
    def is_finished(self) -> bool:
        return self.ended or (not self.ahead and self.rules.over(self.answer))

    @property
    def failure(self) -> str | None:
        return None if self._allowed() else "the grammar is stuck"


@dataclasses.dataclass(frozen=True)
class SimGrammar:
    rules: Rules
    num_bytes: int = 1

    def matcher(self) -> SimMatcher:
        return SimMatcher(self.rules)


class SimCompilation:
    """Is there after some polls."""

    def __init__(self, constraint: Constraint, polls: int, live: set[SimCompilation]) -> None:
        self._constraint = constraint
        self._polls = polls
        self._live = live
        live.add(self)

    def poll(self) -> SimGrammar | None:
        assert self in self._live, "polled after it was dropped"
        self._polls -= 1
        if self._polls >= 0:
            return None
        if self._constraint.text.startswith("wrong"):
            raise InvalidRequest("the regex is wrong")
        return SimGrammar(Rules(self._constraint.text))

    def drop(self) -> None:
        self._live.remove(self)


class SimCompiler:
    """Compiles in no thread; `live` are those that somebody waits for."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.live: set[SimCompilation] = set()

    def warm(self) -> None:
        pass

    def start(self, constraint: Constraint) -> SimCompilation:
        return SimCompilation(constraint, self._rng.choice([0, 0, 1, 4]), self.live)

    def close(self) -> None:
        """Nothing runs."""
