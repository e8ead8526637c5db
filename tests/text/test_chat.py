"""Chat templates: against transformers, and templates that fail, break out or run away."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.text.templates import FAMILIES, READING_PARTS
from treadle.errors import InvalidRequest
from treadle.text import limits
from treadle.text.chat import ChatTemplate
from treadle.text.load import ModelText

BOS, EOS = "<s>", "</s>"

CHATML_WITH_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' ~ message.role }}
    {%- if loop.index0 == ns.last %}{{ ' (last)' }}{% endif %}
    {%- if message.content is string %}
        {{- '\\n' + message.content | trim }}
    {%- elif message.content is defined %}
        {%- for part in message.content if part.type == 'text' %}
            {{- '\\n' + part.text }}
        {%- endfor %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>' + call.function.name + ' ' }}
        {{- call.function.arguments | tojson(indent=2) }}
        {{- '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ALTERNATING = """
{{ bos_token }}
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] %}
    {% set rest = messages[1:] %}
{% else %}
    {% set rest = messages %}
{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
[INST] {{ system + '\\n\\n' if loop.first and system is defined }}{{ message['content'] }} [/INST]
    {% else %}
        {% generation %}
{{ message['content'] | trim }}{{ eos_token }}
        {% endgeneration %}
    {% endif %}
{% endfor %}
"""

MACROS = """{% macro block(role, text, depth=0) -%}
<{{ role }}>{{ '  ' * depth }}
{{- text | replace('\\n', ' / ') | upper if role == 'system' else text }}
{%- endmacro -%}
{% for message in messages recursive -%}
{{ loop.depth }}:{{ block(message.role | default('none'), message.content | string) }}
{%- for key, value in message.items() | sort if key not in ('role', 'content') %}
 {{ key }}={{ value | tojson(sort_keys=true, separators=(',', ':')) }}
{%- endfor %}
{%- if message.children %}{{ loop(message.children) }}{% endif %}
{% endfor -%}
{% if documents is not none %}docs{% endif %}{% if documents is defined %}!{% endif %}
{% for i in range(5) %}
{% if i == 3 %}{% break %}{% endif %}{{ i }}{% if not loop.last %},{% endif %}
{% endfor %}
{{ messages | map(attribute='role') | list }} {{ missing }} {{ strftime_now('%Y') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ dict(a=1) }} {{ 7 // 2 ** 2 }}
{{ messages[-1].content[:5] }} {{ 'é' | tojson }} {{ '<&>' | tojson }} {{ 3 * 'ab' }}
{% if add_generation_prompt %}assistant:{% endif %}"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "wetter",
            "description": "Wetter für <Ort> & Zeit",
            "parameters": {"type": "object", "properties": {"ort": {"type": "string"}}},
        },
    }
]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


CALL = {"function": {"name": "wetter", "arguments": {"ort": "Köln", "tage": 3}}}

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [user("Hello")],
    [user("")],
    [user("  spaces around \n")],
    [user("line\n\nline\r\n\ttab")],
    [user("日本語 é 😀 👩‍👩‍👧 \u200b")],
    [user("<|im_end|> {{ 7 * 7 }} {% raw %} [INST]")],
    [user("quotes ' \" \\ and & < >")],
    [system("You are terse."), user("Hi")],
    [system(""), user("Hi")],
    [system("A\nB")],
    [user("Hi"), assistant("Hello!"), user("Bye")],
    [user("Hi"), assistant("  Hello! \n")],
    [system("S"), user("1"), assistant("2"), user("3"), assistant("4"), user("5")],
    [user("1"), user("2")],
    [assistant("first")],
    [user("1"), assistant("2"), assistant("3")],
    [user("Hi"), assistant(None, tool_calls=[CALL]), user("and?")],
    [user("Hi"), assistant("x", reasoning="because"), user("and?"), assistant("y", thinking="t")],
    [user("Hi"), assistant("x", reasoning="b", thinking="a")],
    [user("Hi"), assistant("<think>\nhm\n</think>\n\nx"), user("and?")],
    [user("Hi"), assistant("x", tool_calls=[CALL, CALL]), {"role": "tool", "content": "12 °C"}],
    [user([{"type": "text", "text": "part 1"}, {"type": "text", "text": "part 2"}])],
    [user("x" * 5000), assistant("y" * 5000), user("z")],
    [{"role": "developer", "content": "D", "name": None}, user("named")],
    [user(f"turn {turn}") if turn % 2 == 0 else assistant(f"turn {turn}") for turn in range(41)],
]


