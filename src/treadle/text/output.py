"""Tokens of one answer to the text that its reader sees: decoding, then stop strings.

Works token by token whatever the pieces in which tokens arrive, so that text, end and token count
do not depend on how the engine grouped them. Never decides about EOS or stop tokens: the engine
did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle.text.detokenizer import Detokenizer
from treadle.text.stops import StopStrings
from treadle.text.tokenizer import Tokenizer
from treadle.wire.sampling_params import SamplingParams


class TextPiece(NamedTuple):
    """What some tokens add to an answer."""

    text: str
    num_tokens: int
    """How many of the tokens belong to the answer; those behind a stop string do not."""
    stop: str | None
    """The stop string that ended the answer."""


class AnswerText:
    """One answer. After a stop string or the final tokens nothing more is shown."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=params.skip_special_tokens)
        stops = params.stop_strings
        self._stops = StopStrings(stops, include=params.include_stop_str_in_output)
        self._has_stops = bool(stops)
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._ended = False

    def feed(self, tokens: Sequence[int], *, final: bool, stop_token: bool = False) -> TextPiece:
        """`stop_token` says that the last token is the EOS or stop token that ended the answer: it
        counts, and has no text."""
        if self._ended:
            return TextPiece("", 0, None)
        self._ended = final
        if not self._has_stops:  # nothing in the text can end it: no need to look token by token
            text = self._detokenizer.feed(tokens[:-1] if stop_token else tokens)
            if final:
                text += self._detokenizer.finish()
            return TextPiece(text, len(tokens), None)
        texts = []
        for index, token in enumerate(tokens):
            silent = stop_token and index == len(tokens) - 1
            self._num_tokens += 1
            text, stop = self._show("" if silent else self._detokenizer.feed((token,)))
            texts.append(text)
            if stop is not None:
                self._ended = True
                return TextPiece("".join(texts), index + 1, stop)
        stop = None
        if final:
            text, stop = self._show(self._detokenizer.finish())
            texts += (text, self._stops.finish())
        return TextPiece("".join(texts), len(tokens), stop)

    def _show(self, text: str) -> tuple[str, str | None]:
        return self._stops.feed(text, armed=self._num_tokens >= self._min_tokens)
