"""Structured output by OpenAI's own client: classes in, instances out."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.serving import MODEL

HELLO: list[Any] = [{"role": "user", "content": "Describe the weaver."}]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Thread(pydantic.BaseModel):
    colour: Colour
    length: int


class Weaver(pydantic.BaseModel):
    """Nested, so that its schema has definitions and references."""

    skilled: bool
    threads: list[Thread] = pydantic.Field(min_length=1, max_length=2)


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("seed", range(3))
def test_parse(client: openai.OpenAI, seed: int) -> None:
    completion = client.chat.completions.parse(
        model=MODEL,
        messages=HELLO,
        response_format=Weaver,
        max_tokens=200,
        temperature=1.0,
        seed=seed,
    )
    parsed = completion.choices[0].message.parsed
    assert isinstance(parsed, Weaver)
    assert all(thread.colour in Colour for thread in parsed.threads)


def test_stream_of_a_class(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Weaver, max_tokens=200, seed=1
    ) as stream:
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Weaver)


def test_cut_short(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=HELLO, response_format=Weaver, max_tokens=2
        )


def test_vllms_fields(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        extra_body={"structured_outputs": {"choice": ["positive", "negative"]}},
    )
    assert completion.choices[0].message.content in ("positive", "negative")


def test_wrong_schema(client: openai.OpenAI) -> None:
    wrong: Any = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "objekt"}},
    }
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, response_format=wrong)
    assert caught.value.param == "response_format"