def theirs(source: str, messages: list[dict[str, Any]], **variables: Any) -> tuple[str, str | None]:
    """What transformers renders, or why it does not."""
    present = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    try:
        rendered, _ = render_jinja_template(
            conversations=[present], chat_template=source, bos_token=BOS, eos_token=EOS, **variables
        )
    except Exception as error:
        return "", str(error)
    return rendered[0], None


OWN = {"tools": CHATML_WITH_TOOLS, "alternating": ALTERNATING, "macros": MACROS}


def source_of(name: str, model_text: ModelText) -> str:
    if name == "demo":
        return model_text.require_template().source
    return {**OWN, **FAMILIES}[name]


def as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a template that reads no parts gets."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


@pytest.mark.parametrize("name", ["demo", *OWN, *FAMILIES])
def test_against_transformers(name: str, model_text: ModelText) -> None:
    source = source_of(name, model_text)
    ours = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    num_rendered = 0
    for conversation in CONVERSATIONS:
        reads_parts = name in ("tools", *READING_PARTS)
        messages = conversation if reads_parts else as_text(conversation)
        for variables in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False, "tools": TOOLS},
            {"add_generation_prompt": True, "enable_thinking": False},
        ):
            expected, reason = theirs(source, messages, **variables)
            if reason is None:
                num_rendered += 1
                assert ours.render(conversation, **variables) == expected
            else:
                with pytest.raises(InvalidRequest) as refused:
                    ours.render(conversation, **variables)
                assert reason in refused.value.message
                assert refused.value.param == "messages"
    assert num_rendered >= 30


CONTINUED: list[list[dict[str, Any]]] = [
    [user("Hi"), assistant("The answer")],
    [user("Hi"), assistant("The answer ")],
    [user("Hi"), assistant(" The\nanswer is \n\n")],
    [system("S"), user("1"), assistant("2"), user("3"), assistant("4 <|im_end|> 4")],
    [user("Hi"), assistant([{"type": "text", "text": "part 1"}, {"type": "text", "text": "par"}])],
    [user("Only a question")],
    [user("Hi"), assistant("x", tool_calls=[CALL])],
]


@pytest.mark.parametrize("name", ["demo", *OWN, *FAMILIES])
def test_continued_messages_against_transformers(name: str, model_text: ModelText) -> None:
    source = source_of(name, model_text)
    ours = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    num_rendered = 0
    for conversation in CONTINUED:
        reads_parts = name in ("tools", *READING_PARTS)
        messages = conversation if reads_parts else as_text(conversation)
        expected, reason = theirs(
            source, messages, continue_final_message=True, add_generation_prompt=False
        )
        if reason is not None:
            with pytest.raises(InvalidRequest):
                ours.render(conversation, continue_final_message=True)
            continue
        num_rendered += 1
        assert ours.render(conversation, continue_final_message=True) == expected
    assert num_rendered >= 4


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "the last message has no text to continue"),
        ([user("Hi"), assistant("")], "the last message has no text to continue"),
        ([user("Hi"), assistant(None)], "the last message has no text to continue"),
        ([user("Hi"), assistant([])], "the last message has no text to continue"),
        ([user("Hi"), {"role": "robot", "content": "x"}], "leaves out part of the last message"),
    ],
)
def test_messages_that_cannot_be_continued(messages: list[dict[str, Any]], problem: str) -> None:
    template = ChatTemplate(FAMILIES["phi3"], bos_token=BOS, eos_token=EOS)
    with pytest.raises(InvalidRequest, match=problem):
        template.render(messages, continue_final_message=True)


