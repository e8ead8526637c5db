"""From requests to prompts, over models whose tokenizer adds BOS and whose templates want more than
the demo's."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest

from tests.server.test_frontend import World, play
from treadle.errors import InvalidRequest
from treadle.server.prompts import Prompt, encode_prompts, prompts_of, render_chat
from treadle.server.schema.chat import ChatRequest
from treadle.server.schema.completions import CompletionRequest
from treadle.text.chat import ChatTemplate
from treadle.text.load import ModelText
from treadle.text.tokenizer import Tokenizer

BOS = 1

PLAIN = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | "
    "tojson }}{% endfor %};{% endfor %}"
    "{% for d in documents or [] %}<{{ d.title }}>{% endfor %}"
    "{% if reasoning_effort is defined %}({{ reasoning_effort }}){% endif %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)


def with_bos(text: ModelText, template: str = PLAIN) -> ModelText:
    vocabulary = dataclasses.replace(text.tokenizer._vocabulary, bos_id=BOS, before=(BOS,))
    tokenizer = Tokenizer(vocabulary)
    bos = tokenizer.token_text(BOS)
    chat = ChatTemplate(template, bos_token=bos, eos_token="")
    return dataclasses.replace(text, tokenizer=tokenizer, template=chat)


def chat_prompt(text: ModelText, *messages: dict[str, Any], **fields: Any) -> str:
    """The rendered prompt, BOS spelt out."""
    prompts: list[Prompt] = []

    async def test(world: World) -> None:
        request = msgspec.convert({"messages": messages, **fields}, ChatRequest)
        prompts.append(await asyncio.to_thread(render_chat, world.frontend, request, trusted=False))

    play(text, test)
    return text.tokenizer.decode(prompts[0].ids, skip_special=False)


def complete_prompt(text: ModelText, prompt: Any, **fields: Any) -> Prompt:
    prompts: list[Prompt] = []

    async def test(world: World) -> None:
        request = msgspec.convert({"prompt": prompt, **fields}, CompletionRequest)
        prompts.extend(encode_prompts(world.frontend, request, prompts_of(request.prompt)))

    play(text, test)
    [only] = prompts
    return only


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_one_bos(text: ModelText) -> None:
    model = with_bos(text)
    bos = model.tokenizer.token_text(BOS)
    assert chat_prompt(model, user("Hi")) == f"{bos}[user] Hi;[assistant] "
    inner = model.tokenizer.encode("hi", add_special=False)
    assert complete_prompt(model, "hi").ids == [BOS, *inner]
    assert complete_prompt(model, "hi", add_special_tokens=False).ids == inner
    assert complete_prompt(model, f"{bos}hi").ids == [BOS, *inner]
    assert complete_prompt(model, inner).ids == inner


def test_bos_survives_truncation_of_a_text(text: ModelText) -> None:
    model = with_bos(text)
    inner = model.tokenizer.encode("one two three four", add_special=False)
    cut = complete_prompt(model, "one two three four", truncate_prompt_tokens=3, echo=True)
    assert cut == Prompt([BOS, *inner[-2:]], num_cut=2, echo=" three four")
    assert complete_prompt(model, "one two", truncate_prompt_tokens=1).ids == [BOS]
    given = [BOS, *inner]
    assert complete_prompt(model, given, truncate_prompt_tokens=3).ids == inner[-3:]


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_calls_without_content(text: ModelText, content: dict[str, Any]) -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        user("x"),
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    rendered = chat_prompt(with_bos(text), *messages)
    assert rendered.endswith('[user] x;[assistant] f{"a": 1};[tool] 7;[assistant] ')
    function["arguments"] = ""
    assert "[assistant] f{};" in chat_prompt(with_bos(text), *messages)


def test_content_in_parts(text: ModelText) -> None:
    parts = [{"type": "text", "text": "hello world"}]
    two = [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]
    joins, reads = with_bos(text), with_bos(text, PARTS)
    for model in (joins, reads):
        whole = chat_prompt(model, user("hello world"))
        assert chat_prompt(model, user(parts)) == whole
    assert chat_prompt(reads, user(two)) == "hello world"
    assert "hello \nworld" in chat_prompt(joins, user(two)), "a line break between parts"
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(InvalidRequest, match="image_url"):
        chat_prompt(joins, user(image))


def test_what_templates_see(text: ModelText) -> None:
    model = with_bos(text)
    documents = [{"title": "A", "text": "t"}, {"title": "B", "text": "t"}]
    assert "<A><B>" in chat_prompt(model, user("x"), documents=documents)
    assert "(low)" in chat_prompt(model, user("x"), reasoning_effort="low")
    kwargs = {"reasoning_effort": "high"}
    assert "(high)" in chat_prompt(model, user("x"), chat_template_kwargs=kwargs)


def test_last_message_continued(text: ModelText) -> None:
    begun = {"role": "assistant", "content": "It is"}
    rendered = chat_prompt(with_bos(text), user("x"), begun, continue_final_message=True)
    assert rendered.endswith("[user] x;[assistant] It is")


def test_odd_conversations(text: ModelText) -> None:
    model = with_bos(text)
    for role in ("assistant", "system", "tool", "developer", "foo"):
        rendered = chat_prompt(model, {"role": role, "content": "x"})
        assert f"[{role}] x;" in rendered
    strict = with_bos(text, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        chat_prompt(strict, user("x"))
    with pytest.raises(InvalidRequest, match="empty"):
        chat_prompt(model)
