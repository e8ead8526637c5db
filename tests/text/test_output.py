"""Answer text against a search through the decoded whole, for any grouping of the tokens."""

from __future__ import annotations

import codecs
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.text.output import AnswerText, TextPiece
from treadle.text.tokenizer import Tokenizer
from treadle.wire.sampling_params import SamplingParams

STOPS = ["a", "ab", "ba", "aab", "é", "é!", "b\ufffd", "\ufffd", "<|im_end|>", "end|>a", " the a"]
PIECES = ["a", "b", "!", " the", " a", "é", "💶", "<|im_end|>", "aab"]


def split(items: list[int], cuts: set[int]) -> list[list[int]]:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(items)), len(items)]
    return [items[start:end] for start, end in itertools.pairwise(edges)]


def run(
    tokenizer: Tokenizer, params: SamplingParams, groups: list[list[int]], *, stop_token: bool
) -> tuple[str, int, str | None, list[str]]:
    answer = AnswerText(tokenizer, params)
    texts, count, stop = [], 0, None
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        piece = answer.feed(group, final=last, stop_token=last and stop_token)
        texts.append(piece.text)
        count += piece.num_tokens
        stop = piece.stop
        if stop is not None:
            break
    return "".join(texts), count, stop, texts


def expected(
    tokenizer: Tokenizer, params: SamplingParams, ids: list[int], *, stop_token: bool
) -> tuple[str, int, str | None]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, made_by = "", []
    for number, token in enumerate(ids, 1):
        silent = stop_token and number == len(ids)
        skipped = params.skip_special_tokens and tokenizer.is_special(token)
        new = decoder.decode(b"" if silent or skipped else tokenizer.token_bytes(token))
        text += new
        made_by += [number] * len(new)
    rest = decoder.decode(b"", True)
    text += rest
    made_by += [len(ids)] * len(rest)
    hits = [
        (end, -len(stop), stop)
        for stop in params.stop_strings
        for end in range(len(stop), len(text) + 1)
        if text[:end].endswith(stop) and made_by[end - 1] >= params.min_tokens
    ]
    if not hits:
        return text, len(ids), None
    end, _, stop = min(hits)
    shown = end if params.include_stop_str_in_output else end - len(stop)
    return text[:shown], made_by[end - 1], stop


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[str], list[int], SamplingParams]:
    params = SamplingParams(
        stop=draw(st.lists(st.sampled_from(STOPS), max_size=3)),
        min_tokens=draw(st.integers(0, 8)),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        max_tokens=None,
    )
    words = draw(st.lists(st.sampled_from(PIECES), max_size=8))
    raw = draw(st.lists(st.integers(17, 251), max_size=2))
    return words, raw, params


@given(
    case=answers(),
    at=st.integers(0, 10),
    first=st.sets(st.integers(0, 20)),
    second=st.sets(st.integers(0, 20)),
    stop_token=st.booleans(),
)
def test_any_grouping_gives_what_the_whole_gives(
    tokenizer: Tokenizer,
    case: tuple[list[str], list[int], SamplingParams],
    at: int,
    first: set[int],
    second: set[int],
    stop_token: bool,
) -> None:
    words, raw, params = case
    ids = [token for word in words for token in tokenizer.encode(word)]
    ids[at:at] = raw  # single bytes: part of a character, or none
    stop_token = stop_token and bool(ids)
    wanted = expected(tokenizer, params, ids, stop_token=stop_token)
    # A stop token always arrives in the last group that has tokens.
    ends = set() if stop_token else {len(ids)}
    for cuts in (first, second):
        groups = split(ids, {cut for cut in cuts if cut < len(ids)} | ends)
        *result, texts = run(tokenizer, params, groups, stop_token=stop_token)
        assert tuple(result) == wanted
        if "\ufffd" not in wanted[0]:
            assert not any("\ufffd" in text for text in texts)


def one_token(tokenizer: Tokenizer, text: str) -> int:
    (token,) = tokenizer.encode(text)
    return token


def test_the_stop_cuts_text_and_tokens(tokenizer: Tokenizer) -> None:
    a, b, the = (one_token(tokenizer, text) for text in ("a", "b", " the"))
    answer = AnswerText(tokenizer, SamplingParams(stop="b the"))
    assert answer.feed([a, b], final=False) == TextPiece("a", 2, None)
    assert answer.feed([the, a, a], final=True) == TextPiece("", 1, "b the")
    assert answer.feed([a], final=True) == TextPiece("", 0, None)


def test_held_text_comes_with_the_end(tokenizer: Tokenizer) -> None:
    a, b = one_token(tokenizer, "a"), one_token(tokenizer, "b")
    answer = AnswerText(tokenizer, SamplingParams(stop="bc"))
    assert answer.feed([a, b], final=False).text == "a"
    assert answer.feed([], final=True) == TextPiece("b", 0, None)
    assert answer.feed([a], final=True) == TextPiece("", 0, None)


def test_a_stop_token_counts_and_has_no_text(tokenizer: Tokenizer) -> None:
    a, b = one_token(tokenizer, "a"), one_token(tokenizer, "b")
    params = SamplingParams(skip_special_tokens=False)
    for last in (2, b):
        piece = AnswerText(tokenizer, params).feed([a, last], final=True, stop_token=True)
        assert piece == TextPiece("a", 2, None)
    shown = AnswerText(tokenizer, params).feed([a, 2], final=True)
    assert shown == TextPiece("a<|im_end|>", 2, None)


@pytest.mark.parametrize(("min_tokens", "text", "count"), [(0, "", 1), (1, "", 1), (2, "a", 2)])
def test_stops_before_min_tokens_are_text(
    tokenizer: Tokenizer, min_tokens: int, text: str, count: int
) -> None:
    a = one_token(tokenizer, "a")
    answer = AnswerText(tokenizer, SamplingParams(stop="a", min_tokens=min_tokens))
    assert answer.feed([a, a, a], final=False) == TextPiece(text, count, "a")
