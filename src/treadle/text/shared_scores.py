"""The scores of a prompt that several answers begin with: computed for the first, told with all."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.text.choice import ChoiceDelta
from treadle.text.intake import Accepted
from treadle.wire.messages import TokenLogprob


class SharedScores:
    """Parts of the other answers wait until the first has all scores, so that they come before any
    answer's first token. Should the first end before, nobody waits any longer."""

    def __init__(self, first: int) -> None:
        """`first` is the index of the prompt's first answer."""
        self._first = first
        self._scores: list[TokenLogprob] = []
        self._held: dict[int, ChoiceDelta] | None = {}
        self._told = {first}

    def pass_on(self, part: ChoiceDelta) -> list[ChoiceDelta]:
        """What may be handed on, now that `part` has come."""
        if part.index == self._first:
            self._scores += part.prompt_logprobs
            # All scores come before the first token, or the end.
            complete = bool(part.token_ids) or part.finish_reason is not None
            return [part, *self._release()] if complete else [part]
        if self._held is None:
            return [self._with_scores(part)]
        held = self._held.setdefault(part.index, part)
        if held is not part:
            held.append(part)
        return []

    def _release(self) -> list[ChoiceDelta]:
        held, self._held = self._held or {}, None
        return [self._with_scores(part) for part in held.values()]

    def _with_scores(self, part: ChoiceDelta) -> ChoiceDelta:
        if part.index not in self._told:
            self._told.add(part.index)
            part.prompt_logprobs = list(self._scores)
        return part


def shared_scores(requests: Iterable[Accepted]) -> dict[int, SharedScores]:
    """By the answers' indices; nothing for prompts that are not scored, or answered once."""
    shared: dict[int, SharedScores] = {}
    index = 0
    for request in requests:
        n = request.params.n
        if n > 1 and request.params.prompt_logprobs is not None:
            shared.update(dict.fromkeys(range(index, index + n), SharedScores(index)))
        index += n
    return shared