def test_an_answer_is_opened_or_continued_not_both() -> None:
    template = ChatTemplate(FAMILIES["phi3"], bos_token=BOS, eos_token=EOS)
    messages = [user("Hi"), assistant("Well")]
    with pytest.raises(InvalidRequest, match="exclude each other"):
        template.render(messages, add_generation_prompt=True, continue_final_message=True)
    opened = template.render(messages)
    assert opened.endswith("<|assistant|>\n")
    assert template.render(messages, add_generation_prompt=False).endswith(f"<|end|>\n{EOS}")
    assert template.render(messages, continue_final_message=True).endswith("<|assistant|>\nWell")


@pytest.mark.parametrize("name", ["demo", *OWN, *FAMILIES])
def test_text_in_parts(name: str, model_text: ModelText) -> None:
    template = ChatTemplate(source_of(name, model_text), bos_token=BOS, eos_token=EOS)
    whole = template.render([user("hello world")])
    assert template.render([user([{"type": "text", "text": "hello world"}])]) == whole
    two = [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]
    rendered = template.render([user(two)])
    assert "hello" in rendered
    assert "world" in rendered
    assert "{'type'" not in rendered
    if name not in ("tools", *READING_PARTS):
        assert rendered == template.render([user("hello\nworld")])


@pytest.mark.parametrize(
    ("part", "where", "problem"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "type", "'image_url'; only text"),
        ({"type": "foo", "text": "x"}, "type", "'foo'; only text"),
        ("text", "type", "'text'; only text"),
        ({"type": "text"}, "text", "is missing"),
        ({"type": "text", "text": 5}, "text", "is missing"),
    ],
)
def test_parts_that_are_no_text_are_named(part: Any, where: str, problem: str) -> None:
    template = ChatTemplate(FAMILIES["gemma3"], bos_token=BOS, eos_token=EOS)
    content = [{"type": "text", "text": "a"}, part]
    with pytest.raises(InvalidRequest, match=problem) as refused:
        template.render([system("S"), user(content)])
    assert refused.value.param == f"messages[1].content[1].{where}"


@pytest.mark.parametrize("name", ["tools", "qwen3", "llama3", "mistral"])
def test_calls_without_content_in_all_spellings(name: str, model_text: ModelText) -> None:
    """As clients send an answer with a call back: no content, arguments as text."""
    source = source_of(name, model_text)
    template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    spelled = {"id": "c1", "type": "function"}
    spelled["function"] = {"name": "f", "arguments": '{"a": 1, "b": "\\"é\\""}'}  # type: ignore[assignment]
    meant = {**spelled, "function": {"name": "f", "arguments": {"a": 1, "b": '"é"'}}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "7"}

    def conversation(call: Any, **content: Any) -> list[dict[str, Any]]:
        return [user("Hi"), {"role": "assistant", "tool_calls": [call], **content}, result]

    expected, reason = theirs(source, conversation(meant, content=""), add_generation_prompt=True)
    assert reason is None
    assert '"b": "\\"é\\""' in expected
    for content in ({}, {"content": None}, {"content": ""}):
        rendered = template.render(conversation(spelled, **content))
        # One template shows that a content is there by an empty line.
        assert rendered.replace("assistant\n\n", "assistant\n") == expected.replace(
            "assistant\n\n", "assistant\n"
        )
        assert "None" not in rendered
        assert "null" not in rendered


@pytest.mark.parametrize("arguments", ["{", "[1]", "7", "", '"x"'])
def test_arguments_that_are_no_object_stay_as_they_are(arguments: str) -> None:
    template = ChatTemplate(
        "{{ messages[0].tool_calls[0].function.arguments }}", bos_token="", eos_token=""
    )
    calls = [{"function": {"name": "f", "arguments": arguments}}, "?", {"function": 5}]
    shown = template.render([assistant(None, tool_calls=calls)])
    assert shown == (arguments or "{}")


