"""Text completions as OpenAI writes them: text, offsets, and the echoed prompt in front."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from treadle.server.answers import Choice, Spelling, finite, prompt_logprobs
from treadle.server.prompts import Prompt
from treadle.server.schema.answer import Answer
from treadle.server.schema.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from treadle.text.choice import ChoiceDelta
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import TokenLogprob


class CompletionShape:
    """Offsets run on from part to part of a choice; its first part tells of the prompt."""

    def __init__(
        self, tokenizer: Tokenizer, request: CompletionRequest, prompts: Sequence[Prompt]
    ) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._prompts = prompts
        self._skip_special = request.skip_special_tokens is not False
        self._spell = Spelling(tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        self._begun: dict[int, _Begun] = {}

    @property
    def tells_tokens(self) -> bool:
        return bool(self._request.return_token_ids) or self._request.logprobs is not None

    def whole(self, part: ChoiceDelta) -> CompletionChoice:
        begun = self._hear(part)
        prompt = self._prompt(part.index)
        is_first, begun.shown = not begun.shown, True
        echo = prompt.echo if is_first and self._request.echo else ""
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = self._logprobs(part, begun, is_first=is_first)
        choice = CompletionChoice(
            index=part.index,
            text=echo + part.text,
            logprobs=logprobs,
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
        )
        if self._request.return_token_ids:
            choice.token_ids = part.token_ids
            if is_first:
                choice.prompt_token_ids = prompt.ids
        if self._request.prompt_logprobs is not None:
            num_top = self._request.prompt_logprobs
            choice.prompt_logprobs = prompt_logprobs(self._tokenizer, begun.scores, num_top)
        return choice

    def chunks(self, part: ChoiceDelta) -> list[Choice]:
        if not part.token_ids and part.finish_reason is None:
            self._hear(part)  # the prompt is told as one, once all of it is scored
            return []
        choice = self.whole(part)
        return [choice] if choice.text or self.tells_tokens or choice.finish_reason else []

    def head(self, answer: Answer[Choice], part: ChoiceDelta) -> None:
        """Nothing: there are several prompts, so each choice tells of its own."""

    def _prompt(self, index: int) -> Prompt:
        return self._prompts[index // (self._request.n or 1)]

    def _hear(self, part: ChoiceDelta) -> _Begun:
        begun = self._begun.get(part.index)
        if begun is None:
            begun = self._begun[part.index] = _Begun(self._tokenizer)
        begun.scores += part.prompt_logprobs
        return begun

    def _logprobs(self, part: ChoiceDelta, begun: _Begun, *, is_first: bool) -> CompletionLogprobs:
        tokens, offsets = part.token_ids, []
        entries: list[TokenLogprob | None] = [*part.logprobs]
        if is_first and self._request.echo:
            prompt = self._prompt(part.index)
            unscored = [None] * (len(prompt.ids) - 1 - len(begun.scores))
            entries = [None, *begun.scores, *unscored, *entries]
            tokens = [*prompt.ids, *tokens]
            skip = self._skip_special and not prompt.is_text
            offsets = begun.offsets.take_prompt(prompt.ids, prompt.echo, skip_special=skip)
        offsets += [begun.offsets.take(token, self._skip_special) for token in part.token_ids]
        return CompletionLogprobs(
            text_offset=offsets,
            token_logprobs=[None if entry is None else finite(entry.logprob) for entry in entries],
            tokens=[self._spell(token) for token in tokens],
            top_logprobs=[None if entry is None else self._top(entry) for entry in entries],
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        best: dict[str, float] = {}
        # The chosen token always has an entry. Of tokens with one spelling, the likelier stays.
        top = entry.top[: self._request.logprobs]
        for token, logprob in [*top, (entry.token, entry.logprob), *entry.asked]:
            best.setdefault(self._spell(token), finite(logprob))
        return best


class _Begun:
    """What has been told of one choice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.offsets = _Offsets(tokenizer)
        self.scores: list[TokenLogprob] = []
        """Of the prompt, from its second token on."""
        self.shown = False


class _Offsets:
    """Where each token of one answer begins, in characters of its text. A token that completes a
    character begins where the character does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def take(self, token: int, skip_special: bool) -> int:
        begin = self._num_chars
        if not (skip_special and self._tokenizer.is_special(token)):
            self._num_chars += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return begin

    def take_prompt(self, tokens: list[int], text: str, *, skip_special: bool) -> list[int]:
        """The text has nothing of what encoding put in front of it, so that is at its start."""
        begins = [self.take(token, skip_special) for token in tokens]
        num_chars = self._num_chars + len(self._decoder.decode(b"", final=True))
        surplus = max(num_chars - len(text), 0)
        self._decoder.reset()
        self._num_chars = len(text)
        return [max(begin - surplus, 0) for begin in begins]
