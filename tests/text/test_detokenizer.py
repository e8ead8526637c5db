"""Incremental decoding equals decoding at once, however the tokens arrive."""

from __future__ import annotations

import codecs
import itertools

from hypothesis import given
from hypothesis import strategies as st

from treadle.text.detokenizer import Detokenizer
from treadle.text.tokenizer import Tokenizer

SINGLE_BYTES = range(17, 252)

tokens = st.lists(
    st.one_of(
        st.sampled_from(SINGLE_BYTES),
        st.integers(0, 17),
        st.integers(0, 49151),
        st.just(49160),
    ),
    max_size=40,
)


@given(ids=tokens, cuts=st.sets(st.integers(0, 40)), skip=st.booleans())
def test_any_chunking_equals_the_whole(
    tokenizer: Tokenizer, ids: list[int], cuts: set[int], skip: bool
) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    edges = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    pieces = [detokenizer.feed(ids[start:end]) for start, end in itertools.pairwise(edges)]
    whole = tokenizer.decode(ids, skip_special=skip)
    assert "".join(pieces) + detokenizer.finish() == whole
    kept = b"".join(
        tokenizer.token_bytes(token) for token in ids if not (skip and tokenizer.is_special(token))
    )
    assert whole == kept.decode(errors="replace")


spellable = st.characters(max_codepoint=0x3FFFF, exclude_categories=("Cc", "Cs"))


@given(text=st.text(spellable, max_size=30))
def test_characters_come_out_as_soon_as_they_are_complete(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode(text, parse_special=False)
    seen, raw = "", b""
    for token in ids:
        seen += detokenizer.feed([token])
        raw += tokenizer.token_bytes(token)
        assert "\ufffd" not in seen or "\ufffd" in text
        assert seen == codecs.utf_8_decode(raw, "strict", False)[0]
    assert detokenizer.finish() == ""


def test_bytes_that_never_complete(tokenizer: Tokenizer) -> None:
    byte = {tokenizer.token_bytes(token): token for token in SINGLE_BYTES}
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed([byte[b"\xf0"], byte[b"\x9f"]]) == ""
    assert detokenizer.feed([byte[b"a"]]) == "\ufffda"
    assert detokenizer.feed([byte[b"\xbf"]]) == "\ufffd"
    assert detokenizer.feed([byte[b"\xe2"], byte[b"\x82"]]) == ""
    assert detokenizer.finish() == "\ufffd"
