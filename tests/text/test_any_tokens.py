"""Any tokens of any kind of vocabulary, any stop strings, any groups: parts of an answer next to a
naive reading of the whole."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.text.test_folder import write
from tests.text.vocabularies import (
    ADDED,
    BYTE,
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    byte_level_json,
    sentencepiece,
    sentencepiece_json,
)
from treadle.text.choice import Choice, ChoiceDelta
from treadle.text.output import AnswerText
from treadle.text.tokenizer import Tokenizer
from treadle.wire.messages import Delta, TokenLogprob
from treadle.wire.sampling_params import SamplingParams

EXAMPLES = 200


@dataclasses.dataclass(frozen=True)
class Kind:
    """A vocabulary, and what its tokens stand for by its own definition."""

    tokenizer: Tokenizer
    bytes: list[bytes]
    special: set[int]

    @property
    def parts_of_characters(self) -> list[int]:
        return [token for token, value in enumerate(self.bytes) if not _is_text(value)]


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _gguf(*, gemma: bool) -> Kind:
    metadata = sentencepiece(gemma=gemma)
    texts = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    values = []
    for text, kind in zip(texts, kinds, strict=True):
        if kind == BYTE:
            values.append(bytes.fromhex(text[3:5]))
        elif kind in (CONTROL, UNKNOWN, USER_DEFINED):
            values.append(text.encode())
        else:
            values.append(text.replace("▁", " ").encode())
    special = {token for token, kind in enumerate(kinds) if kind in (CONTROL, UNKNOWN)}
    return Kind(Tokenizer.from_gguf(metadata), values, special)


def _folder(folder: Path, text: str, spell: Callable[[str], bytes]) -> Kind:
    backend = tokenizers.Tokenizer.from_str(text)
    added = {backend.token_to_id(token.content) for token in ADDED}
    texts = [backend.id_to_token(token) for token in range(backend.get_vocab_size())]
    values = [text.encode() if token in added else spell(text) for token, text in enumerate(texts)]
    special = {backend.token_to_id(token.content) for token in ADDED if token.special}
    return Kind(Tokenizer.from_folder(write(folder, text)), values, special)


def _byte_level(text: str) -> bytes:
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    return bytes(byte_of[letter] for letter in text)


def _sentencepiece(text: str) -> bytes:
    is_byte = len(text) == 6 and text.startswith("<0x")
    return bytes.fromhex(text[3:5]) if is_byte else text.replace("▁", " ").encode()


@pytest.fixture(scope="module", params=["llama", "gemma", "byte-level", "metaspace"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    folder = tmp_path_factory.mktemp("vocabulary")
    match request.param:
        case "byte-level":
            return _folder(folder, byte_level_json(), _byte_level)
        case "metaspace":
            return _folder(folder, sentencepiece_json("metaspace"), _sentencepiece)
    return _gguf(gemma=request.param == "gemma")


@dataclasses.dataclass(frozen=True)
class Whole:
    """All tokens at once, read without thought of speed."""

    texts: list[str]
    """What is certain after 0, 1, 2, … tokens; the last is all there is."""
    params: SamplingParams

    def end(self) -> tuple[str, int, str | None]:
        """The text shown, the tokens that count, and the stop string that was found."""
        text, num_tokens = self.texts[-1], len(self.texts) - 2
        for end in range(1, len(text) + 1):
            made_by = next(n for n, known in enumerate(self.texts) if len(known) >= end)
            made_by = min(made_by, num_tokens)
            found = [stop for stop in self.params.stop_strings if text[:end].endswith(stop)]
            if found and made_by >= self.params.min_tokens:
                stop = max(found, key=len)
                cut = end if self.params.include_stop_str_in_output else end - len(stop)
                return text[:cut], made_by, stop
        return text, num_tokens, None

    def shown_after(self, num_tokens: int) -> str:
        """While no stop has been found: everything but what may yet become one."""
        text = self.texts[num_tokens]
        if self.params.include_stop_str_in_output:
            return text
        starts = {stop[:n] for stop in self.params.stop_strings for n in range(1, len(stop))}
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        return text[: len(text) - held]


def read_whole(kind: Kind, ids: list[int], params: SamplingParams, *, silent: bool) -> Whole:
    values = [
        b"" if params.skip_special_tokens and token in kind.special else kind.bytes[token]
        for token in ids
    ]
    if silent:
        values[-1] = b""
    known = [b"".join(values[:number]) for number in range(len(values) + 1)]
    texts = [codecs.utf_8_decode(value, "replace", False)[0] for value in known]
    return Whole([*texts, known[-1].decode(errors="replace")], params)


@st.composite
def answers(draw: st.DrawFn, kind: Kind) -> tuple[list[int], SamplingParams, bool]:
    """Tokens, parameters, and whether a stop token ended the answer."""
    token = st.one_of(
        st.integers(0, len(kind.bytes) - 1),
        st.sampled_from(sorted(kind.special)),
        st.sampled_from(kind.parts_of_characters),
    )
    ids = draw(st.lists(token, min_size=1, max_size=24))
    for text in draw(st.lists(st.text(max_size=4), max_size=2)):
        at = draw(st.integers(0, len(ids)))
        ids[at:at] = kind.tokenizer.encode(text, add_special=False)
    skip, silent = draw(st.booleans()), draw(st.booleans())
    plain = SamplingParams(skip_special_tokens=skip, max_tokens=None)
    text = read_whole(kind, ids, plain, silent=silent).texts[-1]
    chosen = draw(st.lists(stops(text), max_size=3))
    if chosen and len(chosen[0]) > 1 and draw(st.booleans()):
        chosen.append(chosen[0][1:])  # complete at the same character
    params = SamplingParams(
        skip_special_tokens=skip,
        max_tokens=None,
        stop=chosen,
        min_tokens=draw(st.integers(0, 12)),
        include_stop_str_in_output=draw(st.booleans()),
    )
    return ids, params, silent


def stops(text: str) -> st.SearchStrategy[str]:
    """Pieces of the text, also with something before or behind that may not follow there."""
    start = st.integers(0, max(len(text) - 1, 0))
    piece = st.builds(lambda at, length: text[at : at + length], start, st.integers(1, 9))
    extra = st.sampled_from(["", "", "a", " ", "\ufffd", "é"])
    stop = st.builds(lambda *parts: "".join(parts), extra, piece, extra)
    return stop.filter(bool) if text else st.sampled_from(["a", "\ufffd"])


def grouped(ids: list[int], cuts: set[int], *, silent: bool) -> list[list[int]]:
    """Groups, some of them empty; a stop token always comes in the last."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(ids) + (not silent)), len(ids)]
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_parts_add_up_to_the_whole(kind: Kind, data: st.DataObject) -> None:
    ids, params, silent = data.draw(answers(kind))
    whole = read_whole(kind, ids, params, silent=silent)
    text, num_tokens, stop = whole.end()
    cuts = data.draw(st.sets(st.integers(0, len(ids))))
    choice = Choice(3, AnswerText(kind.tokenizer, params))
    answer = ChoiceDelta(3, "", [], [], 0)
    fed = 0
    groups = grouped(ids, cuts, silent=silent)
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        delta = Delta(
            request_id="r",
            tokens=group,
            logprobs=[TokenLogprob(token, -0.5, 1, []) for token in group],
            finish=("stop" if silent else "length") if last else None,
            stop_token=ids[-1] if last and silent else None,
        )
        part = choice.part(delta)
        fed += len(group)
        assert "\ufffd" not in part.text or "\ufffd" in text
        answer.append(part)
        if part.finish_reason is None:
            assert answer.text == whole.shown_after(fed)
        elif not last:
            assert part.stop_reason is not None
            break
    assert (answer.text, len(answer.token_ids)) == (text, num_tokens)
    assert answer.token_ids == ids[:num_tokens]
    assert [entry.token for entry in answer.logprobs] == answer.token_ids
    if stop is not None:
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    elif silent:
        assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[-1])
    else:
        assert (answer.finish_reason, answer.stop_reason) == ("length", None)


def test_what_tokens_stand_for(kind: Kind) -> None:
    """The table by which answers are decoded is the vocabulary's own definition."""
    assert kind.tokenizer.vocab_size == len(kind.bytes)
    for token, value in enumerate(kind.bytes):
        assert kind.tokenizer.token_bytes(token) == value
        assert kind.tokenizer.is_special(token) == (token in kind.special)
