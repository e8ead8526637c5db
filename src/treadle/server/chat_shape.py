"""Chat as OpenAI writes it: messages, and in a stream what is added to them."""

from __future__ import annotations

from treadle.server.answers import Choice, Spelling, finite, prompt_logprobs
from treadle.server.prompts import Prompt
from treadle.server.schema.answer import Answer
from treadle.server.schema.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    ChatTokenLogprob,
    TopLogprob,
)
from treadle.text.choice import ChoiceDelta
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import TokenLogprob


class ChatShape:
    """The first chunk of a choice carries the role and nothing else."""

    def __init__(self, tokenizer: Tokenizer, request: ChatRequest, prompt: Prompt) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._prompt = prompt
        self._spell = Spelling(tokenizer, as_ids=bool(request.return_tokens_as_token_ids))
        self._begun: set[int] = set()

    @property
    def tells_tokens(self) -> bool:
        return bool(self._request.return_token_ids or self._request.logprobs)

    def whole(self, part: ChoiceDelta) -> ChatChoice:
        choice = ChatChoice(
            index=part.index,
            message=AssistantMessage(part.text),
            logprobs=self._logprobs(part),
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
        )
        if self._request.return_token_ids:
            choice.token_ids = part.token_ids
        return choice

    def chunks(self, part: ChoiceDelta) -> list[Choice]:
        chunks: list[Choice] = []
        if part.index not in self._begun:
            self._begun.add(part.index)
            chunks.append(ChatChunkChoice(part.index, ChatDelta(role="assistant", content="")))
        if part.text or (self.tells_tokens and part.token_ids) or part.finish_reason is not None:
            chunks.append(self._chunk(part))
        return chunks

    def head(self, answer: Answer[Choice], part: ChoiceDelta) -> None:
        if self._request.return_token_ids:
            answer.prompt_token_ids = self._prompt.ids
        if self._request.prompt_logprobs is not None:
            num_top = self._request.prompt_logprobs
            scores = part.prompt_logprobs
            answer.prompt_logprobs = prompt_logprobs(self._tokenizer, scores, num_top)

    def _chunk(self, part: ChoiceDelta) -> ChatChunkChoice:
        choice = ChatChunkChoice(
            index=part.index,
            delta=ChatDelta(content=part.text) if part.text else ChatDelta(),
            logprobs=self._logprobs(part) if part.token_ids else None,
            finish_reason=part.finish_reason,
        )
        if part.finish_reason is not None:
            choice.stop_reason = part.stop_reason
        if self._request.return_token_ids:
            choice.token_ids = part.token_ids
        return choice

    def _logprobs(self, part: ChoiceDelta) -> ChatLogprobs | None:
        if not self._request.logprobs:
            return None
        return ChatLogprobs([self._token(entry) for entry in part.logprobs])

    def _token(self, entry: TokenLogprob) -> ChatTokenLogprob:
        likely = {token for token, _ in entry.top}
        asked = [(token, value) for token, value in entry.asked if token not in likely]
        return ChatTokenLogprob(
            token=self._spell(entry.token),
            logprob=finite(entry.logprob),
            bytes=list(self._tokenizer.token_bytes(entry.token)),
            top_logprobs=[
                TopLogprob(
                    token=self._spell(token),
                    logprob=finite(logprob),
                    bytes=list(self._tokenizer.token_bytes(token)),
                )
                for token, logprob in [*entry.top, *asked]
            ],
        )