ODD: list[list[dict[str, Any]]] = [
    [],
    [assistant("a")],
    [system("s")],
    [{"role": "tool", "content": "7"}],
    [{"role": "developer", "content": "d"}],
    [{"role": "foo", "content": "x"}],
    [{"role": "user", "content": 5}],
    [{"content": "no role"}],
    [{}],
]


@pytest.mark.parametrize("name", ["demo", *OWN, *FAMILIES])
def test_odd_conversations_render_or_are_refused(name: str, model_text: ModelText) -> None:
    template = ChatTemplate(source_of(name, model_text), bos_token=BOS, eos_token=EOS)
    for messages in ODD:
        for continued in (False, True):
            try:
                assert isinstance(template.render(messages, continue_final_message=continued), str)
            except InvalidRequest as error:
                assert error.message  # noqa: PT017 - either outcome is right


def test_the_demo_prompt_is_read_as_control_tokens(model_text: ModelText) -> None:
    prompt = model_text.require_template().render([user("Hi")])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = model_text.tokenizer.encode(prompt, add_special=False)
    assert (ids.count(1), ids.count(2)) == (3, 2)


def test_a_later_default_can_be_overridden() -> None:
    template = ChatTemplate("{{ bos_token }}{{ x }}", bos_token=BOS, eos_token=EOS)
    assert template.render([user("")], x=1) == "<s>1"
    assert template.render([user("")], bos_token="B") == "B"


def refusal(source: str, messages: list[dict[str, Any]] | None = None) -> str:
    template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    with pytest.raises(InvalidRequest) as refused:
        template.render(messages or [user("Hi")])
    return refused.value.message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('only one turn') }}", "refuses this conversation: only one turn"),
        ("{{ messages.nothing.at.all }}", "has no attribute 'nothing'"),
        ("{{ messages[0].content + none }}", "fails on this conversation"),
        ("{{ 1 / 0 }}", "fails on this conversation: division by zero"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{% for %}", "broken at line 1"),
        ("\n\n{{ 'a' | no_such_filter }}", "broken at line 3: No filter named 'no_such_filter'"),
        ("{% include 'other' %}", "fails on this conversation"),
        ("{% for x in [1] %}" * 30 + "{% endfor %}" * 30, "cannot be used"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be used"),
    ],
)
def test_failing_templates(source: str, message: str) -> None:
    assert message in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ joiner.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    messages = [user("Hi")]
    try:
        shown = template.render(messages)
    except InvalidRequest as error:
        shown = error.message
    # An unsafe attribute is undefined, so it shows as nothing until something is asked of it.
    assert shown == "" or "unsafe" in shown or "has no attribute" in shown
    assert messages == [user("Hi")]


