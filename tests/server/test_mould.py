"""Events out of a mould are those that would have been made one by one."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from treadle.server.mould import Mould
from treadle.server.schema.answer import Answer
from treadle.server.schema.completions import CompletionChoice
from treadle.server.stream import event


def make(text: str) -> bytes:
    choice = CompletionChoice(
        index=3, text=text, logprobs=None, finish_reason=None, stop_reason=None
    )
    label = 'na"me \\ \u2028'  # clients may name models and requests as they like
    return event(Answer(label, "text_completion", 5, label, [choice], "fp", usage=None))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_nothing_shows_that_it_came_from_a_mould(text: str) -> None:
    cast = Mould(make).event(text)
    assert cast == make(text)
    assert json.loads(cast.removeprefix(b"data: "))["choices"][0]["text"] == text
