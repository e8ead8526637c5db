"""Templates that no clock could stop: each must end by itself, with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.text.runaways import RUNAWAYS
from treadle.errors import InvalidRequest
from treadle.text.chat import ChatTemplate

_MAX_SECONDS = 1.5
"""Of the processor, with a clock set to 0.15 s."""


def test_every_runaway_ends_with_a_sentence() -> None:
    """In a process that can be ended where one does not."""
    program = [sys.executable, "-m", "tests.text.runaways"]
    environment = {"PYTHONPATH": ":".join(["", *sys.path])}
    try:
        output = subprocess.run(
            program, capture_output=True, text=True, timeout=60, env=environment, check=True
        ).stdout
    except subprocess.TimeoutExpired as error:
        num_ended = (error.stdout or b"").count(b"\n")
        pytest.fail(f"does not end: {RUNAWAYS[num_ended][:200]}")
    results = [json.loads(line) for line in output.splitlines()]
    assert len(results) == len(RUNAWAYS)
    for source, (seconds, message) in zip(RUNAWAYS, results, strict=True):
        assert message.startswith(
            ("the chat template fails on this conversation: ", "this model's chat template ")
        ), source[:200]
        assert len(message) < 3000
        assert seconds < _MAX_SECONDS, source[:200]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, bos_token="", eos_token="").render([], **variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '--a-'.strip('-') ~ ' b '|trim ~ 'xbx'|trim('x') }}", "abb"),
        ("{{ 'a b a'.rsplit(' ', 1) ~ 'a b'.rfind('b') }}", "['a b', 'a']2"),
        ("{{ 2 ** 64 // 3 % 1000 - 7 / 2 }}", "201.5"),
        ("{{ '17' | int + '1f' | int(0, 16) + (2.567 | round(1)) }}", "50.6"),
        ("{{ {'a': [1, (2, 3)], 'b': {}} == {'a': [1, (2, 3)], 'b': {}} }}", "True"),
        ("{{ (1, [2]) in [(1, [2])] and 3 is odd and 4 is divisibleby(2) }}", "True"),
        ("{{ [3, 1, 2] | sort | map('string') | join('-') }}", "1-2-3"),
        ("{{ 'a,b' | replace(new=';', old=',') }}", "a;b"),
        ("{% for c in 'abcd' if c not in 'bc' %}{{ loop.index }}{{ c }}{% endfor %}", "1a2d"),
        ("{% for k, v in {'x': 1} | items %}{{ k }}{{ v }}{% endfor %}", "x1"),
        ("{{ [1, 2, 3] | map('string') | first }}{{ [1, 2] | batch(1) | list }}", "1[[1], [2]]"),
        ("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}", "2"),
        ("{{ dict([('a', 1)], b=2) }}{{ {'a': 1}.keys() | list }}", "{'a': 1, 'b': 2}['a']"),
        ("{{ 'Zoë'.encode('utf-8') | length }}", "4"),
    ],
)
def test_ordinary_operations_are_as_they_were(source: str, expected: str) -> None:
    assert render(source) == expected


def test_what_a_conversation_needs_of_the_bounds() -> None:
    text = "word " * 800_000  # four million characters
    source = (
        "{{ text.strip(' \n\t') | length }} {{ text | trim | length }}"
        " {{ text.rsplit('</think>', 1) | length }} {{ [{'content': text}] | length }}"
        " {{ text.split('<think>')[-1].lstrip('\n') | length }}"
    )
    assert render(source, text=text) == "3999999 3999999 1 1 4000000"


def test_a_complaint_is_cut() -> None:
    with pytest.raises(InvalidRequest) as refused:
        render("{{ raise_exception('x' * 1000000) }}")
    assert len(refused.value.message) < 3000