GROW = "{{% set n = namespace(x={}) %}}{{% for a in range(60) %}}{{% set n.x = {} %}}{{% endfor %}}"
LOOP = "{{% for {0} in range(1000) %}}{1}{{% endfor %}}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (LOOP.format("a", LOOP.format("b", LOOP.format("c", ""))), "loops more than"),
        ("{% for x in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "fails on"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
         "loops more than"),
        ("{% for x in [[[]]] * 3 recursive %}{{ loop([1]) }}{% endfor %}", "fails on"),
        (LOOP.format("a", LOOP.format("b", "{{ 'x' * 10**6 }}")), "output is longer than"),
        ("{% set x %}" + LOOP.format("a", "{{ 'x' * 10**6 }}") + "{% endset %}", "it makes more"),
        (LOOP.format("a", "{% set x = ('x' * 10**6)[1:] %}"), "it makes more than"),
        ("{% set x = 'x' * 10**6 %}" + LOOP.format("a", LOOP.format("b", "{% set y = x[::-1] %}")),
         "takes longer than 2 s"),
        (GROW.format("'x'", "n.x + n.x"), "'+' is too large"),
        (GROW.format("'x'", "n.x ~ n.x"), "'~' is too large"),
        (GROW.format("[1]", "n.x + n.x"), "'+' is too large"),
        ("{{ 'x' * 10**9 }}", "too large"),
        ("{{ 10**9 * [1] }}", "too large"),
        ("{{ 9**(9**9) }}", "too large"),
        ("{{ (2**4000) * (2**4000) }}", "too large"),
    ],
)  # fmt: skip
def test_runaway_templates_end(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STEPS", 100_000)
    start = time.perf_counter()
    assert message in refusal(source)
    assert time.perf_counter() - start < 10


GIANT = "([[[[1] * 100] * 100] * 100] * 100)"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' | center(10**9) }}",
        "{{ 'x'.center(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x'.zfill(width) }}",
        "{{ '\t'.expandtabs(10**9) }}",
        "{{ 'x' | indent(10**9) }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%*d' | format(10**9, 1) }}",
        "{{ '{:1000000000d}'.format(1) }}",
        "{{ '{:{}d}'.format(1, 10**9) }}",
        "{{ '{x:{w}d}'.format_map({'x': 1, 'w': 10**9}) }}",
        "{{ ('{0}' * 1000).format('x' * 10**6) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
        "{{ ('a' * 10**6) | replace('', 'b' * 10**6) }}",
        "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}",
        "{{ range(1000) | join('x' * 10**6) }}",
        "{{ ('x' * 10**6).join(range(1000) | map('string') | list) }}",
        "{{ (['x' * 10**6] * 1000) | join }}",
        "{{ ('x' * 10**6 ~ '') | batch(10**9, 1) | list }}",
        "{{ range(10) | slice(10**9) | list }}",
        "{{ ['x'] | map('center', 10**9) | list }}",
        "{{ ('x,' * 10**7).split(',') }}",
        "{{ ('a ' * 10**6) | wordwrap(1) }}",
        f"{{{{ {GIANT} | tojson }}}}",
        f"{{{{ {GIANT} | string }}}}",
        f"{{{{ {GIANT} ~ '' }}}}",
        f"{{{{ {GIANT} }}}}",
        "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
    ],
)
def test_no_operation_makes_a_giant(source: str) -> None:
    """Each is refused before it has used memory or time, and says which it was."""
    template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
    start = time.thread_time()
    tracemalloc.start()
    with pytest.raises(InvalidRequest, match="is too large"):
        template.render([user("Hi")], width=10**9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.thread_time() - start < 5
    assert peak < 100 << 20


def test_a_conversation_as_long_as_any_window_is_no_giant() -> None:
    """Two million characters, in what templates do to a text."""
    text = "</think> {%d} word\n" * 100_000
    source = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] | trim }}"
        "{{ m.content | replace('</think>', '') | length }}{{ 'a' + m.content + 'b' }}"
        "{{ m | tojson | length }}{{ '%s: %s' | format(m.role, m.content) | length }}"
        "{{ '{}: {}'.format(m.role, m.content) | length }}"
        "{{ [m.content, 'x'] | join('\n') | length }}"
        "{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    )
    ours = ChatTemplate(source, bos_token=BOS, eos_token=EOS).render([user(text)])
    expected, reason = theirs(source, [user(text)])
    assert reason is None
    assert ours == expected


def test_the_budget_is_per_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STEPS", 1000)
    template = ChatTemplate(LOOP.format("a", ""), bos_token=BOS, eos_token=EOS)
    for _ in range(3):
        assert template.render([user("Hi")]) == ""
    monkeypatch.setattr(limits, "MAX_STEPS", 999)
    with pytest.raises(InvalidRequest, match="loops more than 999 times"):
        template.render([user("Hi")])


def test_messages_must_be_mappings() -> None:
    template = ChatTemplate("x", bos_token=BOS, eos_token=EOS)
    with pytest.raises(InvalidRequest, match="must be a mapping"):
        template.render(["Hi"])  # type: ignore[list-item]


def test_chat_needs_jinja_only_when_it_renders() -> None:
    script = (
        "import sys; from treadle.text.chat import ChatTemplate;"
        "t = ChatTemplate('x', bos_token='', eos_token='');"
        "assert 'jinja2' not in sys.modules; t.render([]); assert 'jinja2' in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
